"""PPO's clipped objective for discrete and continuous actions: losses, and gradients in closed form."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fastrl.networks.distributions import Choices, gaussian_log_probs, mask_logits


class PolicyLosses(NamedTuple):
    """Scalars (0-dimensional tensors), means over samples.

    Attributes:
        policy_loss: clipped surrogate, negated.
        entropy: of the policy, in nats.
        approx_kl: KL(old, new), Schulman's estimator ``ratio - 1 - log(ratio)``.
        clip_fraction: share of samples whose ratio was outside the clip range.
    """

    policy_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


class PolicyGradient(NamedTuple):
    """The gradient of ``policy_loss - entropy_coef * entropy``."""

    outputs: Tensor  # of the network, float32 [D, size]
    log_std: Tensor | None  # of a Gaussian, float32 [n]
    losses: PolicyLosses


def log_probs_of(
    outputs: Tensor, log_std: Tensor | None, actions: Tensor, choices: Choices | None = None
) -> Tensor:
    """Log-probabilities float32 [B] of actions: with ``log_std`` Gaussian, float32 [B, n]; with ``choices`` several
    indices, int64 [B, n]; else indices int64 [B]."""
    if log_std is not None:
        return gaussian_log_probs(outputs, log_std, actions)
    if choices is not None:
        return choices.log_probs(outputs, actions)
    return torch.log_softmax(outputs, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def log_probs_and_entropy(
    outputs: Tensor,
    log_std: Tensor | None,
    actions: Tensor,
    choices: Choices | None = None,
    *,
    rows: Tensor | None = None,
    masks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`log_probs_of` and the entropy, in nats: float32 [B] of discrete actions, [] of a Gaussian (it is the same
    everywhere).

    Args:
        outputs: logits (before masking) or means, float32 [D, size].
        log_std, actions, choices: as of `log_probs_of`.
        rows: int64 [B], which of the rows of outputs each sample has; None: its own, D = B.
        masks: bool [B, size], True = allowed; None: everything is. For discrete actions.
    """
    if rows is not None and (log_std is not None or masks is not None):
        # Each sample has a distribution of its own.
        outputs, rows = outputs.index_select(0, rows), None
    if log_std is not None:
        return gaussian_log_probs(outputs, log_std, actions), gaussian_entropy(log_std)
    logits = (
        mask_logits(outputs, masks).unsqueeze(1)
        if choices is None
        else choices.split(mask_logits(outputs, masks))
    )
    all_log_probs = torch.log_softmax(logits, -1)
    entropies = -(all_log_probs.exp() * all_log_probs).sum((1, 2))
    actions = actions.view(len(actions), -1)
    if rows is None:
        return all_log_probs.gather(-1, actions.unsqueeze(-1)).sum((1, 2)), entropies
    _, parts, width = logits.shape
    places = (rows.unsqueeze(1) * parts + torch.arange(parts, device=rows.device)) * width + actions
    log_probs = all_log_probs.flatten().index_select(0, places.flatten()).view(places.shape).sum(1)
    return log_probs, entropies.index_select(0, rows)


def divergence(
    reference: Tensor,
    outputs: Tensor,
    reference_log_std: Tensor | None,
    log_std: Tensor | None,
    choices: Choices | None = None,
) -> Tensor:
    """KL(reference, policy), the mean over B samples, nats.

    Args:
        reference, outputs: of both: masked logits, or means float32 [B, size].
        reference_log_std, log_std: float32 [n] of Gaussians; None for discrete actions.
        choices: of multi-discrete actions; None for others.
    """
    if log_std is not None:
        assert reference_log_std is not None, "both are Gaussian"
        spread = ((2 * reference_log_std).exp() + (outputs - reference).square()) * (-2 * log_std).exp()
        return (log_std - reference_log_std + spread / 2 - 0.5).sum(1).mean()
    if choices is not None:
        reference, outputs = choices.split(reference), choices.split(outputs)
    theirs, own = torch.log_softmax(reference, -1), torch.log_softmax(outputs, -1)
    return (theirs.exp() * (theirs - own)).sum() / len(own)


@torch.no_grad()
def surrogate_gradient(
    outputs: Tensor,
    log_std: Tensor | None,
    actions: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    choices: Choices | None = None,
    clip_range: float,
    entropy_coef: float,
) -> PolicyGradient:
    """PPO's clipped surrogate (arXiv:1707.06347, equation 7) and an entropy bonus, means over B samples, for learners
    without automatic differentiation.

    With ratios of 1 (``old_log_probs`` those of the outputs themselves) it is the gradient of REINFORCE.

    Args:
        outputs: logits or means, float32 [B, size].
        log_std, actions, choices: as of `log_probs_of`.
        old_log_probs, advantages: float32 [B].
    """
    if log_std is not None:
        return _gaussian(outputs, log_std, actions, old_log_probs, advantages, clip_range, entropy_coef)
    if choices is not None:
        return _multi_categorical(
            choices, outputs, actions, old_log_probs, advantages, clip_range, entropy_coef
        )
    return _categorical(outputs, actions, old_log_probs, advantages, clip_range, entropy_coef)


def _categorical(
    logits: Tensor,
    actions: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    clip_range: float,
    entropy_coef: float,
) -> PolicyGradient:
    """Gradient for discrete actions.

    With p = softmax(logits), H its entropy, a the action, A its advantage and r = p[a] / p_old[a], a sample gives ::

        d(-min(r A, clip(r) A)) / d logits[j] = -A r ([j = a] - p[j])   where the minimum is r A, else 0
        d(-H) / d logits[j]                   = p[j] (log p[j] + H)
    """
    all_log_probs, chosen = torch.log_softmax(logits, -1), actions.unsqueeze(1)
    probs = all_log_probs.exp()
    entropies = -torch.linalg.vecdot(probs, all_log_probs)
    log_ratio = all_log_probs.gather(1, chosen).squeeze(1) - old_log_probs
    pull, objective, kl, clip_fraction = _clipped(log_ratio, advantages, clip_range)
    bonus = entropy_coef / len(actions)
    gradient = (all_log_probs * bonus).add_((pull + bonus * entropies).unsqueeze(1)).mul_(probs)
    gradient.scatter_add_(1, chosen, -pull.unsqueeze(1))
    return PolicyGradient(gradient, None, PolicyLosses(-objective, entropies.mean(), kl, clip_fraction))


def _multi_categorical(
    choices: Choices,
    logits: Tensor,
    actions: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    clip_range: float,
    entropy_coef: float,
) -> PolicyGradient:
    """Gradient for several discrete numbers, whose probabilities multiply and whose entropies add up: as of
    `_categorical` for each number, with the ratio of the whole action."""
    all_log_probs, chosen = torch.log_softmax(choices.split(logits), -1), actions.unsqueeze(2)
    probs = all_log_probs.exp()
    entropies = -torch.linalg.vecdot(probs, all_log_probs)
    log_ratio = all_log_probs.gather(2, chosen).squeeze(2).sum(1) - old_log_probs
    pull, objective, kl, clip_fraction = _clipped(log_ratio, advantages, clip_range)
    bonus, pull = entropy_coef / len(actions), pull.view(-1, 1, 1)
    gradient = (all_log_probs * bonus).add_(pull + bonus * entropies.unsqueeze(-1)).mul_(probs)
    gradient.scatter_add_(2, chosen, -pull.expand(chosen.shape))
    losses = PolicyLosses(-objective, entropies.sum(1).mean(), kl, clip_fraction)
    return PolicyGradient(choices.join(gradient), None, losses)


def _gaussian(
    means: Tensor,
    log_std: Tensor,
    actions: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    clip_range: float,
    entropy_coef: float,
) -> PolicyGradient:
    """Gradient for draws from independent Gaussians.

    With z = (a - m) / s, A the advantage and r the ratio, a sample gives, where the minimum is r A (else 0)::

        d(-r A) / dm      = -A r z / s
        d(-r A) / dlog s  = -A r (z^2 - 1)
        d(-H) / dlog s    = -1                  (the entropy does not depend on m)
    """
    inverse = (-log_std).exp()
    z = (actions - means) * inverse
    log_ratio = gaussian_log_probs(means, log_std, actions) - old_log_probs
    pull, objective, kl, clip_fraction = _clipped(log_ratio, advantages, clip_range)
    pull = pull.unsqueeze(1)
    return PolicyGradient(
        -pull * z * inverse,
        -(pull * (z.square() - 1)).sum(0) - entropy_coef,
        PolicyLosses(-objective, gaussian_entropy(log_std), kl, clip_fraction),
    )


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Entropy of independent Gaussians with deviations exp(log_std [n]), in nats."""
    return log_std.sum() + 0.5 * math.log(2 * math.pi * math.e) * len(log_std)


def _clipped(
    log_ratio: Tensor, advantages: Tensor, clip_range: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient of the objective in each log-probability, float32 [B]; the objective, the KL and the clipped share."""
    ratio = log_ratio.exp()
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range) * advantages
    return (
        torch.where(unclipped <= clipped, unclipped, 0.0) / len(advantages),
        torch.minimum(unclipped, clipped).mean(),
        (ratio - 1 - log_ratio).mean(),
        ((ratio - 1).abs() > clip_range).float().mean(),
    )
