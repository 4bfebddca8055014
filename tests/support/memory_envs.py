"""Environments that only an agent with a memory solves."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

# Places of the positions in observations.
POSITIONS = {"CartPole-v1": [0, 2], "Pendulum-v1": [0, 1]}

# The largest positions, of CartPole those that end an episode.
LIMITS = {"CartPole-v1": [2.4, 0.2095], "Pendulum-v1": [1, 1]}


class Positions(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole-v1 or Pendulum-v1 that shows positions, and no velocities.

    Args:
        in_limits: positions are parts of the largest ones. An angle of CartPole changes by a hundredth in a step.
    """

    def __init__(self, env_id: str = "CartPole-v1", in_limits: bool = False) -> None:
        super().__init__(gymnasium.make(env_id))
        self._places = POSITIONS[env_id]
        self._units = np.asarray(LIMITS[env_id] if in_limits else 1, np.float32)
        self.observation_space = Box(-10, 10, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[self._places] / self._units


class Recall(gymnasium.Env[Any, Any]):
    """Shows one of four symbols at first, nothing for many steps, and then asks for the symbol: the reward of the last
    step is 1 for the right one, all others are 0.

    Args:
        length: steps of an episode.
    """

    observation_space = Box(0, 1, (5,), np.float32)
    action_space = Discrete(4)

    def __init__(self, length: int = 50) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._symbol, self._step = int(self.np_random.integers(4)), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self._step += 1
        over = self._step == self.length
        return self._obs(), float(over and action == self._symbol), over, False, {}

    def _obs(self) -> Any:
        obs = np.zeros(5, np.float32)
        if self._step == 0:
            obs[self._symbol] = 1
        obs[4] = self._step == self.length - 1
        return obs
