"""TD3: Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods", 2018."""

import torch
from torch import Tensor

from fastrl.algorithms.off_policy import OffPolicyActorCritic
from fastrl.algorithms.off_policy_loss import Minibatch, PolicyLoss
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.sac_settings import TD3Config, TD3Declaration
from fastrl.networks.parameters import flatten_parameters


class TD3(TD3Declaration, OffPolicyActorCritic):
    """Learns a deterministic policy, later than the critics, whose targets are smoothed by noise on the actions.

    The target networks move when the policy has learned.

    Args:
        config: hyper-parameters.
        problem: see `OffPolicyActorCritic`.

    Attributes:
        target_policy: follows the policy, as the target critics follow the critics.
    """

    noise_fields = ("next_noise",)
    config: TD3Config

    def __init__(self, config: TD3Config, problem: Problem) -> None:
        super().__init__(config, problem, "deterministic", noise=config.exploration_noise)
        self.target_policy = self.copy_of(self.policy)
        self._target_policy_vector = flatten_parameters(self.target_policy)
        self.target_policy.requires_grad_(False)
        self.saved["target_policy"] = self.target_policy
        self._compile(
            TD3,
            "next_actions",
            target_policy=self._target_policy_vector,
            target_noise=config.target_noise,
            target_noise_clip=config.target_noise_clip,
        )

    def next_actions(self, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """a' = pi'(s') + clip(noise), within the bounds; without a bonus."""
        assert batch.next_noise is not None
        s, clip = batch.next_obs, self.config.target_noise_clip
        noise = (batch.next_noise * self.config.target_noise).clamp(-clip, clip)
        a = (self.target_policy(s).tanh() + noise).clamp(-1, 1)
        return a, torch.zeros_like(batch.rewards)

    def next_values(self, batch: Minibatch) -> Tensor:
        """min_i Q'_i(s', a'): algorithm 1."""
        return self.least_target(batch.next_obs, self.next_actions(batch)[0], batch.target_critics)

    def policy_loss(self, batch: Minibatch) -> PolicyLoss:
        """-E[Q_1(s, pi(s))]."""
        s = batch.obs
        loss = -self.critics(s, self.policy(s).tanh())[0].mean()
        return PolicyLoss(loss, policy_loss=loss)

    def _move_targets(self, has_learned_policy: bool) -> None:
        if has_learned_policy:
            super()._move_targets(has_learned_policy)
            self._target_policy_vector.lerp_(self._of_policy.vector, self.config.tau)
