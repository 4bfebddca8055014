"""Small environments with observations and actions of other kinds than vectors and numbers."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete


class Cards(gymnasium.Env[Any, Any]):
    """Shows a picture, of which the left or the right half is lit, and a number, 0 or 1, beside noise. The action is
    twice the half, plus the number. Episodes of eight cards, reward 1 for each."""

    def __init__(self, side: int = 12) -> None:
        self.observation_space = Dict(
            {
                "picture": Box(0, 255, (side, side, 3), np.uint8),
                "number": Discrete(2),
                "noise": Box(-1, 1, (2,), np.float32),
            }
        )
        self.action_space = Discrete(4)
        self._side = side

    def _show(self) -> dict[str, Any]:
        half, number = int(self.np_random.integers(2)), int(self.np_random.integers(2))
        self._right = 2 * half + number
        picture = np.zeros((self._side, self._side, 3), np.uint8)
        middle = self._side // 2
        picture[:, middle * half : middle * (half + 1)] = 255
        noise = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"picture": picture, "number": number, "noise": noise}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._left = 8
        return self._show(), {}

    def step(self, action: Any) -> Any:
        reward = float(int(action) == self._right)
        self._left -= 1
        return self._show(), reward, self._left == 0, False, {}


class Dials(gymnasium.Env[Any, Any]):
    """Three dials of different sizes have to be set to the numbers that are shown; a third of a point for each."""

    def __init__(self) -> None:
        self.action_space = MultiDiscrete([2, 5, 3])
        self.observation_space = MultiDiscrete([2, 5, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._left = 8
        return self._show(), {}

    def _show(self) -> Any:
        self._shown = self.np_random.integers(self.action_space.nvec)
        return self._shown

    def step(self, action: Any) -> Any:
        reward = float((np.asarray(action) == self._shown).mean())
        self._left -= 1
        return self._show(), reward, self._left == 0, False, {}

    def action_masks(self) -> Any:
        """Of the second dial only the right number and the one after it may be chosen."""
        mask = np.ones(10, np.bool_)
        mask[2:7] = False
        mask[2 + self._shown[1]] = mask[2 + (self._shown[1] + 1) % 5] = True
        return mask
