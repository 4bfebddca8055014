"""Collects on Ray actors: on this machine or on a cluster of machines, `pip install 'fastrl[ray]'`.

Each worker is an actor with a `Player` of its own. Weights go into Ray's object store once an update, and each machine
fetches them once; what was played comes back through the store, too. Who is free gets the next episodes; with unit
"steps", each worker plays its own rows on. Ray starts a worker again that has died, and this module gives it what it
needs to go on; the task that it had is played again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import math
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from fastrl.collect.failures import Failures, last_line
from fastrl.collect.fragment import Fragment
from fastrl.collect.plan import CollectError, Plan, Report, shares
from fastrl.collect.player import PARTS, UNPUBLISHED, Arrays, Played, arrays_for, fragment_of, resumed
from fastrl.collect.ray_cluster import connect, import_ray, start
from fastrl.collect.ray_player import PlayerActor
from fastrl.collect.workers import MIB, WorkerCount, available_memory, count_workers
from fastrl.streams import EPISODES

# A task of several short episodes takes about so many seconds, beside which handing it over is next to nothing.
TASK_SECONDS = 0.05

# A worker that has not come up in so many seconds never will.
START_SECONDS = 120.0

# Of a worker's methods, those that do not wait until it has played.
_ASIDE = "aside"

# How long a worker that hangs is asked where.
TELL_SECONDS = 3.0

# Of Ray's object store, beside what is known to be put there; less than 75 MiB it does not take.
_LEAST_STORE = 100 * MIB
_STORE_SHARE = 0.25

# Seconds between looks at whether a worker hangs, and at whether Ray has started one again.
_LOOK = 0.5
_AGAIN = 0.1

_DIED = "its process died"


@dataclasses.dataclass
class _Call:
    """Something that a worker was asked for.

    Attributes:
        what: the method.
        ref: of its answer.
        numbers: of the episodes that it is to play; with unit "steps", none.
    """

    what: Literal["begin", "build", "play"]
    ref: Any
    numbers: tuple[int, ...] = ()


@dataclasses.dataclass
class _Worker:
    """What the learner knows of one.

    Attributes:
        lanes: its rows; none with unit "episodes".
        numbers: of the episodes that run in them, as of its last answer.
        calls: that were not answered, oldest first.
        since: when it began with the oldest of them, as far as is known.
        life: how often it was started again.
        pid: of its process, once it is known. ``ready``: whether it has built what it needs.
        due: fragments that it should still be asked for.
        failed_starts: in a row.
        memory_mib: of its process, as it told last.
    """

    index: int
    actor: Any
    lanes: list[int]
    numbers: list[int]
    calls: deque[_Call] = dataclasses.field(default_factory=deque)
    since: float = 0.0
    life: int = 0
    pid: int | None = None
    ready: bool = False
    due: int = 0
    failed_starts: int = 0
    memory_mib: float = 0.0


class RayCollector:
    """See `fastrl.collect.plan.Collector`. Use ``collect`` or ``take``, not both.

    A worker whose environment raises goes on with a new environment; Ray starts one again that died, or that was killed
    as it gave no answer for ``task_timeout`` seconds. Its task is done again; with unit "steps", its rows' episodes
    begin anew.

    Args:
        n_workers: a number, or "auto": as many as have a processor and memory, here or on the cluster.
        ray_address: of a Ray cluster, ``"host:6379"``; or "auto" for the one that runs on this machine. None: Ray is
            started here for this collector, unless the program has called ``ray.init`` itself. On each machine of a
            cluster there should be fastrl, and what makes the environment.
        connect_timeout: seconds in which the cluster should answer.
        cpus_per_worker: processors of a cluster that are set aside for each worker. Workers are spread over machines.
        task_timeout: seconds that an episode, or a fragment, may take; None: any time.
        max_failures: as soon as workers have failed so often at the same episode, the run stops.
        ahead: for `take`, fragments that may be running or wait to be taken, which bounds the policy's lag. By default
            two for each worker, or an update's worth of episodes, if that is more.
        measure: tells the bytes of memory that one worker takes; asked only where memory could be short. None: memory
            is not looked at.

    Raises:
        CollectError: Ray is not installed, or the cluster does not answer, or it has too few processors.
        TypeError, ValueError: an argument that makes no sense.
    """

    name = "ray"

    def __init__(
        self,
        plan: Plan,
        *,
        n_workers: WorkerCount = "auto",
        ray_address: str | None = None,
        connect_timeout: float = 10.0,
        cpus_per_worker: float = 1.0,
        task_timeout: float | None = 300.0,
        max_failures: int = 3,
        ahead: int | None = None,
        measure: Callable[[], int] | None = None,
    ) -> None:
        _check(cpus_per_worker, connect_timeout, task_timeout, ahead)
        self._failures = Failures(max_failures)
        self.plan = plan
        self.version = 0
        self._whole = plan.unit == "episodes"
        self._timeout = math.inf if task_timeout is None else task_timeout
        self._weights: Any = None
        self._nbytes = plan.make_actor().weights_nbytes
        self._steps = self._episodes = self._restarts = 0
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
        self._workers: list[_Worker] = []
        self._ray: Any = import_ray()
        useful = plan.episodes if self._whole else plan.num_envs
        # On this machine Ray is told how many processors there are, so the workers have to be counted first.
        self._ends_ray = not self._ray.is_initialized()
        local = ray_address is None and self._ends_ray
        if local:
            count = count_workers(n_workers, useful=useful, measure=measure)
            start(count, self._store(count, ahead))
        elif self._ends_ray:
            assert ray_address is not None
            connect(ray_address, connect_timeout)
        try:
            if not local:
                count = self._count_on_cluster(n_workers, useful, cpus_per_worker, measure)
            self._ahead = max(2 * count, plan.episodes) if ahead is None else ahead
            self._depth = max(2, -(-self._ahead // count))
            remote = self._ray.remote(concurrency_groups={_ASIDE: 1})(PlayerActor).options(
                num_cpus=1 if local else cpus_per_worker,
                max_restarts=-1,
                scheduling_strategy="SPREAD",
            )
            for index, lanes in enumerate(shares(plan, count)):
                worker = _Worker(index, remote.remote(plan, lanes), list(lanes), [0] * len(lanes))
                self._workers.append(worker)
                self._begin(worker)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int | None]:
        """Of the workers' processes, on whichever machines; None for one that has not begun."""
        return [worker.pid for worker in self._workers]

    def _store(self, count: int, ahead: int | None) -> int:
        """Bytes for Ray's objects: the fragments that may be under way, and weights, as far as there is memory."""
        rows = 1 if self._whole else -(-self.plan.num_envs // count)
        fragment = sum(array.nbytes for array in arrays_for(self.plan, rows).values())
        wanted = (2 * count + (ahead or max(2 * count, self.plan.episodes))) * fragment + 4 * self._nbytes
        return _LEAST_STORE + min(wanted, int(_STORE_SHARE * available_memory()))

    def _count_on_cluster(
        self, asked: WorkerCount, useful: int, cpus: float, measure: Callable[[], int] | None
    ) -> int:
        there = self._ray.cluster_resources()
        places = int(there.get("CPU", 0) / cpus)
        count = count_workers(
            asked, useful=useful, measure=measure, available=int(there.get("memory", 0)), num_cores=places
        )
        if count > places:
            raise CollectError(
                f"{count} workers need {count * cpus:g} processors, the Ray cluster has {there.get('CPU', 0):g}:"
                " give a smaller n_workers, or fewer cpus_per_worker"
            )
        return count

    def publish(self, weights: Any) -> int:
        """See `fastrl.collect.plan.Collector`.

        Raises:
            ValueError: the weights have another size than the actor's.
        """
        if self._nbytes:
            sent = np.frombuffer(memoryview(weights).cast("B"), np.uint8)
            if len(sent) != self._nbytes:
                raise ValueError(f"the actor's weights have {self._nbytes} bytes, got {len(sent)}")
            self._weights = self._ray.put(sent)
        self.version += 1
        if self._mode == "take":
            for worker in self._workers:
                worker.actor.offer.options(concurrency_group=_ASIDE).remote(self.version, self._weights)
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
            self._receive(_LOOK)
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
            self._receive(min(left, _LOOK))
            self._hand_out()
        return self._ready.popleft()

    def _use(self, mode: Literal["collect", "take"]) -> None:
        if not self._workers:
            raise CollectError("the collector is closed")
        if self._nbytes and self._weights is None:
            raise CollectError(UNPUBLISHED)
        if self._mode not in ("", mode):
            raise CollectError(f"this collector is used by {self._mode}(); {mode}() needs one of its own")
        self._mode = mode

    # What is handed out

    def _hand_out(self) -> None:
        """Gives tasks to workers: to each one, before any has two."""
        for depth in range(1, self._depth + 1):
            if self._left() < 1:
                break
            for worker in self._workers:
                if worker.ready and len(worker.calls) < depth:
                    numbers = self._numbers(depth) if self._whole else self._due(worker)
                    if numbers is not None:
                        self._call(worker, numbers)

    def _call(self, worker: _Worker, numbers: tuple[int, ...]) -> None:
        if not worker.calls:
            worker.since = time.monotonic()
        self._running += len(numbers) or 1
        ref = worker.actor.play.remote(worker.life, numbers, self.version, self._weights)
        worker.calls.append(_Call("play", ref, numbers))

    def _begin(self, worker: _Worker) -> None:
        """Asks a worker that is new, or was started again, to build what it needs."""
        worker.pid, worker.ready = None, False
        worker.since = time.monotonic()
        worker.calls = deque([_Call("begin", worker.actor.begin.remote(worker.life, worker.numbers))])

    def _due(self, worker: _Worker) -> tuple[int, ...] | None:
        """With unit "steps", whether a worker is to go on: () or None."""
        if self._mode == "take":
            return () if self._left() > 0 else None
        if not worker.due:
            return None
        worker.due -= 1
        return ()

    def _numbers(self, depth: int) -> tuple[int, ...] | None:
        """Episodes for a task: one that failed by itself, of others as many as fit into the time of a task."""
        left, workers = self._left(), len(self._workers)
        # The last ones of an update are left to who is free first.
        if left < 1 or (depth > 1 and self._mode == "collect" and left <= workers):
            return None
        if self._again:
            return (heapq.heappop(self._again),)
        count = int(max(1, min(TASK_SECONDS / max(self._episode_seconds, 1e-6), left // (2 * workers))))
        self._next += count
        return tuple(range(self._next - count, self._next))

    def _left(self) -> int:
        """Fragments that may be handed out now."""
        if self._mode == "take":
            return self._ahead - self._running - len(self._ready)
        if self._whole:
            return len(self._again) + self._end - self._next
        return sum(worker.due for worker in self._workers)

    # What comes back

    def _receive(self, timeout: float) -> None:
        """Takes in what is done; waits up to ``timeout`` seconds for something, if there is nothing yet.

        A worker's answers are taken in the order of its calls, so that at an error it is known at what it happened.
        """
        waiting = {worker.calls[0].ref: worker for worker in self._workers if worker.calls}
        if waiting:
            ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=timeout)
            if ready:
                # Others that are ready as well.
                ready, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
            for ref in ready:
                self._take_in(waiting[ref])
        now = time.monotonic()
        for worker in self._workers:
            if worker.calls and now - worker.since > self._limit(worker.calls[0]):
                self._end_hanging(worker)

    def _take_in(self, worker: _Worker) -> None:
        """A worker's oldest call was answered, or the worker has died."""
        call = worker.calls[0]
        try:
            answer = self._ray.get(call.ref)
        except self._ray.exceptions.ActorUnavailableError as error:
            if call.what == "begin":
                # Ray is about to start it.
                time.sleep(_AGAIN)
                worker.calls[0] = _Call("begin", worker.actor.begin.remote(worker.life, worker.numbers))
                return
            self._restarted(worker, _DIED, str(error))
            return
        except self._ray.exceptions.RayError as error:
            # Workers that die come back. What does not come back has failed at making its actor.
            told = str(error).strip()
            raise CollectError(
                f"Ray cannot make worker {worker.index}: {last_line(told)}; each machine of the cluster should"
                f" have fastrl, and what makes the environment\n\n{told}",
                told,
            ) from None
        if answer is None:
            self._restarted(worker, _DIED, "")
            return
        self._answered(worker.calls.popleft())
        worker.since = time.monotonic()
        if call.what == "begin":
            worker.pid = answer
            worker.calls.append(_Call("build", worker.actor.build.remote(worker.life)))
            return
        worker.memory_mib = answer.memory_mib
        for part, seconds in answer.seconds.items():
            self._seconds[part] += seconds
        if answer.refused:
            raise CollectError(f"{answer.cause}\n\n{answer.traceback}", answer.traceback)
        if call.what == "build":
            if answer.cause:
                self._begin(worker)
                self._failed_to_start(worker, answer.cause, answer.traceback)
                return
            worker.ready, worker.failed_starts = True, 0
            self._cold_start = self._cold_start or self._failures.elapsed()
            return
        for arrays, played in answer.fragments:
            self._deliver(worker, arrays, played, answer.version)
        if self._whole and answer.fragments:
            spent = sum(answer.seconds[part] for part in ("environment", "inference", "buffer"))
            self._episode_seconds = spent / len(answer.fragments)
        if answer.cause:
            left = call.numbers[len(answer.fragments) :]
            self._put_back(worker, left)
            self._failed(worker, left[:1], answer.cause, answer.traceback)

    def _answered(self, call: _Call) -> None:
        """A call will not come to anything more."""
        if call.what == "play":
            self._running -= len(call.numbers) or 1

    def _deliver(self, worker: _Worker, arrays: Arrays, played: Played, version: int) -> None:
        lanes = np.asarray([EPISODES] if self._whole else worker.lanes, np.int64)
        # What Ray gives can only be read, and lies in its store as long as it is in use.
        own = {name: array.copy() for name, array in arrays.items()}
        fragment = fragment_of(self.plan, own, played, version, lanes)
        self._steps += len(fragment)
        self._episodes += len(played.episodes)
        self._failures.over(played.episodes)
        if not self._whole:
            for lane, number in played.episodes:
                worker.numbers[lane - worker.lanes[0]] = number + 1
        self._ready.append(fragment)

    # What goes wrong

    def _failed(self, worker: _Worker, numbers: tuple[int, ...], cause: str, told: str) -> None:
        """Counts a failure at the episodes of these numbers, or at those that the worker's rows are in."""
        if self._whole:
            episodes = [(EPISODES, number) for number in numbers]
            what = f"episode{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        else:
            episodes = list(zip(worker.lanes, worker.numbers, strict=True))
            what = f"a fragment of rows {worker.lanes[0]} to {worker.lanes[-1]}"
        self._failures.add(worker.index, what, cause, told, episodes)

    def _failed_to_start(self, worker: _Worker, cause: str, told: str) -> None:
        worker.failed_starts += 1
        self._failures.add(worker.index, "building its environment", cause, told, ())
        if worker.failed_starts >= self._failures.most:
            raise CollectError(
                f"worker {worker.index} failed {worker.failed_starts} times at building its environment:"
                f" {cause}\n\n{told}".rstrip(),
                told,
            )

    def _put_back(self, worker: _Worker, numbers: tuple[int, ...]) -> None:
        """What is left of a task has to be handed out again."""
        for number in numbers:
            heapq.heappush(self._again, number)
        if not self._whole and self._mode == "collect":
            worker.due += 1

    def _restarted(self, worker: _Worker, cause: str, told: str) -> None:
        """A worker has died, and Ray starts it again: what it was asked for has to be asked for anew."""
        calls = list(worker.calls)
        worker.life += 1
        self._restarts += 1
        self._begin(worker)
        for call in calls:
            self._answered(call)
            if call.what == "play":
                self._put_back(worker, call.numbers)
        if calls[0].what == "play":
            self._failed(worker, calls[0].numbers, cause, told)
        else:
            self._failed_to_start(worker, cause, told)

    def _limit(self, call: _Call) -> float:
        """Seconds that a call may take."""
        return self._timeout * max(1, len(call.numbers)) if call.what == "play" else START_SECONDS

    def _end_hanging(self, worker: _Worker) -> None:
        """Kills a worker that gives no answer; Ray starts it again."""
        limit = self._limit(worker.calls[0])
        if worker.calls[0].what == "begin":
            # It is not there, to be asked or killed.
            raise CollectError(
                f"worker {worker.index} did not come up within {limit:g} s: has Ray got a processor for it that nobody"
                " else uses?"
            )
        told = ""
        with contextlib.suppress(self._ray.exceptions.RayError):
            ref = worker.actor.where.options(concurrency_group=_ASIDE).remote()
            told = self._ray.get(ref, timeout=TELL_SECONDS)
        self._ray.kill(worker.actor, no_restart=False)
        self._restarted(worker, f"no answer for {limit:g} s", told)

    # What is told

    def report(self) -> Report:
        return Report(
            steps=self._steps,
            episodes=self._episodes,
            workers=len(self._workers),
            failures=tuple(self._failures.all),
            restarts=self._restarts,
            cold_start=self._cold_start,
            memory_mib=tuple(worker.memory_mib for worker in self._workers if worker.memory_mib),
            seconds=dict(self._seconds),
        )

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
                worker.life += 1
                self._begin(worker)
        self.version = state["version"]

    def close(self) -> None:
        if self._ray.is_initialized():
            for worker in self._workers:
                self._ray.kill(worker.actor)
            if self._ends_ray:
                self._ray.shutdown()
        self._workers = []
        self._weights = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check(
    cpus_per_worker: float, connect_timeout: float, task_timeout: float | None, ahead: int | None
) -> None:
    for name, value, unit in (
        ("cpus_per_worker", cpus_per_worker, ""),
        ("connect_timeout", connect_timeout, " s"),
        ("task_timeout", task_timeout, " s"),
    ):
        if value is not None and not value > 0:
            raise ValueError(f"{name} should be more than 0{unit}, got {value}")
    if ahead is not None and ahead < 1:
        raise ValueError(f"ahead should be at least 1, got {ahead}")
