"""Implicit Q-learning: Kostrikov, Nair and Levine, "Offline Reinforcement Learning with Implicit Q-Learning", 2021."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch
from gymnasium.spaces import Box
from pydantic import Field, model_validator
from torch import Tensor

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms import sac_settings as shared
from fastrl.algorithms.off_policy import Draws, OffPolicyActorCritic
from fastrl.algorithms.protocol import Problem
from fastrl.networks.action_space import Actions
from fastrl.networks.distributions import mask_logits
from fastrl.networks.ensemble import EnsembleTrace
from fastrl.networks.off_policy import Critics
from fastrl.networks.parameters import check_shards, generator_of, load_weights
from fastrl.utils.config import section
from fastrl.utils.env_options import parse_options
from fastrl.utils.tunable import Range

# Seed of the value function's weights, beside those of `OffPolicyActorCritic`.
_VALUE_STREAM = 3


@section
class IQLConfig:
    """Hyper-parameters of implicit Q-learning."""

    gamma: hp.Gamma = 0.99
    n_step: shared.NStep = 1
    learning_rate: hp.LearningRate = 3e-4
    final_learning_rate: hp.FinalLearningRate = None
    batch_size: shared.BatchSize = 256
    tau: shared.Tau = 0.005
    expectile: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description="of the critics' values over the recorded actions, which the value function learns: 0.5 is"
            " their mean, near 1 the best of them",
        ),
        Range(0.6, 0.95),
    ] = 0.7
    beta: Annotated[
        float,
        Field(
            ge=0,
            description="inverse temperature: the policy imitates an action with weight exp(beta * advantage); 0 is"
            " behaviour cloning",
        ),
        Range(0.5, 10.0, log=True),
    ] = 3.0
    max_weight: Annotated[float, Field(gt=0, description="largest weight of an action")] = 100.0
    critics: shared.NumCritics = 2
    exploration_noise: Annotated[
        float,
        Field(
            ge=0,
            description="deviation of the noise on continuous actions that are taken, in units of half their range",
        ),
    ] = 0.1
    hidden: shared.Hidden = (256, 256)
    layer_norm: shared.LayerNorm = False
    encoder: hp.ImageEncoder = "auto"
    network: shared.OwnFeatures = None
    network_options: hp.NetworkOptions = ()
    action_masks: shared.ActionMasks = False
    precision: shared.Precision = "fp32"

    @property
    def target_critics(self) -> int:
        """Critics whose least value counts: all."""
        return self.critics

    @property
    def policy_every(self) -> int:
        """Gradient steps of the critics for each one of value function and policy."""
        return 1

    @model_validator(mode="after")
    def _fits_together(self) -> "IQLConfig":
        shared.check_networks(self)
        return self


class IQL(OffPolicyActorCritic):
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

    name = "iql"
    summary = "implicit Q-learning, from demonstrations (--demos), then from new transitions as well"
    config_type = IQLConfig
    action_kinds = frozenset({"box", "discrete"})
    policy_metrics = ("policy_loss", "value_loss", "value", "imitation_weight")
    policy_explores = False
    config: IQLConfig

    def __init__(self, config: IQLConfig, problem: Problem) -> None:
        self.config = config
        self.value = Critics(
            problem.obs_rows.state(),
            Actions(problem.action_space).state(),
            count=1,
            num_inputs=0,
            num_outputs=1,
            encoder=config.encoder,
            hidden=config.hidden,
            path=config.network,
            options=parse_options(config.network_options),
            generator=generator_of(np.random.SeedSequence(problem.seed, spawn_key=(_VALUE_STREAM,))),
        ).to(problem.device)
        if problem.ranks.shards:
            check_shards(self.value)
        self.value.body.half_type = torch.bfloat16 if config.precision == "bf16" else None
        is_box = isinstance(problem.action_space, Box)
        super().__init__(
            config,
            problem,
            "deterministic" if is_box else "categorical",
            noise=config.exploration_noise if is_box else 0.0,
            extra=self.value,
        )

    @property
    def action_masks(self) -> bool:
        return self.config.action_masks

    @property
    def final_masks(self) -> bool:
        return False  # The value function says what an observation is worth.

    @property
    def _noise_size(self) -> int:
        return 0

    def next_values(self, next_obs: Tensor, masks: Tensor | None, draws: Draws) -> Tensor:
        return self.value.values(self.value.features(next_obs))[0, :, 0]

    def learn_policy(
        self, obs: Tensor, actions: Tensor, masks: Tensor | None, noise: Tensor | None, weight: float
    ) -> tuple[Tensor, ...]:
        """By the loss mean(w * imitation error), w = exp(beta * advantage), and that of the value function, the mean of
        |expectile - 1[advantage < 0]| * advantage^2."""
        config, features = self.config, self.targets.features(obs)
        if self.actions.is_box:
            best = self._least_target(features, actions, None).squeeze(-1)
        else:
            best = self._least_target(features, None, None).gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        of_value, trace = self._features(self.value, obs), EnsembleTrace()
        values = self.value.values(of_value.detach(), None, trace)[0, :, 0]
        advantages = best - values
        slopes = torch.where(advantages < 0, 1 - config.expectile, config.expectile)
        gradient = slopes * advantages * (-2 * weight / len(obs))
        self._backpropagate(self.value, of_value, trace, gradient[None, :, None])
        weights = (config.beta * advantages).exp_().clamp_(max=config.max_weight)
        loss = self._imitate(obs, actions, masks, weights, weight)
        return loss, (slopes * advantages.square()).mean(), values.mean(), weights.mean()

    def _imitate(
        self, obs: Tensor, actions: Tensor, masks: Tensor | None, weights: Tensor, weight: float
    ) -> Tensor:
        """Adds the gradients of the policy's loss to its own; the loss.

        Args:
            weights: of the actions, float32 [B].
            weight: as of `learn_policy`.
        """
        features, trace = self._features(self.policy, obs), EnsembleTrace()
        outputs = self.policy.body(features.detach(), trace)[0]
        scale = weights.unsqueeze(-1) * (weight / len(obs))
        if self.actions.is_box:
            means = outputs.tanh()
            errors = means - actions
            costs = errors.square().sum(-1)
            gradient = 2 * scale * errors * (1 - means.square())
        else:
            log_probs = torch.log_softmax(mask_logits(outputs, masks), -1)
            places = actions.unsqueeze(-1)
            costs = -log_probs.gather(-1, places).squeeze(-1)
            gradient = log_probs.exp()
            gradient = scale * gradient.scatter_add_(-1, places, gradient.new_full(places.shape, -1.0))
        self._backpropagate(self.policy, features, trace, gradient.unsqueeze(0))
        return (weights * costs).mean()

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        remarks = super().load_policy(state)
        load_weights(self.value, state["value"])
        return remarks

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "value": self.value.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        load_weights(self.value, state["value"])
