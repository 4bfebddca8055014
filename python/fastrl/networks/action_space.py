"""Actions that a policy draws, and the environment's actions that they become."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray

from fastrl._native._rust import scale_actions

ActionKind = Literal["discrete", "multi_discrete", "box"]

# Squashed draws of actions at the bounds would be infinite.
_ALMOST_ONE = 1 - 1e-6


class Actions:
    """The actions of an agent, and the way from a policy's draws to actions of the environment.

    Discrete and multi-discrete actions are drawn as they are. Of a ``Box`` a Gaussian is drawn, whose -1 and 1 are the
    bounds: a draw u becomes ``low + (u + 1) / 2 * (high - low)``, clipped to the bounds; with ``squash``, ``tanh(u)``
    takes the place of u. (Where a bound is infinite, the draw itself, clipped to the other; where both are equal, they
    are the action, whose draw is 0.)
    Densities are those of the draw before clipping or squashing, so that ratios of probabilities are exact: the rest
    belongs to the environment.

    Args:
        space: ``Discrete`` starting at 0; ``MultiDiscrete`` of one dimension starting at 0; or ``Box`` of one
            dimension, float32. `fastrl.envs.rows.ActionRows` makes one of these of others.
        squash: see above; it does nothing for actions that are not of a ``Box``.

    Attributes:
        kind: which of the three; ``is_box``: whether it is the last, whose draws are of a Gaussian.
        size: how many numbers a policy gives for an action: logits of all choices, or means of a Box.
        shape: of one draw: () for discrete actions, else (n,).
        dtype: of draws: int64, or float32 for a Box.
        nvec: int64, choices of each number of a draw: [1] for discrete actions, [n] for multi-discrete ones; empty for
            a Box.
        middle, scale: float32 [n], of a Box: a draw u that is neither squashed nor clipped is middle + scale * u.

    Raises:
        ValueError: another space.
    """

    def __init__(self, space: gymnasium.Space[Any], squash: bool = False) -> None:
        self.space = space
        self.shape: tuple[int, ...] = tuple(space.shape or ())
        self.is_box = isinstance(space, Box)
        self.squash = squash and self.is_box
        self.kind: ActionKind
        self.dtype: np.dtype[Any] = np.dtype(np.int64)
        if isinstance(space, Discrete) and space.start == 0:
            self.kind, self.nvec = "discrete", np.array([space.n], np.int64)
            self.size = int(space.n)
        elif isinstance(space, MultiDiscrete) and space.nvec.ndim == 1 and not space.start.any():
            self.kind, self.nvec = "multi_discrete", space.nvec.astype(np.int64)
            self.size = int(space.nvec.sum())
        elif isinstance(space, Box) and len(space.shape) == 1 and space.dtype == np.float32:
            self.kind, self.nvec = "box", np.zeros(0, np.int64)
            self.size, self.dtype = space.shape[0], np.dtype(np.float32)
            with np.errstate(over="ignore"):
                self._bounded = np.isfinite(space.high - space.low)
            low, high = np.where(self._bounded, space.low, -1), np.where(self._bounded, space.high, 1)
            self.scale = ((high - low) / 2).astype(np.float32)
            self.middle = ((high + low) / 2).astype(np.float32)
            self._low, self._high = space.low, space.high
            self._scaling = np.stack([self.scale, self.middle, self._low, self._high])
        else:
            raise ValueError(
                "actions should be Discrete from 0 on, or of one dimension, MultiDiscrete from 0 on or a float32 Box;"
                f" these are {space}: fastrl.envs.rows.RowEnv makes one of those of others"
            )

    @property
    def is_bounded(self) -> bool:
        """True for a Box without infinite bounds: draws from -1 to 1 are all its actions."""
        return self.is_box and bool(self._bounded.all())

    @property
    def scaling(self) -> NDArray[np.float32] | None:
        """Factors, offsets, lower and upper bounds by which `to_env` makes actions of draws, float32 [4, n]; None: they
        are not of a Box, or squashed."""
        if not self.is_box or self.squash:
            return None
        return self._scaling

    def to_env(self, draws: NDArray[Any]) -> NDArray[Any]:
        """Actions of the environment, int64 [B] or [B, n], or float32 [B, n], from draws of the same shape."""
        if not self.is_box:
            return draws
        if self.squash:
            draws = np.where(self._bounded, np.tanh(draws), draws)
        actions = np.empty(draws.shape, np.float32)
        scale_actions(np.ascontiguousarray(draws, np.float32), self._scaling, actions)
        return actions

    def to_envs(self, draws: NDArray[Any]) -> Sequence[Any]:
        """Actions as `to_env` gives them, one for each environment: ints, or arrays that are not written to later."""
        if self.kind == "discrete":
            choices: list[int] = draws.tolist()
            return choices
        actions = self.to_env(draws)
        # A sequence of arrays.
        return actions.copy() if actions is draws else actions  # type: ignore[return-value]

    def choices(self, draws: NDArray[Any]) -> NDArray[Any]:
        """The numbers of draws that action masks are about; of draws that are no Box's."""
        return draws

    def from_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Draws that become these actions."""
        if not self.is_box:
            return np.asarray(actions, np.int64)
        offsets = np.asarray(actions, np.float32) - self.middle
        draws = (offsets / np.where(self.scale > 0, self.scale, 1)).astype(np.float32)
        if not self.squash:
            return draws
        inner = np.arctanh(np.clip(draws, -_ALMOST_ONE, _ALMOST_ONE))
        return np.where(self._bounded, inner, draws).astype(np.float32)

    def state(self) -> dict[str, Any]:
        """JSON-able; `from_state` reads it."""
        if self.kind == "discrete":
            return {"kind": self.kind, "size": self.size}
        if self.kind == "multi_discrete":
            return {"kind": self.kind, "nvec": self.nvec.tolist()}
        # Infinite bounds are no JSON numbers.
        low, high = ([str(x) for x in bound] for bound in (self._low, self._high))
        return {"kind": self.kind, "low": low, "high": high, "squash": self.squash}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        if state["kind"] == "discrete":
            return cls(Discrete(state["size"]))
        if state["kind"] == "multi_discrete":
            return cls(MultiDiscrete(state["nvec"]))
        low, high = (np.array([float(x) for x in state[name]], np.float32) for name in ("low", "high"))
        return cls(Box(low, high, dtype=np.float32), squash=bool(state["squash"]))
