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
    outputs: Tensor, log_std: Tensor | None, actions: Tensor, choices: Choices | None = None
) -> tuple[Tensor, Tensor]:
    """`log_probs_of` and the entropy, in nats: float32 [B] of discrete actions, [] of a Gaussian (it is the same
    everywhere)."""
    if log_std is not None:
        return gaussian_log_probs(outputs, log_std, actions), gaussian_entropy(log_std)
    if choices is not None:
        return choices.log_probs_and_entropy(outputs, actions)
    all_log_probs = torch.log_softmax(outputs, -1)
    log_probs = all_log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    return log_probs, -(all_log_probs.exp() * all_log_probs).sum(-1)


@torch.no_grad()
def surrogate_gradient(
    outputs: Tensor,
    log_std: Tensor | None,
    actions: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    *,
    rows: Tensor | None = None,
    masks: Tensor | None = None,
    choices: Choices | None = None,
    clip_range: float,
    entropy_coef: float,
) -> PolicyGradient:
    """PPO's clipped surrogate (arXiv:1707.06347, equation 7) and an entropy bonus, means over B samples.

    With ratios of 1 (``old_log_probs`` those of the outputs themselves) it is the gradient of REINFORCE. Samples of
    equal observation may share a row of outputs, whose gradient is the sum over them.

    Args:
        outputs: logits (before masking) or means, float32 [D, size].
        log_std: float32 [n] of a Gaussian; None for discrete actions.
        actions: int64 [B], of multi-discrete actions [B, n], or draws float32 [B, n].
        old_log_probs, advantages: float32 [B].
        rows: int64 [B], which of the rows of outputs each sample has; None: its own, D = B.
        masks: bool [B, size], True = allowed; None: everything is. For discrete actions.
        choices: of multi-discrete actions; None for others.
    """
    if rows is not None and (log_std is not None or masks is not None):
        # Each sample has a distribution of its own.
        gradient = surrogate_gradient(
            outputs.index_select(0, rows),
            log_std,
            actions,
            old_log_probs,
            advantages,
            masks=masks,
            choices=choices,
            clip_range=clip_range,
            entropy_coef=entropy_coef,
        )
        return gradient._replace(outputs=torch.zeros_like(outputs).index_add_(0, rows, gradient.outputs))
    if log_std is not None:
        return _gaussian(outputs, log_std, actions, old_log_probs, advantages, clip_range, entropy_coef)
    if rows is None:
        rows = torch.arange(len(actions), device=outputs.device)
    logits = mask_logits(outputs, masks)
    if choices is not None:
        return _multi_categorical(
            choices, logits, rows, actions, old_log_probs, advantages, clip_range, entropy_coef
        )
    return _categorical(logits, rows, actions, old_log_probs, advantages, clip_range, entropy_coef)


def _categorical(
    logits: Tensor,
    rows: Tensor,
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

    That takes far fewer passes over [D, num_actions] than automatic differentiation.
    """
    num_rows, num_actions = logits.shape
    size = len(actions)
    all_log_probs = torch.log_softmax(logits, -1)
    probs = all_log_probs.exp()
    entropies = -torch.linalg.vecdot(probs, all_log_probs)
    chosen = rows * num_actions + actions
    pull, objective, kl, clip_fraction = _clipped(
        all_log_probs.take(chosen) - old_log_probs, advantages, clip_range
    )

    # Weight of each row's samples in the entropy, and the sum of their gradients.
    bonus = torch.bincount(rows, minlength=num_rows) * (entropy_coef / size)
    pulls = torch.zeros_like(entropies).index_add_(0, rows, pull)
    gradient = (all_log_probs * bonus.unsqueeze(1)).add_((pulls + bonus * entropies).unsqueeze(1)).mul_(probs)
    gradient.view(-1).index_add_(0, chosen, -pull)
    losses = PolicyLosses(-objective, entropies.take(rows).mean(), kl, clip_fraction)
    return PolicyGradient(gradient, None, losses)


def _multi_categorical(
    choices: Choices,
    logits: Tensor,
    rows: Tensor,
    actions: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    clip_range: float,
    entropy_coef: float,
) -> PolicyGradient:
    """Gradient for several discrete numbers, whose probabilities multiply and whose entropies add up: as of
    `_categorical` for each number, with the ratio of the whole action."""
    all_log_probs = torch.log_softmax(choices.split(logits), -1)
    probs = all_log_probs.exp()
    entropies = -torch.linalg.vecdot(probs, all_log_probs)
    parts = torch.arange(choices.num_parts, device=logits.device)
    chosen = (rows.unsqueeze(1) * choices.num_parts + parts) * choices.width + actions
    pull, objective, kl, clip_fraction = _clipped(
        all_log_probs.take(chosen).sum(1) - old_log_probs, advantages, clip_range
    )

    bonus = (torch.bincount(rows, minlength=len(logits)) * (entropy_coef / len(actions))).view(-1, 1, 1)
    pulls = torch.zeros_like(entropies[:, 0]).index_add_(0, rows, pull).view(-1, 1, 1)
    gradient = (all_log_probs * bonus).add_(pulls + bonus * entropies.unsqueeze(-1)).mul_(probs)
    gradient.view(-1).index_add_(0, chosen.flatten(), -pull.repeat_interleave(choices.num_parts))
    losses = PolicyLosses(-objective, entropies.sum(1).take(rows).mean(), kl, clip_fraction)
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


class KlGradient(NamedTuple):
    """The gradient of a mean KL divergence, and the mean itself."""

    outputs: Tensor  # of the network, float32 [D, size]
    log_std: Tensor | None  # of a Gaussian, float32 [n]
    kl: Tensor  # float32 [], nats


@torch.no_grad()
def kl_gradient(
    outputs: Tensor,
    log_std: Tensor | None,
    reference: Tensor,
    reference_log_std: Tensor | None,
    *,
    rows: Tensor | None = None,
    masks: Tensor | None = None,
    choices: Choices | None = None,
) -> KlGradient:
    """KL(reference, policy), the mean over B samples, and its gradient in the policy.

    With p = softmax(logits) and q the reference's probabilities, a sample gives p - q in the logits; of Gaussians with
    means m, deviations s and the reference's n, t it gives (m - n) / s^2 in m, and 1 - (t^2 + (m - n)^2) / s^2 in
    log s.

    Args:
        outputs, log_std: of the policy: logits (before masking), or means float32 [D, size].
        reference, reference_log_std: the same of the reference.
        rows, masks, choices: as of `surrogate_gradient`.
    """
    if rows is not None:
        gradient = kl_gradient(
            outputs.index_select(0, rows),
            log_std,
            reference.index_select(0, rows),
            reference_log_std,
            masks=masks,
            choices=choices,
        )
        return gradient._replace(outputs=torch.zeros_like(outputs).index_add_(0, rows, gradient.outputs))
    size = len(outputs)
    if log_std is not None:
        assert reference_log_std is not None, "both are Gaussian"
        difference, precision = outputs - reference, (-2 * log_std).exp()
        spread = ((2 * reference_log_std).exp() + difference.square()) * precision
        kl = (log_std - reference_log_std + spread / 2 - 0.5).sum(1).mean()
        return KlGradient(difference * precision / size, 1 - spread.mean(0), kl)
    matrices = [mask_logits(each, masks) for each in (outputs, reference)]
    if choices is not None:
        matrices = [choices.split(each) for each in matrices]
    own, theirs = (torch.log_softmax(each, -1) for each in matrices)
    gradient_of_logits = (own.exp() - theirs.exp()) / size
    kl = (theirs.exp() * (theirs - own)).sum() / size
    joined = gradient_of_logits if choices is None else choices.join(gradient_of_logits)
    return KlGradient(joined, None, kl)


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
