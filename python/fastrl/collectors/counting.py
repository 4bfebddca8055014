"""Base of collectors: what they have collected, and the state from which another one resumes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from fastrl.collectors.failures import Failures
from fastrl.collectors.protocol import Collector, Difficulty, Plan, Report
from fastrl.collectors.running import RunningEpisode, resumed
from fastrl.rollout.fragment import Fragment
from fastrl.utils.seeding import NO_ENV


class CountingCollector(Collector):
    """Counts steps, episodes and failures; see `fastrl.collectors.protocol.Collector`.

    Args:
        max_failures: failures at the same episode that stop the run.
    """

    def __init__(self, plan: Plan, max_failures: int) -> None:
        self.plan = plan
        self.version = 0
        self._whole = plan.unit == "episodes"
        self._failures = Failures(max_failures)
        self._steps = self._episodes = self._restarts = self._diverged = 0
        self._cold_start = 0.0
        # With unit "episodes", the next one, and the one from which on `take` starts none.
        self._next = 0
        self._stop_at: float = math.inf

    def limit(self, end: int) -> None:
        self._stop_at = end

    def set_difficulty(self, level: int, difficulty: Difficulty | None = None) -> None:
        raise NotImplementedError(f"the difficulty of {self.plan.env.id} is fixed")

    def _count_fragment(self, fragment: Fragment) -> None:
        """Counts a fragment that was collected."""
        self._steps += len(fragment)
        if len(fragment.episodes):
            self._episodes += len(fragment.episodes)
            self._failures.over(map(tuple, fragment.episodes.tolist()))

    def _report(self, **others: Any) -> Report:
        """The report, with the numbers that not every collector counts."""
        return Report(
            steps=self._steps,
            episodes=self._episodes,
            failures=tuple(self._failures.all),
            restarts=self._restarts,
            diverged=self._diverged,
            cold_start=self._cold_start,
            **others,
        )

    def state_dict(self) -> dict[str, Any]:
        numbers, running = ({NO_ENV: self._next}, {}) if self._whole else self._running_state()
        return {"numbers": numbers, "running": running, "version": self.version}

    @abstractmethod
    def _running_state(self) -> tuple[dict[int, int], dict[int, RunningEpisode]]:
        """The entries "numbers" and "running" of the state, with unit "steps"."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._whole:
            [self._next] = resumed(state, [NO_ENV])
        else:
            self._resume(resumed(state, self.plan.env_indices), state["running"])
        self.version = state["version"]

    @abstractmethod
    def _resume(self, numbers: Sequence[int], running: Mapping[int, RunningEpisode]) -> None:
        """Resumes the episodes of these numbers, of each environment in order, with unit "steps"."""
