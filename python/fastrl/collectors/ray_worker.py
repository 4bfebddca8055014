"""The Ray actor of a worker."""

from __future__ import annotations

import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.fragment_arrays import arrays_for
from fastrl.collectors.local_runner import LocalRunner
from fastrl.collectors.protocol import Difficulty, Plan
from fastrl.collectors.resources import memory_of
from fastrl.collectors.running import RunningEpisode
from fastrl.collectors.worker_tasks import Collected, TaskRunner, WorkerReply
from fastrl.rollout.fragment import first_steps

# Seconds between checks of the memory of a worker.
_MEMORY_INTERVAL_S = 5.0


class RunnerActor(TaskRunner):
    """The actor of a worker. Ray calls `begin`, `build` and `run` in turn, the other methods concurrently."""

    def __init__(self, plan: Plan, env_indices: Sequence[int]) -> None:
        super().__init__(LocalRunner(plan, env_indices))
        self._life = self.version = -1
        self._offered: tuple[int, NDArray[np.uint8] | None] = (-1, None)
        self._thread = 0
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
            self.runner.episode_numbers, self.runner.running = numbers, running
        return os.getpid()

    def build(self, life: int) -> WorkerReply | None:
        """Builds environment and actor. None if the worker has died since ``life`` started."""
        return self._measured_reply(lambda fragments: self.runner.build()) if life == self._life else None

    def run(
        self,
        life: int,
        numbers: Sequence[int],
        difficulty: tuple[int, Difficulty | None],
        version: int,
        weights: NDArray[np.uint8] | None,
    ) -> WorkerReply | None:
        """Runs the episodes of these numbers, or T steps of its environments, by these weights or newer ones from
        `offer`. None if the worker has died since ``life`` started.

        Args:
            difficulty: as of `fastrl.collectors.executor_task.Task`.
        """
        if life != self._life:
            return None
        runner = self.runner
        self.count_waiting()
        newest, buffer = max((version, weights), self._offered, key=lambda each: each[0])

        def work(fragments: list[Collected]) -> None:
            if buffer is not None and newest != self.version:
                runner.load(buffer)
            self.version = newest
            runner.set_difficulty(*difficulty)
            for number in numbers or (None,):
                arrays = arrays_for(runner.plan, len(runner.env_indices))
                meta = runner.collect(arrays, number)
                fragments.append((first_steps(arrays, meta.num_steps), meta))

        return self._measured_reply(work)

    def _measured_reply(self, work: Callable[[list[Collected]], object]) -> WorkerReply:
        """The reply to some work, with the memory of the process."""
        reply, now = self.reply(work), perf_counter()
        if now - self._measured > _MEMORY_INTERVAL_S:
            [self._memory_mib], self._measured = memory_of([os.getpid()]), now
        return reply._replace(memory_mib=self._memory_mib)

    def offer(self, version: int, weights: NDArray[np.uint8] | None) -> None:
        """Stores newer weights, for tasks that were sent before."""
        self._offered = version, weights

    def where(self) -> str:
        """The present traceback of the thread that runs tasks."""
        frame = sys._current_frames().get(self._thread)
        return "" if frame is None else "".join(traceback.format_stack(frame))
