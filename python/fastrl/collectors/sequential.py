"""Collects in the learner's process: one environment after the other, nothing beside it."""

import dataclasses
import math
import traceback
from typing import TYPE_CHECKING, Any

from fastrl.collectors.failures import Failures, last_line
from fastrl.collectors.fragment_arrays import Arrays, arrays_for, clear_ends, fragment_of
from fastrl.collectors.local_runner import LocalRunner
from fastrl.collectors.protocol import UNPUBLISHED, CollectError, Collector, Difficulty, Plan, Report
from fastrl.collectors.running import RunningEpisodes, resumed
from fastrl.collectors.team_spec import TeamSpec
from fastrl.rollout.fragment import Fragment
from fastrl.utils.seeding import NO_ENV

if TYPE_CHECKING:
    from fastrl.collectors.synchronous import LockstepCollector


class SequentialCollector(Collector):
    """The reference that the other collectors agree with; see `fastrl.collectors.protocol.Collector`.

    `take` collects the next fragment itself, in the caller's thread, and ignores its timeout.

    Args:
        max_failures: an episode in which the environment raises is restarted in a new environment; after so many
            failures of it the run stops.
    """

    name = "sequential"

    def __init__(self, plan: Plan, *, max_failures: int = 3) -> None:
        self.plan = plan
        self.version = 0
        local = dataclasses.replace(plan, make_actor=plan.make_local_actor)
        self.runner = LocalRunner(local, plan.env_indices if plan.unit == "steps" else ())
        self.running_episodes = RunningEpisodes(plan, self.runner.env_indices.tolist())
        self._published = False
        self._arrays: Arrays | None = None
        self._next = self._diverged = 0
        self._end = math.inf
        self._steps = self._episodes = 0
        self._failures = Failures(max_failures)
        self._cold_start = 0.0

    def publish(self, weights: Any) -> int:
        self.runner.load(weights)
        self._published = True
        self.version += 1
        return self.version

    def collect(self) -> list[Fragment]:
        if self.plan.unit == "episodes":
            return [self._collect() for _ in range(self.plan.episodes)]
        if self._arrays is None:
            self._arrays = arrays_for(self.plan, self.plan.num_envs)
        return [self._collect(self._arrays)]

    def take_many(self, most: int, timeout: float | None = None) -> list[Fragment]:
        return [self._collect()] if self._next < self._end else []

    def limit(self, end: int) -> None:
        self._end = end

    def set_difficulty(self, level: int, difficulty: Difficulty | None = None) -> None:
        raise NotImplementedError(f"the difficulty of {self.plan.env.id} is fixed")

    def _collect(self, given: Arrays | None = None) -> Fragment:
        """Collects a fragment into some arrays, by default new ones."""
        runner = self.runner
        whole = self.plan.unit == "episodes"
        if runner.actor.weights_nbytes and not self._published:
            raise CollectError(UNPUBLISHED)
        while True:
            try:
                if not self._steps:
                    runner.build()
                    self._cold_start = self._cold_start or self._failures.elapsed()
                arrays = given or arrays_for(self.plan, len(runner.env_indices))
                if given:
                    clear_ends(given)  # A failed attempt may have written some, too.
                meta = runner.collect(arrays, self._next if whole else None)
                break
            except CollectError:
                raise
            except (Exception, SystemExit) as error:  # an environment that calls sys.exit() has failed, too
                trace = traceback.format_exc()
                self.running_episodes.forget()
                episodes = (
                    [(NO_ENV, self._next)]
                    if whole
                    else list(zip(runner.env_indices.tolist(), runner.episode_numbers, strict=True))
                )
                task = (
                    f"episode {self._next}"
                    if whole
                    else f"a fragment of rows {self.plan.first_env} to {self.plan.env_indices[-1]}"
                )
                try:
                    self._failures.add(0, task, last_line(trace), trace, episodes)
                except CollectError as end:
                    raise end from error
        fragment = fragment_of(self.plan, arrays, meta, self.version, runner.env_indices.copy())
        if not whole:
            self.running_episodes.add(fragment, runner.restarted)
            self._diverged += len(runner.restarted)
        self._next += whole
        self._steps += len(fragment)
        self._episodes += len(fragment.episodes)
        self._failures.over(meta.episodes)
        return fragment

    def report(self) -> Report:
        return Report(
            steps=self._steps,
            episodes=self._episodes,
            failures=tuple(self._failures.all),
            diverged=self._diverged,
            cold_start=self._cold_start,
            seconds=dict(self.runner.seconds),
        )

    def state_dict(self) -> dict[str, Any]:
        if self.plan.unit == "episodes":
            return {"numbers": {NO_ENV: self._next}, "running": {}, "version": self.version}
        numbers, running = self.running_episodes.state()
        return {"numbers": numbers, "running": running, "version": self.version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        numbers = resumed(state, self.runner.env_indices.tolist())
        if self.plan.unit == "episodes":
            [self._next] = numbers
        else:
            self.runner.episode_numbers = numbers
            self.runner.running = self.running_episodes.load(numbers, state["running"])
        self.version = state["version"]

    def close(self) -> None:
        self.runner.close()


def sequential_collector(plan: Plan, *, max_failures: int = 3) -> "SequentialCollector | LockstepCollector":
    """The collector "sequential"; of environments of many agents, all of which step together, it takes no failures."""
    if isinstance(plan.env, TeamSpec):
        from fastrl.collectors.synchronous import team_collector

        return team_collector("sequential", plan, workers=1)
    return SequentialCollector(plan, max_failures=max_failures)
