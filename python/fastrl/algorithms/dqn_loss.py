"""Targets of deep Q-learning, and the gradient of its loss."""

import torch
from torch import Tensor


def bootstrap(
    next_values: Tensor, next_online_values: Tensor | None = None, masks: Tensor | None = None
) -> Tensor:
    """Value of the best allowed action after each transition, float32 [B].

    Args:
        next_values: of all actions, by the target network, [B, A].
        next_online_values: the same by the online network, for double Q-learning; it says which action is
            the best one. None: the target network does.
        masks: bool [B, A], the actions that are allowed then; None: all. With none, all are.
    """
    if masks is not None:
        forbidden = ~masks & masks.any(1, keepdim=True)
        next_values = next_values.masked_fill(forbidden, -torch.inf)
        if next_online_values is not None:
            next_online_values = next_online_values.masked_fill(forbidden, -torch.inf)
    if next_online_values is None:
        return next_values.amax(1).float()
    best = next_online_values.argmax(1, keepdim=True)
    return next_values.gather(1, best).squeeze(1).float()


def td_targets(rewards: Tensor, discounts: Tensor, bootstraps: Tensor) -> Tensor:
    """``rewards + discounts * bootstraps``. Where the episode terminated the discount is 0; where it was
    truncated it is not, and what follows counts with its estimated value."""
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
