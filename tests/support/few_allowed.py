"""An environment that allows few of its actions and gives no reward: every allowed action is worth 0."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class FewAllowed(gymnasium.Env[Any, Any]):
    """Goes through three states in a circle, each of which allows two of 50 actions; gives no reward, and is cut off
    after four steps."""

    observation_space = Box(0, 1, (3,), np.float32)
    action_space = Discrete(50)

    def action_masks(self) -> Any:
        mask = np.zeros(50, np.bool_)
        mask[[self.count % 3, 10 + self.count % 3]] = True
        return mask

    def _obs(self) -> Any:
        return np.eye(3, dtype=np.float32)[self.count % 3]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._obs(), 0.0, False, self.count == 4, {}


def expert(obs: Any) -> int:
    """An allowed action."""
    return int(obs.argmax())


def ignorant(obs: Any) -> int:
    """An action that is not always allowed."""
    return 0
