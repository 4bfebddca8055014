"""The summary of a run: how good, how fast, and where the time went."""

from __future__ import annotations

import dataclasses
import math
import resource
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fastrl.runs.metrics import brief, count, counted, duration
from fastrl.training.callbacks import WINDOW
from fastrl.training.evaluation import Scores
from fastrl.utils.tables import show

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


@dataclasses.dataclass(frozen=True)
class Summary:
    """The end of a run, or of a session of it; totals include earlier sessions.

    Attributes:
        status: whether the run got to its end.
        signal: what interrupted it, such as "SIGINT".
        stopped_by: the callback that ended it before its goal; None: none did.
        run: the run directory.
        checkpoint: the newest checkpoint.
        kind: the task.
        env, algorithm, collector: of the run.
        unit: of the run's goal, "steps", "episodes" or "samples", of which ``steps`` counts those that
            were learned from.
        steps, episodes, iterations: environment steps, episodes that have ended, updates.
        seconds: of wall-clock time in the loop.
        steps_per_second, episodes_per_second: of this session.
        mean_return: of the newest 100 episodes of training; NaN if none has ended.
        device: where the network lived.
        parts: seconds by activity of the learner; with "other" they add up to ``seconds``.
        peak_memory_mib: the most main memory that this process has held, MiB.
        peak_gpu_memory_mib: the most that PyTorch has held on the GPU, MiB; None on a CPU.
        evaluation: scores of the policy at the end; None without an evaluation.
        details: what source, callbacks and task add, JSON values by name.
        lines: the same for people.
    """

    status: Literal["complete", "interrupted"]
    signal: str | None
    run: str
    checkpoint: str
    kind: str
    env: str
    algorithm: str
    collector: str
    unit: str
    steps: int
    episodes: int
    iterations: int
    seconds: float
    steps_per_second: float
    episodes_per_second: float
    mean_return: float
    device: str
    parts: Mapping[str, float]
    peak_memory_mib: float
    peak_gpu_memory_mib: float | None
    stopped_by: str | None = None
    evaluation: Scores | None = None
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    lines: Sequence[RenderableType] = ()

    def to_tree(self) -> dict[str, Any]:
        """All of it but the lines, for JSON; details stand beside the rest."""
        tree = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del tree["lines"], tree["details"]
        tree["parts"] = {
            name: {"seconds": seconds, "share": seconds / self.seconds if self.seconds else 0.0}
            for name, seconds in self.parts.items()
        }
        tree["evaluation"] = None if self.evaluation is None else self.evaluation.to_tree()
        return tree | dict(self.details)

    def print(self, console: Console) -> None:
        """Prints it for people, but for the scores and where the time went."""
        memory = f"{self.peak_memory_mib:,.0f} MiB"
        if self.peak_gpu_memory_mib is not None:
            memory += f" and {self.peak_gpu_memory_mib:,.0f} MiB on the GPU"
        collector = f" ({self.collector})" if self.collector else ""
        steps = "samples" if self.unit == "samples" else "steps"
        episodes = "" if self.unit == "samples" else f" {counted(self.episodes, 'episode')},"
        of_return = ""
        if not math.isnan(self.mean_return):
            last = counted(min(self.episodes, WINDOW), "episode")
            of_return = f"mean return {brief(self.mean_return)} over the last {last}, "
        show(
            console,
            f"{self.algorithm} on {self.env}{collector}: {self.steps:,} {steps},{episodes}"
            f" {counted(self.iterations, 'update')} in {duration(self.seconds)} on {self.device}:"
            f" {count(self.steps_per_second)} {steps}/s",
            *([] if self.stopped_by is None else [f"stopped by callback {self.stopped_by}"]),
            *self.lines,
            f"{of_return}peak memory {memory}",
        )

    def print_times(self, console: Console) -> None:
        """Prints where the learner's time went, in short."""
        if not self.parts:
            return
        from rich import box
        from rich.table import Table

        table = Table(title="where the time went", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
        for name in self.parts:
            table.add_column(name, justify="right")
        table.add_row(*(f"{part:.1f} s" for part in self.parts.values()))
        table.add_row(*(f"{part / (self.seconds or 1):.1%}" for part in self.parts.values()))
        console.print()
        show(console, table)


def peak_memory_mib() -> float:
    """The most main memory that this process has held, MiB. (Linux counts in KiB.)"""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak_gpu_memory_mib(device: str) -> float | None:
    """The most that PyTorch has held on the GPU, MiB; None on a CPU."""
    import torch

    return torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
