"""Collects in the learner's process: one environment after the other, nothing beside it."""

import dataclasses
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastrl.collectors.counting import CountingCollector
from fastrl.collectors.failures import last_line
from fastrl.collectors.fragment_arrays import FragmentBlock, arrays_for, fragment_of
from fastrl.collectors.local_runner import LocalRunner
from fastrl.collectors.protocol import UNPUBLISHED, CollectError, Plan, Report
from fastrl.collectors.running import RunningEpisode, RunningEpisodes
from fastrl.collectors.team_spec import TeamSpec
from fastrl.rollout.fragment import Fragment
from fastrl.utils.seeding import NO_ENV

if TYPE_CHECKING:
    from fastrl.collectors.synchronous import LockstepCollector


class SequentialCollector(CountingCollector):
    """The reference that the other collectors agree with; see `fastrl.collectors.protocol.Collector`.

    `take` collects the next fragment itself, in the caller's thread, and ignores its timeout.

    Args:
        max_failures: an episode in which the environment raises is restarted in a new environment; after so many
            failures of it the run stops.
    """

    name = "sequential"

    def __init__(self, plan: Plan, *, max_failures: int = 3) -> None:
        super().__init__(plan, max_failures)
        local = dataclasses.replace(plan, make_actor=plan.make_local_actor)
        self.runner = LocalRunner(local, () if self._whole else plan.env_indices)
        self.running_episodes = RunningEpisodes(plan, self.runner.env_indices.tolist())
        self._published = False
        self._block: FragmentBlock | None = None

    def publish(self, weights: Any) -> int:
        self.runner.load(weights)
        self._published = True
        self.version += 1
        return self.version

    def collect(self) -> list[Fragment]:
        if self._whole:
            return [self._collect_new() for _ in range(self.plan.episodes)]
        if self._block is None:
            self._block = FragmentBlock(self.plan, self.runner.env_indices, self.running_episodes)
        return [self._collect_next(self._block)]

    def take_many(self, most: int, timeout: float | None = None) -> list[Fragment]:
        return [self._collect_new()] if self._next < self._stop_at else []

    def _collect_new(self) -> Fragment:
        """Collects a fragment into new arrays."""
        runner, number = self.runner, self._next if self._whole else None

        def attempt() -> Fragment:
            arrays = arrays_for(self.plan, len(runner.env_indices))
            meta = runner.collect(arrays, number)
            return fragment_of(self.plan, arrays, meta, self.version, runner.env_indices.copy())

        self._add_running()
        fragment = self._collect(attempt)
        if number is None:
            self.running_episodes.add(fragment, runner.restarted)
        else:
            self._next += 1
        return fragment

    def _collect_next(self, block: FragmentBlock) -> Fragment:
        """Collects the next fragment of a block."""
        runner = self.runner

        def attempt() -> Fragment:
            part = block.next()
            meta = runner.collect(part.arrays, views=part.steps)
            return block.written(part, meta, self.version, runner.restarted)

        return self._collect(attempt)

    def _add_running(self) -> None:
        if self._block is not None:
            self._block.add_running()

    def _collect(self, attempt: Callable[[], Fragment]) -> Fragment:
        """A fragment, after as many attempts as the settings allow."""
        runner = self.runner
        if not self._published and runner.actor.weights_nbytes:
            raise CollectError(UNPUBLISHED)
        while True:
            try:
                if not self._steps:
                    runner.build()
                    self._cold_start = self._cold_start or self._failures.elapsed()
                fragment = attempt()
                break
            except CollectError:
                raise
            except (Exception, SystemExit) as error:  # an environment that calls sys.exit() has failed, too
                self._fail(error)
        self._diverged += len(runner.restarted)
        self._count_fragment(fragment)
        return fragment

    def _fail(self, error: BaseException) -> None:
        """Notes a failure; episodes restart.

        Raises:
            CollectError: too many.
        """
        trace, plan, runner = traceback.format_exc(), self.plan, self.runner
        if self._block is not None:
            self._block.drop()
        self.running_episodes.forget()
        if self._whole:
            task, episodes = f"episode {self._next}", [(NO_ENV, self._next)]
        else:
            task = f"a fragment of rows {plan.first_env} to {plan.env_indices[-1]}"
            episodes = list(zip(runner.env_indices.tolist(), runner.episode_numbers, strict=True))
        try:
            self._failures.add(0, task, last_line(trace), trace, episodes)
        except CollectError as end:
            raise end from error

    def report(self) -> Report:
        return self._report(seconds=dict(self.runner.seconds))

    def _running_state(self) -> tuple[dict[int, int], dict[int, RunningEpisode]]:
        self._add_running()
        return self.running_episodes.state()

    def _resume(self, numbers: Sequence[int], running: Mapping[int, RunningEpisode]) -> None:
        self.runner.episode_numbers = list(numbers)
        self.runner.running = self.running_episodes.load(numbers, running)

    def close(self) -> None:
        self.runner.close()


def sequential_collector(plan: Plan, *, max_failures: int = 3) -> "SequentialCollector | LockstepCollector":
    """The collector "sequential"; of environments of many agents, all of which step together, it takes no failures."""
    if isinstance(plan.env, TeamSpec):
        from fastrl.collectors.synchronous import team_collector

        return team_collector("sequential", plan, workers=1)
    return SequentialCollector(plan, max_failures=max_failures)
