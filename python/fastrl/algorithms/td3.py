"""TD3: Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods", 2018."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fastrl.algorithms.off_policy import Draws, OffPolicyActorCritic
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.sac_settings import TD3Config
from fastrl.networks.ensemble import EnsembleTrace
from fastrl.networks.parameters import flatten_parameters, load_weights


class TD3(OffPolicyActorCritic):
    """Learns a deterministic policy, later than the critics, whose targets are smoothed by noise on the actions.

    The target networks move when the policy has learned.

    Args:
        config: hyper-parameters.
        problem: see `OffPolicyActorCritic`.

    Attributes:
        target_policy: follows the policy, as the target critics follow the critics.
    """

    name = "td3"
    summary = "TD3, a deterministic policy for continuous actions between finite bounds"
    config_type = TD3Config
    action_kinds = frozenset({"box"})
    policy_explores = False
    config: TD3Config

    def __init__(self, config: TD3Config, problem: Problem) -> None:
        super().__init__(config, problem, "deterministic", noise=config.exploration_noise)
        self.target_policy = copy.deepcopy(self.policy)
        self._target_policy_vector = flatten_parameters(self.target_policy)
        self.target_policy.requires_grad_(False)

    @property
    def _noise_size(self) -> int:
        return self.actions.size

    def next_values(self, next_obs: Tensor, masks: Tensor | None, draws: Draws) -> Tensor:
        assert draws.noise is not None
        actions = self.target_policy(next_obs).tanh()
        config = self.config
        noise = draws.noise * config.target_noise
        noise.clamp_(-config.target_noise_clip, config.target_noise_clip)
        actions = (actions + noise).clamp_(-1, 1)
        return self._least_target(self.targets.features(next_obs), actions, draws.critics).squeeze(-1)

    def learn_policy(
        self, obs: Tensor, actions: Tensor, masks: Tensor | None, noise: Tensor | None, weight: float
    ) -> tuple[Tensor, ...]:
        """By the loss minus the mean value of the policy's actions, by the first critic."""
        critics, size = self.critics, self.actions.size
        features, trace = self._features(self.policy, obs), EnsembleTrace()
        chosen = self.policy.body(features.detach(), trace)[0].tanh()
        of_critics = EnsembleTrace()
        values = critics.values(critics.features(obs), chosen, of_critics)
        share = torch.zeros_like(values)
        share[0] = 1
        place = slice(critics.num_features, critics.num_features + size)
        slopes = of_critics.backpropagate(share, parameters=False, inputs=place)
        assert slopes is not None
        gradient = slopes * (chosen.square() - 1) / len(obs)
        if weight != 1:
            gradient = gradient * weight
        self._backpropagate(self.policy, features, trace, gradient.unsqueeze(0))
        return (-values[0].mean(),)

    def _move_targets(self, has_learned_policy: bool) -> None:
        if has_learned_policy:
            super()._move_targets(has_learned_policy)
            self._target_policy_vector.lerp_(self._policy_vector, self.config.tau)

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        remarks = super().load_policy(state)
        load_weights(self.target_policy, state["target_policy"])
        return remarks

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "target_policy": self.target_policy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        load_weights(self.target_policy, state["target_policy"])
