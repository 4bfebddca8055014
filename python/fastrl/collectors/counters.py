"""Shared counters: a few numbers in shared memory that collecting processes and their learner exchange."""

import ctypes
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

# The newest ended episodes of each collector that are kept between two calls of `SharedCounters.new_episodes`.
KEPT_EPISODES = 256

_LEARNER = np.dtype([("steps", np.int64), ("stop", np.int64)])
_COLLECTOR = np.dtype(
    [
        ("steps", np.int64),
        ("version", np.int64),
        ("seconds", np.float64),
        ("environment", np.float64),
        ("inference", np.float64),
        ("queue", np.float64),
        ("episodes", np.int64),
        ("returns", np.float64, KEPT_EPISODES),
        ("lengths", np.int64, KEPT_EPISODES),
    ]
)


@dataclass(frozen=True)
class EndedEpisode:
    """The undiscounted return of an episode, before rewards are clipped, and its number of steps."""

    value: float
    length: int


@dataclass(frozen=True)
class Times:
    """Seconds of all collectors together, since they were started.

    Attributes:
        seconds: in all.
        environment, inference: in their environments; choosing actions, reading weights included.
        queue: sending experience: copying it and waiting for room, which should take next to no time.
    """

    seconds: float = 0.0
    environment: float = 0.0
    inference: float = 0.0
    queue: float = 0.0

    def since(self, earlier: "Times") -> "Times":
        return Times(
            self.seconds - earlier.seconds,
            self.environment - earlier.environment,
            self.inference - earlier.inference,
            self.queue - earlier.queue,
        )

    def plus(self, other: "Times") -> "Times":
        return Times(
            self.seconds + other.seconds,
            self.environment + other.environment,
            self.inference + other.inference,
            self.queue + other.queue,
        )

    def shares(self) -> dict[str, float]:
        """The parts by name, as shares of ``seconds``; of nothing, 0."""
        parts = {"environment": self.environment, "inference": self.inference, "queue": self.queue}
        return {name: part / self.seconds if self.seconds > 0 else 0.0 for name, part in parts.items()}


class SharedCounters:
    """Numbers in shared memory. Each has one writer and fits into a word, so there are no locks.

    The memory has no name: processes inherit it when they are started, and it is freed with the last of them.

    Args:
        context: that the processes are started with.
        collectors: how many.
    """

    def __init__(self, context: BaseContext, collectors: int) -> None:
        size = _LEARNER.itemsize + collectors * _COLLECTOR.itemsize
        self.collectors = collectors
        self._memory: Any = context.RawArray(ctypes.c_char, size)
        self._attach()
        self._seen = [0] * collectors

    def _attach(self) -> None:
        self._learner = np.frombuffer(self._memory, _LEARNER, 1)[0:1]
        self._collectors = np.frombuffer(self._memory, _COLLECTOR, offset=_LEARNER.itemsize)

    def __getstate__(self) -> dict[str, Any]:
        return {"_memory": self._memory, "_seen": self._seen, "collectors": self.collectors}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._attach()

    @property
    def steps(self) -> int:
        """Environment steps that the learner has received, on which schedules depend."""
        return int(self._learner["steps"][0])

    @steps.setter
    def steps(self, steps: int) -> None:
        self._learner["steps"] = steps

    @property
    def stop(self) -> bool:
        """True once collectors should stop."""
        return bool(self._learner["stop"][0])

    def set_stop(self) -> None:
        self._learner["stop"] = 1

    def report(self, collector: int, steps: int, version: int, times: Times) -> None:
        """Stores a collector's totals since the start of the run, those of its predecessors included."""
        mine = self._collectors[collector : collector + 1]
        mine["steps"], mine["version"] = steps, version
        mine["seconds"], mine["environment"] = times.seconds, times.environment
        mine["inference"], mine["queue"] = times.inference, times.queue

    def add_episode(self, collector: int, ended: EndedEpisode) -> None:
        mine = self._collectors[collector : collector + 1]
        count = int(mine["episodes"][0])
        mine["returns"][0, count % KEPT_EPISODES] = ended.value
        mine["lengths"][0, count % KEPT_EPISODES] = ended.length
        # Written last: a reader that sees the count finds both values.
        mine["episodes"] = count + 1

    def steps_of(self, collector: int) -> int:
        return int(self._collectors["steps"][collector])

    def collected(self) -> int:
        """Steps of all collectors, those on their way to the learner included."""
        return int(self._collectors["steps"].sum())

    def times_of(self, collector: int) -> Times:
        return Times(
            *(
                float(self._collectors[part][collector])
                for part in ("seconds", "environment", "inference", "queue")
            )
        )

    def times(self) -> Times:
        """Of all collectors together."""
        return Times(
            *(
                float(self._collectors[part].sum())
                for part in ("seconds", "environment", "inference", "queue")
            )
        )

    def new_episodes(self) -> list[EndedEpisode]:
        """Episodes that have ended since the last call; of more than `KEPT_EPISODES` of one collector the newest."""
        episodes = []
        for i, seen in enumerate(self._seen):
            mine = self._collectors[i]
            count = int(mine["episodes"])
            for k in range(max(seen, count - KEPT_EPISODES), count):
                episodes.append(
                    EndedEpisode(
                        float(mine["returns"][k % KEPT_EPISODES]), int(mine["lengths"][k % KEPT_EPISODES])
                    )
                )
            self._seen[i] = count
        return episodes
