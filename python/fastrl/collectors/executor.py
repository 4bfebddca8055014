"""Collects in processes, each at its own pace: none waits for the slowest.

`concurrent.futures.ProcessPoolExecutor` runs the processes, one executor for each, so that a process that is killed
costs its task only. A task is a fragment of a worker's rows, or whole episodes, which go to a free worker. Weights are
published once, in shared memory, and read by each worker before its next task; fragments come back in shared memory,
too. There they stay with `collect` of steps, until the next call; otherwise the learner copies them out of it. Only
tasks and replies are pickled.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import pickle
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, Literal

from fastrl.collectors import executor_task
from fastrl.collectors.executor_context import executor_context
from fastrl.collectors.executor_task import Slots, Task, nbytes_of
from fastrl.collectors.executor_worker import Worker
from fastrl.collectors.fragment_arrays import arrays_for
from fastrl.collectors.protocol import Plan, partition_envs
from fastrl.collectors.resources import WorkerCount, check_start_method, count_workers, memory_of
from fastrl.collectors.scheduler import TaskScheduler
from fastrl.collectors.weights import Weights
from fastrl.collectors.worker_tasks import WorkerReply
from fastrl.utils import child_process, processes

# Seconds of a task of several short episodes, and the most episodes of one.
TASK_SECONDS = 0.01
TASK_EPISODES = 16

# Memory that a worker's slots may take, beyond those that it needs.
SLOT_BYTES = 2**24

# Seconds that a process may take to start and build its environment, beyond a task's.
START_SECONDS = 60.0

# Seconds between checks of the workers' memory.
_MEMORY_INTERVAL_S = 5.0

# Seconds that `close` grants workers to end by themselves.
_SHUTDOWN_GRACE_S = 2.0

_log = logging.getLogger(__name__)


class ExecutorCollector(TaskScheduler[Worker]):
    """See `fastrl.collectors.protocol.Collector`; the docstring of the module describes this one.

    A worker whose environment raises continues with a new environment; one that is killed, or gives no answer for
    ``task_timeout`` seconds, is replaced. Its task is done again; with unit "steps", its episodes are restarted.

    Use ``collect`` or ``take``, not both.

    Args:
        n_workers: processes, or "auto": one a core, if memory allows. With unit "steps" they share environments evenly.
        task_timeout: seconds for a task; None: no limit.
        max_failures: failures of workers at the same episode that stop the run.
        max_pending: for `take`, fragments that may be running or wait to be taken, which bounds their staleness.
            None: two for each worker, or an update's worth of episodes, if that is more.
        start_method: of ``multiprocessing``. From a server, processes start ten times as fast as by themselves, and
            share the memory of what they have loaded.
        rebuild: environment and actor are built for each task, to see what that costs; with unit "episodes" alone.
        pickle_weights: weights are sent along with each task, to see what that costs.
        measure: returns the bytes of memory that one worker takes; called only where memory could be short. None:
            memory is not checked.

    Raises:
        ValueError: an argument that makes no sense.
        TypeError: the plan does not pickle.
    """

    name = "executor"

    def __init__(
        self,
        plan: Plan,
        *,
        n_workers: WorkerCount = "auto",
        task_timeout: float | None = 300.0,
        max_failures: int = 3,
        max_pending: int | None = None,
        start_method: Literal["spawn", "forkserver"] = "forkserver",
        rebuild: bool = False,
        pickle_weights: bool = False,
        measure: Callable[[], int] | None = None,
    ) -> None:
        processes.require_main_guard()
        super().__init__(
            plan,
            task_timeout=task_timeout,
            max_failures=max_failures,
            max_pending=max_pending,
            task_seconds=TASK_SECONDS,
        )
        if rebuild and not self._whole:
            raise ValueError(
                'rebuild needs unit "episodes": with "steps", environments continue from task to task'
            )
        check_start_method(start_method)
        n_workers = count_workers(n_workers, useful=self._useful_workers, measure=measure)
        self._expect(n_workers)
        self._payload = pickled(plan)
        self._rebuild = rebuild
        self._sent: tuple[int, bytes] | None = None
        self.replies: SimpleQueue[tuple[Worker, int, Future[WorkerReply]]] = SimpleQueue()
        self._asked_memory: tuple[float, list[int], tuple[float, ...]] = (-math.inf, [], ())

        context = executor_context(start_method)
        if start_method == "forkserver":
            # Its processes then have loaded what they need before they start, and share the memory of it.
            context.set_forkserver_preload([executor_task.__name__])
        self._weights = Weights(self._nbytes) if self._nbytes and not pickle_weights else None
        self._stop: Any = context.RawArray(ctypes.c_ubyte, 1)
        count = self._count_slots()
        # One more than it has slots, as its start is a task without.
        self._depth = count + 1
        _open.add(self)
        try:
            for index, env_indices in enumerate(partition_envs(plan, n_workers)):
                slots = Slots(context, plan, len(env_indices) or 1, count)
                self.workers.append(Worker(index, env_indices, slots, context, self._arguments, self.replies))
        except BaseException:
            self.close()
            raise

    def _count_slots(self) -> int:
        """Slots of a worker: for its present and its next tasks."""
        if not self._whole:
            return self._depth
        fit = SLOT_BYTES // nbytes_of(arrays_for(self.plan, 1))
        return max(self._depth, min(fit, 2 * TASK_EPISODES))

    def _arguments(self, worker: Worker, report: Connection) -> tuple[Any, ...]:
        """Arguments of `fastrl.collectors.executor_task.init_process`."""
        return (
            self._payload,
            worker.env_indices,
            worker.slots,
            self._weights,
            self._stop,
            report,
            self._rebuild,
        )

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self.workers]

    # Scheduling

    def _send(self, weights: Any, version: int) -> None:
        if self._weights is not None:
            self._weights.publish(weights)
        elif self._nbytes:
            self._sent = (self._published + 1, bytes(self._bytes_of(weights)))

    def _room(self, worker: Worker, depth: int) -> int:
        return min(len(worker.free), TASK_EPISODES) if len(worker.tasks) < depth else 0

    def _submit(self, worker: Worker, numbers: tuple[int, ...]) -> None:
        fresh = not self._whole and not worker.resumed
        begin = (
            tuple(zip(worker.episode_numbers, self._running_episodes(worker), strict=True)) if fresh else ()
        )
        slots = tuple(worker.free[: len(numbers) or 1])
        try:
            worker.submit(Task(slots, numbers, begin, self._difficulty, self._sent))
        except BrokenProcessPool:
            self._return_task(worker, numbers)
            self._replace(worker)
        else:
            worker.resumed = True

    # Replies of workers

    def _wait(self, timeout: float) -> None:
        with contextlib.suppress(Empty):
            self._receive_reply(*self.replies.get(timeout=timeout))
        while not self.replies.empty():
            self._receive_reply(*self.replies.get())

    def _receive_reply(self, worker: Worker, generation: int, future: Future[WorkerReply]) -> None:
        """A task is done."""
        if generation != worker.generation:
            return  # of a process that was replaced; its tasks were given back
        if future.cancelled() or future.exception() is not None:
            self._replace(worker)
            return
        reply = future.result()
        task = worker.done()
        if task is None:
            self._worker_started(worker, reply, reply.ready - self._failures.started_at)
            return
        # Workers count from the first version that this collector has published.
        version = self.version - self._published + reply.version if self._nbytes else self.version
        slots = [worker.slots.arrays[slot] for slot in task.slots]
        fragments = [(arrays, meta) for arrays, (_, meta) in zip(slots, reply.fragments, strict=False)]
        self._task_finished(worker, task.episode_numbers, fragments, version, reply)

    # Failures

    def _replace(self, worker: Worker) -> None:
        """A process has died: another one takes its place."""
        cause, trace = worker.death_report()
        given = [None if task is None else task.episode_numbers for task in worker.tasks]
        worker.release()
        worker.start()
        self._worker_replaced(worker, given, cause, trace)

    def _limit(self, worker: Worker) -> float:
        if not worker.tasks or worker.process.hangs:
            return math.inf
        return self._timeout + (START_SECONDS if worker.tasks[0] is None else 0)

    def _end_hanging(self, worker: Worker) -> None:
        worker.process.kill_hanging(self._limit(worker))

    # Reports

    def _memory(self) -> tuple[float, ...]:
        """Measured every few seconds: the system counts pages for it."""
        at, pids, _ = self._asked_memory
        now = time.monotonic()
        if now - at > _MEMORY_INTERVAL_S or pids != self.pids:
            self._asked_memory = now, self.pids, memory_of(self.pids)
        return self._asked_memory[2]

    def close(self) -> None:
        self._stop[0] = 1
        for worker in self.workers:
            worker.release()
        killed = child_process.end([worker.process for worker in self.workers], _SHUTDOWN_GRACE_S)
        for worker in self.workers:
            worker.join_manager()
        indices = ", ".join(str(worker.index) for worker in self.workers if worker.process in killed)
        if indices:
            _log.warning(
                "killed at the end of collecting, after %g s in a step or in an environment's close(): worker %s",
                _SHUTDOWN_GRACE_S,
                indices,
            )
        self.workers = []
        if self._weights is not None:
            self._weights.close()
        _open.discard(self)


def pickled(plan: Plan) -> bytes:
    """The plan for another process.

    Raises:
        TypeError: it does not pickle.
    """
    try:
        return pickle.dumps(plan)
    except Exception as error:
        raise TypeError(
            f"the plan does not pickle, so other processes cannot run it: {error}. Give the environment by id"
            " ('CartPole-v1') or import path ('my_module:make_env'), and an actor that a function or class at the"
            " top of a module makes"
        ) from error


_open: weakref.WeakSet[ExecutorCollector] = weakref.WeakSet()


def _close_all() -> None:
    for collector in list(_open):
        collector.close()


# Executors wait at the end of the interpreter for what their processes do, which may take for ever. This comes first:
# these functions are called in the reverse order, and before those of atexit.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]
