"""Rows of metrics, a kind for each kind of run, and numbers for people."""

import dataclasses
import math
from collections.abc import Mapping

Number = float | int


@dataclasses.dataclass(frozen=True)
class Row:
    """What was done since the last row of a run, in numbers.

    Attributes:
        steps: environment steps since the beginning of the run.
    """

    steps: int

    @property
    def done(self) -> int:
        """What of the run's total is done; it counts steps, unless a kind of run says otherwise."""
        return self.steps

    def groups(self) -> dict[str, dict[str, Number]]:
        """All numbers but ``steps``, by group and name."""
        raise NotImplementedError

    def highlights(self) -> list[str]:
        """Those that a line on a console shows, as text."""
        raise NotImplementedError

    def record(self) -> dict[str, Number]:
        """All numbers in one dict, ``steps`` first."""
        record: dict[str, Number] = {"steps": self.steps}
        for group in self.groups().values():
            record |= group
        return record


@dataclasses.dataclass(frozen=True)
class TrainRow(Row):
    """What one iteration of training, a collection and an update, did.

    Attributes:
        iteration: iterations since then.
        episodes: episodes that have ended since then.
        mean_return, mean_length: of the episodes that ended in this iteration; NaN if none did.
        returns: mean return against each red agent that episodes ended against, by name.
        losses: the algorithm's own numbers, by name.
        seconds: wall-clock time of the run so far, without breaks between resumptions.
        steps_per_second: of this iteration.
        parts: seconds of this iteration, by what they were spent on.
        shares: of this iteration's time, as ``fastrl.training.profiler.Profile.lap`` tells them.
    """

    iteration: int
    episodes: int
    mean_return: float
    mean_length: float
    returns: Mapping[str, float]
    losses: Mapping[str, Number]
    seconds: float
    steps_per_second: float
    parts: Mapping[str, float]
    shares: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def groups(self) -> dict[str, dict[str, Number]]:
        return {
            "episode": {
                "episodes": self.episodes,
                "mean_return": self.mean_return,
                "mean_length": self.mean_length,
                **{f"mean_return_{name}": value for name, value in self.returns.items()},
            },
            "ppo": dict(self.losses),
            "time": {
                "iteration": self.iteration,
                "seconds": self.seconds,
                "steps_per_second": self.steps_per_second,
                **{f"seconds_{name}": value for name, value in self.parts.items()},
                **_named_shares(self.shares),
            },
        }

    def highlights(self) -> list[str]:
        labels = {"policy_loss": "policy", "value_loss": "value", "entropy": "entropy", "approx_kl": "kl"}
        return [
            f"return {brief(self.mean_return)}",
            *(f"{label} {brief(self.losses[name])}" for name, label in labels.items() if name in self.losses),
        ]


@dataclasses.dataclass(frozen=True)
class PixelRow(Row):
    """What collectors and learner of a pixel run did since the last row; totals are since the beginning of the run.

    Attributes:
        games, batches: totals: games that have ended, batches learnt from.
        mean_return, mean_length: of the games that ended since the last row, before clipping; NaN without any.
        epsilon: share of random actions now.
        losses: the algorithm's own numbers, by name.
        seconds: wall-clock time of the run so far, without breaks between resumptions.
        experience_per_second, batches_per_second: environment steps taken in; batches learnt from.
        queue_depth: rows on their way from collectors to the learner.
        dropped: rows lost on that way, in all.
        replay_fill: share of the replay's capacity.
        policy_lag: how many publications behind the newest weights the actions taken in were chosen; mean.
        collectors: what the collectors spent their time on, as shares: ``environment``, ``inference``, ``queue``
            (handing over), of which ``waiting`` for room.
        learner: the same of the learner's time: ``waiting`` for experience, ``sampling``, ``update``...
        restarts: collectors that died and were replaced, in all.
        gpu_use: share of the time in which the GPU computed; None without one.
        shares: of the time since the last row, as ``fastrl.training.profiler.Profile.lap`` tells them.
    """

    games: int
    batches: int
    mean_return: float
    mean_length: float
    epsilon: float
    losses: Mapping[str, Number]
    seconds: float
    experience_per_second: float
    batches_per_second: float
    queue_depth: int
    dropped: int
    replay_fill: float
    policy_lag: float
    collectors: Mapping[str, float]
    learner: Mapping[str, float]
    restarts: int
    gpu_use: float | None
    shares: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def groups(self) -> dict[str, dict[str, Number]]:
        return {
            "episode": {
                "games": self.games,
                "mean_return": self.mean_return,
                "mean_length": self.mean_length,
                "epsilon": self.epsilon,
            },
            "dqn": dict(self.losses),
            "flow": {
                "experience_per_second": self.experience_per_second,
                "batches_per_second": self.batches_per_second,
                "batches": self.batches,
                "queue_depth": self.queue_depth,
                "dropped": self.dropped,
                "replay_fill": self.replay_fill,
                "policy_lag": self.policy_lag,
                "restarts": self.restarts,
            },
            "time": {
                "seconds": self.seconds,
                **{f"collectors_{name}": share for name, share in self.collectors.items()},
                **{f"learner_{name}": share for name, share in self.learner.items()},
                **({} if self.gpu_use is None else {"gpu_use": self.gpu_use}),
                **_named_shares(self.shares),
            },
        }

    def highlights(self) -> list[str]:
        numbers = [
            f"{count(self.batches_per_second)} batches/s",
            f"return {brief(self.mean_return)}",
            f"loss {brief(self.losses.get('loss', math.nan))}",
            f"epsilon {self.epsilon:.2f}",
            f"replay {self.replay_fill:.0%}",
            f"lag {brief(self.policy_lag)}",
            f"queue {self.queue_depth} (collectors wait {self.collectors.get('waiting', 0.0):.1%})",
            f"learner waits {self.learner.get('waiting', 0.0):.0%}",
        ]
        if self.dropped:
            numbers.append(f"dropped {self.dropped}")
        return numbers if self.gpu_use is None else [*numbers, f"GPU {self.gpu_use:.0%}"]


@dataclasses.dataclass(frozen=True)
class GymRow(Row):
    """What collector and learner did since the last row, on any environment. Totals are since the run began.

    Attributes:
        iteration, episodes: totals: updates, episodes that have ended.
        mean_return, mean_length: of the episodes that ended since the last row; NaN without any.
        losses: the algorithm's own numbers of the last update, by name.
        policy_lag, max_policy_lag: how many versions behind the newest one the policies were that chose the actions
            learnt from, mean and highest.
        dropped: total: fragments that were too old to learn from.
        failures, restarts: totals: of workers.
        worker_memory_mib: of the largest worker; 0 without any.
        seconds: wall-clock time of the run so far, without breaks between resumptions.
        steps_per_second: since the last row.
        parts: seconds since the last row, by what they were spent on.
        workers: the same of the workers' time, summed over them.
        shares: of ``parts`` and ``workers`` in their time.
    """

    iteration: int
    episodes: int
    mean_return: float
    mean_length: float
    losses: Mapping[str, Number]
    policy_lag: float
    max_policy_lag: int
    dropped: int
    failures: int
    restarts: int
    worker_memory_mib: float
    seconds: float
    steps_per_second: float
    parts: Mapping[str, float]
    workers: Mapping[str, float]
    shares: Mapping[str, float]

    def groups(self) -> dict[str, dict[str, Number]]:
        return {
            "episode": {
                "episodes": self.episodes,
                "mean_return": self.mean_return,
                "mean_length": self.mean_length,
            },
            "algorithm": dict(self.losses),
            "collect": {
                "policy_lag": self.policy_lag,
                "max_policy_lag": self.max_policy_lag,
                "dropped": self.dropped,
                "failures": self.failures,
                "restarts": self.restarts,
                "worker_memory_mib": self.worker_memory_mib,
            },
            "time": {
                "iteration": self.iteration,
                "seconds": self.seconds,
                "steps_per_second": self.steps_per_second,
                **{f"seconds_{name}": value for name, value in self.parts.items()},
                **{f"seconds_workers_{name}": value for name, value in self.workers.items()},
                **_named_shares(self.shares),
            },
        }

    def highlights(self) -> list[str]:
        numbers = [
            f"return {brief(self.mean_return)}",
            f"length {brief(self.mean_length)}",
            f"entropy {brief(self.losses.get('entropy', math.nan))}",
        ]
        if self.max_policy_lag:
            numbers.append(f"lag {brief(self.policy_lag)}")
        counts = {"dropped": self.dropped, "failures": self.failures, "restarts": self.restarts}
        return numbers + [f"{name} {number}" for name, number in counts.items() if number]


def _named_shares(shares: Mapping[str, float]) -> dict[str, Number]:
    return {f"share_{name}": share for name, share in shares.items()}


def percent(value: float) -> str:
    """``12%``; ``-`` for NaN."""
    return "-" if math.isnan(value) else f"{value:.0%}"


def brief(value: float) -> str:
    """Three significant digits or so; ``-`` for NaN."""
    if math.isnan(value):
        return "-"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def count(value: float) -> str:
    """``1.2M``, ``45.3k``, ``678``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{letter}"
    return f"{value:.0f}"


def rate(value: float) -> str:
    """As `count`, with digits behind the point below 10: ``0.23``."""
    return brief(value) if 0 < value < 10 else count(value)


def counted(number: int, noun: str) -> str:
    """``1 vehicle``, ``2,000 vehicles``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """``1:02:03`` or ``2:03``; ``-:--`` for NaN."""
    if not math.isfinite(seconds):
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
