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

from fastrl.algorithms.off_policy import Draws, OffPolicyActorCritic
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.sac_settings import SACConfig
from fastrl.networks.bounded_actor import LOG_STD_RANGE
from fastrl.networks.distributions import mask_logits
from fastrl.networks.ensemble import EnsembleTrace


class SAC(OffPolicyActorCritic):
    """Learns a policy that maximises rewards and its own entropy.

    Args:
        config: hyper-parameters.
        problem: see `OffPolicyActorCritic`.

    Attributes:
        target_entropy: nats.
    """

    name = "sac"
    summary = "soft actor-critic, for continuous actions between finite bounds and for discrete ones"
    config_type = SACConfig
    action_kinds = frozenset({"box", "discrete"})
    policy_metrics = ("policy_loss", "entropy", "temperature")
    config: SACConfig

    def __init__(self, config: SACConfig, problem: Problem) -> None:
        self.config = config
        # Of a temperature of 0, which is not learned, the logarithm is not used.
        start = math.log(config.temperature) if config.temperature else 0.0
        self.log_temperature = nn.Parameter(torch.full((), start, device=problem.device))
        is_box = isinstance(problem.action_space, Box)
        super().__init__(config, problem, "gaussian" if is_box else "categorical", extra=self.log_temperature)
        size = self.actions.size
        share = -float(size) if is_box else config.entropy_share * math.log(size)
        self.target_entropy = share if config.target_entropy is None else config.target_entropy

    @property
    def action_masks(self) -> bool:
        return self.config.action_masks

    @property
    def temperature(self) -> Tensor:
        """Weight of the entropy, float32 []."""
        if self.config.temperature == 0:
            return torch.zeros_like(self.log_temperature)
        return self.log_temperature.detach().exp()

    @property
    def _noise_size(self) -> int:
        return self.actions.size if self.actions.is_box else 0

    def next_values(self, next_obs: Tensor, masks: Tensor | None, draws: Draws) -> Tensor:
        outputs = self.policy(next_obs)
        features = self.targets.features(next_obs)
        if self.actions.is_box:
            assert draws.noise is not None
            actions, log_probs, _ = squashed(outputs, draws.noise)
            values = self._least_target(features, actions, draws.critics).squeeze(-1)
            return values - self.temperature * log_probs if self.config.entropy_backup else values
        log_probs = torch.log_softmax(mask_logits(outputs, masks), -1)
        values = self._least_target(features, None, draws.critics)
        if self.config.entropy_backup:
            values = values - self.temperature * log_probs
        return (log_probs.exp() * values).sum(-1)

    def learn_policy(
        self, obs: Tensor, actions: Tensor, masks: Tensor | None, noise: Tensor | None, weight: float
    ) -> tuple[Tensor, ...]:
        features, trace = self._features(self.policy, obs), EnsembleTrace()
        outputs = self.policy.body(features.detach(), trace)[0]
        if noise is not None:
            gradient, loss, entropy = self._continuous_gradient(obs, outputs, noise)
        else:
            gradient, loss, entropy = self._discrete_gradient(obs, outputs, masks)
        if weight != 1:
            gradient = gradient * weight
        self._backpropagate(self.policy, features, trace, gradient.unsqueeze(0))
        temperature = self.temperature
        if self.config.learn_temperature:
            # Of the loss log(temperature) * (entropy - target entropy).
            assert self.log_temperature.grad is not None
            self.log_temperature.grad.add_((entropy - self.target_entropy) * weight)
        return loss, entropy, temperature

    def _continuous_gradient(
        self, obs: Tensor, outputs: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient of the loss mean(temperature * log_prob - value) in the outputs; loss and entropy."""
        critics, size, temperature = self.critics, self.actions.size, self.temperature
        actions, log_probs, deviations = squashed(outputs, noise)
        trace = EnsembleTrace()
        values = critics.values(critics.features(obs), actions, trace)
        if self.config.policy_value == "mean":
            best, share = values.mean(0), torch.full_like(values, 1 / len(values))
        else:
            best, least = values.min(0, keepdim=True)
            share = torch.zeros_like(values).scatter_(0, least, 1.0)
        place = slice(critics.num_features, critics.num_features + size)
        slopes = trace.backpropagate(share, parameters=False, inputs=place)
        assert slopes is not None
        loss = (temperature * log_probs).mean() - best.mean()
        return (
            squashed_gradient(outputs, actions, noise, deviations, slopes, temperature),
            loss,
            -log_probs.mean(),
        )

    def _discrete_gradient(
        self, obs: Tensor, outputs: Tensor, masks: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same of the loss mean(sum of probability * (temperature * log_prob - value))."""
        values = self.critics.values(self.critics.features(obs))
        value = values.mean(0) if self.config.policy_value == "mean" else values.amin(0)
        log_probs = torch.log_softmax(mask_logits(outputs, masks), -1)
        probs = log_probs.exp()
        costs = self.temperature * log_probs - value
        mean = (probs * costs).sum(-1, keepdim=True)
        gradient = probs * (costs - mean) / len(obs)
        return gradient, mean.mean(), -(probs * log_probs).sum(-1).mean()

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        """The temperature, too, unless the settings fix it: it is in the values of the critics."""
        remarks = super().load_policy(state)
        if self.config.learn_temperature:
            self.log_temperature.data.copy_(state["log_temperature"])
        return remarks

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "log_temperature": self.log_temperature.detach()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.log_temperature.data.copy_(state["log_temperature"])


def squashed(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draws actions tanh(u) with u from a Gaussian.

    Args:
        outputs: float32 [B, 2 n], means and logarithms of deviations; these are clipped to `LOG_STD_RANGE`.
        noise: normal float32 [B, n].

    Returns:
        Actions [B, n] from -1 to 1, their log-densities [B], which are finite also where an action is rounded to 1, and
        deviations [B, n].
    """
    means, log_stds = outputs.chunk(2, -1)
    log_stds = log_stds.clamp(*LOG_STD_RANGE)
    deviations = log_stds.exp()
    draws = torch.addcmul(means, deviations, noise)
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)).
    slopes = draws + nn.functional.softplus(-2 * draws)
    densities = 2 * slopes - log_stds - 0.5 * noise.square()
    constant = 2 * math.log(2) + 0.5 * math.log(2 * math.pi)
    return draws.tanh(), densities.sum(-1) - constant * noise.shape[-1], deviations


def squashed_gradient(
    outputs: Tensor, actions: Tensor, noise: Tensor, deviations: Tensor, slopes: Tensor, temperature: Tensor
) -> Tensor:
    """The gradient of mean(temperature * log_prob - value) in the outputs of `squashed`, [B, 2 n].

    Args:
        slopes: gradient of the value in the actions, [B, n].
    """
    rows = len(actions)
    # The log-density changes by 2 tanh(u) with u.
    of_draws = (2 * temperature * actions - slopes * (1 - actions.square())) / rows
    of_log_stds = of_draws * deviations * noise - temperature / rows
    low, high = LOG_STD_RANGE
    raw = outputs[:, actions.shape[1] :]
    of_log_stds = of_log_stds * ((raw >= low) & (raw <= high))
    return torch.cat([of_draws, of_log_stds], 1)
