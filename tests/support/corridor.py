"""An environment whose only reward is far away."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Corridor(gymnasium.Env[Any, Any]):
    """A row of places, of which the last one pays 1 and ends the episode; after ``most_steps`` it is cut off.

    Random steps reach place 18 within 40 steps in one episode of 200.
    """

    def __init__(self, length: int = 18, most_steps: int = 40) -> None:
        self.length, self.most_steps, self.place, self.t = length, most_steps, 0, 0
        self.observation_space, self.action_space = Box(0, 1, (length + 1,), np.float32), Discrete(2)

    def _obs(self) -> Any:
        return np.eye(self.length + 1, dtype=np.float32)[self.place]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.place, self.t = max(self.place + 2 * int(action) - 1, 0), self.t + 1
        over = self.place == self.length
        return self._obs(), float(over), over, self.t == self.most_steps and not over, {}
