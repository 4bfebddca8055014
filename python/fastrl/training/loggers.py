"""Loggers: a console, a JSON Lines file, TensorBoard, and classes of the user's own."""

import importlib
import inspect
import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text
from tensorboardX import SummaryWriter

from fastrl.training.metrics import count, duration, rate
from fastrl.training.row import STEPS, Row
from fastrl.training.run_directory import RunDirectory
from fastrl.utils.errors import UserError
from fastrl.utils.files import to_json, write_atomically
from fastrl.utils.tables import print_lines


@dataclass(frozen=True)
class LoggedRun:
    """Arguments that a logger is started with.

    Attributes:
        directory: of the run; None: nothing is written.
        after: environment steps of the checkpoint that the run resumes from; 0 for a new run. What was logged after it
            is void.
        total, done: the run's goal, and how much of it is done, both in ``unit``.
        unit: "steps" or "episodes".
        settings: of the run, for loggers that show them.
        console: for people.
    """

    directory: RunDirectory | None
    after: int = 0
    total: int = 1
    done: int = 0
    unit: str = "steps"
    settings: Any = None
    console: Console = field(default_factory=lambda: Console(quiet=True))


class Logger(ABC):
    """Takes the rows of a run, one after the other.

    A new logger is one subclass: in this module with a ``name`` that ``--run.loggers`` knows it by, or anywhere else,
    where ``--run.loggers my_module:MyLogger`` finds it.

    Args:
        run: that it is started with.
    """

    name: ClassVar[str]

    @abstractmethod
    def __init__(self, run: LoggedRun) -> None: ...

    @abstractmethod
    def write(self, row: Row) -> None:
        """Logs a row."""

    def flush(self) -> None:  # noqa: B027 - nothing to flush for most loggers
        """Makes sure that what was written survives a crash."""

    def close(self) -> None:  # noqa: B027 - nothing to close for most loggers
        """Ends the logger; called once."""


class LoggerError(UserError, ValueError):
    """A name or import path that is no logger."""


def start_loggers(names: Sequence[str], run: LoggedRun) -> list[Logger]:
    """Starts loggers by name, or import path such as ``my_module:MyLogger``.

    Raises:
        LoggerError: there is no such logger.
    """
    return [_find(name)(run) for name in names]


def _find(name: str) -> type[Logger]:
    known = {logger.name: logger for logger in globals().values() if _is_logger(logger)}
    path, colon, attribute = name.partition(":")
    if name in known or not colon:
        if name not in known:
            raise LoggerError(
                f"run.loggers should be of {', '.join(sorted(known))}, or module:Class of your own; got {name!r}"
            )
        return known[name]
    try:
        own: type[Logger] = getattr(importlib.import_module(path), attribute)
    except (ImportError, AttributeError) as error:
        raise LoggerError(f"run.loggers {name}: {error}") from None
    if not _is_logger(own):
        raise LoggerError(f"run.loggers {name}: should be a subclass of fastrl.training.loggers.Logger")
    return own


def _is_logger(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Logger) and value is not Logger


class JsonlLogger(Logger):
    """One JSON object a line, in ``metrics.jsonl``. A resumed run first drops the rows after its checkpoint, and a
    half-written last line."""

    name = "jsonl"

    def __init__(self, run: LoggedRun) -> None:
        assert run.directory is not None, "it writes to the run directory"
        path = run.directory.metrics
        kept = list(_rows_until(path, run.after)) if path.exists() else []
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
                if not line.endswith("\n") or json.loads(line)[STEPS] > steps:
                    return
            except (ValueError, KeyError, TypeError):
                return
            yield line


class TensorBoardLogger(Logger):
    """Event files for TensorBoard. What was logged there before is hidden if it came after the checkpoint."""

    name = "tensorboard"

    def __init__(self, run: LoggedRun) -> None:
        assert run.directory is not None, "it writes to the run directory"
        self._writer = SummaryWriter(
            str(run.directory.tensorboard), purge_step=run.after + 1, write_to_disk=True, flush_secs=10
        )

    def write(self, row: Row) -> None:
        for name, number in row.numbers.items():
            if math.isfinite(number):
                self._writer.add_scalar(name, number, row.steps)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class ConsoleLogger(Logger):
    """A progress bar with a line of numbers on a terminal; elsewhere a line every ``interval`` seconds.

    Args:
        interval: seconds between lines where there is no terminal.
    """

    name = "console"

    def __init__(self, run: LoggedRun, interval: float = 10.0) -> None:
        console, total, done, unit = run.console, run.total, run.done, run.unit
        self._console = console
        self._total = total
        self._unit = unit
        self._interval = interval
        self._printed_at = -math.inf
        self._unprinted: Row | None = None
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
        elif time.monotonic() - self._printed_at >= self._interval:
            self._print_row(row)
        else:
            self._unprinted = row

    def show(self, done: int) -> None:
        """Shows the progress between rows that are far apart."""
        self._pace.add(done)
        if self._live is not None:
            self._bar.update(self._task, **self._fields(done))
        elif time.monotonic() - self._printed_at >= self._interval:
            self._print(done, [f"{rate(self._pace.speed)} {self._unit}/s"])

    def _print_row(self, row: Row) -> None:
        self._unprinted = None
        self._print(row.done, self._numbers(row))

    def _print(self, done: int, numbers: list[str]) -> None:
        self._printed_at = time.monotonic()
        share = f"{done:,} {self._unit} ({min(done / self._total, 1):.0%})"
        print_lines(self._console, "  ".join([share, *numbers, f"{self._left(done)} left"]))

    def _fields(self, done: int) -> dict[str, Any]:
        return {
            "completed": done,
            "done": f"{count(done)}/{count(self._total)} {self._unit}",
            "left": self._left(done),
        }

    def _left(self, done: int) -> str:
        # The last rollout may exceed the total.
        return duration(max(self._total - done, 0) / self._pace.speed if self._pace.speed else math.nan)

    def _numbers(self, row: Row) -> list[str]:
        return [f"{rate(self._pace.speed)} {self._unit}/s", *row.highlights]

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._unprinted is not None:
            self._print_row(self._unprinted)


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
