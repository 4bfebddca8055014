"""The tasks in an executor's process, one after the other. Arrays of steps stay in shared memory; the small rest of a
reply goes through its task's future.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Sequence
from multiprocessing import util
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from fastrl.collectors.fragment_arrays import Arrays, arrays_for
from fastrl.collectors.local_runner import LocalRunner
from fastrl.collectors.protocol import Difficulty, Plan
from fastrl.collectors.running import RunningEpisode
from fastrl.collectors.weights import Weights
from fastrl.collectors.worker_tasks import Collected, TaskRunner, WorkerReply, failure_reply
from fastrl.envs.spec import unpickle
from fastrl.utils import processes

# Alignment of arrays, so that no two share a cache line.
_LINE = 64


class Slots:
    """A worker's shared memory for fragments, one in each slot.

    It has no name: a process is handed it when it is started, and it is gone with the last of them.

    Args:
        rows: of a fragment.
        count: how many slots.

    Attributes:
        arrays: of each slot, as of `arrays_for`.
    """

    def __init__(self, context: BaseContext, plan: Plan, rows: int, count: int) -> None:
        like = arrays_for(plan, rows)
        self._layout = {name: (array.shape, array.dtype) for name, array in like.items()}
        self._count = count
        # A line more, as the memory need not be aligned.
        self._memory: Any = context.RawArray(ctypes.c_char, count * nbytes_of(like) + _LINE)
        self._attach()

    def _attach(self) -> None:
        at = -np.frombuffer(self._memory, np.uint8).ctypes.data % _LINE
        self.arrays: list[Arrays] = [{} for _ in range(self._count)]
        for views in self.arrays:
            for name, (shape, dtype) in self._layout.items():
                size = math.prod(shape)
                views[name] = np.frombuffer(self._memory, dtype, size, at).reshape(shape)
                at += _whole_lines(size * dtype.itemsize)

    def __getstate__(self) -> dict[str, Any]:
        return {"_layout": self._layout, "_count": self._count, "_memory": self._memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._attach()


def nbytes_of(arrays: Arrays) -> int:
    """Shared memory for a fragment's arrays."""
    return sum(_whole_lines(array.nbytes) for array in arrays.values())


def _whole_lines(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


class Task(NamedTuple):
    """A task of a process.

    Attributes:
        slots: one for each fragment.
        episode_numbers: with unit "episodes"; empty with "steps", for T steps of its environments.
        resume: for a new process, the numbers and states of its running episodes.
        difficulty: of the episodes that start from now on, arguments of `LocalRunner.set_difficulty`.
        weights: pickled along, with their version; None: they are read from shared memory.
    """

    slots: tuple[int, ...]
    episode_numbers: tuple[int, ...] = ()
    resume: tuple[tuple[int, RunningEpisode], ...] = ()
    difficulty: tuple[int, Difficulty | None] = (0, None)
    weights: tuple[int, bytes] | None = None


class _Process(TaskRunner):
    """The state of a process: its runner, and the weights that this has."""

    def __init__(
        self,
        plan: Plan,
        env_indices: Sequence[int],
        slots: Slots,
        weights: Weights | None,
        stop: Any,
        report: Connection,
        rebuild: bool,
    ) -> None:
        self._new_runner = lambda: LocalRunner(plan, env_indices, np.frombuffer(stop, np.uint8).data)
        self._report = report
        super().__init__(self._make_runner())
        self._slots = slots
        self._weights = weights
        self._buffer = bytearray(weights.nbytes if weights is not None else 0)
        self._rebuild = rebuild

    def _make_runner(self) -> LocalRunner:
        runner = self._new_runner()
        runner.closing = lambda: processes.close_deadline(self._report.fileno())
        return runner

    def build(self) -> WorkerReply:
        """Builds environment and actor."""
        return self.reply(lambda fragments: self.runner.build())._replace(ready=time.monotonic())

    def run(self, task: Task) -> WorkerReply:
        start = time.monotonic()
        self.count_waiting()

        def work(fragments: list[Collected]) -> None:
            if self._rebuild:
                self.close()
                self.runner, self.version = self._make_runner(), 0
            if task.resume:
                self.runner.episode_numbers = [number for number, _ in task.resume]
                self.runner.running = [episode for _, episode in task.resume]
            self._update(task)
            self.runner.set_difficulty(*task.difficulty)
            slots = [self._slots.arrays[slot] for slot in task.slots]
            for number, arrays in zip(task.episode_numbers or (None,), slots, strict=True):
                fragments.append(({}, self.runner.collect(arrays, number)))

        return self.reply(work)._replace(span=(start, time.monotonic()))

    def _update(self, task: Task) -> None:
        """Takes newer weights, if there are any."""
        if task.weights is not None:
            self.version, weights = task.weights
            self.runner.load(weights)
        elif self._weights is not None and self._weights.version > self.version:
            start = perf_counter()
            self.version = self._weights.read(self._buffer)
            self.runner.seconds["weights"] += perf_counter() - start
            self.runner.load(self._buffer)

    def close(self) -> None:
        self.runner.close()


_process: _Process | WorkerReply | None = None


def init_process(
    payload: bytes,
    env_indices: Sequence[int],
    slots: Slots,
    weights: Weights | None,
    stop: Any,
    report: Connection,
    rebuild: bool,
) -> None:
    """Prepares a worker process.

    Args:
        payload: the pickled plan.
        weights: where the learner publishes.
        stop: a byte that is not 0 once everything is to end.
        report: of tracebacks, see `fastrl.utils.processes.init_worker`.
        rebuild: environment and actor for every task.
    """
    global _process
    processes.init_worker([weights.name] if weights is not None else [], report)
    try:
        _process = _Process(unpickle(payload), env_indices, slots, weights, stop, report, rebuild)
        # Unlike atexit, it is done in processes of every start method.
        util.Finalize(None, _process.close, exitpriority=10)
    except Exception as error:
        _process = failure_reply(error)._replace(refused=True)


def build() -> WorkerReply:
    """The first task of each process."""
    assert _process is not None
    return _process if isinstance(_process, WorkerReply) else _process.build()


def run(task: Task) -> WorkerReply:
    assert _process is not None
    return _process if isinstance(_process, WorkerReply) else _process.run(task)
