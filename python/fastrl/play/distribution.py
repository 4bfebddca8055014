"""Distributions of actions at observations, as PyTorch has them."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Categorical,
    Distribution,
    Independent,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

from fastrl.networks.acting_network import ActingNetwork
from fastrl.networks.action_space import Actions
from fastrl.networks.bounded_actor import LOG_STD_RANGE
from fastrl.networks.distributions import choices_of, mask_logits
from fastrl.networks.off_policy import OffPolicyActor
from fastrl.networks.q_network import ActionValues

# Points of the quadrature of a squashed Gaussian.
_NUM_NODES = 64


class ActionDistribution(NamedTuple):
    """Distributions of a policy's actions at N observations, and its values of these observations.

    Attributes:
        distribution: of actions, with the batch shape [N]. ``Categorical`` of a Discrete space, ``Independent``
            categorical ones of MultiDiscrete and MultiBinary ones: numbers count from 0 on. Of a Box, flattened to n
            numbers, an ``Independent`` ``Normal`` or a `SquashedNormal`, in the units of the environment. A plain
            Gaussian is that before actions are clipped to the bounds.
        values: expected discounted returns float32 [N], in the units in which the algorithm learned them; None: it has
            learned none of observations.
        action_values: those of each discrete action, float32 [N, num_actions], of algorithms that learn them; else
            None.
        state: for the next call, as of ``predict``.
    """

    distribution: Distribution
    values: Tensor | None
    action_values: Tensor | None
    state: Any


class SquashedNormal(TransformedDistribution):
    """The tanh of independent Gaussians, brought from -1 to 1 to the bounds of a Box. Mean, variance and entropy are by
    Gauss-Hermite quadrature.

    Args:
        mean, std: of the Gaussians, float32 [N, n].
        middle, scale: of the bounds, float32 [n].
    """

    def __init__(self, mean: Tensor, std: Tensor, middle: Tensor, scale: Tensor) -> None:
        base = Independent(Normal(mean, std), 1)
        # Actions that were drawn keep the draws that they came from.
        super().__init__(base, [TanhTransform(cache_size=1), AffineTransform(middle, scale, cache_size=1)])
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NUM_NODES)
        self._weights = torch.as_tensor(weights / weights.sum(), dtype=torch.float32)
        self._draws = mean.unsqueeze(-1) + std.unsqueeze(-1) * torch.as_tensor(nodes, dtype=torch.float32)
        self._middle, self._scale = middle, scale

    @property
    def mode(self) -> Tensor:
        """The greedy action: that of the Gaussians' means."""
        return self._middle + self._scale * self.base_dist.mean.tanh()

    @property
    def mean(self) -> Tensor:
        return self._middle + self._scale * self._expected(self._draws.tanh())

    @property
    def variance(self) -> Tensor:
        squashed = self._draws.tanh()
        return self._scale.square() * self._expected((squashed - self._expected(squashed).unsqueeze(-1)) ** 2)

    def entropy(self) -> Tensor:
        """Entropy float32 [N], nats."""
        slopes = TanhTransform().log_abs_det_jacobian(self._draws, self._draws)
        return self.base_dist.entropy() + (self._expected(slopes) + self._scale.log()).sum(-1)

    def _expected(self, numbers: Tensor) -> Tensor:
        """Expectations [N, n] of functions [N, n, nodes] of the Gaussians."""
        return (numbers * self._weights).sum(-1)


def distribution_of(
    network: ActingNetwork,
    actions: Actions,
    outputs: Tensor,
    log_std: Tensor | None,
    masks: Tensor | None,
    epsilon: float = 0.0,
) -> Distribution:
    """The distribution that a network's outputs [N, outputs] mean.

    Args:
        log_std: of a Gaussian that the network has beside its outputs, [n] or [N, n].
        masks: bool [N, num_actions]; None: all may be chosen.
        epsilon: share of random actions, of values of actions.

    Raises:
        ValueError: actions are not drawn.
    """
    if isinstance(network, ActionValues):
        allowed = torch.ones_like(outputs, dtype=torch.bool) if masks is None else masks
        best = mask_logits(outputs, masks).argmax(-1)
        greedy = torch.nn.functional.one_hot(best, outputs.shape[-1])
        return Categorical(probs=epsilon * allowed / allowed.sum(-1, keepdim=True) + (1 - epsilon) * greedy)
    if not actions.is_box:
        logits, choices = mask_logits(outputs, masks), choices_of(actions)
        if choices is None:
            return Categorical(logits=logits)
        return Independent(Categorical(logits=choices.split(logits)), 1)
    middle = torch.from_numpy(actions.middle)
    # Where both bounds are equal they are the action.
    scale = torch.from_numpy(np.maximum(actions.scale, np.finfo(np.float32).tiny))
    if isinstance(network, OffPolicyActor):
        if network.head == "gaussian":
            mean, log_std = outputs.chunk(2, -1)
            return SquashedNormal(mean, log_std.clamp(*LOG_STD_RANGE).exp(), middle, scale)
        noise = network.noise
        if not noise:
            raise ValueError("its actions are not drawn: they have no distribution")
        return Independent(Normal(middle + scale * outputs.tanh(), noise * scale), 1)
    assert log_std is not None, "a network of continuous actions has a Gaussian"
    std = log_std.exp().expand_as(outputs)
    if actions.squash and actions.is_bounded:
        return SquashedNormal(outputs, std, middle, scale)
    if actions.squash:
        raise ValueError("squashed actions with infinite bounds have no distribution of one kind")
    return Independent(Normal(middle + scale * outputs, scale * std), 1)
