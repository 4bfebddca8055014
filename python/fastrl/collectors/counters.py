"""Shared counters: a few numbers in shared memory that collecting processes and their learner exchange."""

import ctypes
from dataclasses import astuple, dataclass
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

_COLLECTOR = np.dtype(
    [
        ("steps", np.int64),
        ("version", np.int64),
        ("seconds", np.float64),
        ("environment", np.float64),
        ("inference", np.float64),
        ("queue", np.float64),
    ]
)
_TIMES = ["seconds", "environment", "inference", "queue"]


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

    def plus(self, other: "Times") -> "Times":
        return Times(
            self.seconds + other.seconds,
            self.environment + other.environment,
            self.inference + other.inference,
            self.queue + other.queue,
        )


class SharedCounters:
    """Numbers in shared memory. Each has one writer and fits into a word, so there are no locks.

    The memory has no name: processes inherit it when they are started, and it is freed with the last of them.

    Args:
        context: that the processes are started with.
        collectors: how many.
    """

    def __init__(self, context: BaseContext, collectors: int) -> None:
        self.collectors = collectors
        # The learner's request to stop, and what each collector reports.
        self._stop = context.RawValue(ctypes.c_int64, 0)
        self._memory: Any = context.RawArray(ctypes.c_char, collectors * _COLLECTOR.itemsize)
        self._attach()

    def _attach(self) -> None:
        self._collectors = np.frombuffer(self._memory, _COLLECTOR)

    def __getstate__(self) -> dict[str, Any]:
        return {"_stop": self._stop, "_memory": self._memory, "collectors": self.collectors}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._attach()

    @property
    def stop(self) -> bool:
        """True once collectors should stop."""
        return bool(self._stop.value)

    def set_stop(self) -> None:
        self._stop.value = 1

    def report(self, collector: int, steps: int, version: int, times: Times) -> None:
        """Stores a collector's totals since the start of the run, those of its predecessors included."""
        self._collectors[collector] = (steps, version, *astuple(times))

    def steps_of(self, collector: int) -> int:
        return int(self._collectors["steps"][collector])

    def times_of(self, collector: int) -> Times:
        return Times(*(float(self._collectors[part][collector]) for part in _TIMES))

    def times(self) -> Times:
        """Times of all collectors together."""
        return Times(*(float(self._collectors[part].sum()) for part in _TIMES))
