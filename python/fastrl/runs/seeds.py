"""Runs that differ in their seed alone, side by side.

Each is trained by a process of its own, a copy (fork) of one that has loaded PyTorch: they have one PyTorch in memory,
share no state, and need no second to start.
"""

import contextlib
import functools
import math
import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fastrl.runs.listing import RunInfo, read_run, read_summary, score_in
from fastrl.runs.metrics import brief, moments, spread
from fastrl.utils import child_process
from fastrl.utils.child_process import Child
from fastrl.utils.errors import UserError
from fastrl.utils.files import MAX_LINE_BYTES, append_file, read_lines, to_json, write_atomically
from fastrl.utils.tables import print_lines, show

# Trains a run, see `train_seeds`.
Train = Callable[[Sequence[str], Path, Connection], None]

_STATES = ("complete", "failed", "interrupted", "running", "waiting")

# The most seconds between two checks of the runs, and that a run has to save its checkpoint when all are stopped.
_INTERVAL, _GRACE = 0.5, 10.0


@dataclass
class SeedRun:
    """A run of one seed.

    Attributes:
        seed: its random seed.
        path: its run directory.
        arguments: of the command that starts or resumes it; None: it is complete.
        state: one of `_STATES`.
    """

    seed: int
    path: Path
    arguments: Sequence[str] | None
    state: str = "waiting"
    process: Child | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        """The file with what the process prints."""
        return self.path.with_name(f"{self.path.name}.log")

    def start(self, train: Train, preload: Sequence[str]) -> None:
        """Starts the process.

        Args:
            train, preload: as of `train_seeds`.

        Raises:
            DamagedFileError: the log is not to be written to.
        """
        append_file(self.log).close()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(preload))
        name = f"seed {self.seed}"
        # It uses as many threads as it would alone.
        self.process = Child.worker(context, train, self.arguments, self.log, name=name, one_thread=False)
        self.state = "running"

    def look(self) -> bool:
        """Notes whether the process has ended; True if it has ended just now."""
        code = None if self.process is None else self.process.code
        if code is None or self.state != "running":
            return False
        stopped = code - 128 in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) or code < 0
        self.state = "complete" if code == 0 else "interrupted" if stopped else "failed"
        if code == 0 and ((info := self.info()) is None or info.state != "complete"):
            # Something else may have run in place of fastrl.
            self.state = "failed"
        return True

    def info(self) -> RunInfo | None:
        """Settings, progress and state of the run; None before it has started."""
        with contextlib.suppress(OSError, UserError):
            return read_run(self.path)
        return None

    def score(self) -> float:
        """Score of the evaluation at the end; NaN without one."""
        return score_in(read_summary(self.path))

    def last_words(self) -> str:
        """The last line that the process printed."""
        lines = [line for line in map(str.strip, read_lines(self.log, start=-MAX_LINE_BYTES)) if line]
        return lines[-1] if lines else "it printed nothing"


def train_seeds(
    runs: Sequence[SeedRun], jobs: int, console: Console, train: Train, preload: Sequence[str]
) -> signal.Signals | None:
    """Trains all runs, ``jobs`` at a time, with a live table.

    Args:
        train: trains a run in a process of its own. It is given the arguments, the file for what it prints, and a pipe
            that it does not need; it ends with the exit code, and once this process has ended.
        preload: modules that are loaded once for all processes.

    Returns:
        The signal that stopped them; None if all have ended by themselves.
    """
    from fastrl.utils.interrupts import StopSignals

    for run in runs:
        if run.arguments is None:
            run.state = "complete"
    with StopSignals() as stop, Live(console=console, transient=True, auto_refresh=False) as live:
        try:
            while any(run.state in ("waiting", "running") for run in runs):
                for run in runs:
                    if run.look() and not console.is_terminal:
                        print_lines(console, f"seed {run.seed}: {run.state} ({_counts(runs)})")
                stop.pass_on(functools.partial(_stop, runs))
                free = jobs - sum(run.state == "running" for run in runs)
                for run in [run for run in runs if run.state == "waiting"][:free]:
                    run.start(train, preload)
                if console.is_terminal:
                    live.update(table_of(runs), refresh=True)
                working = [run.process.sentinel for run in runs if run.process and run.state == "running"]
                if working:
                    connection.wait(working, _INTERVAL)
        finally:
            # Those that still run, after a second Ctrl-C or an error.
            child_process.end([run.process for run in runs if run.process], _GRACE, signal.SIGTERM)
    return stop.received


def _stop(runs: Sequence[SeedRun], number: signal.Signals) -> None:
    for run in runs:
        if run.state == "waiting":
            run.state = "interrupted"
        elif run.process is not None:
            run.process.send_signal(number)


def table_of(runs: Sequence[SeedRun]) -> Table:
    """A row for each run, and mean and standard deviation over runs."""
    infos = [run.info() for run in runs]
    lasts = [math.nan if info is None else info.last_return for info in infos]
    scores = [run.score() for run in runs]
    table = Table(show_footer=True, caption=_counts(runs))
    table.add_column("seed", "mean ± deviation", justify="right", no_wrap=True)
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("last return", spread(lasts, "deviation"), justify="right", no_wrap=True)
    table.add_column("evaluation", spread(scores, "deviation"), justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for run, info, last, score in zip(runs, infos, lasts, scores, strict=True):
        steps = "-" if info is None else f"{info.steps:,}"
        table.add_row(str(run.seed), steps, brief(last), brief(score), run.state)
    return table


def _counts(runs: Sequence[SeedRun]) -> str:
    """The states of all runs in one line: ``3 complete, 2 running, 5 waiting``."""
    counts = Counter(run.state for run in runs)
    return ", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state])


def summarise(runs: Sequence[SeedRun], path: Path, console: Console) -> None:
    """Prints the table of the runs and the last words of those that failed; writes ``seeds.json`` beside them."""
    show(console, table_of(runs))
    for run in runs:
        if run.state == "failed":
            print_lines(console, f"seed {run.seed} failed: {run.last_words()} ({run.log})")
    infos = [run.info() for run in runs]
    lasts = [math.nan if info is None else info.last_return for info in infos]
    scores = [run.score() for run in runs]
    tree = {
        "runs": [
            {
                "seed": run.seed,
                "run": str(run.path),
                "state": run.state,
                "last_return": last,
                "evaluation": score,
            }
            for run, last, score in zip(runs, lasts, scores, strict=True)
        ],
        "last_return": moments(lasts),
        "evaluation": moments(scores),
    }
    write_atomically(path / "seeds.json", to_json(tree, indent=2).encode())
