"""Reward scaling by the running spread of returns."""

from collections.abc import Sequence

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
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma = gamma
        self.discounted = np.zeros(num_envs)
        self.norm = RunningNorm(1)

    def update_rows(self, rollout: Rollout, counts: NDArray[np.bool_] | None = None) -> float:
        """Adds a rollout's rewards, those where ``counts`` (bool [T, N]; None: all); returns what to multiply rewards
        by."""
        sums, rows = np.empty(rollout.rewards.shape), rollout.num_rows
        # Whole episodes, of which there may be any number, start at 0 and leave 0.
        discounted = self.discounted if len(self.discounted) == rows else np.zeros(rows)
        for t in range(rollout.num_steps):
            discounted *= self.gamma
            discounted += rollout.rewards[t] if counts is None else np.where(counts[t], rollout.rewards[t], 0)
            sums[t] = discounted
            discounted[rollout.terminations[t] | rollout.truncations[t]] = 0
        if counts is not None:
            sums = sums[counts]
        if sums.size:
            self.norm.update(torch.from_numpy(sums.reshape(-1, 1)))
        return float(self.norm.scale())

    def update(self, fragments: Sequence[Fragment]) -> float:
        """Adds the rewards of fragments, one after the other; returns what to multiply rewards by."""
        all_sums = []
        for fragment in fragments:
            whole = bool(fragment.env_indices[0] == NO_ENV)
            # The sum of a whole episode starts at 0, that of a row where its last fragment ended.
            before = np.zeros(fragment.rewards.shape[1]) if whole else self.discounted[fragment.env_indices]
            ended = fragment.terminations | fragment.truncations
            sums = discounted_sums(fragment.rewards, ended, before.astype(np.float32), self.gamma)
            if not whole:
                self.discounted[fragment.env_indices] = np.where(ended[-1], 0, sums[-1])
            all_sums.append(sums)
        # The order of the sum does not depend on the rows' division into fragments.
        side_by_side = len({len(sums) for sums in all_sums}) == 1
        in_order = (
            np.concatenate(all_sums, axis=1) if side_by_side else np.concatenate([*map(np.ravel, all_sums)])
        )
        self.norm.update(torch.from_numpy(in_order.reshape(-1, 1)))
        return float(self.norm.scale())

    def state_dict(self) -> dict[str, Tensor]:
        return {"discounted": torch.from_numpy(self.discounted.copy()), **self.norm.state_dict()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        norm = dict(state)
        self.discounted[:] = norm.pop("discounted").numpy()
        load_weights(self.norm, norm)
