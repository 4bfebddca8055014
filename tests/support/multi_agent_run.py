"""An algorithm of many agents beside the collector that fills its rollout."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.algorithms.multi_agent import MultiAgentLearner
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.multi_agent import MultiAgentCollector
from fastrl.envs.record_episodes import RecordEpisodeStatistics
from fastrl.utils.timer import Stopwatch


def problem_of(env: Any, total_updates: int, num_steps: int, seed: int = 0, **options: Any) -> Problem:
    """The problem of a learner for an environment, whose rollouts have so many steps."""
    return Problem(
        env.single_observation_space,
        env.single_action_space,
        env.num_envs,
        total_timesteps=total_updates * num_steps * env.num_envs,
        num_agents=env.num_agents,
        seed=seed,
        **options,
    )


class Run:
    """Collects and learns in turns."""

    def __init__(self, learner: MultiAgentLearner, env: Any) -> None:
        self.learner, self.env = learner, RecordEpisodeStatistics(env)
        self.collector = MultiAgentCollector(self.env, learner.act_into, learner.env_seeds)

    def collect(self, watch: Stopwatch | None = None) -> NDArray[np.void]:
        """Fills the learner's rollout; returns the records of the episodes that ended in it."""
        self.collector.collect(self.learner.rollout, watch or Stopwatch())
        return self.env.take()

    def update(self, watch: Stopwatch | None = None) -> dict[str, float]:
        """Learns from the rollout; returns the metrics."""
        self.learner.update(self.learner.rollout, watch or Stopwatch())
        return self.learner.metrics()

    def train(self, updates: int | None = None) -> tuple[NDArray[np.void], list[dict[str, float]]]:
        """Makes all updates, or so many; returns the episodes of the last rollout and the metrics of all updates."""
        rows = []
        for _ in range(self.learner.total_updates if updates is None else updates):
            episodes = self.collect()
            rows.append(self.update())
        return episodes, rows

    def state_dict(self) -> dict[str, Any]:
        """State of the learner and of the collector."""
        return {"learner": self.learner.state_dict(), "collector": self.collector.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes both."""
        self.learner.load_state_dict(state["learner"])
        self.collector.load_state_dict(state["collector"])
