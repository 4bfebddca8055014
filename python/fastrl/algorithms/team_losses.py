"""The clipped objective of policies over discrete and continuous actions: losses, and gradients in closed form."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fastrl.algorithms.ppo import Minibatch, policy_gradient
from fastrl.team_networks import gaussian_log_probs


class PolicyLosses(NamedTuple):
    """Scalars (0-dimensional tensors), means over samples."""

    policy_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


class PolicyGradient(NamedTuple):
    """The gradient of ``policy_loss - entropy_coef * entropy``."""

    outputs: Tensor  # of the network, float32 [B, size]
    log_std: Tensor | None  # of a Gaussian, float32 [n]
    losses: PolicyLosses


def log_probs_of(outputs: Tensor, log_std: Tensor | None, actions: Tensor) -> Tensor:
    """Log-probabilities float32 [B] of actions: with ``log_std`` Gaussian, float32 [B, n]; else indices int64 [B]."""
    if log_std is not None:
        return gaussian_log_probs(outputs, log_std, actions)
    return torch.log_softmax(outputs, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def surrogate_gradient(
    outputs: Tensor,
    log_std: Tensor | None,
    actions: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    clip_range: float,
    entropy_coef: float,
) -> PolicyGradient:
    """PPO's clipped surrogate (arXiv:1707.06347, equation 7) and an entropy bonus, means over B samples.

    With ratios of 1 (``old_log_probs`` those of the outputs themselves) it is the gradient of REINFORCE. For discrete
    actions see `fastrl.algorithms.ppo.policy_gradient`. For a Gaussian, with z = (a - m) / s, A the advantage and r
    the ratio, a sample gives, where the minimum is r A (else 0)::

        d(-r A) / dm      = -A r z / s
        d(-r A) / dlog s  = -A r (z^2 - 1)
        d(-H) / dlog s    = -1                  (the entropy does not depend on m)

    Args:
        outputs: logits or means, float32 [B, size].
        log_std: float32 [n] of a Gaussian; None for discrete actions.
        actions: int64 [B], or draws float32 [B, n].
        old_log_probs, advantages: float32 [B].
    """
    size = len(actions)
    if log_std is None:
        batch = Minibatch(
            obs=outputs,
            rows=torch.arange(size, device=outputs.device),
            actions=actions,
            log_probs=old_log_probs,
            advantages=advantages,
            returns=advantages,
            values=advantages,
        )
        gradient, *losses = policy_gradient(outputs, batch, clip_range=clip_range, entropy_coef=entropy_coef)
        return PolicyGradient(gradient, None, PolicyLosses(*losses))
    inverse = (-log_std).exp()
    z = (actions - outputs) * inverse
    log_ratio = gaussian_log_probs(outputs, log_std, actions) - old_log_probs
    ratio = log_ratio.exp()
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range) * advantages
    pull = (torch.where(unclipped <= clipped, unclipped, 0.0) / size).unsqueeze(1)
    entropy = log_std.sum() + 0.5 * math.log(2 * math.pi * math.e) * len(log_std)
    return PolicyGradient(
        -pull * z * inverse,
        -(pull * (z.square() - 1)).sum(0) - entropy_coef,
        PolicyLosses(
            -torch.minimum(unclipped, clipped).mean(),
            entropy,
            (ratio - 1 - log_ratio).mean(),
            ((ratio - 1).abs() > clip_range).float().mean(),
        ),
    )
