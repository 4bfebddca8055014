"""Soft actor-critic: Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018, for continuous actions;
Christodoulou, "Soft Actor-Critic for Discrete Action Settings", 2019, for discrete ones.

With ``critics`` 10, ``target_critics`` 2, ``layer_norm`` and 20 gradient steps for each environment step it is the
algorithm of Ball et al., "Efficient Online Reinforcement Learning with Offline Data", 2023.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from fastrl.algorithms.off_policy import OffPolicyActorCritic
from fastrl.algorithms.off_policy_loss import Minibatch, SACLoss, squashed
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.sac_settings import SACConfig, SACDeclaration
from fastrl.networks.distributions import mask_logits


class SAC(SACDeclaration, OffPolicyActorCritic):
    """Learns a policy that maximises rewards and its own entropy.

    Args:
        config: hyper-parameters.
        problem: see `OffPolicyActorCritic`.

    Attributes:
        target_entropy: nats.
    """

    policy_loss_type = SACLoss
    noise_fields = ("next_noise", "noise")
    config: SACConfig

    def __init__(self, config: SACConfig, problem: Problem) -> None:
        self.config = config
        # Of a temperature of 0, which is not learned, the logarithm is not used.
        start = math.log(config.temperature) if config.temperature else 0.0
        self.log_temperature = nn.Parameter(torch.full((), start, device=problem.device))
        is_box = isinstance(problem.action_space, Box)
        super().__init__(config, problem, "gaussian" if is_box else "categorical", extra=self.log_temperature)
        size = self.actions.size
        # Half of it in the papers of SimBa.
        share = -float(size) / (2 if self.policy.simba else 1)
        if not is_box:
            share = config.entropy_share * math.log(size)
        self.target_entropy = share if config.target_entropy is None else config.target_entropy
        self._compile(
            SAC,
            "policy_value",
            "temperature_loss",
            "temperature",
            "next_actions",
            has_temperature=config.temperature > 0,
            target_entropy=self.target_entropy if config.learn_temperature else None,
            entropy_backup=config.entropy_backup,
            mean_value=config.policy_value == "mean",
        )

    @property
    def temperature(self) -> Tensor:
        """Weight of the entropy, float32 []."""
        if self.config.temperature == 0:
            return torch.zeros_like(self.log_temperature)
        return self.log_temperature.detach().exp()

    def next_actions(self, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """a' and its bonus -alpha log pi(a' | s')."""
        assert batch.next_noise is not None
        a, log_pi, _ = squashed(self.policy(batch.next_obs), batch.next_noise)
        alpha = self.temperature if self.config.entropy_backup else 0.0
        return a, -alpha * log_pi

    def next_values(self, batch: Minibatch) -> Tensor:
        """The soft value V(s') = E[min_i Q'_i(s', a') - alpha log pi(a' | s')], equation 3."""
        s = batch.next_obs
        if self.actions.is_box:
            a, bonus = self.next_actions(batch)
            return self.least_target(s, a, batch.target_critics) + bonus
        alpha = self.temperature if self.config.entropy_backup else 0.0
        log_pi = torch.log_softmax(mask_logits(self.policy(s), batch.next_masks), -1)
        Q = self.least_target(s, None, batch.target_critics)
        return (log_pi.exp() * (Q - alpha * log_pi)).sum(-1)

    def policy_loss(self, batch: Minibatch) -> SACLoss:
        """J_pi = E[alpha log pi(a | s) - Q(s, a)], equation 7, and J_alpha; of discrete actions the sum over all of
        them in place of a drawn one."""
        s, alpha = batch.obs, self.temperature
        if self.actions.is_box:
            assert batch.noise is not None
            a, log_pi, _ = squashed(self.policy(s), batch.noise)
            J_pi = (alpha * log_pi - self.policy_value(self.critics(s, a))).mean()
            entropy = -log_pi.mean()
        else:
            log_pi = torch.log_softmax(mask_logits(self.policy(s), batch.masks), -1)
            pi = log_pi.exp()
            with torch.no_grad():
                Q = self.policy_value(self.critics(s))
            J_pi = (pi * (alpha * log_pi - Q)).sum(-1).mean()
            entropy = -(pi * log_pi).sum(-1).mean()
        total = J_pi + self.temperature_loss(entropy.detach())
        return SACLoss(total, policy_loss=J_pi, entropy=entropy, temperature=alpha)

    def policy_value(self, Q: Tensor) -> Tensor:
        """The value that the policy is to increase, [B, ...] of the critics' [E, B, ...]."""
        return Q.mean(0) if self.config.policy_value == "mean" else Q.amin(0)

    def temperature_loss(self, entropy: Tensor) -> Tensor:
        """J_alpha of equation 18 with log(alpha) in place of alpha: log(alpha) (H - target entropy), float32 []."""
        if not self.config.learn_temperature:
            return torch.zeros_like(entropy)
        return self.log_temperature * (entropy - self.target_entropy)

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        """Loads the temperature, too, unless the settings fix it: the values of the critics contain it."""
        remarks = super().load_policy(state)
        if self.config.learn_temperature:
            self.log_temperature.data.copy_(state["log_temperature"])
        return remarks

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "log_temperature": self.log_temperature.detach()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.log_temperature.data.copy_(state["log_temperature"])
