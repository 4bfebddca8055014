"""Minibatches and losses of algorithms with a policy and critics, and the distribution of bounded actions."""

import math
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from fastrl.algorithms.loss import Loss, TDLoss
from fastrl.networks.bounded_actor import LOG_STD_RANGE
from fastrl.networks.off_policy import Critics


@dataclass(frozen=True)
class Minibatch:
    """B transitions, on the device of the networks, and what is drawn for their losses.

    Attributes:
        obs, next_obs: observations before and after, rows [B, D].
        actions: that were taken: discrete ones int64 [B], or from -1 to 1 float32 [B, n].
        rewards: float32 [B], the discounted sum of up to ``n_step`` steps.
        discounts: float32 [B], gamma to the power of these steps, or 0 where the episode terminated.
        masks, next_masks: bool [B, M], the actions that were allowed at obs and next_obs; None: all.
        noise, next_noise: float32 [B, n], normal, for the policy's actions at obs and next_obs; None: there is none.
        target_critics: int64, the target critics that are asked; None: all.
    """

    obs: Tensor
    next_obs: Tensor
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    masks: Tensor | None
    next_masks: Tensor | None
    noise: Tensor | None = None
    next_noise: Tensor | None = None
    target_critics: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rewards)

    def of(self, rows: slice) -> Self:
        """Transitions of some rows."""
        if (rows.start, rows.stop) == (0, len(self)):
            return self
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        del tensors["target_critics"]
        return replace(self, **{name: tensor[rows] for name, tensor in tensors.items() if tensor is not None})


@dataclass(frozen=True)
class PolicyLoss(Loss):
    """The loss of a policy, and what is learned with it; means over samples."""

    policy_loss: Tensor


@dataclass(frozen=True)
class SACLoss(PolicyLoss):
    """The loss of SAC's policy and temperature; the entropy of the policy in nats."""

    entropy: Tensor
    temperature: Tensor


@dataclass(frozen=True)
class IQLLoss(PolicyLoss):
    """The loss of IQL's policy and value function; the weight of actions that are imitated."""

    value_loss: Tensor
    value: Tensor
    imitation_weight: Tensor


def categorical_loss(
    critics: Critics, targets: Critics, batch: Minibatch, actions: Tensor, bonus: Tensor
) -> TDLoss:
    """The sum over critics i of the cross entropy -E[sum_k p(z_k) log p_i(z_k | s, a)], where p projects
    r + gamma^n (Z'(s', a') - alpha log pi(a' | s')) onto the atoms z, and Z' is the target critics' distribution of the
    least mean (Lee et al., 2025, after Bellemare et al., 2017).

    Args:
        actions: a', float32 [B, n].
        bonus: -alpha log pi(a' | s'), float32 [B].
    """
    z = critics.atoms
    assert z is not None, "critics of distributions"
    with torch.no_grad():
        later = targets.log_probs(batch.next_obs, actions).exp()
        if batch.target_critics is not None:
            later = later[batch.target_critics]
        least = (later @ z).argmin(0)
        values = batch.rewards[:, None] + batch.discounts[:, None] * (z + bonus[:, None])
        p = project(values, later[least, torch.arange(len(batch), device=z.device)], z)
    log_p = critics.log_probs(batch.obs, batch.actions)
    loss = -(p * log_p).sum(-1).mean(1).sum()
    Q = (log_p.exp() @ z).detach()
    return TDLoss(loss, loss=loss, q=Q.mean(), td_errors=(Q - p @ z).abs().mean(0))


def project(values: Tensor, probs: Tensor, atoms: Tensor) -> Tensor:
    """The distribution over evenly spaced atoms z [K] with the mean of another one, whose values are clipped to them:
    the probability of each value goes to its two neighbours, the more the nearer (Bellemare et al., 2017, equation 7).

    Args:
        values, probs: of the other distribution, float32 [B, K].

    Returns:
        Probabilities of the atoms, float32 [B, K].
    """
    places = (values.clamp(atoms[0], atoms[-1]) - atoms[0]) / (atoms[1] - atoms[0])
    below = places.floor().clamp(max=len(atoms) - 2)
    share, index = places - below, below.long()
    found = torch.zeros_like(probs).scatter_add_(1, index, probs * (1 - share))
    return found.scatter_add_(1, index + 1, probs * share)


def squashed(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draws actions tanh(u) with u from a Gaussian.

    Args:
        outputs: float32 [B, 2 n], means and logarithms of deviations; these are clipped to `LOG_STD_RANGE`.
        noise: normal float32 [B, n].

    Returns:
        Actions [B, n] from -1 to 1, their log-densities [B], which are finite also where an action is rounded to 1, and
        deviations [B, n].
    """
    means, log_stds = outputs.chunk(2, -1)
    log_stds = log_stds.clamp(*LOG_STD_RANGE)
    deviations = log_stds.exp()
    draws = torch.addcmul(means, deviations, noise)
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)).
    slopes = draws + functional.softplus(-2 * draws)
    densities = 2 * slopes - log_stds - 0.5 * noise.square()
    constant = 2 * math.log(2) + 0.5 * math.log(2 * math.pi)
    return draws.tanh(), densities.sum(-1) - constant * noise.shape[-1], deviations
