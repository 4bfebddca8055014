"""Collects from a live simulation: a process of its own steps all environments, perhaps in real time.

The simulation never waits for the learner. It reads the newest policy before each step, and puts whole fragments on a
queue (`fastrl.queue`) that drops the oldest one when it is full; dropped fragments are counted, and leave no gap within
another. Each step may have a deadline, see `fastrl.collectors.pace`.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from multiprocessing import util
from typing import Any, Literal

import numpy as np

from fastrl.collectors.counting import CountingCollector
from fastrl.collectors.executor import START_SECONDS, pickled
from fastrl.collectors.fragment_arrays import FragmentMeta, arrays_for, fragment_of
from fastrl.collectors.live_process import EXIT_REPORTED, HEADER, record_dtype, simulate
from fastrl.collectors.protocol import (
    ACTIVITIES,
    UNPUBLISHED,
    CollectError,
    Difficulty,
    Plan,
    Report,
)
from fastrl.collectors.resources import check_start_method, check_timeout, memory_of
from fastrl.collectors.running import RunningEpisode
from fastrl.collectors.weights import Weights
from fastrl.collectors.worker_tasks import WorkerReply
from fastrl.queue import Empty, Queue
from fastrl.rollout.fragment import Fragment
from fastrl.utils import child_process, processes
from fastrl.utils.child_process import Child
from fastrl.utils.seeding import NO_ENV

# Seconds between checks that the simulation is alive.
_POLL_INTERVAL_S = 0.1

# Seconds that `close` grants the simulation to end by itself.
_SHUTDOWN_GRACE_S = 5.0


class LiveCollector(CountingCollector):
    """See `fastrl.collectors.protocol.Collector`; the docstring of the module describes this one.

    The first weights start the simulation. Its fragments depend on how fast it and the learner are: each step is by the
    newest policy, and the version of a fragment is that of its first step. `collect` brings what `take` does, the
    oldest fragment that waits. A simulation that has died, or takes no step for ``task_timeout`` seconds while the
    learner waits, is replaced, with new episodes.

    Args:
        plan: with unit "steps".
        period: seconds from one step to the next; None or 0: as fast as possible.
        speed: of the clock, which divides the period; 0: as fast as possible.
        queue: fragments that may wait for the learner, rounded up to a power of two.
        task_timeout: seconds for a step, beyond the wait until it is due; None: no limit.
        max_failures: failures without a fragment in between that stop the run.
        start_method: of ``multiprocessing``.

    Raises:
        ValueError: an argument that makes no sense.
        TypeError: the plan does not pickle.
        OSError: there is no room for the queue in /dev/shm.
    """

    name = "live"

    def __init__(
        self,
        plan: Plan,
        *,
        period: float | None = None,
        speed: float = 1.0,
        queue: int = 2,
        task_timeout: float | None = 300.0,
        max_failures: int = 3,
        start_method: Literal["spawn", "forkserver"] = "forkserver",
    ) -> None:
        processes.require_main_guard()
        check_start_method(start_method)
        for name, value in (("period", period or 0.0), ("speed", speed)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} should be a number from 0 on, got {value}")
        super().__init__(plan, max_failures)
        self._period = (period or 0.0) / speed if speed else 0.0
        self._timeout = check_timeout(task_timeout)
        self._payload = pickled(plan)
        self._context: Any = multiprocessing.get_context(start_method)
        if start_method == "forkserver":
            # A new simulation has then loaded what it needs before it starts.
            self._context.set_forkserver_preload([simulate.__module__])
        self._stop: Any = self._context.RawArray(ctypes.c_ubyte, 1)
        # Counts the simulation's signs of life. How many were seen, and the seconds that the learner has waited since.
        self._beats: Any = self._context.RawValue(ctypes.c_uint64)
        self._seen_beats, self._silent = 0, 0.0
        self._simulation: Child | None = None
        # Numbers of the episodes that a simulation starts with.
        self._episode_numbers = np.zeros(plan.num_envs, np.int64)
        # The newest record, and the seconds of earlier simulations, by part.
        self._newest = np.zeros(1, record_dtype(plan))
        self._earlier = np.zeros(len(ACTIVITIES))
        # Age of the policy that chose the actions of the newest fragment, in versions and in seconds.
        self._age_updates = self._age_seconds = math.nan
        # A header and the newest weights.
        self._buffer = np.zeros(HEADER.itemsize + plan.make_actor().weights_nbytes, np.uint8)
        self._header = self._buffer[: HEADER.itemsize].view(HEADER)
        self._header["difficulty"] = 0.0, math.nan, math.nan
        self._weights = Weights(len(self._buffer))
        try:
            # Two producers: a new simulation may start before the place of a killed one is free.
            self._queue = Queue(self._newest.dtype, queue, max_producers=2, policy="drop_oldest", shared=True)
        except BaseException:
            self._weights.close()
            raise
        # Python would wait at its end for a simulation that nobody has closed.
        self._at_exit = util.Finalize(None, self.close, exitpriority=10)

    @property
    def pids(self) -> list[int]:
        """Process id of the simulation, once it has started."""
        return [] if self._simulation is None else [self._simulation.pid]

    def publish(self, weights: Any) -> int:
        new, old = np.frombuffer(weights, np.uint8), self._buffer[HEADER.itemsize :]
        if len(new) != len(old):
            raise ValueError(f"the actor's weights have {len(old)} bytes, got {len(new)}")
        old[:] = new
        self.version += 1
        self._header["version"], self._header["published"] = self.version, time.monotonic()
        self._weights.publish(self._buffer.data)
        if self._simulation is None:
            self._start()
        return self.version

    def set_difficulty(self, level: int, difficulty: Difficulty | None = None) -> None:
        num_agents, density, opponents, _ = difficulty or Difficulty()
        if opponents:
            raise NotImplementedError("a live simulation draws opponents by given weights")
        self._header["difficulty"] = level, num_agents, density
        if self._simulation is not None:
            self._weights.publish(self._buffer.data)

    def _start(self) -> None:
        self._beats.value = self._seen_beats = 0
        self._silent = 0.0
        arguments = [self._payload, self._episode_numbers.tolist(), self._period]
        arguments += [self._stop, self._beats, self._queue, self._weights]
        self._simulation = Child.worker(self._context, simulate, *arguments, name="simulation")

    def collect(self) -> list[Fragment]:
        return self.take_many(1)

    def take_many(self, most: int, timeout: float | None = None) -> list[Fragment]:
        if self._simulation is None:
            raise CollectError(UNPUBLISHED)
        end = math.inf if timeout is None else time.monotonic() + timeout
        record = np.zeros_like(self._newest)
        while True:
            left = max(end - time.monotonic(), 0.0)
            wait = min(_POLL_INTERVAL_S, left)
            try:
                if len(self._queue.get_many(1, timeout=wait, out=record)):
                    return [self._fragment(record)]
            except Empty:
                self._end_hanging(self._simulation, wait)
                if not self._simulation.is_alive():
                    self._replace(self._simulation)
                if not left:
                    return []

    def _fragment(self, record: Any) -> Fragment:
        self._newest, plan, row = record, self.plan, record[0]
        self._episode_numbers = np.maximum(self._episode_numbers, row["numbers"])
        self._cold_start = self._cold_start or float(row["ready"]) - self._failures.started_at
        self._age_updates = float(self.version - row["versions"].mean())
        self._age_seconds = float(row["ages"].mean())
        ended = row["ended"][: int(row["num_ended"])]
        meta = FragmentMeta(
            plan.num_steps,
            [
                (int(t), int(env), int(number), total, int(length), tuple(info))
                for t, env, number, total, length, *info in ended.tolist()
            ],
        )
        arrays = {name: record[name][0] for name in arrays_for(plan, 1)}
        fragment = fragment_of(plan, arrays, meta, int(row["versions"][0]), np.array(plan.env_indices))
        self._count_fragment(fragment)
        self._failures.over([(NO_ENV, 0)])
        return fragment

    def _end_hanging(self, simulation: Child, waited: float) -> None:
        """Kills a simulation that has shown no sign of life for too long.

        Args:
            waited: seconds in which no fragment came. Only those count: while all processes are stopped, none hangs.
        """
        beats = self._beats.value
        self._silent = self._silent + waited if beats == self._seen_beats else 0.0
        self._seen_beats = beats
        limit = self._timeout + (0.0 if beats else START_SECONDS)
        if self._silent > limit:
            simulation.kill_hanging(limit)

    def _replace(self, simulation: Child) -> None:
        """Starts another simulation in place of one that has died.

        Raises:
            CollectError: it has died too often, or of a cause that would recur.
        """
        reply = WorkerReply(cause=simulation.cause)
        if simulation.code == EXIT_REPORTED:
            with contextlib.suppress(EOFError):
                reply = simulation.pipe.recv()
        else:
            reply = reply._replace(traceback=simulation.traceback())
        simulation.pipe.close()
        if reply.refused:
            raise CollectError(reply.cause, reply.traceback)
        indices = self.plan.env_indices
        task = f"a fragment of rows {indices[0]} to {indices[-1]}"
        self._failures.add(0, task, reply.cause, reply.traceback, [(NO_ENV, 0)])
        self._restarts += 1
        self._episode_numbers += 1
        self._earlier += self._newest["seconds"][0]
        self._newest["seconds"] = 0.0
        self._start()

    def report(self) -> Report:
        """See `Report`. Its numbers:

        ``policy_age_updates``, ``policy_age_seconds``: staleness of the policy that chose the actions of the newest
        fragment, in versions and in seconds, means over its steps. ``simulated``, ``missed``: steps, and those of them
        that were late; ``late_mean``, ``late_max``: their delay in seconds. These count since the simulation was last
        started. ``waiting``: fragments in the queue.
        """
        newest, queue = self._newest[0], self._queue.stats()
        missed = int(newest["missed"])
        return self._report(
            workers=1,
            dropped=queue.dropped_newest + queue.dropped_oldest + queue.abandoned,
            memory_mib=memory_of(self.pids),
            seconds=dict(zip(ACTIVITIES, (self._earlier + newest["seconds"]).tolist(), strict=True)),
            metrics={
                "policy_age_updates": self._age_updates,
                "policy_age_seconds": self._age_seconds,
                "simulated": int(newest["steps"]),
                "missed": missed,
                "late_mean": float(newest["late"]) / max(missed, 1),
                "late_max": float(newest["latest"]),
                "waiting": queue.depth,
            },
        )

    def _running_state(self) -> tuple[dict[int, int], dict[int, RunningEpisode]]:
        # In place of running episodes a resumed collector starts others.
        return dict(zip(self.plan.env_indices, (self._episode_numbers + 1).tolist(), strict=True)), {}

    def _resume(self, numbers: Sequence[int], running: Mapping[int, RunningEpisode]) -> None:
        self._episode_numbers[:] = numbers

    def close(self) -> None:
        if self._stop[0]:
            return
        self._at_exit.cancel()
        self._stop[0] = 1
        self._queue.shutdown(immediate=True)
        if self._simulation is not None:
            child_process.end([self._simulation], _SHUTDOWN_GRACE_S)
            self._simulation.pipe.close()
        self._queue.close()
        self._weights.close()
