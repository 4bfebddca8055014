"""Reward scaling by the running spread of returns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.networks.normalization import RunningNorm
from fastrl.networks.parameters import load_weights
from fastrl.rollout.fragment import Fragment
from fastrl.rollout.rollout import Rollout, discounted_sums
from fastrl.utils.seeding import NO_ENV


class ReturnScale:
    """Running scale of discounted returns, for environments whose rewards are large or small.

    Rewards are divided by the standard deviation of ``R[t] = gamma * R[t - 1] + reward[t]``, which is reset with each
    episode (as ``gymnasium.wrappers.vector.NormalizeReward`` does).

    Args:
        num_envs: N, environments, or rows of many agents.
        gamma: the discount.
        bound: rewards are divided by more where the largest of the returns R would be above it then; None: there is no
            bound. It needs fragments.

    Attributes:
        largest: absolute return R so far; 0 without a bound.
    """

    def __init__(self, num_envs: int, gamma: float, bound: float | None = None) -> None:
        self.gamma, self._bound, self.largest = gamma, bound, 0.0
        self.discounted = np.zeros(num_envs)
        self.norm = RunningNorm(1)

    @property
    def scale(self) -> float:
        """Factor that scales rewards."""
        scale = float(self.norm.scale())
        return min(scale, self._bound / self.largest) if self._bound and self.largest else scale

    def update_rows(self, rollout: Rollout, counts: NDArray[np.bool_] | None = None) -> float:
        """Adds a rollout's rewards, those where ``counts`` (bool [T, N]; None: all); returns what to multiply rewards
        by."""
        rewards = rollout.rewards if counts is None else np.where(counts, rollout.rewards, np.float32(0))
        # Of whole episodes there may be any number.
        rows = slice(None) if len(self.discounted) == rollout.num_rows else None
        sums = self._sums(rewards, rollout.terminations | rollout.truncations, rows)
        counted = np.ravel(sums) if counts is None else sums[counts]
        if counted.size:
            self.norm.update(torch.from_numpy(counted).view(-1, 1))
        return self.scale

    def update(self, fragments: Sequence[Fragment]) -> float:
        """Adds the rewards of fragments, one after the other; returns what to multiply rewards by."""
        all_sums = []
        for fragment in fragments:
            envs = None if fragment.env_indices[0] == NO_ENV else fragment.env_indices
            all_sums.append(self._sums(fragment.rewards, fragment.terminations | fragment.truncations, envs))
        rows = in_order([sums[..., None] for sums in all_sums])
        self.norm.update(torch.from_numpy(rows))
        if self._bound:
            self.largest = max(self.largest, float(np.abs(rows).max()))
        return self.scale

    def update_values(self, values: Tensor) -> float:
        """Adds rewards [B] that have no order, in place of returns; returns what to multiply them by."""
        self.norm.update(values.view(-1, 1).cpu())
        return self.scale

    def _sums(self, rewards: NDArray[np.float32], ended: NDArray[np.bool_], rows: Any) -> NDArray[np.float32]:
        """Discounted sums [T, N] that continue those of some rows; None: whole episodes start at 0 and leave 0."""
        before = np.zeros(rewards.shape[1]) if rows is None else self.discounted[rows]
        sums = discounted_sums(rewards, ended, before.astype(np.float32), self.gamma)
        if rows is not None:
            self.discounted[rows] = np.where(ended[-1], 0, sums[-1])
        return sums

    def state_dict(self) -> dict[str, Tensor]:
        bounded = {"largest": torch.tensor(self.largest, dtype=torch.float64)} if self._bound else {}
        return {"discounted": torch.from_numpy(self.discounted.copy()), **bounded, **self.norm.state_dict()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        norm = dict(state)
        self.discounted[:] = norm.pop("discounted").numpy()
        if self._bound:
            self.largest = float(norm.pop("largest"))
        load_weights(self.norm, norm)


def in_order(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The rows [B, D] of arrays [T, R, D], in an order that does not depend on how environments are divided among them
    where all have the same T."""
    side_by_side = len({len(array) for array in arrays}) == 1
    if side_by_side:
        return np.concatenate(arrays, 1).reshape(-1, arrays[0].shape[-1])
    return np.concatenate([array.reshape(-1, array.shape[-1]) for array in arrays])
