"""Terms of losses of policies, for discrete and continuous actions: log-probabilities, entropies, divergences."""

import math

import torch
from torch import Tensor

from fastrl.networks.distributions import Choices, gaussian_log_probs, mask_logits


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
    _, count, width = logits.shape
    places = (rows.unsqueeze(1) * count + torch.arange(count, device=rows.device)) * width + actions
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
    theirs, learned = torch.log_softmax(reference, -1), torch.log_softmax(outputs, -1)
    return (theirs.exp() * (theirs - learned)).sum() / len(learned)


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Entropy of independent Gaussians with deviations exp(log_std [n]), in nats."""
    return log_std.sum() + 0.5 * math.log(2 * math.pi * math.e) * len(log_std)
