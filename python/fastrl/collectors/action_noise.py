"""Noise on actions: epsilon and Gaussian, a function of an episode and its step alone.

This module runs in worker processes and loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from numpy.typing import NDArray

from fastrl.envs.rows import ActionRows
from fastrl.networks.compiled_actor import masks_by_number, nth_allowed
from fastrl.utils.seeding import mix, normals, uniforms_of_parts

# Tells the random numbers of noise from those of a policy in the same episode.
_NOISE = np.uint64(0x6E6F697365)

# Steps of an episode whose random numbers are drawn together.
BLOCK = 256

NoiseKind = Literal["epsilon", "gaussian"]


@dataclass(frozen=True)
class Noise:
    """Noise on an expert's actions.

    Attributes:
        kind: "epsilon": with probability ``scale`` any action, uniformly; "gaussian": normal noise of a standard
            deviation of ``scale`` times half the range of each number (``scale`` itself where it is unbounded),
            clipped to the bounds.
        scale: 0: no noise.
    """

    kind: NoiseKind
    scale: float

    def check(self, space: Space[Any]) -> None:
        """Refuses noise that the action space does not take.

        Raises:
            ValueError
        """
        is_float = isinstance(space, Box) and np.dtype(space.dtype).kind == "f"
        if not 0 <= self.scale < np.inf or (self.kind == "epsilon" and self.scale > 1):
            raise ValueError(f"noise: expected a number from 0 on, of epsilon at most 1, got {self.scale}")
        if self.kind == "gaussian" and not is_float:
            raise ValueError(f"noise: Gaussian noise is for a Box of floats, the actions are {space}")
        if self.kind == "epsilon" and isinstance(space, Box) and not space.is_bounded():
            raise ValueError(f"noise: random actions of epsilon need bounds, the actions are {space}")


class NoiseSource:
    """Random numbers of a noise, functions of an episode's stream and its step alone.

    Args:
        space: of actions.
    """

    def __init__(self, noise: Noise, space: Space[Any]) -> None:
        noise.check(space)
        self._kind, self._scale, self._space = noise.kind, noise.scale, space
        self._count = int(np.prod(space.shape or ()))
        # Of one stream, which a call for one row has: numbers of the next steps, computed together.
        self._stream, self._first = np.uint64(0), -BLOCK
        self._block: tuple[NDArray[Any], NDArray[Any]] = (np.zeros(0), np.zeros(0))

    def add(
        self,
        actions: NDArray[Any],
        streams: NDArray[np.uint64],
        steps: NDArray[np.int64],
        masks: NDArray[np.bool_] | None,
    ) -> NDArray[Any]:
        """Actions [K, *shape] with noise."""
        if len(streams) > 1 or masks is not None:
            explores, numbers = self._draw(streams, steps)
            return self._apply(actions, explores, numbers, masks)
        step, stream = int(steps[0]), streams[0]
        at = step - self._first
        if not (0 <= at < BLOCK and stream == self._stream):
            self._stream, self._first, at = stream, step, 0
            self._block = self._draw(np.full(BLOCK, stream), np.arange(step, step + BLOCK))
        explores, numbers = self._block
        if self._kind == "epsilon" and not explores[at]:
            return actions
        return self._apply(actions, explores[at : at + 1], numbers[at : at + 1], None)

    def _draw(
        self, streams: NDArray[np.uint64], steps: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Flags [K] of the rows that take a random action, and random numbers [K, count] for it."""
        own = mix(streams ^ _NOISE)
        if self._kind == "gaussian":
            return np.ones(len(steps), np.bool_), normals(own, steps, self._count).astype(np.float64)
        drawn = uniforms_of_parts(own, steps, 1 + self._count).astype(np.float64)
        return drawn[:, 0] < self._scale, drawn[:, 1:]

    def _apply(
        self,
        actions: NDArray[Any],
        explores: NDArray[np.bool_],
        numbers: NDArray[np.float64],
        masks: NDArray[np.bool_] | None,
    ) -> NDArray[Any]:
        if self._kind == "gaussian":
            assert isinstance(self._space, Box)
            return _with_normals(self._space, self._scale, actions, numbers)
        if not explores.any():
            return actions
        others = actions.copy()
        drawn = _any_action(self._space, numbers[explores], None if masks is None else masks[explores])
        others[explores] = drawn.reshape(-1, *actions.shape[1:])
        return others


def _with_normals(
    space: Box, scale: float, actions: NDArray[Any], numbers: NDArray[np.float64]
) -> NDArray[Any]:
    bounded = space.bounded_below & space.bounded_above
    with np.errstate(over="ignore", invalid="ignore"):
        half = np.where(bounded, (space.high.astype(np.float64) - space.low) / 2, 1.0)
        noisy = actions + scale * half * numbers.reshape(actions.shape)
        return np.clip(noisy.astype(space.dtype), space.low, space.high)


def _any_action(
    space: Space[Any], numbers: NDArray[np.float64], masks: NDArray[np.bool_] | None
) -> NDArray[Any]:
    """Uniform actions from uniform numbers [K, n]; where there are masks, of those that they allow."""
    # In float64 products cannot round up.
    if isinstance(space, Box):
        low, high = (bound.ravel().astype(np.float64) for bound in (space.low, space.high))
        if np.dtype(space.dtype).kind != "f":
            return (low + np.floor(numbers * (high - low + 1))).astype(space.dtype)
        return np.clip(
            (low + numbers * (high - low)).astype(space.dtype), space.low.ravel(), space.high.ravel()
        )
    flat = ActionRows(space).flat_space
    nvec = np.array([flat.n]) if isinstance(flat, Discrete) else np.asarray(getattr(flat, "nvec", ()))
    if masks is None:
        chosen = (numbers * nvec).astype(np.int64)
    else:
        columns = [
            nth_allowed(allowed, (numbers[:, i] * allowed.sum(1)).astype(np.int64))
            for i, allowed in enumerate(masks_by_number(masks, nvec))
        ]
        chosen = np.stack(columns, axis=1)
    start = space.start if isinstance(space, Discrete | MultiDiscrete) else 0
    assert isinstance(space, Discrete | MultiDiscrete | MultiBinary)
    return (chosen + np.ravel(start)).astype(space.dtype)
