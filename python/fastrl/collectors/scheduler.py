"""The task scheduler of the collectors "executor" and "ray": tasks for workers, and fragments of their replies.

With unit "steps" each worker steps its own environments, T steps a task. With unit "episodes" a free worker gets the
next episodes. A failed task is scheduled again.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from fastrl.collectors.counting import CountingCollector
from fastrl.collectors.failures import Episode
from fastrl.collectors.fragment_arrays import Arrays, FragmentMeta, fragment_of
from fastrl.collectors.learner_time import LearnerTime
from fastrl.collectors.protocol import (
    ACTIVITIES,
    UNPUBLISHED,
    CollectError,
    Difficulty,
    Plan,
    Report,
)
from fastrl.collectors.resources import check_timeout
from fastrl.collectors.running import RunningEpisode, RunningEpisodes
from fastrl.collectors.worker_tasks import Collected, WorkerReply
from fastrl.rollout.fragment import Fragment, copied_steps, first_steps
from fastrl.utils.seeding import NO_ENV

# Seconds between checks for workers that hang.
POLL_INTERVAL_S = 0.5


class TaskWorker:
    """State of a worker, in a process or on another machine.

    Args:
        index: its number.
        env_indices: its environments; none with unit "episodes".

    Attributes:
        episode_numbers: of the running episodes of its environments, as of its last reply.
        since: when it started its oldest task without a reply, as far as is known.
        turn: when it was last given a task.
        due: fragments that it still has to collect.
        failed_starts: in a row.
    """

    def __init__(self, index: int, env_indices: Iterable[int]) -> None:
        self.index = index
        self.env_indices = list(env_indices)
        self.episode_numbers = [0] * len(self.env_indices)
        self.since = 0.0
        self.turn = self.due = self.failed_starts = 0


W = TypeVar("W", bound=TaskWorker)


class TaskScheduler(CountingCollector, Generic[W]):
    """Scheduler of workers' tasks, the base of collectors with workers; see `fastrl.collectors.protocol.Collector`.

    A subclass sends weights and tasks to its workers, waits for their replies, and replaces workers that die or hang.
    Use ``collect`` or ``take``, not both.

    A task is the numbers of some episodes; with unit "steps" it has no numbers and is one fragment. Whole episodes that
    were started and not taken are not run again by a collector that resumes.

    Args:
        task_timeout: seconds for a task; None: no limit.
        max_failures: failures of workers at the same episode that stop the run.
        max_pending: for `take`, fragments that may be running or wait to be taken, which bounds their staleness.
            None: two for each worker, or an update's worth of episodes, if that is more.
        task_seconds: duration of a task of several short episodes.

    Raises:
        ValueError: an argument that makes no sense.
    """

    name: str

    def __init__(
        self,
        plan: Plan,
        *,
        task_timeout: float | None,
        max_failures: int,
        max_pending: int | None,
        task_seconds: float,
    ) -> None:
        if max_pending is not None and max_pending < 1:
            raise ValueError(f"max_pending should be at least 1, got {max_pending}")
        super().__init__(plan, max_failures)
        self._useful_workers = plan.episodes if self._whole else plan.num_envs
        self._timeout = check_timeout(task_timeout)
        self._task_seconds = task_seconds
        self._asked_pending = max_pending
        self.workers: list[W] = []
        # The running episodes of each worker's rows, by its index.
        self._runs: dict[int, RunningEpisodes] = {}
        self._nbytes = plan.make_actor().weights_nbytes
        # Weights published by this collector; earlier versions were another collector's.
        self._published = 0
        # Of the episodes that start from now on, see `set_difficulty`.
        self._difficulty: tuple[int, Difficulty | None] = 0, None
        self._turns = 0
        self._seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self._learner_time = LearnerTime()
        # Seconds that workers collected while the learner did not wait; None: not known.
        self._overlap_seconds: float | None = 0.0
        # Episodes to run: those that failed, and from the next number up to the end of the update.
        self._again: list[int] = []
        self._end = 0
        self._episode_seconds = math.inf
        self._mode: Literal["", "collect", "take"] = ""
        # Fragments that are assigned to workers.
        self._running = 0
        self._wanted = 0
        self._ready: deque[Fragment] = deque()

    def _expect(self, n_workers: int) -> None:
        """Sets the number of workers and the limits that follow from it."""
        self._n_workers = n_workers
        self._max_pending = (
            max(2 * n_workers, self.plan.episodes) if self._asked_pending is None else self._asked_pending
        )
        # Tasks that a worker may have at a time.
        self._depth = max(2, -(-self._max_pending // n_workers))

    # Implemented by subclasses

    @abstractmethod
    def _send(self, weights: Any, version: int) -> None:
        """Gives workers new weights, a buffer of as many bytes as their actor's, if these have any.

        Raises:
            ValueError: they have another size.
        """

    @abstractmethod
    def _room(self, worker: W, depth: int) -> int:
        """Fragments for which a worker has room in one more task, if it has fewer than ``depth`` of them; or 0."""

    @abstractmethod
    def _submit(self, worker: W, numbers: tuple[int, ...]) -> None:
        """Sends a worker a task."""

    @abstractmethod
    def _wait(self, timeout: float) -> None:
        """Handles all replies of workers (`_worker_started`, `_task_finished`) and replaces dead workers
        (`_worker_replaced`); waits up to ``timeout`` seconds if there is nothing yet."""

    @abstractmethod
    def _limit(self, worker: W) -> float:
        """Seconds that the oldest task of a worker may take; infinite if it has none."""

    @abstractmethod
    def _end_hanging(self, worker: W) -> None:
        """Kills a worker that has taken longer."""

    @abstractmethod
    def _memory(self) -> tuple[float, ...]:
        """MiB that each worker's process takes."""

    @abstractmethod
    def close(self) -> None:
        """Ends workers. May be called again, and before all of them are made."""

    # The learner's calls

    def publish(self, weights: Any) -> int:
        """See `fastrl.collectors.protocol.Collector`.

        Raises:
            ValueError: the weights have another size than the actor's.
        """
        self._send(weights, self.version + 1)
        self._published += 1
        self.version += 1
        return self.version

    def set_difficulty(self, level: int, difficulty: Difficulty | None = None) -> None:
        self._difficulty = level, difficulty

    def _bytes_of(self, weights: Any) -> memoryview:
        sent = memoryview(weights).cast("B")
        if len(sent) != self._nbytes:
            raise ValueError(f"the actor's weights have {self._nbytes} bytes, got {len(sent)}")
        return sent

    def collect(self) -> list[Fragment]:
        self._use("collect")
        # After an interrupt, the collection in progress continues.
        if not self._wanted:
            self._wanted = self.plan.episodes if self._whole else len(self.workers)
            self._end += self.plan.episodes
            for worker in self.workers:
                worker.due = 1
        with self._learner_time.waiting():
            while len(self._ready) < self._wanted:
                self._schedule()
                self._receive(POLL_INTERVAL_S)
        self._wanted = 0
        fragments = sorted(self._ready, key=lambda fragment: fragment.place)
        self._ready.clear()
        return fragments

    def take_many(self, most: int, timeout: float | None = None) -> list[Fragment]:
        self._use("take")
        until = math.inf if timeout is None else time.monotonic() + timeout
        with self._learner_time.waiting():
            self._receive(0.0)
            self._schedule()
            while not self._ready:
                if not self._running and self._remaining() < 1:
                    return []
                left = until - time.monotonic()
                if left < 0:
                    return []
                self._receive(min(left, POLL_INTERVAL_S))
                self._schedule()
            return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]

    def _remaining(self) -> float:
        """Tasks that `limit` allows `take` to schedule."""
        if not self._whole:
            return math.inf
        return len(self._again) + self._stop_at - self._next

    def _use(self, mode: Literal["collect", "take"]) -> None:
        if not self.workers:
            raise CollectError("the collector is closed")
        if self._nbytes and not self._published:
            raise CollectError(UNPUBLISHED)
        if self._mode not in ("", mode):
            raise CollectError(f"this collector is used by {self._mode}(); {mode}() needs one of its own")
        self._mode = mode

    def report(self) -> Report:
        return self._report(
            workers=self._n_workers,
            memory_mib=self._memory(),
            seconds=dict(self._seconds),
            overlap_seconds=self._overlap_seconds,
        )

    def _running_state(self) -> tuple[dict[int, int], dict[int, RunningEpisode]]:
        numbers: dict[int, int] = {}
        running: dict[int, RunningEpisode] = {}
        for worker in self.workers:
            of_worker, episodes = self._running_of(worker).state()
            numbers |= of_worker
            running |= episodes
        return numbers, running

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._mode:
            raise CollectError("load_state_dict() should come before the first collect() or take()")
        super().load_state_dict(state)
        self._end = self._next

    def _resume(self, numbers: Sequence[int], running: Mapping[int, RunningEpisode]) -> None:
        left = iter(numbers)
        for worker in self.workers:
            worker.episode_numbers = list(itertools.islice(left, len(worker.env_indices)))
            self._running_of(worker).load(worker.episode_numbers, running)

    def _running_of(self, worker: W) -> RunningEpisodes:
        return self._runs.setdefault(worker.index, RunningEpisodes(self.plan, worker.env_indices))

    def _running_episodes(self, worker: W) -> list[RunningEpisode]:
        """The running episodes of a worker that has not collected yet."""
        _, episodes = self._running_of(worker).state()
        return [episodes.get(env_index, RunningEpisode()) for env_index in worker.env_indices]

    # Scheduling

    def _schedule(self) -> None:
        """Gives tasks to workers: to each one, before any has two, and the one that waited longest comes first."""
        workers = sorted(self.workers, key=lambda worker: worker.turn)
        for depth in range(1, self._depth + 1):
            if self._left() < 1:
                break
            for worker in workers:
                most = self._room(worker, depth)
                if most and (numbers := self._task_for(worker, most, depth)) is not None:
                    self._turns += 1
                    worker.turn = self._turns
                    self._running += _fragments(numbers)
                    self._submit(worker, numbers)

    def _left(self) -> int:
        """Fragments that may be scheduled now."""
        if self._mode == "take":
            pending = self._running + len(self._ready)
            return int(min(self._max_pending - pending, self._remaining()))
        if self._whole:
            return len(self._again) + self._end - self._next
        return sum(worker.due for worker in self.workers)

    def _task_for(self, worker: W, most: int, depth: int) -> tuple[int, ...] | None:
        """Chooses what a worker is given as its ``depth``-th task, if there is something for it: ``most`` fragments."""
        if self._left() < 1:
            return None
        if self._whole:
            return self._choose_episodes(most, depth)
        if self._mode == "collect":
            if not worker.due:
                return None
            worker.due -= 1
        return ()

    def _choose_episodes(self, most: int, depth: int) -> tuple[int, ...] | None:
        """Episodes for a task: one that failed by itself, of others as many as fit into the time of a task."""
        left, workers = self._left(), len(self.workers)
        # The last ones are left to the workers that are free first.
        last = left if self._mode == "collect" else self._remaining()
        if depth > 1 and last <= workers:
            return None
        if self._again:
            return (heapq.heappop(self._again),)
        fit = self._task_seconds / max(self._episode_seconds, 1e-6)
        count = int(max(1, min(fit, most, left // (2 * workers))))
        self._next += count
        return tuple(range(self._next - count, self._next))

    # Replies of workers

    def _receive(self, timeout: float) -> None:
        """Takes in what workers have done, or waits for it: the scheduler then knows which replies are missing."""
        self._wait(timeout)
        now = time.monotonic()
        for worker in self.workers:
            if now - worker.since > self._limit(worker):
                self._end_hanging(worker)

    def _worker_started(self, worker: W, reply: WorkerReply, cold_start: float) -> None:
        """Handles the reply to a worker's start: it built its environment ``cold_start`` seconds after the collector
        started, or failed to."""
        self._count(reply)
        if reply.cause:
            self._start_failed(worker, reply.cause, reply.traceback)
            return
        worker.failed_starts = 0
        self._cold_start = self._cold_start or cold_start

    def _task_finished(
        self,
        worker: W,
        numbers: tuple[int, ...],
        fragments: Sequence[Collected],
        version: int,
        reply: WorkerReply,
    ) -> None:
        """A task is done, or has failed after some of its fragments.

        Args:
            fragments: what is beyond their last step is left out. Their arrays are copied, but for those of `collect`
                with unit "steps".
            version: of their policy.
        """
        self._running -= _fragments(numbers)
        if reply.span is None:
            self._overlap_seconds = None
        elif self._overlap_seconds is not None:
            self._overlap_seconds += self._learner_time.between(*reply.span)
        self._count(reply)
        for arrays, meta in fragments:
            self._deliver(worker, arrays, meta, version, reply.restarted)
        if fragments and self._whole:
            seconds = sum(
                reply.seconds[ACTIVITIES.index(part)] for part in ("environment", "inference", "buffer")
            )
            self._episode_seconds = seconds / len(fragments)
        if reply.cause:
            left = numbers[len(fragments) :]
            self._requeue(worker, left)
            self._task_failed(worker, left[:1], reply.cause, reply.traceback)

    def _count(self, reply: WorkerReply) -> None:
        for part, seconds in zip(ACTIVITIES, reply.seconds, strict=False):
            self._seconds[part] += seconds
        if reply.refused:
            raise CollectError(f"{reply.cause}\n\n{reply.traceback}".rstrip(), reply.traceback)

    def _deliver(
        self, worker: W, arrays: Arrays, meta: FragmentMeta, version: int, restarted: tuple[int, ...]
    ) -> None:
        env_indices = np.asarray([NO_ENV] if self._whole else worker.env_indices, np.int64)
        # With unit "steps" a worker has one task in a call of `collect`: until the next call nothing overwrites its
        # arrays, nor does the learner need them any longer.
        are_lent = self._mode == "collect" and not self._whole
        kept = (first_steps if are_lent else copied_steps)(arrays, meta.num_steps)
        fragment = fragment_of(self.plan, kept, meta, version, env_indices)
        self._count_fragment(fragment)
        if not self._whole:
            for _, env_index, number, *_ in meta.ends:
                worker.episode_numbers[env_index - worker.env_indices[0]] = number + 1
            self._running_of(worker).add(fragment, restarted, meta.difficulties)
            self._diverged += len(restarted)
        self._ready.append(fragment)

    # Failures

    def _worker_replaced(
        self, worker: W, given: Sequence[tuple[int, ...] | None], cause: str, trace: str
    ) -> None:
        """A worker had died, and another one has taken its place.

        Args:
            given: the tasks that it had, oldest first; None is its start.
            cause: in one line.
            trace: the traceback, if it left one.
        """
        self._restarts += 1
        for numbers in given:
            if numbers is not None:
                self._return_task(worker, numbers)
        if not given:
            self._failures.add(worker.index, "nothing", cause, trace, ())
        elif given[0] is None:
            self._start_failed(worker, cause, trace)
        else:
            self._task_failed(worker, given[0], cause, trace)

    def _return_task(self, worker: W, numbers: tuple[int, ...]) -> None:
        """Requeues a task that will get no reply."""
        self._running -= _fragments(numbers)
        self._requeue(worker, numbers)

    def _requeue(self, worker: W, numbers: tuple[int, ...]) -> None:
        """Schedules the rest of a task again, with unit "steps" all of it."""
        for number in numbers:
            heapq.heappush(self._again, number)
        if not self._whole and self._mode == "collect":
            worker.due += 1

    def _task_failed(self, worker: W, numbers: tuple[int, ...], cause: str, trace: str) -> None:
        """Counts a failure at the episodes of these numbers, or at those that the worker's rows are in."""
        episodes: list[Episode]
        if self._whole:
            episodes = [(NO_ENV, number) for number in numbers]
            what = f"episode{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        else:
            self._running_of(worker).forget()
            episodes = list(zip(worker.env_indices, worker.episode_numbers, strict=True))
            what = f"a fragment of rows {worker.env_indices[0]} to {worker.env_indices[-1]}"
        self._failures.add(worker.index, what, cause, trace, episodes)

    def _start_failed(self, worker: W, cause: str, trace: str) -> None:
        worker.failed_starts += 1
        self._failures.add(worker.index, "building its environment", cause, trace, ())
        if worker.failed_starts >= self._failures.most:
            raise CollectError(
                f"worker {worker.index} failed {worker.failed_starts} times at building its environment:"
                f" {cause}\n\n{trace}".rstrip(),
                trace,
            )


def _fragments(numbers: tuple[int, ...]) -> int:
    """Number of a task's fragments."""
    return len(numbers) or 1
