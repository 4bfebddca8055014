"""Catch: a minimal game for learning from pixels, with a known optimum, in the style of MinAtar."""

from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Frame = NDArray[np.uint8]


class CatchEnv(gymnasium.Env[Any, Any]):
    """A paddle of one cell on the lowest row has to catch falling balls; registered as ``fastrl/Catch-v0``.

    Each ball starts in a random column of the highest row and falls one row a step; actions are left, stay and right.
    A ball that lands on the paddle gives reward 1, another one -1; then the next ball starts. After ``balls`` balls the
    episode is truncated. (After Mnih et al. 2014, "Recurrent models of visual attention"; bsuite's `Catch`.)

    Observations: uint8 [size, size], 255 at the ball and at the paddle, 0 elsewhere.

    The optimum is known: a ball falls ``size - 1`` steps, in which the paddle reaches every column, so the best
    return is ``balls`` (10). Random actions catch about a ball in ten and return about -8.

    Args:
        size: width and height in cells, at least 2.
        balls: balls of an episode, at least 1.
    """

    def __init__(self, size: int = 10, balls: int = 10) -> None:
        if size < 2 or balls < 1:
            raise ValueError(f"size should be at least 2 and balls at least 1, got {size} and {balls}")
        self.observation_space: Box = Box(0, 255, (size, size), np.uint8)
        self.action_space: Discrete = Discrete(3)
        self.size = size
        self.balls = balls
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        super().reset(seed=seed)
        self._paddle = self.size // 2
        self._left = self.balls
        self._over = False
        self._drop()
        return self._frame(), {}

    def _drop(self) -> None:
        self._row, self._column = 0, int(self.np_random.integers(self.size))

    def step(self, action: SupportsFloat) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError("the episode has ended: call reset() before the next step()")
        chosen = int(action)  # type: ignore[call-overload]
        if not 0 <= chosen < 3:
            raise ValueError(f"action should be 0 (left), 1 (stay) or 2 (right), got {action}")
        self._paddle = min(max(self._paddle + chosen - 1, 0), self.size - 1)
        self._row += 1
        if self._row < self.size - 1:
            return self._frame(), 0.0, False, False, {}
        reward = 1.0 if self._column == self._paddle else -1.0
        frame = self._frame()
        self._left -= 1
        if self._left:
            self._drop()
            frame = self._frame()
        else:
            self._over = True
        return frame, reward, False, self._over, {}

    def _frame(self) -> Frame:
        frame = np.zeros((self.size, self.size), np.uint8)
        frame[self._row, self._column] = 255
        frame[-1, self._paddle] = 255
        return frame
