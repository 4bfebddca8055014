"""Implicit Q-learning: Kostrikov, Nair and Levine, "Offline Reinforcement Learning with Implicit Q-Learning", 2021."""

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from fastrl.algorithms.off_policy import OffPolicyActorCritic, layers_of
from fastrl.algorithms.off_policy_loss import IQLLoss, Minibatch
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.sac_settings import IQLConfig, IQLDeclaration
from fastrl.networks.action_space import Actions
from fastrl.networks.distributions import mask_logits
from fastrl.networks.off_policy import Critics, OffPolicyActor
from fastrl.networks.parameters import generator_of

# Seed of the value function's weights, beside those of `OffPolicyActorCritic`.
_VALUE_STREAM = 3


class IQL(IQLDeclaration, OffPolicyActorCritic):
    """Learns the values of recorded actions and imitates those that are better than expected; it never asks for the
    value of an action that was not recorded.

    Continuous policies are deterministic, with a weighted squared error in place of the paper's likelihood, and explore
    with Gaussian noise.

    Args:
        config: hyper-parameters.
        problem: see `OffPolicyActorCritic`.

    Attributes:
        value: the value function, which learns with the policy's optimiser.
    """

    policy_loss_type = IQLLoss
    config: IQLConfig

    def __init__(self, config: IQLConfig, problem: Problem) -> None:
        self.config = config
        self.value = Critics(
            problem.obs_rows.state(),
            Actions(problem.action_space).state(),
            count=1,
            num_inputs=0,
            num_outputs=1,
            generator=generator_of(np.random.SeedSequence(problem.seed, spawn_key=(_VALUE_STREAM,))),
            **layers_of(config),
        )
        is_box = isinstance(problem.action_space, Box)
        super().__init__(
            config,
            problem,
            "deterministic" if is_box else "categorical",
            noise=config.exploration_noise if is_box else 0.0,
            extra=self.value,
        )
        self.saved["value"] = self.value
        self._compile(
            IQL,
            "value_loss",
            "imitation_weights",
            "imitation_costs",
            expectile=config.expectile,
            beta=config.beta,
            max_weight=config.max_weight,
        )

    @property
    def final_masks(self) -> bool:
        return False  # The value function says what an observation is worth.

    def networks(self) -> list[OffPolicyActor | Critics]:
        return [*super().networks(), self.value]

    def next_values(self, batch: Minibatch) -> Tensor:
        """V(s'), equation 6."""
        return self.value(batch.next_obs)[0, :, 0]

    def policy_loss(self, batch: Minibatch) -> IQLLoss:
        """L_pi = E[exp(beta A) imitation cost], equation 7, and L_V, with A = min_i Q'_i(s, a) - V(s)."""
        s, a = batch.obs, batch.actions
        V = self.value(s)[0, :, 0]
        A = self.least_target(s, a) - V
        w = self.imitation_weights(A.detach())
        L_pi, L_V = (w * self.imitation_costs(self.policy(s), batch)).mean(), self.value_loss(A)
        return IQLLoss(
            L_pi + L_V, policy_loss=L_pi, value_loss=L_V, value=V.mean(), imitation_weight=w.mean()
        )

    def value_loss(self, advantages: Tensor) -> Tensor:
        """L_V = E[|expectile - 1[A < 0]| A^2], equation 5, float32 []."""
        share = torch.where(advantages < 0, 1 - self.config.expectile, self.config.expectile)
        return (share * advantages.square()).mean()

    def imitation_weights(self, advantages: Tensor) -> Tensor:
        """exp(beta A), at most ``max_weight``."""
        return (self.config.beta * advantages).exp().clamp(max=self.config.max_weight)

    def imitation_costs(self, outputs: Tensor, batch: Minibatch) -> Tensor:
        """-log pi(a | s) of discrete actions, (pi(s) - a)^2 of others, float32 [B].

        Args:
            outputs: of the policy [B, n].
        """
        if self.actions.is_box:
            return (outputs.tanh() - batch.actions).square().sum(-1)
        log_pi = torch.log_softmax(mask_logits(outputs, batch.masks), -1)
        return -log_pi.gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
