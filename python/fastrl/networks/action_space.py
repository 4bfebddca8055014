"""Actions that a policy draws, and the environment's actions that they become."""

from collections.abc import Mapping
from typing import Any, Self

import gymnasium
import numpy as np
from numpy.typing import NDArray


class Actions:
    """The actions of an agent, and the way from a policy's draws to actions of the environment.

    Discrete actions are drawn as they are. Of a ``Box`` a Gaussian is drawn, whose -1 and 1 are the bounds: a draw u
    becomes ``low + (u + 1) / 2 * (high - low)``, clipped to the bounds. (Where a bound is infinite, the draw itself,
    clipped to the other.)
    Densities are those of the draw before clipping, so that ratios of probabilities are exact: the clipping belongs
    to the environment.

    Args:
        space: ``Discrete`` starting at 0, or ``Box`` of one dimension, float32.

    Attributes:
        size: number of actions (Discrete), of numbers in an action (Box).
        is_box: which of the two.

    Raises:
        ValueError: another space.
    """

    def __init__(self, space: gymnasium.Space) -> None:
        self.space = space
        if isinstance(space, gymnasium.spaces.Discrete) and space.start == 0:
            self.size, self.is_box = int(space.n), False
            return
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1 or space.dtype != np.float32:
            raise ValueError(
                f"actions should be Discrete from 0 on, or a one-dimensional float32 Box; the environment's are"
                f" {space}: wrap it in a gymnasium.ActionWrapper that offers one of those"
            )
        self.size, self.is_box = space.shape[0], True
        with np.errstate(over="ignore"):
            bounded = np.isfinite(space.high - space.low)
        self._low, self._high = space.low, space.high
        low, high = np.where(bounded, space.low, -1), np.where(bounded, space.high, 1)
        self._scale = ((high - low) / 2).astype(np.float32)
        self._middle = ((high + low) / 2).astype(np.float32)

    def to_env(self, draws: NDArray[Any]) -> NDArray[Any]:
        """Actions of the environment, int64 [B] or float32 [B, n], from draws of the same shape."""
        if not self.is_box:
            return draws
        return np.clip(draws * self._scale + self._middle, self._low, self._high)

    def from_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Draws that become these actions."""
        if not self.is_box:
            return np.asarray(actions, np.int64)
        return ((np.asarray(actions, np.float32) - self._middle) / self._scale).astype(np.float32)

    def state(self) -> dict[str, Any]:
        """JSON-able; `from_state` reads it."""
        if not self.is_box:
            return {"kind": "discrete", "size": self.size}
        # Infinite bounds are no JSON numbers.
        return {"kind": "box", "low": [str(x) for x in self._low], "high": [str(x) for x in self._high]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        if state["kind"] == "discrete":
            return cls(gymnasium.spaces.Discrete(state["size"]))
        low, high = (np.array([float(x) for x in state[name]], np.float32) for name in ("low", "high"))
        return cls(gymnasium.spaces.Box(low, high, dtype=np.float32))
