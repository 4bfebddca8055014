"""Gradients of the losses of SAC, TD3 and IQL, spelled out.

They equal the gradients that ``backward`` finds for the `critic_loss` and the `policy_loss` of the algorithms, which
define what is learned. With automatic differentiation a gradient step of small perceptrons takes 5 to 40% longer.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from fastrl.algorithms.loss import TDLoss, overridden
from fastrl.algorithms.off_policy_loss import IQLLoss, Minibatch, PolicyLoss, SACLoss, squashed
from fastrl.networks.bounded_actor import LOG_STD_RANGE
from fastrl.networks.distributions import mask_logits
from fastrl.networks.ensemble import Ensemble, affine
from fastrl.networks.off_policy import Critics, values_of

if TYPE_CHECKING:
    from fastrl.algorithms.iql import IQL
    from fastrl.algorithms.off_policy import OffPolicyActorCritic
    from fastrl.algorithms.sac import SAC
    from fastrl.algorithms.td3 import TD3


class Pass:
    """A pass through an `Ensemble` in float32 without layer normalisation, and its gradients.

    Args:
        x: float32 [B, inputs].

    Attributes:
        outputs: float32 [E, B, outputs].
    """

    def __init__(self, body: Ensemble, x: Tensor) -> None:
        self._body = body
        self._inputs = [x.expand(body.count, *x.shape)]  # of each layer, [E, B, inputs]
        for weight, bias in body.linear[:-1]:
            self._inputs.append(affine(self._inputs[-1], weight, bias).relu_())
        self.outputs = affine(self._inputs[-1], *body.linear[-1])

    def backpropagate(self, gradient: Tensor, inputs: int = 0) -> Tensor:
        """Adds gradients to those of the parameters, which must have some (zeros at first).

        Args:
            gradient: of the outputs, float32 [E, B, outputs].
            inputs: how many inputs, the last ones, whose gradient is computed in place of those of the parameters.

        Returns:
            The gradient of these inputs, summed over the networks, float32 [B, inputs]; without any that of the first
            layer's outputs.
        """
        for i in reversed(range(self._body.num_layers)):
            x, (weight, bias) = self._inputs[i], self._body.linear[i]
            if not inputs:
                assert weight.grad is not None and bias.grad is not None
                if weight.shape[2] == 1:
                    weight.grad.add_((x * gradient).sum(1).unsqueeze(-1))
                else:
                    weight.grad.baddbmm_(x.transpose(1, 2), gradient)
                bias.grad.add_(gradient.sum(1, keepdim=True))
            backwards = weight.transpose(1, 2)
            if i:
                gradient = gradient * backwards if weight.shape[2] == 1 else torch.bmm(gradient, backwards)
                gradient = torch.ops.aten.threshold_backward(gradient, x, 0)
        return torch.bmm(gradient, backwards[:, :, -inputs:]).sum(0) if inputs else gradient


class EnsembleGradients(ABC):
    """Computes losses of an algorithm and adds their gradients.

    Its methods have the names of the losses. Their argument ``weight`` multiplies the gradients, but not the losses,
    whose totals have no meaning.

    Args:
        learner: the algorithm.

    Class attributes:
        losses: methods of the algorithm that are spelled out.
    """

    losses: ClassVar[tuple[str, ...]] = ("critic_loss", "policy_loss")

    def __init__(self, learner: Any) -> None:
        self.learner = learner

    @classmethod
    def of(cls, learner: "OffPolicyActorCritic", known: type) -> Self | None:
        """Gradients of an algorithm whose losses are those of the class ``known``; None for a subclass with losses of
        its own, and for networks that are more than perceptrons in float32."""
        own = overridden(type(learner), known, cls.losses)
        more = [n for n in learner.networks() if n.has_encoder or n.body.layer_norm or n.body.half_type]
        return None if own or more else cls(learner)

    def critic_loss(self, batch: Minibatch, weight: float) -> TDLoss:
        critics: Critics = self.learner.critics
        y = self.learner.td_targets(batch)
        passed = Pass(critics.body, critics.inputs(batch.obs, batch.actions))
        Q = values_of(passed.outputs, batch.actions)
        errors = Q - y
        gradient = (errors / (len(batch) / weight)).unsqueeze(-1)
        if not critics.num_inputs:
            places = batch.actions.expand(len(errors), -1).unsqueeze(-1)
            gradient = torch.zeros_like(passed.outputs).scatter_(-1, places, gradient)
        passed.backpropagate(gradient)
        loss = errors.square().mean().mul_(0.5 * len(errors))
        return TDLoss(loss, loss=loss, q=Q.mean(), td_errors=errors.abs().mean(0))

    @abstractmethod
    def policy_loss(self, batch: Minibatch, weight: float) -> PolicyLoss: ...


class SACGradients(EnsembleGradients):
    """Gradients of SAC."""

    losses = (*EnsembleGradients.losses, "policy_value", "temperature_loss")

    def policy_loss(self, batch: Minibatch, weight: float) -> SACLoss:
        sac: SAC = self.learner
        policy, alpha = Pass(sac.policy.body, sac.policy.features(batch.obs)), sac.temperature
        outputs = policy.outputs[0]
        if sac.actions.is_box:
            gradient, loss, entropy = self._continuous(batch, outputs, alpha)
        else:
            log_pi = torch.log_softmax(mask_logits(outputs, batch.masks), -1)
            pi = log_pi.exp()
            costs = alpha * log_pi - sac.policy_value(sac.critics(batch.obs))
            mean = (pi * costs).sum(-1, keepdim=True)
            gradient = pi * (costs - mean) / len(batch)
            loss, entropy = mean.mean(), -(pi * log_pi).sum(-1).mean()
        policy.backpropagate((gradient * weight).unsqueeze(0))
        if sac.config.learn_temperature:
            assert sac.log_temperature.grad is not None
            sac.log_temperature.grad.add_((entropy - sac.target_entropy) * weight)
        return SACLoss(loss, policy_loss=loss, entropy=entropy, temperature=alpha)

    def _continuous(self, batch: Minibatch, outputs: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient in the policy's outputs [B, 2 n], the loss and the entropy."""
        assert batch.noise is not None
        sac, count = self.learner, batch.actions.shape[1]
        actions, log_pi, deviations = squashed(outputs, batch.noise)
        critics = Pass(sac.critics.body, sac.critics.inputs(batch.obs, actions))
        Q = critics.outputs
        if sac.config.policy_value == "mean":
            value, share = Q.mean(0), torch.full_like(Q, 1 / len(Q))
        else:
            value, least = Q.min(0, keepdim=True)
            share = torch.zeros_like(Q).scatter_(0, least, 1.0)
        # The log-density changes by 2 tanh(u) with u.
        slopes = critics.backpropagate(share, inputs=count) * (1 - actions.square())
        of_draws = (2 * alpha * actions - slopes) / len(batch)
        of_log_stds = of_draws * deviations * batch.noise - alpha / len(batch)
        low, high = LOG_STD_RANGE
        raw = outputs[:, count:]
        of_log_stds = of_log_stds * ((raw >= low) & (raw <= high))
        loss = (alpha * log_pi).mean() - value.mean()
        return torch.cat([of_draws, of_log_stds], 1), loss, -log_pi.mean()


class TD3Gradients(EnsembleGradients):
    """Gradients of TD3."""

    def policy_loss(self, batch: Minibatch, weight: float) -> PolicyLoss:
        td3: TD3 = self.learner
        policy = Pass(td3.policy.body, td3.policy.features(batch.obs))
        actions = policy.outputs[0].tanh()
        critics = Pass(td3.critics.body, td3.critics.inputs(batch.obs, actions))
        share = torch.zeros_like(critics.outputs)
        share[0] = 1
        slopes = critics.backpropagate(share, inputs=actions.shape[1])
        gradient = slopes * (actions.square() - 1) / len(batch)
        policy.backpropagate((gradient * weight).unsqueeze(0))
        loss = -critics.outputs[0].mean()
        return PolicyLoss(loss, policy_loss=loss)


class IQLGradients(EnsembleGradients):
    """Gradients of IQL."""

    losses = (*EnsembleGradients.losses, "value_loss", "imitation_costs")

    def policy_loss(self, batch: Minibatch, weight: float) -> IQLLoss:
        iql: IQL = self.learner
        value, policy = (Pass(each.body, each.features(batch.obs)) for each in (iql.value, iql.policy))
        V, outputs, share = value.outputs[0, :, 0], policy.outputs[0], weight / len(batch)
        A = iql.least_target(batch.obs, batch.actions) - V
        slopes = torch.where(A < 0, 1 - iql.config.expectile, iql.config.expectile)
        value.backpropagate((slopes * A * (-2 * share))[None, :, None])
        w = iql.imitation_weights(A)
        scale = w.unsqueeze(-1) * share
        if iql.actions.is_box:
            means = outputs.tanh()
            errors = means - batch.actions
            costs, gradient = errors.square().sum(-1), 2 * scale * errors * (1 - means.square())
        else:
            log_pi = torch.log_softmax(mask_logits(outputs, batch.masks), -1)
            places = batch.actions.unsqueeze(-1)
            costs, gradient = -log_pi.gather(-1, places).squeeze(-1), log_pi.exp()
            gradient = scale * gradient.scatter_add_(-1, places, gradient.new_full(places.shape, -1.0))
        policy.backpropagate(gradient.unsqueeze(0))
        loss, value_loss = (w * costs).mean(), (slopes * A.square()).mean()
        return IQLLoss(
            loss, policy_loss=loss, value_loss=value_loss, value=V.mean(), imitation_weight=w.mean()
        )
