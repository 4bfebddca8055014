"""Collects in processes, each with tasks of its own pace: nobody waits for the slowest.

`concurrent.futures.ProcessPoolExecutor` runs the processes, one executor for each, so that a process that is killed
costs its task only. A task is a fragment of a worker's rows, or whole episodes, which go to whoever is free. Weights
are published once, in shared memory, and read by each worker before its next task; what was played comes back in shared
memory, too. A pickle is only what tells of it.
"""

from __future__ import annotations

import ctypes
import heapq
import math
import multiprocessing
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from fastrl import processes
from fastrl.collect import tasks
from fastrl.collect.failures import Episode, Failures
from fastrl.collect.fragment import Fragment
from fastrl.collect.plan import CollectError, Plan, Report, shares
from fastrl.collect.player import PARTS, UNPUBLISHED, Arrays, Played, arrays_for, fragment_of, resumed
from fastrl.collect.process_worker import Worker
from fastrl.collect.tasks import Outcome, Slots, Task, nbytes_of
from fastrl.collect.workers import WorkerCount, check_start_method, count_workers, memory_of
from fastrl.streams import EPISODES
from fastrl.weights import Weights

# Short episodes are handed out several at a time: so many seconds of work, so many at most.
TASK_SECONDS = 0.01
TASK_EPISODES = 16

# Memory that a worker's slots may take, beyond those that it needs.
SLOT_BYTES = 2**24

# Seconds that a process may take to start and build its environment, beyond a task's.
START_SECONDS = 60.0

# Seconds between looks at whether a worker hangs, and at their memory.
_LOOK = 0.5
_MEMORY = 5.0


class ExecutorCollector:
    """See `fastrl.collect.plan.Collector`; the docstring of the module tells what this one does.

    A worker whose environment raises goes on with a new environment; one that is killed, or gives no answer for
    ``task_timeout`` seconds, is replaced. Its task is done again; with unit "steps", its rows' episodes begin anew.

    Use ``collect`` or ``take``, not both.

    Args:
        n_workers: processes, or "auto": one a core, if memory allows. With unit "steps" they share the rows evenly.
        task_timeout: seconds for a task; None: for ever.
        max_failures: as soon as a worker has failed so often at the same episode, the run stops.
        ahead: for `take`, fragments that may be running or wait to be taken, which bounds the policy's lag. By default
            two for each worker, or an update's worth of episodes, if that is more.
        start_method: of ``multiprocessing``. From a server, processes start ten times as fast as by themselves, and
            share the memory of what they have loaded.
        rebuild: environment and actor are built for each task, to see what that costs; with unit "episodes" alone.
        pickle_weights: weights are sent along with each task, to see what that costs.
        measure: tells the bytes of memory that one worker takes; asked only where memory could be short. None: memory
            is not looked at.

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
        ahead: int | None = None,
        start_method: Literal["spawn", "forkserver"] = "forkserver",
        rebuild: bool = False,
        pickle_weights: bool = False,
        measure: Callable[[], int] | None = None,
    ) -> None:
        self._whole = plan.unit == "episodes"
        _check(plan, task_timeout, ahead, rebuild)
        check_start_method(start_method)
        n_workers = count_workers(
            n_workers, useful=plan.episodes if self._whole else plan.num_envs, measure=measure
        )
        self.plan = plan
        self.version = 0
        self._failures = Failures(max_failures)
        self._timeout = math.inf if task_timeout is None else task_timeout
        self._ahead = max(2 * n_workers, plan.episodes) if ahead is None else ahead
        self._payload = _pickled(plan)
        self._rebuild = rebuild
        self._sent: tuple[int, bytes] | None = None
        # Versions that were published before this collector, and by it.
        self._base = self._published = 0
        self._steps = self._episodes = self._restarts = self._turns = 0
        self._cold_start = 0.0
        self._seconds = dict.fromkeys(PARTS, 0.0)
        # Episodes to be played: those that failed, and from the next number on up to the end of the update.
        self._again: list[int] = []
        self._next = self._end = 0
        self._episode_seconds = math.inf
        self._mode: Literal["", "collect", "take"] = ""
        # Fragments that were handed out.
        self._running = 0
        self._wanted = 0
        self._ready: deque[Fragment] = deque()
        self._done: SimpleQueue[tuple[Worker, int, Future[Outcome]]] = SimpleQueue()
        self._looked = time.monotonic()
        self._memory: tuple[float, list[int], tuple[float, ...]] = (-math.inf, [], ())

        self._n_workers = n_workers
        context = multiprocessing.get_context(start_method)
        if start_method == "forkserver":
            # Its processes then have loaded what they need before they start, and share the memory of it.
            context.set_forkserver_preload([tasks.__name__])
        self._nbytes = plan.make_actor().weights_nbytes
        self._weights = Weights(self._nbytes) if self._nbytes and not pickle_weights else None
        self._stop: Any = context.RawArray(ctypes.c_ubyte, 1)
        self._workers: list[Worker] = []
        _open.add(self)
        try:
            for index, lanes in enumerate(shares(plan, n_workers)):
                rows = len(lanes) if not self._whole else 1
                slots = Slots(context, plan, rows, self._count_slots(n_workers, rows))
                self._workers.append(Worker(index, lanes, slots, context, self._arguments, self._done))
        except BaseException:
            self.close()
            raise

    def _count_slots(self, n_workers: int, rows: int) -> int:
        """Slots of a worker: for what it plays, and for what it is to play next."""
        needed = max(2, -(-self._ahead // n_workers))
        fit = SLOT_BYTES // nbytes_of(arrays_for(self.plan, rows))
        return max(needed, min(fit, 2 * TASK_EPISODES)) if self._whole else needed

    def _arguments(self, worker: Worker, report: Connection) -> tuple[Any, ...]:
        """Of `fastrl.collect.tasks.begin`."""
        return self._payload, worker.lanes, worker.slots, self._weights, self._stop, report, self._rebuild

    @property
    def pids(self) -> list[int]:
        """Of the workers' processes."""
        return [worker.process.pid or 0 for worker in self._workers]

    def publish(self, weights: Any) -> int:
        if self._weights is not None:
            self._weights.publish(weights)
        elif self._nbytes:
            sent = bytes(memoryview(weights).cast("B"))
            if len(sent) != self._nbytes:
                raise ValueError(f"the actor's weights have {self._nbytes} bytes, got {len(sent)}")
            self._sent = (self._published + 1, sent)
        self._published += 1
        self.version = self._base + self._published
        return self.version

    def collect(self) -> list[Fragment]:
        self._use("collect")
        # After an interrupt, what was under way goes on.
        if not self._wanted:
            self._wanted = self.plan.episodes if self._whole else len(self._workers)
            self._end += self.plan.episodes
            for worker in self._workers:
                worker.due = 1
        while len(self._ready) < self._wanted:
            self._hand_out()
            self._receive(None)
        self._wanted = 0
        fragments = sorted(self._ready, key=lambda fragment: fragment.place)
        self._ready.clear()
        return fragments

    def take(self, timeout: float | None = None) -> Fragment | None:
        self._use("take")
        until = math.inf if timeout is None else time.monotonic() + timeout
        self._receive(0.0)
        self._hand_out()
        while not self._ready:
            left = until - time.monotonic()
            if left < 0:
                return None
            self._receive(left)
            self._hand_out()
        return self._ready.popleft()

    def _use(self, mode: Literal["collect", "take"]) -> None:
        if not self._workers:
            raise CollectError("the collector is closed")
        if self._nbytes and not self._published:
            raise CollectError(UNPUBLISHED)
        if self._mode not in ("", mode):
            raise CollectError(f"this collector is used by {self._mode}(); {mode}() needs one of its own")
        self._mode = mode

    # What is handed out

    def _hand_out(self) -> None:
        """Gives tasks to workers: to each one, before any has two, and who waited longest comes first."""
        workers = sorted(self._workers, key=lambda worker: worker.turn)
        # One more than it has slots, as its start is a task without.
        for depth in range(1, len(workers[0].slots.arrays) + 2):
            if self._left() < 1:
                break
            for worker in workers:
                if len(worker.tasks) < depth and worker.free and (task := self._task_for(worker, depth)):
                    self._submit(worker, task)

    def _left(self) -> int:
        """Fragments that may be handed out now."""
        if self._mode == "take":
            return self._ahead - self._running - len(self._ready)
        if self._whole:
            return len(self._again) + self._end - self._next
        return sum(worker.due for worker in self._workers)

    def _task_for(self, worker: Worker, depth: int) -> Task | None:
        """What a worker is given as its ``depth``-th task, if there is something for it."""
        numbers: tuple[int, ...] = ()
        if self._whole:
            numbers = self._numbers(len(worker.free), depth)
            if not numbers:
                return None
        elif self._mode == "collect":
            if not worker.due:
                return None
            worker.due -= 1
        elif self._left() < 1:
            return None
        begin = () if self._whole or worker.begun else tuple(worker.numbers)
        return Task(tuple(worker.free[: len(numbers) or 1]), numbers, begin, self._sent)

    def _numbers(self, most: int, depth: int) -> tuple[int, ...]:
        """Episodes for a task: one that failed by itself, of others as many as fit into the time of a task."""
        left, workers = self._left(), len(self._workers)
        # The last ones of an update are left to who is free first.
        if left < 1 or (depth > 1 and self._mode == "collect" and left <= workers):
            return ()
        if self._again:
            return (heapq.heappop(self._again),)
        fit = TASK_SECONDS / max(self._episode_seconds, 1e-6)
        count = int(max(1, min(fit, TASK_EPISODES, most, left // (2 * workers))))
        self._next += count
        return tuple(range(self._next - count, self._next))

    def _submit(self, worker: Worker, task: Task) -> None:
        self._turns += 1
        worker.turn = self._turns
        self._running += len(task.slots)
        try:
            worker.submit(task)
        except BrokenProcessPool:
            self._running -= len(task.slots)
            self._put_back(worker, task.numbers)
            self._replace(worker)
        else:
            worker.begun = True

    # What comes back

    def _receive(self, timeout: float | None) -> None:
        """Takes in what is done; waits for something, if there is nothing yet."""
        now = time.monotonic()
        until = math.inf if timeout is None else now + timeout
        while True:
            if now - self._looked > _LOOK:
                self._looked = now
                self._end_hanging(now)
            try:
                self._take_in(*self._done.get(timeout=min(max(until - now, 0.0), _LOOK)))
                break
            except Empty:
                now = time.monotonic()
                if now >= until:
                    return
        while not self._done.empty():
            self._take_in(*self._done.get())

    def _take_in(self, worker: Worker, generation: int, future: Future[Outcome]) -> None:
        """A task is done."""
        if generation != worker.generation:
            return  # of a process that was replaced; its tasks were given back
        if future.cancelled() or future.exception() is not None:
            self._replace(worker)
            return
        outcome = future.result()
        task = worker.done()
        for part, seconds in zip(PARTS, outcome.seconds, strict=False):
            self._seconds[part] += seconds
        if outcome.refused:
            raise CollectError(f"{outcome.cause}\n\n{outcome.traceback}", outcome.traceback)
        if task is None:
            if outcome.cause:
                self._failed_to_start(worker, outcome.cause, outcome.traceback)
            else:
                worker.failed_starts = 0
                ready = outcome.ready - self._failures.began
                self._cold_start = self._cold_start or ready
            return
        self._running -= len(task.slots)
        version = self._base + outcome.version if self._nbytes else self.version
        for slot, played in zip(task.slots, outcome.played, strict=False):
            self._deliver(worker, worker.slots.arrays[slot], played, version)
        if outcome.played and self._whole:
            spent = sum(outcome.seconds[PARTS.index(part)] for part in ("environment", "inference", "buffer"))
            self._episode_seconds = spent / len(outcome.played)
        if outcome.cause:
            left = task.numbers[len(outcome.played) :]
            self._put_back(worker, left)
            self._failed(worker, left[:1], outcome.cause, outcome.traceback)

    def _deliver(self, worker: Worker, arrays: Arrays, played: Played, version: int) -> None:
        lanes = np.asarray([EPISODES] if self._whole else worker.lanes, np.int64)
        # The slot is for the next task.
        steps = played.num_steps
        own = {name: array[: steps + (name == "obs")].copy() for name, array in arrays.items()}
        fragment = fragment_of(self.plan, own, played, version, lanes)
        self._steps += len(fragment)
        self._episodes += len(played.episodes)
        self._failures.over(played.episodes)
        if not self._whole:
            for lane, number in played.episodes:
                worker.numbers[lane - worker.lanes[0]] = number + 1
        self._ready.append(fragment)

    # What goes wrong

    def _failed(self, worker: Worker, numbers: Sequence[int], cause: str, told: str) -> None:
        episodes: list[Episode]
        if self._whole:
            episodes = [(EPISODES, number) for number in numbers]
            what = f"episode{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        else:
            episodes = list(zip(worker.lanes, worker.numbers, strict=True))
            what = f"a fragment of rows {worker.lanes[0]} to {worker.lanes[-1]}"
        self._failures.add(worker.index, what, cause, told, episodes)

    def _failed_to_start(self, worker: Worker, cause: str, told: str) -> None:
        worker.failed_starts += 1
        self._failures.add(worker.index, "building its environment", cause, told, ())
        if worker.failed_starts >= self._failures.most:
            raise CollectError(
                f"worker {worker.index} failed {worker.failed_starts} times at building its environment:"
                f" {cause}\n\n{told}".rstrip(),
                told,
            )

    def _put_back(self, worker: Worker, numbers: Sequence[int]) -> None:
        """What is left of a task, with unit "steps" all of it, has to be handed out again."""
        for number in numbers:
            heapq.heappush(self._again, number)
        if not self._whole and self._mode == "collect":
            worker.due += 1

    def _replace(self, worker: Worker) -> None:
        """A process has died: another one takes its place."""
        cause, told = worker.obituary()
        given = list(worker.tasks)
        for task in given:
            if task is not None:
                self._running -= len(task.slots)
                self._put_back(worker, task.numbers)
        worker.retire()
        worker.start()
        self._restarts += 1
        if not given:
            self._failures.add(worker.index, "nothing", cause, told, ())
        elif given[0] is None:
            self._failed_to_start(worker, cause, told)
        else:
            self._failed(worker, given[0].numbers, cause, told)

    def _end_hanging(self, now: float) -> None:
        for worker in self._workers:
            if worker.tasks and not worker.hung:
                limit = self._timeout + (START_SECONDS if worker.tasks[0] is None else 0)
                if now - worker.since > limit:
                    worker.kill(f"no answer for {limit:g} s")

    # What is told

    def report(self) -> Report:
        return Report(
            steps=self._steps,
            episodes=self._episodes,
            workers=self._n_workers,
            failures=tuple(self._failures.all),
            restarts=self._restarts,
            cold_start=self._cold_start,
            memory_mib=self._memory_of_workers(),
            seconds=dict(self._seconds),
        )

    def _memory_of_workers(self) -> tuple[float, ...]:
        """Asked once in a while: the system counts pages to answer."""
        at, pids, _ = self._memory
        now = time.monotonic()
        if now - at > _MEMORY or pids != self.pids:
            self._memory = now, self.pids, memory_of(self.pids)
        return self._memory[2]

    def state_dict(self) -> dict[str, Any]:
        """See `fastrl.collect.plan.Collector`. Whole episodes that were begun and not taken are not played again."""
        numbers: dict[int, int] = {}
        if self._whole:
            numbers[EPISODES] = self._next
        for worker in self._workers:
            numbers |= zip(worker.lanes, worker.numbers, strict=True)
        return {"numbers": numbers, "version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._mode:
            raise CollectError("a collector goes on from a state before it has collected, not after")
        if self._whole:
            [self._next] = resumed(state, [EPISODES])
            self._end = self._next
        else:
            numbers = resumed(state, range(self.plan.num_envs))
            for worker in self._workers:
                worker.numbers = numbers[worker.lanes[0] : worker.lanes[-1] + 1]
        self._base = state["version"] - self._published
        self.version = state["version"]

    def close(self) -> None:
        self._stop[0] = 1
        for worker in self._workers:
            worker.retire()
        processes.end([worker.process for worker in self._workers], 2.0)
        self._workers = []
        if self._weights is not None:
            self._weights.close()
        _open.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check(plan: Plan, task_timeout: float | None, ahead: int | None, rebuild: bool) -> None:
    if task_timeout is not None and not task_timeout > 0:
        raise ValueError(f"task_timeout should be more than 0 s, got {task_timeout}")
    if ahead is not None and ahead < 1:
        raise ValueError(f"ahead should be at least 1, got {ahead}")
    if rebuild and plan.unit == "steps":
        raise ValueError('rebuild needs unit "episodes": with "steps", environments go on from task to task')


def _pickled(plan: Plan) -> bytes:
    try:
        return pickle.dumps(plan)
    except Exception as error:
        raise TypeError(
            f"the plan does not pickle, so other processes cannot play it: {error}. Give the environment by id"
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
