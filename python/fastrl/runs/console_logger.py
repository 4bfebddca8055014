"""The console as a logger: a progress bar with numbers, or lines from time to time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastrl.runs.logger import LoggedRun, Logger, Shown
from fastrl.runs.metrics import brief, count, duration, rate
from fastrl.runs.row import Number, Row
from fastrl.utils.output import shows_bars
from fastrl.utils.tables import print_lines

if TYPE_CHECKING:
    from rich.live import Live

    from fastrl.utils.notebook_bar import NotebookBar


def _if_any(text: str) -> Callable[[float], str]:
    return lambda value: text.format(brief(value)) if value else ""


# Texts of the metrics that a console shows of any run, in this order; of some nothing where they are 0.
_SHOWN: Shown = {
    "rollout/ep_rew_mean": lambda value: f"return {brief(value)}",
    "train/loss": lambda value: f"loss {brief(value)}",
    "train/accuracy": lambda value: f"accuracy {brief(value)}",
    "train/mean_square_error": lambda value: f"mean_square_error {brief(value)}",
    "train/value_loss": lambda value: f"value_loss {brief(value)}",
    "train/entropy": lambda value: f"entropy {brief(value)}",
    "train/approx_kl": lambda value: f"approx_kl {brief(value)}",
    "dataset/epoch": lambda value: f"epoch {value:.1f}",
    "dataset/validation_loss": lambda value: f"validation loss {brief(value)}",
    "dataset/validation_accuracy": lambda value: f"validation accuracy {brief(value)}",
    "dataset/validation_mean_square_error": lambda value: f"validation mean_square_error {brief(value)}",
    "time/updates_per_second": lambda value: f"{count(value)} updates/s",
    "rollout/exploration_rate": lambda value: f"epsilon {value:.2f}",
    "collect/replay_fill": lambda value: f"replay {value:.0%}",
    "collect/pretrain_steps": lambda value: f"pre-training {value:,}",
    "collect/staleness": _if_any("staleness {}"),
    "collect/simulated": lambda value: "" if value else "waiting for the first fragment",
    "collect/policy_age_seconds": _if_any("policy age {} s"),
    "collect/missed": lambda value: f"late {value:,}",
    "collect/dropped": lambda value: f"dropped {value:,}" if value else "",
    "collect/failures": lambda value: f"failures {value:,}" if value else "",
    "collect/restarts": lambda value: f"restarts {value:,}" if value else "",
    "eval/mean_reward": lambda value: f"evaluation {brief(value)}",
}


class Highlights:
    """Texts of the metrics that a console shows; of one that is NaN, the last one that was known.

    Args:
        shown: texts of further metrics.
    """

    def __init__(self, shown: Shown | None = None) -> None:
        self._shown = {**_SHOWN, **(shown or {})}
        self._known: dict[str, float] = {}

    def of(self, metrics: Mapping[str, Number]) -> list[str]:
        """The texts for a row; none of what has not been known yet."""
        there = [name for name in self._shown if name in metrics]
        self._known |= {name: metrics[name] for name in there if not math.isnan(metrics[name])}
        texts = [self._shown[name](self._known[name]) for name in there if name in self._known]
        return [text for text in texts if text]


class ConsoleLogger(Logger):
    """A progress bar with a line of numbers on a terminal and in notebooks; elsewhere a line every ``interval``
    seconds.

    Args:
        interval: seconds between lines where there is no terminal.
    """

    def __init__(self, run: LoggedRun, interval: float = 10.0) -> None:
        console, total, done, unit = run.console, run.total, run.done, run.unit
        self._console = console
        self._total = total
        self._unit = unit
        self._interval = interval
        self._printed_at = -math.inf
        self._unprinted: Row | None = None
        self._pace, self._shown = Pace(done), Highlights(run.shown)
        self._live: Live | None = None
        self._notebook: NotebookBar | None = None
        if console.is_jupyter and not console.quiet:
            from fastrl.utils.notebook_bar import NotebookBar

            self._notebook = NotebookBar()
        elif shows_bars(console):
            from rich.live import Live
            from rich.progress import BarColumn, Progress, TextColumn

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

    def log(self, row: Row) -> None:
        self._pace.add(row.done)
        if self._live is not None:
            from rich.console import Group
            from rich.text import Text

            self._bar.update(self._task, **self._fields(row.done))
            lines = Text("\n".join(_lines(self._highlights(row), self._console.width)), overflow="fold")
            self._live.update(Group(self._bar, lines))
        elif self._notebook is not None:
            fields, highlights = self._fields(row.done), "  ".join(self._highlights(row)[1:])
            text = f"{fields['done']}  {rate(self._pace.speed)} {self._unit}/s  {fields['left']} left"
            self._notebook.show(row.done / self._total, f"{text}\n{highlights}")
        elif time.monotonic() - self._printed_at >= self._interval:
            self._print_row(row)
        else:
            self._unprinted = row

    def _print_row(self, row: Row) -> None:
        self._unprinted = None
        self._printed_at = time.monotonic()
        share = f"{row.done:,} {self._unit} ({min(row.done / self._total, 1):.0%})"
        print_lines(self._console, "  ".join([share, *self._highlights(row), f"{self._left(row.done)} left"]))

    def _fields(self, done: int) -> dict[str, Any]:
        return {
            "completed": done,
            "done": f"{count(done)}/{count(self._total)} {self._unit}",
            "left": self._left(done),
        }

    def _left(self, done: int) -> str:
        # The last rollout may exceed the total.
        return duration(max(self._total - done, 0) / self._pace.speed if self._pace.speed else math.nan)

    def _highlights(self, row: Row) -> list[str]:
        return [f"{rate(self._pace.speed)} {self._unit}/s", *self._shown.of(row.metrics)]

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._notebook is not None:
            self._notebook.close()
        elif self._unprinted is not None:
            self._print_row(self._unprinted)


def _lines(texts: list[str], width: int) -> list[str]:
    """Texts beside each other, in as many lines as they need."""
    lines = texts[:1]
    for text in texts[1:]:
        if len(lines[-1]) + 2 + len(text) <= width:
            lines[-1] += f"  {text}"
        else:
            lines.append(text)
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
