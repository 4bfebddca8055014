"""Targets of deep Q-learning, and the gradients of its losses."""

import torch
from torch import Tensor

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
    """Of each row the estimates of one action: [B] of [B, A], [B, N] of [B, A, N]."""
    return estimates[torch.arange(len(actions), device=actions.device), actions]


def td_targets(rewards: Tensor, discounts: Tensor, bootstraps: Tensor) -> Tensor:
    """``rewards + discounts * bootstraps``, [B], or of quantiles [B, N]. Where the episode terminated the discount is
    0; where it was truncated it is not, and what follows counts with its estimated value."""
    if bootstraps.ndim == 2:
        rewards, discounts = rewards.unsqueeze(1), discounts.unsqueeze(1)
    return torch.addcmul(rewards, discounts, bootstraps)


def q_gradient(
    values: Tensor, actions: Tensor, targets: Tensor, weights: Tensor, huber: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient of the loss in the values of actions, in closed form: cheaper than automatic differentiation.

    The loss is the mean over the batch of ``weight * h(td)`` with td = target - values[action] and
    h(x) = x^2 / 2, beyond ``huber`` continued linearly. With c = td clipped to +-huber, h = c (td - c / 2),
    and its derivative is c.

    Args:
        values: [B, A].
        actions: int64 [B].
        targets, weights: float32 [B].
        huber: see above; None: never linear.

    Returns:
        The gradient float32 [B, A], then td float32 [B], the loss and the mean value of ``actions``.
    """
    chosen = values.gather(1, actions.unsqueeze(1)).squeeze(1).float()
    td = targets - chosen
    clipped = td if huber is None else td.clamp(-huber, huber)
    pull = clipped * weights / len(td)
    loss = torch.dot(pull, td - clipped / 2)
    gradient = torch.zeros_like(values, dtype=torch.float32).scatter_(
        1, actions.unsqueeze(1), pull.neg().unsqueeze(1)
    )
    return gradient, td, loss, chosen.mean()


def quantile_gradient(
    quantiles: Tensor, actions: Tensor, targets: Tensor, weights: Tensor, huber: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient of the loss in the quantiles of returns, in closed form.

    The loss is the mean over the batch of ``weight`` times the mean over all pairs of a quantile i of the action and a
    target j of ``|t_i - (u < 0)| h(u)``, with u = target_j - quantile_i, t_i = (i + 1/2) / N, and h of `q_gradient`
    (Dabney et al., 2018, equation 10). Theirs is the sum over i in place of the mean, and h divided by ``huber``: as it
    is here, its size depends on neither, and the margin of demonstrations weighs the same as without quantiles.

    Args:
        quantiles: [B, A, N].
        actions: int64 [B].
        targets: float32 [B, N].
        weights: float32 [B].
        huber: see `q_gradient`.

    Returns:
        The gradient float32 [B, A, N], then the errors of the means float32 [B], the loss and the mean value of
        ``actions``.
    """
    own = of_actions(quantiles, actions).float()
    count, size = own.shape
    ranks = (torch.arange(size, device=own.device) + 0.5) / size
    errors = targets.unsqueeze(1) - own.unsqueeze(2)
    clipped = errors.clamp(-huber, huber)
    pulls = torch.where(errors < 0, (1 - ranks).unsqueeze(1), ranks.unsqueeze(1)) * clipped
    scales = weights / (count * size * size)
    loss = torch.dot((pulls * (errors - clipped / 2)).sum((1, 2)), scales)
    gradient = torch.zeros_like(quantiles, dtype=torch.float32)
    gradient[torch.arange(count, device=own.device), actions] = pulls.sum(2) * -scales.unsqueeze(1)
    values = own.mean(1)
    return gradient, targets.mean(1) - values, loss, values.mean()


def margin_gradient(values: Tensor, actions: Tensor, margin: float, weight: float) -> tuple[Tensor, Tensor]:
    """Gradient of the large-margin loss of demonstrations in the values of actions, in closed form.

    The loss is ``weight`` times the sum over the rows of ``max_a(values[a] + l(a)) - values[action]``, with l = margin
    for all actions but the demonstrated one, where it is 0 (Hester
    et al., "Deep Q-learning from Demonstrations", 2017).

    Args:
        values: [N, A].
        actions: int64 [N], the demonstrated ones.
        margin: see above.
        weight: see above.

    Returns:
        The gradient float32 [N, A], and the loss.
    """
    values, chosen = values.float(), actions.unsqueeze(1)
    raised = (values + margin).scatter_(1, chosen, values.gather(1, chosen))
    highest, best = raised.max(1, keepdim=True)
    loss = (highest - values.gather(1, chosen)).sum() * weight
    gradient = torch.zeros_like(values).scatter_(1, best, weight)
    gradient.scatter_add_(1, chosen, torch.full_like(highest, -weight))
    return gradient, loss
