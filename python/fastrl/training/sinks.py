"""Where the rows of a run's metrics go: a console, a JSON Lines file, TensorBoard."""

import json
import math
import os
import time
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text
from tensorboardX import SummaryWriter

from fastrl.training.metrics import Row, count, duration, rate
from fastrl.utils.files import to_json, write_atomically


class Sink(Protocol):
    """Takes the rows of a run, one after the other."""

    def write(self, row: Row) -> None: ...

    def flush(self) -> None:
        """Makes sure that what was written survives a crash."""
        ...

    def close(self) -> None: ...


class JsonlSink:
    """One JSON object a line.

    A run that goes on from a checkpoint first drops the rows after it, and a half-written last line.

    Args:
        path: the file.
        after: the step of the checkpoint; 0 begins a new file.
    """

    def __init__(self, path: Path, after: int = 0) -> None:
        kept = list(_rows_until(path, after)) if path.exists() else []
        write_atomically(path, "".join(kept).encode())
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: Row) -> None:
        self._file.write(to_json(row.record()) + "\n")
        self._file.flush()

    def flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _rows_until(path: Path, steps: int) -> Any:
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                if not line.endswith("\n") or json.loads(line)["steps"] > steps:
                    return
            except (ValueError, KeyError, TypeError):
                return
            yield line


class TensorBoardSink:
    """Event files for TensorBoard. What was logged there before is hidden if it came after the checkpoint.

    Args:
        directory: where the event files go.
        after: the step of the checkpoint; 0 for a run that begins.
    """

    def __init__(self, directory: Path, after: int = 0) -> None:
        self._writer = SummaryWriter(str(directory), purge_step=after + 1, write_to_disk=True, flush_secs=10)

    def write(self, row: Row) -> None:
        for group, numbers in row.groups().items():
            for name, number in numbers.items():
                if math.isfinite(number):
                    self._writer.add_scalar(f"{group}/{name}", number, row.steps)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class ConsoleSink:
    """A progress bar with a line of numbers on a terminal; elsewhere a line now and then.

    Args:
        console: where to.
        total: at which the run ends.
        done: where it begins.
        interval: seconds between lines where there is no terminal.
        unit: what ``total`` and ``done`` count.
    """

    def __init__(
        self, console: Console, total: int, done: int = 0, interval: float = 10.0, unit: str = "steps"
    ) -> None:
        self._console = console
        self._total = total
        self._unit = unit
        self._interval = interval
        self._told_at = -math.inf
        self._untold: Row | None = None
        self._pace = Pace(done)
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._bar = Progress(
                BarColumn(bar_width=None),
                TextColumn("{task.percentage:>3.0f}%"),
                TextColumn("{task.fields[done]}"),
                TextColumn("{task.fields[left]} left"),
                console=console,
                expand=True,
            )
            self._task = self._bar.add_task("", total=total, **self._fields(done))
            self._live = Live(self._bar, console=console, refresh_per_second=4)
            self._live.start()

    def write(self, row: Row) -> None:
        self._pace.add(row.done)
        if self._live is not None:
            self._bar.update(self._task, **self._fields(row.done))
            lines = Text("\n".join(_lines(self._numbers(row), self._console.width)), overflow="fold")
            self._live.update(Group(self._bar, lines))
        elif time.monotonic() - self._told_at >= self._interval:
            self._tell(row)
        else:
            self._untold = row

    def show(self, done: int) -> None:
        """Shows how much is done by now, where the next row is far away."""
        self._pace.add(done)
        if self._live is not None:
            self._bar.update(self._task, **self._fields(done))
        elif time.monotonic() - self._told_at >= self._interval:
            self._print(done, [f"{rate(self._pace.speed)} {self._unit}/s"])

    def _tell(self, row: Row) -> None:
        self._untold = None
        self._print(row.done, self._numbers(row))

    def _print(self, done: int, numbers: list[str]) -> None:
        self._told_at = time.monotonic()
        share = f"{done:,} {self._unit} ({min(done / self._total, 1):.0%})"
        self._console.print(
            "  ".join([share, *numbers, f"{self._left(done)} left"]), highlight=False, soft_wrap=True
        )

    def _fields(self, done: int) -> dict[str, Any]:
        return {
            "completed": done,
            "done": f"{count(done)}/{count(self._total)} {self._unit}",
            "left": self._left(done),
        }

    def _left(self, done: int) -> str:
        # The last rollout may go beyond the total.
        return duration(max(self._total - done, 0) / self._pace.speed if self._pace.speed else math.nan)

    def _numbers(self, row: Row) -> list[str]:
        return [f"{rate(self._pace.speed)} {self._unit}/s", *row.highlights()]

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._untold is not None:
            self._tell(self._untold)


def _lines(parts: list[str], width: int) -> list[str]:
    """Parts beside each other, in as many lines as they need."""
    lines = parts[:1]
    for part in parts[1:]:
        if len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines


class Pace:
    """Steps, or whatever is counted, a second over the last iterations.

    Args:
        done: at the beginning.
    """

    def __init__(self, done: int) -> None:
        self._points = [(time.monotonic(), done)]
        self.speed = 0.0

    def add(self, done: int) -> None:
        """Takes in how many are done by now."""
        self._points = [*self._points[-20:], (time.monotonic(), done)]
        seconds = self._points[-1][0] - self._points[0][0]
        self.speed = (done - self._points[0][1]) / seconds if seconds > 0 else 0.0
