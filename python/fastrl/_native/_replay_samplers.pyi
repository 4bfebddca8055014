"""Samplers that copy batches from a `fastrl._native._replay.Storage` to the caller's arrays, for `fastrl.replay`.

The arrays of a batch are a dict, C-contiguous and writeable, B = batch_size: obs, next_obs [B, ...] or
[B, stack, ...]; actions [B, ...]; rewards, discounts, weights float32 [B]; terminated, truncated bool [B]; indices
int64 [B]; masks, next_masks bool [B, num_masked], as far as the storage has them; and its extra fields. Sampling
releases the GIL and holds the storage's lock.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

@disjoint_base
class Uniform:
    """Draws with equal probability. ValueError: batch_size or n_step below 1, gamma outside of [0, 1]."""

    def __new__(cls, storage: Any, batch_size: int, n_step: int, gamma: float, seed: int) -> Self: ...
    @property
    def generator_state(self) -> list[int]:
        """Four words of xoshiro256++. ValueError when set to anything else."""

    @generator_state.setter
    def generator_state(self, words: list[int]) -> None: ...
    def sample(self, arrays: dict[str, NDArray[Any]], replacement: bool) -> None:
        """Fills the arrays, all but ``weights``. ValueError: too little is stored. TypeError, ValueError: arrays that
        do not fit."""

@disjoint_base
class Prioritized(Uniform):
    """Draws in proportion to priorities. ValueError: also alpha or beta that are negative or not finite."""

    beta: float
    stale: int

    def __new__(
        cls,
        storage: Any,
        batch_size: int,
        n_step: int,
        gamma: float,
        seed: int,
        alpha: float,
        beta: float,
        by_buffer: bool,
    ) -> Self: ...
    def sample(self, arrays: dict[str, NDArray[Any]], replacement: bool) -> None:
        """Fills the arrays. ``replacement`` must be True."""

    def update(self, indices: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Sets priorities [N] of the transitions [N]; those that have been overwritten are counted in ``stale``.

        ValueError: a priority that is NaN, infinite or negative. IndexError: not an index of a batch. Nothing is
        changed then.
        """

    def state(self) -> dict[str, Any]:
        """``highest``, ``stale`` and ``priorities`` float64 [rows of the storage]."""

    def set_state(self, highest: float, stale: int, priorities: NDArray[np.float64]) -> None:
        """Restores what `state` returned. ValueError: it belongs to another storage."""

@disjoint_base
class Sequences(Uniform):
    """Copies T = burn_in + length steps of one episode around each step drawn, left-aligned, followed by zeros.

    ValueError: a length below 1, burn_in outside of 0 to 255.
    """

    def __new__(
        cls,
        storage: Any,
        batch_size: int,
        n_step: int,
        gamma: float,
        seed: int,
        length: int,
        burn_in: int,
    ) -> Self: ...
    def sample(self, arrays: dict[str, NDArray[Any]], replacement: bool) -> None:
        """Fills obs [B, T + 1, ...]; actions, rewards, terminated, truncated, mask, learn and the extra fields
        [B, T, ...]; indices int64 [B]; action_masks, if there are masks, bool [B, T, num_masked], with those of last
        observations [B, T + 1, num_masked]. Errors as `Uniform.sample`."""

@disjoint_base
class Hindsight(Uniform):
    """Replaces the goals of the first ``relabelled`` transitions of a batch: items ``desired`` to ``desired + goal`` of
    obs and next_obs become items ``achieved`` to ``achieved + goal`` of another observation of the episode.

    strategy: 0: an observation after the step, 1: the last one of the episode, 2: any but its first.
    ValueError: observations that are not vectors, n_step above 1, items outside of the observation.
    """

    def __new__(
        cls,
        storage: Any,
        batch_size: int,
        n_step: int,
        gamma: float,
        seed: int,
        strategy: int,
        relabelled: int,
        achieved: int,
        desired: int,
        goal: int,
    ) -> Self: ...
