"""Targets of deep Q-learning, and its losses."""

import torch
from torch import Tensor
from torch.nn import functional

from fastrl.networks.q_network import mean_values


def bootstrap(
    next_estimates: Tensor, next_online_values: Tensor | None = None, masks: Tensor | None = None
) -> Tensor:
    """Value of the best allowed action after each transition, float32 [B], or its quantiles [B, N].

    Args:
        next_estimates: values of all actions by the target network, [B, A], or their quantiles [B, A, N].
        next_online_values: values by the online network [B, A], for double Q-learning; they say which action is
            the best one. None: those of the target network do.
        masks: bool [B, A], the actions that are allowed then; None: all. Where none is, the value is that of some
            action, and does not count: `td_targets` multiplies it by a discount of 0.
    """
    chooser = mean_values(next_estimates) if next_online_values is None else next_online_values
    if masks is not None:
        chooser = chooser.masked_fill(~masks, -torch.inf)
    return of_actions(next_estimates, chooser.argmax(1)).float()


def of_actions(estimates: Tensor, actions: Tensor) -> Tensor:
    """Estimates of one action of each row: [B] of [B, A], [B, N] of [B, A, N]."""
    return estimates[torch.arange(len(actions), device=actions.device), actions]


def td_targets(rewards: Tensor, discounts: Tensor, bootstraps: Tensor) -> Tensor:
    """``rewards + discounts * bootstraps``, [B], or of quantiles [B, N]. Where the episode terminated the discount is
    0; where it was truncated it is not, and what follows counts with its estimated value."""
    if bootstraps.ndim == 2:
        rewards, discounts = rewards.unsqueeze(1), discounts.unsqueeze(1)
    return torch.addcmul(rewards, discounts, bootstraps)


def q_losses(values: Tensor, targets: Tensor, huber: float | None) -> Tensor:
    """``h(target - value)`` of each sample, float32 [B], with h(x) = x^2 / 2, beyond ``huber`` continued linearly.

    Args:
        values, targets: of the actions, float32 [B].
        huber: see above; None: never linear.
    """
    if huber is None:
        return (targets - values).square() / 2
    return functional.huber_loss(values, targets, reduction="none", delta=huber)


def quantile_losses(quantiles: Tensor, targets: Tensor, huber: float) -> Tensor:
    """The mean over all pairs of a quantile i of the action and a target j of ``|t_i - (u < 0)| h(u)``, float32 [B],
    with u = target_j - quantile_i, t_i = (i + 1/2) / N, and h of `q_losses` (Dabney et al., 2018, equation 10).

    Theirs is the sum over i in place of the mean, and h divided by ``huber``: as it is here, its size depends on
    neither, and the margin of demonstrations weighs the same as without quantiles.

    Args:
        quantiles, targets: of the actions, float32 [B, N].
    """
    size = quantiles.shape[1]
    t = ((torch.arange(size, device=quantiles.device) + 0.5) / size).unsqueeze(1)
    predicted, expected = torch.broadcast_tensors(quantiles.unsqueeze(2), targets.unsqueeze(1))
    h = functional.huber_loss(predicted, expected, reduction="none", delta=huber)
    shares = torch.where(expected < predicted, 1 - t, t)
    return torch.linalg.vecdot(shares.flatten(1), h.flatten(1)) / size**2


def margin_losses(values: Tensor, actions: Tensor, margin: float) -> Tensor:
    """The large-margin loss of demonstrations, ``max_a(values[a] + l(a)) - values[action]``, float32 [N], with l =
    margin for all actions but the demonstrated one, where it is 0 (Hester et al., "Deep Q-learning from
    Demonstrations", 2017).

    Args:
        values: [N, A].
        actions: int64 [N], the demonstrated ones.
    """
    values, chosen = values.float(), actions.unsqueeze(1)
    raised = values + torch.full_like(values, margin).scatter_(1, chosen, 0.0)
    return raised.max(1).values - values.gather(1, chosen).squeeze(1)
