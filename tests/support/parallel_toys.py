"""Parallel environments of PettingZoo that are small enough to follow by hand."""

import functools
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from numpy.typing import NDArray
from pettingzoo import ParallelEnv


@functools.cache
def box(size: int) -> Box:
    return Box(-1, 1, (size,), np.float32)


@functools.cache
def discrete(n: int, start: int = 0) -> Discrete:
    return Discrete(n, start=start)


class Leavers(ParallelEnv[str, Any, Any]):
    """Each agent is paid for choosing its hidden number. Agent "a" leaves after 3 steps, "late" comes with the second;
    all are truncated after ``length`` steps."""

    metadata = {"name": "leavers"}  # noqa: RUF012

    def __init__(self, length: int = 6, continuous: bool = False, start: int = 0) -> None:
        self.possible_agents = ["a", "b", "late"]
        self.agents: list[str] = []
        self.length, self.continuous, self.start = length, continuous, start
        self.rng = np.random.default_rng(0)
        self.seeds: list[int | None] = []

    def observation_space(self, agent: str) -> Space[Any]:
        return box(2)

    def action_space(self, agent: str) -> Space[Any]:
        return box(1) if self.continuous else discrete(2, self.start)

    def _observe(self, agent: str) -> NDArray[np.float32]:
        self.hidden[agent] = int(self.rng.integers(2))
        return np.array([self.hidden[agent] * 2 - 1, self.t / self.length], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.hidden = 0, {}
        self.agents = ["a", "b"]
        return {agent: self._observe(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        assert actions.keys() == set(self.agents)
        self.t += 1
        rewards = {agent: self._reward(agent, action) for agent, action in actions.items()}
        over = self.t >= self.length
        terminations = {agent: agent == "a" and self.t >= 3 for agent in actions}
        truncations = {agent: over and not terminations[agent] for agent in actions}
        self.agents = [agent for agent in actions if not (terminations[agent] or truncations[agent])]
        if self.t == 2 and not over:
            self.agents.append("late")
            rewards["late"], terminations["late"], truncations["late"] = 0.0, False, False
        observations = {agent: self._observe(agent) for agent in [*actions, *set(self.agents) - set(actions)]}
        return observations, rewards, terminations, truncations, {agent: {} for agent in observations}

    def _reward(self, agent: str, action: Any) -> float:
        hidden = self.hidden[agent]
        if self.continuous:
            return 1 - abs(float(action[0]) - (hidden * 2 - 1))
        assert self.action_space(agent).contains(action)
        return float(int(action) - self.start == hidden)


class Differing(Leavers):
    """Agent "b" has a longer observation and more actions."""

    def observation_space(self, agent: str) -> Space[Any]:
        return box(5 if agent == "b" else 2)

    def action_space(self, agent: str) -> Space[Any]:
        return discrete(3 if agent == "b" else 2)

    def _observe(self, agent: str) -> NDArray[np.float32]:
        obs = super()._observe(agent)
        return np.concatenate([obs, np.ones(3, np.float32)]) if agent == "b" else obs


class Mixed(Leavers):
    """Agent "b" has actions of another kind."""

    def action_space(self, agent: str) -> Space[Any]:
        return MultiDiscrete([2, 2]) if agent == "b" else Discrete(2)


class ImageSeeing(Leavers):
    """Agents that observe images."""

    def observation_space(self, agent: str) -> Space[Any]:
        return Box(0, 255, (8, 8, 3), np.uint8)


class Vanishing(Leavers):
    """Agent "b" disappears without a flag."""

    def step(self, actions: Any) -> Any:
        result = super().step(actions)
        self.agents = [agent for agent in self.agents if agent != "b"]
        return result


def not_parallel() -> object:
    return object()
