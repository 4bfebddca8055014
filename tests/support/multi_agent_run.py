"""An algorithm of many agents beside the collector of its fragments."""

from typing import Any

import numpy as np
from team_env import TeamEnvSpec

from fastrl.algorithms.multi_agent import MultiAgentLearner
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.protocol import Plan
from fastrl.collectors.running import packed, unpacked
from fastrl.collectors.synchronous import team_collector
from fastrl.collectors.team_backend import EPISODE_INFO
from fastrl.networks.multi_agent import MultiAgentPolicy
from fastrl.play.policy import choose
from fastrl.rollout.fragment import Fragment
from fastrl.utils.timer import Stopwatch


def acted(policy: MultiAgentPolicy, obs: Any, alive: Any, *, greedy: bool = True, seed: int = 0) -> Any:
    """Actions of the environment for rows of agents, by the actor of their policies."""
    generator = np.random.default_rng(seed)
    return choose(policy.actor_spec()(), policy.actions, generator, obs, greedy=greedy, alive=alive)


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


def plan_of(env: Any, make_actor: Any, num_steps: int, **options: Any) -> Plan:
    """The plan of an environment's fragments."""
    return Plan(
        env=TeamEnvSpec("team", env=env),
        make_actor=make_actor,
        obs_space=env.single_observation_space,
        action_space=env.single_action_space,
        num_envs=env.num_envs,
        num_agents=env.num_agents,
        num_steps=num_steps,
        episode_info=EPISODE_INFO,
        **options,
    )


class Run:
    """Collects and learns in turns.

    Attributes:
        fragments: those that `update` learns from.
    """

    def __init__(self, learner: MultiAgentLearner, env: Any) -> None:
        self.learner, self.env = learner, env
        plan = plan_of(env, learner.actor_spec(), learner.config.num_steps, action_masks=learner.action_masks)
        self.collector = team_collector("sequential", plan, workers=1)
        self.fragments: list[Fragment] = []

    def collect(self) -> dict[str, Any]:
        """Collects the next fragments; returns values of the episodes that ended in them, by name."""
        weights = bytearray(self.learner.weights_nbytes)
        self.learner.write_weights(weights)
        self.collector.publish(weights)
        [fragment] = self.fragments = self.collector.collect()
        return {"return_mean": fragment.returns, "length": fragment.lengths, **fragment.episode_info}

    def update(self, watch: Stopwatch | None = None) -> dict[str, float]:
        """Learns from the fragments; returns the metrics."""
        self.learner.update(self.fragments, watch or Stopwatch())
        return self.learner.metrics()

    def train(self, updates: int | None = None) -> tuple[dict[str, Any], list[dict[str, float]]]:
        """Makes all updates, or so many; returns the episodes of the last fragments and the metrics of all updates."""
        rows = []
        for _ in range(self.learner.total_updates if updates is None else updates):
            episodes = self.collect()
            rows.append(self.update())
        return episodes, rows

    def state_dict(self) -> dict[str, Any]:
        """State of the learner and of the collector."""
        return {"learner": self.learner.state_dict(), "collector": packed(self.collector.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes both, before anything is collected."""
        self.learner.load_state_dict(state["learner"])
        self.collector.load_state_dict(unpacked(state["collector"]))
