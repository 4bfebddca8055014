"""Losses of imitation: how far a policy is from the actions that an expert took."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fastrl.algorithms.loss import Loss
from fastrl.algorithms.ppo_loss import gaussian_entropy
from fastrl.networks.action_space import Actions
from fastrl.networks.distributions import gaussian_log_probs

LossName = Literal["log_likelihood", "mse", "cross_entropy"]


@dataclass(frozen=True)
class ImitationLoss(Loss):
    """The loss of samples, whose total may have no meaning, and means over them.

    Attributes:
        loss: that which was asked for, without label smoothing and entropy bonus.
        score: discrete actions: share of the expert's numbers that are the policy's likeliest; continuous ones: mean
            square error of the means, in units of half the range of an action.
        entropy: of the policy, in nats; NaN of discrete actions without a bonus, for which it is not computed.
    """

    loss: Tensor
    score: Tensor
    entropy: Tensor


def loss_for(name: LossName | Literal["auto"], actions: Actions) -> LossName:
    """The loss that a setting asks for.

    Raises:
        ValueError: it is not for these actions.
    """
    if name == "auto":
        return "log_likelihood" if actions.is_box else "cross_entropy"
    if name == "mse" and not actions.is_box:
        raise ValueError("loss mse is for continuous actions: set loss to auto or cross_entropy")
    if name == "cross_entropy" and actions.is_box:
        raise ValueError(
            "loss cross_entropy is for discrete actions: set loss to auto, log_likelihood or mse"
        )
    return name


def imitation_loss(
    outputs: Tensor,
    log_std: Tensor | None,
    actions: Tensor,
    *,
    name: LossName,
    nvec: tuple[int, ...] = (),
    label_smoothing: float = 0.0,
    entropy_coef: float = 0.0,
) -> ImitationLoss:
    """The loss of a minibatch of B samples.

    The log-likelihood is negated. Of discrete actions it is the cross-entropy; label smoothing (Szegedy et al.,
    "Rethinking the Inception architecture", 2016) mixes the expert's choice with all choices, as likely as each other.
    With ``mse`` the deviation of a Gaussian learns the size of the error, which does not change what the means learn.

    Args:
        outputs: of the policy, float32 [B, size]: logits or means.
        log_std: float32 [n] of a Gaussian; None for discrete actions.
        actions: int64 [B] or [B, n], or draws float32 [B, n].
        nvec: choices of each number of discrete actions.
        entropy_coef: weight of the policy's entropy, which is added.
    """
    if log_std is not None:
        error = (outputs - actions).square().mean()
        entropy = gaussian_entropy(log_std)
        if name == "mse":
            objective = error - gaussian_log_probs(outputs.detach(), log_std, actions).mean()
            loss = error
        else:
            objective = loss = -gaussian_log_probs(outputs, log_std, actions).mean()
        if entropy_coef:
            objective = objective - entropy_coef * entropy
        return ImitationLoss(objective, loss, error, entropy)
    logits = outputs.split(nvec, -1) if len(nvec) > 1 else (outputs,)
    chosen = actions.view(len(actions), -1).unbind(1)
    losses = [functional.cross_entropy(part, pick) for part, pick in zip(logits, chosen, strict=True)]
    loss = objective = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
    if label_smoothing:
        objective = torch.stack(
            [
                functional.cross_entropy(part, pick, label_smoothing=label_smoothing)
                for part, pick in zip(logits, chosen, strict=True)
            ]
        ).sum()
    entropy = torch.full((), torch.nan, device=outputs.device)
    if entropy_coef:
        entropy = torch.stack([_entropy(part) for part in logits]).sum()
        objective = objective - entropy_coef * entropy
    with torch.no_grad():
        hits = [(part.argmax(-1) == pick).float().mean() for part, pick in zip(logits, chosen, strict=True)]
        score = hits[0] if len(hits) == 1 else torch.stack(hits).mean()
    return ImitationLoss(objective, loss, score, entropy)


def _entropy(logits: Tensor) -> Tensor:
    """Mean entropy of categorical distributions with logits [B, A], in nats."""
    log_probs = torch.log_softmax(logits, -1)
    return -(log_probs.exp() * log_probs).sum(-1).mean()
