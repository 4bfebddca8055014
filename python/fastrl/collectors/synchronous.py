"""Collectors in lockstep: "sync" steps environments in worker processes, "native" compiled ones in threads, "vector" a
vector environment of the user's own."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fastrl.collectors.async_runner import AsyncBackend, AsyncEnvRunner
from fastrl.collectors.counting import CountingCollector
from fastrl.collectors.failures import Failures
from fastrl.collectors.fragment_arrays import (
    Arrays,
    FragmentBlock,
    arrays_for,
    clear_ends,
    fragment_of,
)
from fastrl.collectors.protocol import (
    ACTIVITIES,
    UNPUBLISHED,
    CollectError,
    Difficulty,
    Plan,
    Report,
)
from fastrl.collectors.resources import WorkerCount, count_workers
from fastrl.collectors.running import RunningEpisode, RunningEpisodes
from fastrl.collectors.team_backend import TeamBackend
from fastrl.collectors.team_spec import TeamSpec
from fastrl.collectors.threads import threads
from fastrl.collectors.vector_backends import NativeBackend, ProcessBackend
from fastrl.collectors.vector_env_backend import VectorEnvBackend
from fastrl.collectors.vector_runner import VectorEnvRunner
from fastrl.envs.process_pool import SHUTDOWN_GRACE_S
from fastrl.envs.vector import NativeVectorEnv
from fastrl.envs.worker_error import WorkerError
from fastrl.networks.compiled_actor import MlpActor
from fastrl.networks.epsilon_greedy import EpsilonGreedyActor
from fastrl.rollout.fragment import Fragment, without_steps
from fastrl.utils.seeding import NO_ENV

Runner = VectorEnvRunner | AsyncEnvRunner


class LockstepCollector(CountingCollector):
    """See `fastrl.collectors.protocol.Collector`. Made by `sync_collector`, `native_collector` or
    `vector_collector`.

    `take` collects in a background thread from its first call on; then `collect` can no longer be used.

    Args:
        make_runner: makes the runner of the plan's environments.
        max_pending: for `take`, fragments that may be running or wait to be taken. By default two, or with unit
            "episodes" two updates' worth of them.
        replays: episodes follow from their seeds, so that running ones can be replayed; else they are restarted where
            another collector resumes.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        make_runner: Callable[[Failures], Runner],
        *,
        max_failures: int,
        max_pending: int | None,
        replays: bool = True,
    ) -> None:
        if max_pending is not None and max_pending < 1:
            raise ValueError(f"max_pending should be at least 1, got {max_pending}")
        super().__init__(plan, max_failures)
        self.name = name
        self._max_pending = max_pending or 2 * (plan.episodes if self._whole else 1)
        # The newest version and its weights, and the version that the actor has.
        self._newest: tuple[int, bytes] | None = None
        self._loaded = 0
        self.running_episodes = RunningEpisodes(plan, () if self._whole else plan.env_indices)
        self._replays, self._episode_numbers = replays, [0] * plan.num_envs
        self._seconds = dict.fromkeys(ACTIVITIES, 0.0)
        self._arrays: list[Arrays] = []
        # Of a compiled environment: where a worker dies, arrays have ends that are no episode's.
        self._block: FragmentBlock | None = None
        self.background: _Background | None = None
        self.runner = make_runner(self._failures)
        self._cold_start = self._failures.elapsed()

    def publish(self, weights: Any) -> int:
        self._newest = self.version + 1, memoryview(weights).cast("B").tobytes()
        self.version += 1
        return self.version

    def _load(self) -> int:
        """Loads the newest weights into the actor; returns their version."""
        newest = self._newest
        if newest is None:
            if self.runner.actor.weights_nbytes:
                raise CollectError(UNPUBLISHED)
        elif newest[0] != self._loaded:
            start = time.perf_counter()
            self.runner.actor.load(newest[1])
            self._loaded = newest[0]
            self._seconds["weights"] += time.perf_counter() - start
        return self._loaded

    def collect(self) -> list[Fragment]:
        if self.background is not None:
            raise RuntimeError(
                "this collector collects in the background since take(): take fragments, or make another one"
            )
        if not self._whole:
            if isinstance(self.runner, VectorEnvRunner) and isinstance(self.runner.backend, NativeBackend):
                return [self._collect_next(self.runner)]
            if not self._arrays:
                self._arrays = [arrays_for(self.plan, self.plan.num_envs)]
            return self._collect_steps(self._arrays[0])
        fragments = itertools.chain.from_iterable(self._collect_episodes(self.plan.episodes))
        return sorted(fragments, key=lambda fragment: int(fragment.episodes[0, 1]))

    def refresh_observations(self) -> None:
        """Reads the observations again, after the owner of a compiled environment has changed it."""
        if isinstance(self.runner, VectorEnvRunner):
            self.runner.refresh_observations()

    def set_difficulty(self, level: int, difficulty: Difficulty | None = None) -> None:
        backend = self.runner.backend
        if not isinstance(backend, TeamBackend):
            super().set_difficulty(level, difficulty)
            return
        backend.set_difficulty(level, difficulty)

    def take_many(self, most: int, timeout: float | None = None) -> list[Fragment]:
        if self.background is None:
            self._add_running()
            self.background = _Background(self._collect_ahead, self._max_pending, self._is_allowed)
        return self.background.take(most, timeout)

    def limit(self, end: int) -> None:
        super().limit(end)
        if self.background is not None:
            self.background.limit_changed()

    def _is_allowed(self) -> bool:
        """True unless `limit` ends what `take` collects."""
        return not self._whole or self._next < self._stop_at

    def _collect_ahead(self, background: _Background) -> None:
        """Collects in the background for `take`."""
        batch = min(self.plan.episodes, self._max_pending)
        while background.await_room(batch if self._whole else 1):
            if self._whole:
                for fragments in self._collect_episodes(int(min(batch, self._stop_at - self._next))):
                    background.give(fragments)
            else:
                background.give(self._collect_steps(arrays_for(self.plan, self.plan.num_envs)))

    def _collect_next(self, runner: VectorEnvRunner) -> Fragment:
        """Collects the next fragment of the block."""
        version = self._load()
        if self._block is None:
            self._block = FragmentBlock(self.plan, runner.env_indices, self.running_episodes)
        part = self._block.next()
        meta = runner.run_steps(part.arrays, part.steps)
        fragment = self._block.written(part, meta, version, runner.restarted)
        self._count_fragment(fragment)
        return fragment

    def _add_running(self) -> None:
        if self._block is not None:
            self._block.add_running()

    def _collect_steps(self, arrays: Arrays) -> list[Fragment]:
        """Collects the next steps into some arrays: one fragment, unless the backend has steps that are no steps of the
        agent."""
        version = self._load()
        # Those of many agents are overwritten by each step, or have no meaning.
        if not self.plan.agents:
            clear_ends(arrays)
        meta = self.runner.run_steps(arrays)
        fragment = fragment_of(self.plan, arrays, meta, version, self.runner.env_indices.copy())
        fragments = [fragment]
        if self.runner.skipped is not None and self.runner.skipped.any():
            fragments = without_steps(fragment, self.runner.skipped)
        if self._replays:
            backend = self.runner.backend
            difficulties = backend.difficulties() if isinstance(backend, TeamBackend) else None
            self.running_episodes.add(fragment, self.runner.restarted, difficulties)
        else:
            self._episode_numbers = self.runner.episode_numbers.tolist()
        for each in fragments:
            self._count_fragment(each)
        return fragments

    def _collect_episodes(self, count: int) -> Iterator[list[Fragment]]:
        """Runs the next episodes, and gives them when they have ended."""
        version = self._load()
        first, self._next = self._next, self._next + count
        for episodes in self.runner.run_episodes(range(first, first + count)):
            fragments = []
            for arrays, meta in episodes:
                fragments.append(fragment_of(self.plan, arrays, meta, version, np.array([NO_ENV], np.int64)))
                self._count_fragment(fragments[-1])
            yield fragments

    def report(self) -> Report:
        runner = self.runner
        seconds = {part: value + runner.seconds[part] for part, value in self._seconds.items()}
        workers = runner.backend.num_workers
        if workers:
            # Workers measure their own time, without that of their messages.
            seconds["environment"], waited = runner.backend.seconds()
            seconds["waiting"] += waited
        elif self.background is not None:
            workers = 1
        self._restarts, self._diverged = runner.restarts, runner.diverged
        return self._report(workers=workers, memory_mib=runner.backend.memory(), seconds=seconds)

    def _running_state(self) -> tuple[dict[int, int], dict[int, RunningEpisode]]:
        if not self._replays:
            return dict(zip(self.plan.env_indices, self._episode_numbers, strict=True)), {}
        self._add_running()
        return self.running_episodes.state()

    def _resume(self, numbers: Sequence[int], running: Mapping[int, RunningEpisode]) -> None:
        if self._replays:
            self.runner.running = self.running_episodes.load(numbers, running)
        self.runner.episode_numbers[:] = self._episode_numbers = list(numbers)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._loaded = self.version

    def close(self) -> None:
        if self.background is not None:
            self.runner.stop[0] = 1
            self.background.end()
        self.runner.backend.close()


class _Background:
    """A thread that collects, at most so many fragments before `take`."""

    def __init__(
        self,
        collect_ahead: Callable[[_Background], None],
        max_pending: int,
        is_allowed: Callable[[], bool],
    ) -> None:
        self._max_pending, self._is_allowed = max_pending, is_allowed
        # The thread waits, as nothing more is allowed to be collected.
        self._is_over = False
        self.ready: deque[Fragment] = deque()
        self._changed = threading.Condition()
        self._problem: BaseException | None = None
        self._ends = False
        self._thread = threading.Thread(
            target=self._run, args=(collect_ahead,), name="fastrl collector", daemon=True
        )
        self._thread.start()

    def _run(self, collect_ahead: Callable[[_Background], None]) -> None:
        try:
            collect_ahead(self)
        except BaseException as error:
            with self._changed:
                self._problem = error
                self._changed.notify_all()

    def await_room(self, fragments: int) -> bool:
        """Waits until there is room for more fragments and they are allowed; false once it is closed."""
        with self._changed:
            self._is_over = not self._is_allowed()
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: (
                    self._ends or (self._is_allowed() and len(self.ready) + fragments <= self._max_pending)
                )
            )
            self._is_over = False
            return not self._ends

    def limit_changed(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def give(self, fragments: list[Fragment]) -> None:
        with self._changed:
            self.ready += fragments
            self._changed.notify_all()

    def take(self, most: int, timeout: float | None) -> list[Fragment]:
        with self._changed:
            self._changed.wait_for(
                lambda: self.ready or self._problem is not None or (self._is_over and not self._is_allowed()),
                timeout,
            )
            if self.ready:
                self._changed.notify_all()
                return [self.ready.popleft() for _ in range(min(most, len(self.ready)))]
            if self._problem is not None:
                raise self._problem
            return []

    def end(self) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        # The thread may wait for an environment that hangs; its worker is killed next.
        self._thread.join(SHUTDOWN_GRACE_S)


def sync_collector(
    plan: Plan,
    *,
    n_workers: WorkerCount = "auto",
    task_timeout: float | None = 300.0,
    max_failures: int = 3,
    max_pending: int | None = None,
    start_method: Literal["spawn", "forkserver"] = "forkserver",
    measure: Callable[[], int] | None = None,
) -> LockstepCollector:
    """Collects from environments in worker processes, stepped in lockstep; the actor runs in this process.

    A worker is replaced if its environment raises, if it is killed, or if a step takes longer than ``task_timeout``
    seconds. The episodes of its environments are restarted; with unit "steps" their steps so far end as truncated.

    Args:
        n_workers: processes, which share the environments; "auto": one a core, if memory allows.
        max_failures: the run stops once a worker has failed so often at the same episode.
        max_pending: see `LockstepCollector`.
        measure: returns the bytes of memory that one worker takes; called only where memory could be short.

    Raises:
        ValueError, TypeError: an argument that makes no sense. CollectError: environments cannot be built; it has the
        worker's traceback.
    """
    count = count_workers(n_workers, useful=plan.num_envs, measure=measure)
    if isinstance(plan.env, TeamSpec):
        return team_collector("sync", plan, workers=count, max_pending=max_pending)

    def make_runner(failures: Failures) -> Runner:
        try:
            backend = ProcessBackend(plan, count, task_timeout=task_timeout, start_method=start_method)
        except WorkerError as error:
            first = error.deaths[0]
            raise CollectError(
                f"worker {first.worker}: {first.cause}\n\n{first.traceback}".rstrip(), first.traceback
            ) from None
        return VectorEnvRunner(plan, backend, plan.make_local_actor(), failures)

    return LockstepCollector("sync", plan, make_runner, max_failures=max_failures, max_pending=max_pending)


def native_collector(
    plan: Plan,
    *,
    n_workers: WorkerCount = "auto",
    max_pending: int | None = None,
    asynchronous: int | None = None,
    env: NativeVectorEnv | None = None,
) -> LockstepCollector:
    """Collects from a compiled environment, in threads of this process.

    Where compiled code chooses the actions of environments of fastrl's own, each thread takes some of them through many
    steps, without Python between these. Elsewhere one loop in Python steps all environments in lockstep, and
    environment and actor divide each step among threads of their own, which do not hold the GIL. With ``asynchronous``
    there is no barrier at each step: actions are chosen for the environments that are ready first. The fragments are
    the same; it is faster where steps are long and uneven.

    Args:
        n_workers: threads of the environment, and of the actor; "auto": one a core.
        max_pending: see `LockstepCollector`.
        asynchronous: how many environments to wait for at a time.
        env: a vector environment of the caller's to collect from, with autoreset_mode "disabled". It may be changed
            between two calls of `collect` (see `LockstepCollector.refresh_observations`), is stepped with its own
            threads, whatever ``n_workers`` says, and stays open. None: it is built from the plan.

    Raises:
        CollectError: the environment is not compiled, or its spaces are not the plan's.
        ValueError, TypeError: an argument that makes no sense.
    """
    if isinstance(plan.env, TeamSpec):
        if asynchronous is not None or env is not None:
            raise ValueError("environments of many agents step together: leave asynchronous and env out")
        return team_collector(
            "native", plan, workers=None if n_workers == "auto" else n_workers, max_pending=max_pending
        )
    useful = max(plan.num_envs, plan.episodes)
    num_threads = min(count_workers(n_workers, useful=useful, num_cores=threads()), plan.num_envs)
    if asynchronous is not None and not 1 <= asynchronous <= plan.num_envs:
        raise ValueError(f"asynchronous should be from 1 to num_envs, {plan.num_envs}, got {asynchronous}")
    if asynchronous is not None and env is not None:
        raise ValueError("asynchronous collection does not support an env: leave asynchronous out")

    def make_runner(failures: Failures) -> Runner:
        if asynchronous is not None:
            return AsyncEnvRunner(plan, AsyncBackend(plan, num_threads), asynchronous)
        actor = plan.make_local_actor()
        if isinstance(actor, MlpActor | EpsilonGreedyActor):
            actor = actor.with_threads(num_threads)
        return VectorEnvRunner(plan, NativeBackend(plan, num_threads, env), actor, failures)

    return LockstepCollector("native", plan, make_runner, max_failures=1, max_pending=max_pending)


def team_collector(
    name: str, plan: Plan, *, workers: int | None = None, max_pending: int | None = None
) -> LockstepCollector:
    """Collects from environments of many agents, in lockstep: compiled ones in threads, a user's in this process or in
    worker processes.

    Args:
        name: of the collector.
        workers: see `TeamSpec.make_team`; also threads of the actor.

    Raises:
        CollectError: the environment cannot be built, or its spaces are not the plan's.
    """
    spec = plan.env
    assert isinstance(spec, TeamSpec), "the plan is of many agents"

    def make_runner(failures: Failures) -> Runner:
        actor: Any = plan.make_local_actor()
        num_threads = threads() if workers is None else workers
        if spec.is_compiled and num_threads > 1 and name != "sequential":
            actor = actor.with_threads(num_threads)
        return VectorEnvRunner(plan, TeamBackend(plan, workers), actor, failures)

    return LockstepCollector(name, plan, make_runner, max_failures=1, max_pending=max_pending)


def vector_collector(plan: Plan, *, max_pending: int | None = None) -> LockstepCollector:
    """Collects from a `gymnasium.vector.VectorEnv` of the user's own, in this process.

    The vector environment is seeded at its first reset and starts later episodes itself, in any autoreset mode. In mode
    "next_step" a step that only starts an episode is left out, so that some fragments have fewer than T steps. The
    fragments are not those of other collectors, and a collector that resumes restarts all episodes, with a seed that
    was not used before.

    Args:
        plan: with unit "steps".
        max_pending: see `LockstepCollector`.

    Raises:
        CollectError: the environment cannot be built, has other spaces than the plan, or does not state its autoreset
            mode.
    """

    def make_runner(failures: Failures) -> Runner:
        return VectorEnvRunner(plan, VectorEnvBackend(plan), plan.make_local_actor(), failures)

    return LockstepCollector(
        "vector", plan, make_runner, max_failures=1, max_pending=max_pending, replays=False
    )
