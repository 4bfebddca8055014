"""What a run came to: how good, how fast, and where the time went."""

import dataclasses
import resource
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from fastrl.tasks.cage2.evaluate import Evaluation, score_table
from fastrl.training.metrics import brief, count, counted, duration
from fastrl.utils.tables import show

# What the parts of the time are called, in this order; the rest is "other".
PARTS = ("environment", "inference", "buffer", "returns", "update")


@dataclass(frozen=True)
class Summary:
    """The end of a run, or of a session of it.

    Attributes:
        status: whether the run got to its end.
        signal: what interrupted it, such as "SIGINT".
        run: the run directory.
        checkpoint: the newest checkpoint.
        steps, episodes, iterations: done, earlier sessions included.
        seconds: of wall-clock time in the loop, earlier sessions included.
        mean_return: of the last iteration in which episodes ended; NaN if none did.
        device: where the network lived.
        parts: seconds, by what they were spent on; with "other" they add up to ``seconds``.
        peak_memory_mib: the most that this process has held, MiB.
        peak_gpu_memory_mib: the most that PyTorch has held on the GPU; None on a CPU.
        evaluation: None if it was not wanted, or not got to.
    """

    status: Literal["complete", "interrupted"]
    signal: str | None
    run: str
    checkpoint: str
    steps: int
    episodes: int
    iterations: int
    seconds: float
    mean_return: float
    device: str
    parts: Mapping[str, float]
    peak_memory_mib: float
    peak_gpu_memory_mib: float | None
    evaluation: Evaluation | None

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds if self.seconds else 0.0

    def shares(self) -> dict[str, float]:
        """The parts as shares of ``seconds``."""
        return {name: seconds / self.seconds if self.seconds else 0.0 for name, seconds in self.parts.items()}

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        tree = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        shares = self.shares()
        tree["parts"] = {
            name: {"seconds": seconds, "share": shares[name]} for name, seconds in self.parts.items()
        }
        tree["steps_per_second"] = self.steps_per_second
        tree["evaluation"] = None if self.evaluation is None else self.evaluation.to_tree()
        return tree

    def print(self, console: Console) -> None:
        """Shows it to people, but for where the time went."""
        if self.evaluation is not None:
            show(console, score_table(self.evaluation))
            console.print()
        memory = _memory(self.peak_memory_mib, self.peak_gpu_memory_mib)
        show(
            console,
            f"{self.steps:,} steps, {counted(self.episodes, 'episode')} in {duration(self.seconds)}:"
            f" {count(self.steps_per_second)} steps/s on {self.device}\n"
            f"last mean return {brief(self.mean_return)}, peak memory {memory}",
        )

    def print_times(self, console: Console) -> None:
        """Shows where the time went, in short."""
        _print_times(self.parts, self.seconds, console)


@dataclass(frozen=True)
class PixelSummary:
    """The end of a run from pixels, or of a session of it; totals include earlier sessions, shares are of this one.

    Attributes:
        status, signal, run, checkpoint: as in `Summary`.
        env: what was played.
        steps, games, batches: done.
        seconds: of wall-clock time in the loop.
        experience_per_second, batches_per_second: of this session.
        mean_return: of the last games, up to 100, before clipping; NaN without any.
        device: where the network lived.
        collectors, learner: what they spent their time on, as shares.
        dropped, restarts: rows lost on the way to the learner; collectors that died and were replaced.
        peak_memory_mib, peak_gpu_memory_mib: as in `Summary`, of the learner's process.
        evaluation: returns of games without exploration; None if there were none.
    """

    status: Literal["complete", "interrupted"]
    signal: str | None
    run: str
    checkpoint: str
    env: str
    steps: int
    games: int
    batches: int
    seconds: float
    experience_per_second: float
    batches_per_second: float
    mean_return: float
    device: str
    collectors: Mapping[str, float]
    learner: Mapping[str, float]
    dropped: int
    restarts: int
    peak_memory_mib: float
    peak_gpu_memory_mib: float | None
    evaluation: tuple[float, ...] | None

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        tree = dataclasses.asdict(self)
        if self.evaluation is not None:
            tree["evaluation"] = {
                "games": len(self.evaluation),
                "mean": statistics.fmean(self.evaluation),
                "min": min(self.evaluation),
                "max": max(self.evaluation),
                "returns": list(self.evaluation),
            }
        return tree

    def print(self, console: Console) -> None:
        """Shows it to people, but for where the time went."""
        lost = f", {self.dropped:,} rows dropped" if self.dropped else ""
        again = f", {counted(self.restarts, 'collector')} restarted" if self.restarts else ""
        show(
            console,
            f"{self.env}: {self.steps:,} steps, {counted(self.games, 'game')}, {self.batches:,} batches in"
            f" {duration(self.seconds)} on {self.device}: {count(self.experience_per_second)} steps/s,"
            f" {count(self.batches_per_second)} batches/s{lost}{again}\n"
            f"mean return of the last games {brief(self.mean_return)}, peak memory of the learner"
            f" {_memory(self.peak_memory_mib, self.peak_gpu_memory_mib)}",
        )
        if self.evaluation is not None:
            show(
                console,
                f"{counted(len(self.evaluation), 'game')} without exploration: mean return"
                f" {brief(statistics.fmean(self.evaluation))}, from {brief(min(self.evaluation))} to"
                f" {brief(max(self.evaluation))}",
            )

    def print_times(self, console: Console) -> None:
        """Shows where the time went, in short."""
        if not self.learner:
            return
        console.print()
        for who, shares in (("collectors", self.collectors), ("learner", self.learner)):
            parts = {name: f"{name} {share:.1%}" for name, share in shares.items()}
            if "queue" in parts and "waiting" in parts:
                # Waiting for room is part of handing over.
                parts["queue"] += f" ({shares['waiting']:.1%} waiting for room)"
                del parts["waiting"]
            show(console, f"time of the {who}: {', '.join(parts.values())}")


@dataclass(frozen=True)
class GymSummary:
    """The end of a run on any environment, or of a session of it; totals include earlier sessions.

    Attributes:
        status, signal, run, checkpoint: as in `Summary`.
        env, algorithm, collector: what was played, who learnt, who collected.
        steps, episodes, iterations: done.
        seconds: of wall-clock time in the loop.
        steps_per_second: of this session.
        mean_return: of the last row in which episodes ended; NaN if none did.
        device: where the network lived.
        parts: seconds, by what they were spent on; with "other" they add up to ``seconds``.
        workers: seconds of the workers' time in this session, summed over them.
        worker_memory_mib: of each worker; empty without any.
        cold_start: seconds until the first worker could play.
        policy_lag, max_policy_lag: versions that the policies which acted were behind the newest one, mean and highest.
        dropped: fragments that were too old to learn from.
        failures, restarts: of workers.
        peak_memory_mib, peak_gpu_memory_mib: as in `Summary`, of the learner's process.
        evaluation: returns of episodes without exploration; None if there were none.
    """

    status: Literal["complete", "interrupted"]
    signal: str | None
    run: str
    checkpoint: str
    env: str
    algorithm: str
    collector: str
    steps: int
    episodes: int
    iterations: int
    seconds: float
    steps_per_second: float
    mean_return: float
    device: str
    parts: Mapping[str, float]
    workers: Mapping[str, float]
    worker_memory_mib: tuple[float, ...]
    cold_start: float
    policy_lag: float
    max_policy_lag: int
    dropped: int
    failures: int
    restarts: int
    peak_memory_mib: float
    peak_gpu_memory_mib: float | None
    evaluation: tuple[float, ...] | None

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        tree = dataclasses.asdict(self)
        if self.evaluation is not None:
            tree["evaluation"] = evaluation_tree(self.evaluation)
        return tree

    def print(self, console: Console) -> None:
        """Shows it to people, but for where the time went."""
        lines = []
        lines.append(
            f"{self.algorithm} on {self.env} ({self.collector}): {self.steps:,} steps,"
            f" {counted(self.episodes, 'episode')}, {counted(self.iterations, 'update')} in"
            f" {duration(self.seconds)} on {self.device}:"
            f" {count(self.steps_per_second)} steps/s"
        )
        if self.worker_memory_mib:
            lines.append(about_workers(self.worker_memory_mib, self.cold_start, self.workers))
        if self.max_policy_lag or self.dropped:
            lines.append(
                f"policy lag {self.policy_lag:.2f} updates on average, {self.max_policy_lag} at most,"
                f" {self.dropped:,} fragments dropped as too old"
            )
        if self.failures or self.restarts:
            lines.append(
                f"{counted(self.failures, 'failure')} of workers, {counted(self.restarts, 'restart')}"
            )
        lines.append(
            f"last mean return {brief(self.mean_return)}, peak memory of the learner"
            f" {_memory(self.peak_memory_mib, self.peak_gpu_memory_mib)}"
        )
        if self.evaluation is not None:
            lines.append(f"without exploration, {evaluation_line(self.evaluation)}")
        show(console, *lines)

    def print_times(self, console: Console) -> None:
        """Shows where the time went, in short."""
        _print_times(self.parts, self.seconds, console)


def about_workers(memory_mib: Sequence[float], cold_start: float, seconds: Mapping[str, float]) -> str:
    """How many there were, when they were ready, the memory of each and what they spent their time on."""
    memory = ", ".join(f"{each:,.0f}" for each in memory_mib)
    total = sum(seconds.values()) or 1.0
    shares = ", ".join(f"{name} {each / total:.1%}" for name, each in seconds.items())
    workers = counted(len(memory_mib), "worker")
    return f"{workers}, ready after {cold_start:.1f} s, memory {memory} MiB; their time: {shares}"


def evaluation_tree(returns: Sequence[float]) -> dict[str, Any]:
    """Returns of episodes, for JSON."""
    return {
        "episodes": len(returns),
        "mean": statistics.fmean(returns),
        "min": min(returns),
        "max": max(returns),
        "returns": list(returns),
    }


def evaluation_line(returns: Sequence[float]) -> str:
    """The same in words."""
    return (
        f"{counted(len(returns), 'episode')}: mean return {brief(statistics.fmean(returns))},"
        f" from {brief(min(returns))} to {brief(max(returns))}"
    )


def _print_times(parts: Mapping[str, float], seconds: float, console: Console) -> None:
    if not parts:
        return
    table = Table(
        title="where the time went",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    for name in parts:
        table.add_column(name, justify="right")
    table.add_row(*(f"{part:.1f} s" for part in parts.values()))
    table.add_row(*(f"{part / seconds if seconds else 0:.1%}" for part in parts.values()))
    console.print()
    show(console, table)


def _memory(main: float, gpu: float | None) -> str:
    return f"{main:,.0f} MiB" + ("" if gpu is None else f" and {gpu:,.0f} MiB on the GPU")


def with_other(parts: Mapping[str, float], seconds: float) -> dict[str, float]:
    """The parts in their order, and the rest of ``seconds`` as "other"."""
    if not parts:
        return {}
    named = {name: parts.get(name, 0.0) for name in (*PARTS, *(part for part in parts if part not in PARTS))}
    return named | {"other": max(seconds - sum(parts.values()), 0.0)}


def peak_memory_mib() -> float:
    """The most that this process has held in main memory, MiB. (Linux counts in KiB.)"""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak_gpu_memory_mib(device: str) -> float | None:
    return torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
