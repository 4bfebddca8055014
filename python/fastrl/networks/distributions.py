"""Distributions of actions: categorical with masks, of one number or of several, and Gaussian."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fastrl.networks.action_space import Actions
from fastrl.networks.kinds import LOG_STD_RANGE

# The logit of a masked action. Finite, for 0 * inf is NaN; exp() of it, less any logit, is exactly 0.
MASKED = -1e9


def log_std_parameter(size: int, initial: float) -> nn.Parameter:
    """The logarithms of a Gaussian's deviations, float32 [size], within `LOG_STD_RANGE`."""
    return nn.Parameter(torch.full((size,), float(np.clip(initial, *LOG_STD_RANGE))))


def mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits [B, A] in which the actions where ``mask`` (bool [B, A]) is False have probability exactly 0."""
    return logits if mask is None else torch.where(mask, logits, MASKED)


def sample_actions(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draws an action from each row of logits by inverting the cumulative distribution.

    One random number a row; the Gumbel trick needs one for each action, which costs more than the network.

    Args:
        logits: float32 [B, A]; actions at `MASKED` are never drawn while another action is not masked.
        uniforms: float32 [B, 1], uniform in [0, 1 - 2**-24], as ``torch.rand`` draws them.

    Returns:
        Actions int64 [B], and their log-probabilities float32 [B]. Where logits are NaN the action is some
        action, and its log-probability NaN.
    """
    all_log_probs = torch.log_softmax(logits, -1)
    cumulative = all_log_probs.exp().cumsum(-1)
    total = cumulative[:, -1:]
    # The first action whose cumulative sum exceeds uniforms * total. There is one, for (1 - 2**-24) * total
    # rounds to less than total; and it is no masked one, which repeats the sum before it.
    actions = torch.searchsorted(cumulative, uniforms * total, right=True)
    actions.clamp_(max=logits.shape[-1] - 1)
    return actions.squeeze(-1), all_log_probs.gather(-1, actions).squeeze(-1)


class Choices:
    """The choices of multi-discrete actions: logits of all numbers side by side, and the same as a matrix.

    A number with fewer choices than the one with the most has further columns at `MASKED`, so that all numbers are
    drawn, weighed and differentiated at once.

    Args:
        nvec: choices of each number.
    """

    def __init__(self, nvec: Sequence[int]) -> None:
        sizes = torch.as_tensor(list(map(int, nvec)))
        self.num_choices, self.width = len(nvec), int(max(nvec))
        columns = torch.arange(self.width)
        self._is_choice = columns < sizes.unsqueeze(1)
        firsts = sizes.cumsum(0) - sizes
        # For each place of the matrix its place among the logits; anything where there is no choice.
        self._sources = torch.where(self._is_choice, firsts.unsqueeze(1) + columns, 0)

    def split(self, logits: Tensor) -> Tensor:
        """Logits float [B, sum of nvec] as float [B, n, width]."""
        is_choice, sources = self._is_choice.to(logits.device), self._sources.to(logits.device)
        matrix = logits[:, sources.flatten()].unflatten(1, self._sources.shape)
        return torch.where(is_choice, matrix, MASKED)

    def sample(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Draws actions as `sample_actions` does, each number from its own categorical distribution.

        Args:
            logits: float32 [B, sum of nvec], masked if need be.
            uniforms: float32 [B, n].

        Returns:
            Actions int64 [B, n], and their log-probabilities float32 [B].
        """
        actions, log_probs = sample_actions(self.split(logits).flatten(0, 1), uniforms.reshape(-1, 1))
        return actions.view(-1, self.num_choices), log_probs.view(-1, self.num_choices).sum(1)

    def log_probs(self, logits: Tensor, actions: Tensor) -> Tensor:
        """Log-probabilities float [B] of actions int64 [B, n]."""
        all_log_probs = torch.log_softmax(self.split(logits), -1)
        return all_log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1).sum(1)


def choices_of(actions: Actions) -> Choices | None:
    """The choices of multi-discrete actions; None for others."""
    return Choices(actions.nvec.tolist()) if actions.kind == "multi_discrete" else None


def gaussian_log_probs(means: Tensor, log_std: Tensor, draws: Tensor) -> Tensor:
    """Log-densities float [B] of draws [B, n] under independent Gaussians."""
    z = (draws - means) * (-log_std).exp()
    return -0.5 * z.square().sum(-1) - (log_std.sum() + 0.5 * math.log(2 * math.pi) * len(log_std))
