"""Collects from environments that are stepped together, with one actor for all of them: in worker processes ("sync"),
or compiled ones in this process's threads ("native")."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from fastrl.collectors.async_runner import AsyncRows, AsyncWorlds
from fastrl.collectors.env_runner import PARTS, UNPUBLISHED, Arrays, Played, arrays_for, fragment_of, resumed
from fastrl.collectors.failures import Failures
from fastrl.collectors.protocol import CollectError, Plan, Report
from fastrl.collectors.resources import WorkerCount, count_workers
from fastrl.collectors.running import Running
from fastrl.collectors.vector_backends import NativeWorlds, ProcessWorlds
from fastrl.collectors.vector_runner import End, Rows
from fastrl.envs.process_pool import SHUTDOWN_GRACE_S, WorkerError
from fastrl.envs.vector import NativeVectorEnv
from fastrl.networks.compiled_actor import Actor
from fastrl.rollout.fragment import Fragment
from fastrl.utils.seeding import EPISODES

Group = Rows | AsyncRows


class LockstepCollector:
    """See `fastrl.collectors.protocol.Collector`. Made by `sync_collector` or `native_collector`.

    Rows are played by groups, each with an actor and environments of its own and in a thread of its own. `take` plays
    in the background from its first call on; then `collect` can no longer be used.

    Args:
        make_rows: makes the groups, which have the plan's rows between them, in order.
        ahead: for `take`, fragments that may be running or wait to be taken. By default two, or with unit "episodes"
            two updates' worth of them.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        make_rows: Callable[[Failures], Sequence[Group]],
        *,
        max_failures: int,
        ahead: int | None,
    ) -> None:
        if ahead is not None and ahead < 1:
            raise ValueError(f"ahead should be at least 1, got {ahead}")
        self.name = name
        self.plan = plan
        self.version = 0
        self._whole = plan.unit == "episodes"
        self._ahead = ahead or 2 * (plan.episodes if self._whole else 1)
        self._failures = Failures(max_failures)
        # What was published last, and the version that the actors have.
        self._newest: tuple[int, bytes] | None = None
        self._loaded = 0
        self._running = Running(plan, () if self._whole else range(plan.num_envs))
        self._next = 0
        self._steps = self._episodes = 0
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._arrays: list[Arrays] = []
        self._background: _Background | None = None
        self._rows = make_rows(self._failures)
        self._threads = ThreadPoolExecutor(len(self._rows), f"fastrl {name}") if len(self._rows) > 1 else None
        self._cold_start = self._failures.elapsed()

    @property
    def _actors(self) -> list[Actor]:
        return [rows.actor for rows in self._rows]

    def publish(self, weights: Any) -> int:
        self._newest = self.version + 1, memoryview(weights).cast("B").tobytes()
        self.version += 1
        return self.version

    def _load(self) -> int:
        """Gives the actors the newest weights; their version."""
        newest = self._newest
        if newest is None:
            if self._rows[0].actor.weights_nbytes:
                raise CollectError(UNPUBLISHED)
        elif newest[0] != self._loaded:
            start = time.perf_counter()
            for actor in self._actors:
                actor.load(newest[1])
            self._loaded = newest[0]
            self._seconds["weights"] += time.perf_counter() - start
        return self._loaded

    def collect(self) -> list[Fragment]:
        if self._background is not None:
            raise RuntimeError(
                "this collector goes on by itself since take(): take fragments, or make another one"
            )
        if not self._whole:
            if not self._arrays:
                self._arrays = [arrays_for(self.plan, self.plan.num_envs)]
            return [self._play_steps(self._arrays[0])]
        fragments: list[Fragment] = []
        self._play_episodes(fragments.append)
        return sorted(fragments, key=lambda fragment: int(fragment.episodes[0, 1]))

    def refresh_observations(self) -> None:
        """Reads the observations again, after the owner of a compiled environment has changed it."""
        for rows in self._rows:
            if isinstance(rows, Rows):
                rows.refresh_observations()

    def take(self, timeout: float | None = None) -> Fragment | None:
        if self._background is None:
            self._background = _Background(self._play_on, self._ahead)
        return self._background.take(timeout)

    def _play_on(self, background: _Background) -> None:
        """What goes on behind `take`."""
        batch = min(self.plan.episodes, self._ahead)
        while background.await_room(batch if self._whole else 1):
            if self._whole:
                self._play_episodes(background.give, batch)
            else:
                background.give(self._play_steps(arrays_for(self.plan, self.plan.num_envs)))

    def _each(self, do: Callable[[Group], Any]) -> list[Any]:
        """Lets every group do something, each in its thread."""
        if self._threads is None:
            return [do(self._rows[0])]
        futures = [self._threads.submit(do, rows) for rows in self._rows]
        return [future.result() for future in futures]

    def _play_steps(self, arrays: Arrays) -> Fragment:
        version = self._load()
        for name in ("terminations", "truncations", "final_obs"):
            arrays[name][...] = 0

        def play(rows: Group) -> list[End]:
            part = slice(rows.first, rows.first + len(rows.lanes))
            return rows.play_steps({name: array[:, part] for name, array in arrays.items()})

        # In the order in which they ended, and of rows.
        ends = sorted(end for part in self._each(play) for end in part)
        played = Played(
            self.plan.num_steps,
            [end[3] for end in ends],
            [end[4] for end in ends],
            [(end[1], end[2]) for end in ends],
            [end[6] for end in ends],
        )
        lanes = np.concatenate([rows.lanes for rows in self._rows])
        fragment = fragment_of(self.plan, arrays, played, version, lanes)
        self._running.add(fragment, [rows.first + row for rows in self._rows for row in rows.anew])
        self._count(fragment)
        return fragment

    def _play_episodes(self, give: Callable[[Fragment], Any], count: int | None = None) -> None:
        """The next episodes, each handed over when it is over."""
        version = self._load()
        count = count or self.plan.episodes
        first, groups = self._next, len(self._rows)
        lock = threading.Lock()

        def over(arrays: Arrays, number: int, total: float, info: tuple[float, ...]) -> None:
            length = len(arrays["rewards"])
            played = Played(length, [total], [length], [(EPISODES, number)], [info])
            fragment = fragment_of(self.plan, arrays, played, version, np.array([EPISODES], np.int64))
            with lock:
                self._count(fragment)
                give(fragment)

        def play(rows: Group) -> None:
            group = self._rows.index(rows)
            rows.play_episodes(
                range(first + count * group // groups, first + count * (group + 1) // groups), over
            )

        self._next += count
        self._each(play)

    def _count(self, fragment: Fragment) -> None:
        self._steps += len(fragment)
        self._episodes += len(fragment.episodes)
        self._failures.over(map(tuple, fragment.episodes.tolist()))

    def report(self) -> Report:
        seconds = dict(self._seconds)
        workers = sum(rows.worlds.num_workers for rows in self._rows)
        for rows in self._rows:
            spent, waited = rows.worlds.seconds()
            for part, value in rows.seconds.items():
                seconds[part] += value
            if workers:
                # Workers know better than who waits for them.
                seconds["environment"] += spent - rows.seconds["environment"]
                seconds["waiting"] += waited
        if not workers and self._background is not None:
            workers = len(self._rows)
        elif not workers:
            # Threads play at the same time, while the learner waits for them: what a mean one does is its time.
            seconds = {part: value / len(self._rows) for part, value in seconds.items()}
        return Report(
            steps=self._steps,
            episodes=self._episodes,
            workers=workers,
            failures=tuple(self._failures.all),
            restarts=sum(rows.restarts for rows in self._rows),
            begun_anew=sum(rows.elsewhere for rows in self._rows),
            cold_start=self._cold_start,
            memory_mib=tuple(size for rows in self._rows for size in rows.worlds.memory()),
            seconds=seconds,
        )

    def state_dict(self) -> dict[str, Any]:
        numbers, running = ({EPISODES: self._next}, {}) if self._whole else self._running.state()
        return {"numbers": numbers, "running": running, "version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._whole:
            [self._next] = resumed(state, [EPISODES])
        else:
            numbers = resumed(state, range(self.plan.num_envs))
            begun = self._running.load(numbers, state["running"])
            for rows in self._rows:
                part = slice(rows.first, rows.first + len(rows.lanes))
                rows.numbers[:], rows.begun = numbers[part], begun[part]
        self.version = self._loaded = state["version"]

    def close(self) -> None:
        if self._background is not None:
            for rows in self._rows:
                rows.stops = True
            self._background.end()
        if self._threads is not None:
            self._threads.shutdown()
        for rows in self._rows:
            rows.worlds.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Background:
    """A thread that plays on, at most so many fragments ahead of who takes them."""

    def __init__(self, play_on: Callable[[_Background], None], ahead: int) -> None:
        self._ahead = ahead
        self._ready: deque[Fragment] = deque()
        self._changed = threading.Condition()
        self._problem: BaseException | None = None
        self._ends = False
        self._thread = threading.Thread(target=self._run, args=(play_on,), name="fastrl ahead", daemon=True)
        self._thread.start()

    def _run(self, play_on: Callable[[_Background], None]) -> None:
        try:
            play_on(self)
        except BaseException as error:
            with self._changed:
                self._problem = error
                self._changed.notify_all()

    def await_room(self, fragments: int) -> bool:
        """Until so many can be begun; false if none is wanted any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ends or len(self._ready) + fragments <= self._ahead)
            return not self._ends

    def give(self, fragment: Fragment) -> None:
        with self._changed:
            self._ready.append(fragment)
            self._changed.notify_all()

    def take(self, timeout: float | None) -> Fragment | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._problem is not None, timeout)
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
            if self._problem is not None:
                raise self._problem
            return None

    def end(self) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        # It may wait for an environment that hangs, whose worker is killed next.
        self._thread.join(SHUTDOWN_GRACE_S)


def sync_collector(
    plan: Plan,
    *,
    n_workers: WorkerCount = "auto",
    task_timeout: float | None = 300.0,
    max_failures: int = 3,
    ahead: int | None = None,
    start_method: Literal["spawn", "forkserver"] = "forkserver",
    measure: Callable[[], int] | None = None,
) -> LockstepCollector:
    """Collects from N environments in worker processes, stepped together; the actor acts here.

    A worker whose environment raises, that is killed, or that takes longer than ``task_timeout`` seconds for a step is
    replaced, and the episodes of its rows begin anew: with unit "steps", what was played of them ends as truncated.

    Args:
        n_workers: processes, which share the rows; "auto": one a core, if memory allows.
        max_failures: as soon as a worker has failed so often at the same episode, the run stops.
        ahead: see `LockstepCollector`.
        measure: tells the bytes of memory that one worker takes; asked only where memory could be short.

    Raises:
        ValueError, TypeError: an argument that makes no sense. CollectError: environments cannot be built; it has the
        worker's traceback.
    """
    count = count_workers(n_workers, useful=plan.num_envs, measure=measure)

    def make_rows(failures: Failures) -> list[Rows]:
        try:
            worlds = ProcessWorlds(plan, count, task_timeout=task_timeout, start_method=start_method)
        except WorkerError as error:
            first = error.deaths[0]
            raise CollectError(
                f"worker {first.worker}: {first.cause}\n\n{first.traceback}".rstrip(), first.traceback
            ) from None
        return [Rows(plan, worlds, plan.make_actor(), 0, plan.num_envs, failures)]

    return LockstepCollector("sync", plan, make_rows, max_failures=max_failures, ahead=ahead)


def native_collector(
    plan: Plan,
    *,
    n_workers: WorkerCount = "auto",
    ahead: int | None = None,
    asynchronous: int | None = None,
    env: NativeVectorEnv | None = None,
) -> LockstepCollector:
    """Collects from a compiled environment, in threads of this process.

    Each thread has its share of the rows, and steps them together. With ``asynchronous`` there is no barrier at each
    step: threads step whichever row is due, and actions are chosen for the rows that are ready first. The fragments are
    the same; it pays where steps are long and uneven.

    Args:
        n_workers: threads; "auto": one a core.
        ahead: see `LockstepCollector`.
        asynchronous: how many rows are waited for at a time.
        env: the vector environment to collect from, with autoreset_mode "disabled"; its owner may change it between
            two calls of `collect` (see `LockstepCollector.refresh_observations`) and closes it. It is stepped with
            threads of its own, so that ``n_workers`` does not count. None: the plan's.

    Raises:
        CollectError: the environment is not compiled, or its spaces are not the plan's.
        ValueError, TypeError: an argument that makes no sense.
    """
    threads = min(count_workers(n_workers, useful=max(plan.num_envs, plan.episodes)), plan.num_envs)
    if env is not None:
        threads = 1
    if asynchronous is not None and not 1 <= asynchronous <= plan.num_envs:
        raise ValueError(f"asynchronous should be from 1 to num_envs, {plan.num_envs}, got {asynchronous}")
    if asynchronous is not None and (env is not None or plan.action_masks or plan.episode_info):
        raise ValueError(
            "asynchronous does not go with an environment of one's own, action masks or episode_info"
        )
    bounds = [plan.num_envs * i // threads for i in range(threads + 1)]

    def make_rows(failures: Failures) -> Sequence[Group]:
        if asynchronous is not None:
            return [AsyncRows(plan, AsyncWorlds(plan, threads), asynchronous)]
        make = partial(Rows, plan)
        return [
            make(NativeWorlds(plan, end - first, env), plan.make_actor(), first, end - first, failures)
            for first, end in pairwise(bounds)
        ]

    return LockstepCollector("native", plan, make_rows, max_failures=1, ahead=ahead)
