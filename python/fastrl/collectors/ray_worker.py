"""The Ray actor of a worker: a runner of environments, its tasks and its replies."""

from __future__ import annotations

import math
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.failures import last_line
from fastrl.collectors.fragment_arrays import Arrays, FragmentMeta, arrays_for
from fastrl.collectors.local_runner import LocalRunner
from fastrl.collectors.protocol import CollectError, Difficulty, Plan
from fastrl.collectors.resources import memory_of
from fastrl.collectors.running import RunningEpisode
from fastrl.rollout.fragment import first_steps

# Seconds between looks at the memory of a worker.
_MEMORY_INTERVAL_S = 5.0


class Answer(NamedTuple):
    """The reply to a task.

    Attributes:
        fragments: arrays and meta of each, up to one that failed; the arrays of `arrays_for`, cut to its steps.
        version: of the weights.
        seconds: by `ACTIVITIES`, since the last reply.
        cause: the exception in one line; empty without one. ``traceback``: of it.
        refused: whether a retry is useless.
        memory_mib: of its process.
        restarted, span: as of `fastrl.collectors.scheduler.WorkerReply`; None as machines' clocks differ.
    """

    fragments: list[tuple[Arrays, FragmentMeta]]
    version: int
    seconds: tuple[float, ...]
    cause: str = ""
    traceback: str = ""
    refused: bool = False
    memory_mib: float = 0.0
    restarted: tuple[int, ...] = ()
    span: tuple[float, float] | None = None


class RunnerActor:
    """The actor of a worker. Ray calls `begin`, `build` and `run` in turn, the other methods concurrently."""

    def __init__(self, plan: Plan, env_indices: Sequence[int]) -> None:
        self._runner = LocalRunner(plan, env_indices)
        self._life = self._version = -1
        self._offered: tuple[int, NDArray[np.uint8] | None] = (-1, None)
        self._thread = 0
        self._replied_at = perf_counter()
        self._memory_mib, self._measured = 0.0, -math.inf

    def begin(self, life: int, numbers: list[int], running: list[RunningEpisode]) -> int:
        """Starts a life of the worker; called first. Returns its process's id.

        Args:
            life: how often it has died before.
            numbers: of the first episodes of its environments, if it has any.
            running: actions that have been taken in these episodes.
        """
        self._thread = threading.get_ident()
        self._life = life
        if numbers:
            self._runner.episode_numbers, self._runner.running = numbers, running
        return os.getpid()

    def build(self, life: int) -> Answer | None:
        """Builds environment and actor. None if the worker has died since ``life`` started."""
        return self._answer([], self._runner.build) if life == self._life else None

    def run(
        self,
        life: int,
        numbers: Sequence[int],
        difficulty: tuple[int, Difficulty | None],
        version: int,
        weights: NDArray[np.uint8] | None,
    ) -> Answer | None:
        """Runs the episodes of these numbers, or T steps of its environments, by these weights or newer ones from
        `offer`. None if the worker has died since ``life`` started.

        Args:
            difficulty: as of `fastrl.collectors.executor_task.Task`.
        """
        if life != self._life:
            return None
        runner = self._runner
        runner.seconds["waiting"] += perf_counter() - self._replied_at
        fragments: list[tuple[Arrays, FragmentMeta]] = []
        newest, buffer = max((version, weights), self._offered, key=lambda each: each[0])

        def work() -> None:
            if buffer is not None and newest != self._version:
                runner.load(buffer)
            self._version = newest
            runner.set_difficulty(*difficulty)
            for number in numbers or (None,):
                arrays = arrays_for(runner.plan, len(runner.env_indices))
                meta = runner.collect(arrays, number)
                fragments.append((first_steps(arrays, meta.num_steps), meta))

        return self._answer(fragments, work)

    def _answer(self, fragments: list[tuple[Arrays, FragmentMeta]], work: Any) -> Answer:
        """Does some work and returns the reply."""
        cause, trace, refused = "", "", False
        try:
            work()
        except CollectError as error:
            cause, trace, refused = str(error), error.traceback, True
        except BaseException:  # an environment that calls sys.exit() has failed, too
            trace = traceback.format_exc()
            cause = last_line(trace)
        seconds = self._runner.take_seconds()
        self._replied_at = now = perf_counter()
        if now - self._measured > _MEMORY_INTERVAL_S:
            [self._memory_mib], self._measured = memory_of([os.getpid()]), now
        return Answer(
            fragments, self._version, seconds, cause, trace, refused, self._memory_mib, self._runner.restarted
        )

    def offer(self, version: int, weights: NDArray[np.uint8] | None) -> None:
        """Stores newer weights, for tasks that were sent before."""
        self._offered = version, weights

    def where(self) -> str:
        """The present traceback of the thread that runs tasks."""
        frame = sys._current_frames().get(self._thread)
        return "" if frame is None else "".join(traceback.format_stack(frame))
