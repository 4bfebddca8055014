"""The progress of a search on a console: a live table on a terminal, a line for each trial elsewhere."""

import math
import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fastrl.runs.metrics import brief, duration
from fastrl.tuning.pool import Pool
from fastrl.tuning.runner import Phase
from fastrl.tuning.space import Point
from fastrl.tuning.study import Study
from fastrl.tuning.trial import Trial, best_first, read_evaluations
from fastrl.utils.closing import Closing
from fastrl.utils.output import shows_bars
from fastrl.utils.tables import print_lines

# Rows of the best trials in the live table, and seconds between two pictures of it.
_BEST, _INTERVAL = 5, 0.5


class ProgressTable(Closing):
    """Shows how far a search is.

    Args:
        study: of the search.
        console: where.
    """

    def __init__(self, study: Study, console: Console) -> None:
        self._study, self._console = study, console
        self._live = (
            Live(console=console, transient=True, auto_refresh=False) if shows_bars(console) else None
        )
        if self._live is not None:
            self._live.start()
        self._told = {trial.name for trial in study.trials.values() if trial.result is not None}
        self._began = time.monotonic()
        self._ended_before = len(self._told)
        self._shown_at = -math.inf

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, phase: Phase, pool: Pool) -> None:
        """Shows the present state, if it is time to."""
        trials = phase.trials()
        for trial in trials:
            if trial.result is not None and trial.name not in self._told:
                self._told.add(trial.name)
                if self._live is None:
                    print_lines(self._console, self._line(phase, trial))
        now = time.monotonic()
        if self._live is not None and now - self._shown_at >= _INTERVAL:
            self._shown_at = now
            self._live.update(self._picture(phase, pool), refresh=True)

    def _line(self, phase: Phase, trial: Trial) -> str:
        ended = sum(other.result is not None for other in phase.trials())
        assert trial.result is not None, "it has ended"
        what = trial.result.error if trial.result.state == "failed" else brief(trial.result.score)
        left = self.seconds_left(phase)
        eta = "" if math.isnan(left) else f", {duration(left)} left"
        return f"{phase.title} {ended}/{phase.total}{eta}: {trial.name} {trial.result.state}, {what}"

    def seconds_left(self, phase: Phase) -> float:
        """Seconds to the end of a phase, at the pace so far; NaN before a trial has ended."""
        ended = sum(trial.result is not None for trial in phase.trials())
        here = len(self._told) - self._ended_before
        if not here:
            return math.nan
        return (phase.total - ended) * (time.monotonic() - self._began) / here

    def _picture(self, phase: Phase, pool: Pool) -> Table:
        trials = phase.trials()
        running = {trial.name for trial in pool.running()}
        states = [trial.result.state for trial in trials if trial.result is not None]
        left = self.seconds_left(phase)
        title = (
            f"{phase.title}: {len(states)} of {phase.total} trials, {states.count('pruned')} stopped early,"
            f" {states.count('failed')} failed{'' if math.isnan(left) else f', {duration(left)} left'}"
        )
        table = Table(title=title, title_justify="left")
        for name in ("trial", "state", "score", "steps", "settings"):
            table.add_column(
                name, no_wrap=name != "settings", justify="right" if name in ("score", "steps") else "left"
            )
        for trial in trials:
            if trial.name in running:
                table.add_row(trial.name, "running", *self._now(trial), brief_point(trial.point))
        table.add_section()
        for trial in best_first(trials)[:_BEST]:
            assert trial.result is not None, "it is complete"
            table.add_row(
                trial.name,
                "complete",
                brief(trial.score),
                f"{trial.result.steps:,}",
                brief_point(trial.point),
            )
        return table

    def _now(self, trial: Trial) -> tuple[str, str]:
        """Newest score and its step, of a trial that runs."""
        found = read_evaluations(self._study.run_of(trial) / "metrics.jsonl")
        return (brief(found[-1].score), f"{found[-1].steps:,}") if found else ("-", "-")


def brief_value(value: Any) -> str:
    """A value of a setting, with three digits of a fraction."""
    if isinstance(value, float):
        # Of a discount the distance to 1 matters.
        return f"{value:.4g}" if 0.99 < value < 1 else f"{value:.3g}"
    return str(value).lower() if isinstance(value, bool | None) else str(value)


def brief_point(point: Point) -> str:
    """A point in words, without the tables of its settings."""
    return ", ".join(f"{short_name(name)} {brief_value(value)}" for name, value in point.items())


def short_name(name: str) -> str:
    """The name of a parameter without its table."""
    return name.partition(".")[2]
