"""Base of algorithms that learn a policy and critics of its actions from a replay."""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from fastrl.algorithms.optimizer import Optimizer
from fastrl.algorithms.protocol import OffPolicyAlgorithm, Problem, ReplaySpec, Transitions
from fastrl.algorithms.schedules import LinearSchedule
from fastrl.envs.rows import ActionRows, ObsRows
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import Actor, ActorSpec
from fastrl.networks.ensemble import EnsembleTrace
from fastrl.networks.off_policy import Critics, OffPolicyActor, PolicyHead, policy_for
from fastrl.networks.own_network import check_own_network
from fastrl.networks.parameters import (
    check_architecture,
    check_layers,
    check_shards,
    flatten_parameters,
    generator_of,
    load_weights,
)
from fastrl.utils.env_options import parse_options
from fastrl.utils.heap import keep_freed_memory
from fastrl.utils.ranks import Shard
from fastrl.utils.timer import Stopwatch

# Means over minibatches.
_OF_CRITICS = ("critic_loss", "q", "td_error")


class Draws(NamedTuple):
    """Random numbers of the targets of some transitions.

    Attributes:
        noise: float32 [B, n], normal; None: there is none.
        critics: int64, target critics that are asked; None: all.
    """

    noise: Tensor | None
    critics: Tensor | None

    def of(self, rows: slice) -> "Draws":
        """Those of some rows."""
        return self if self.noise is None else self._replace(noise=self.noise[rows])


class OffPolicyActorCritic(OffPolicyAlgorithm):
    """A policy, critics, and target critics that follow them.

    Perceptrons spell their gradients out (`fastrl.networks.ensemble`); encoders of images, or modules of the user's
    own, before them, one of the policy and one of the critics, use automatic differentiation. The critics' encoder
    learns from the critics' loss, the policy's from the policy's.

    Everything random comes from the seed. On a CPU the same seed and the same minibatches give the same parameters to
    the bit, also across `state_dict` and `load_state_dict`.

    Args:
        config: with ``gamma``, ``n_step``, ``learning_rate``, ``final_learning_rate``, ``batch_size``, ``tau``,
            ``critics``, ``target_critics``, ``policy_every``, ``hidden``, ``layer_norm``, ``encoder``,
            ``network``, ``network_options`` and ``precision``.
        problem: observations of any kind that has rows; actions with finite bounds, or discrete from 0 on.
        head: of the policy.
        noise: that a deterministic policy explores with.
        extra: what is learned beside the policy, by the same optimiser.

    Class attributes:
        policy_metrics: names of what `learn_policy` returns.
        policy_explores: the policy's loss is that of drawn actions.

    Attributes:
        policy, critics, targets: the networks.
    """

    takes_shards = True
    policy_metrics: ClassVar[tuple[str, ...]] = ("policy_loss",)
    policy_explores: ClassVar[bool] = True
    replay_defaults: ClassVar[Mapping[str, Any]] = {"train_freq": 1, "updates_per_step": 1.0}

    def __init__(
        self,
        config: Any,
        problem: Problem,
        head: PolicyHead,
        *,
        noise: float = 0.0,
        extra: nn.Parameter | nn.Module | None = None,
    ) -> None:
        self.config, self.ranks, self._noise = config, problem.ranks, noise
        self.steps = self.updates = 0
        self.device = torch.device(problem.device)
        self.actions = actions = Actions(problem.action_space)
        if actions.is_box and not actions.is_bounded:
            raise ValueError(
                f"{self.name} draws actions between finite bounds, the environment's are {problem.action_space}: give"
                " its action space finite low and high, or take ppo"
            )
        policy_seed, critics_seed, noise_seed = np.random.SeedSequence(problem.seed).spawn(3)
        obs = problem.obs_rows.state()
        layers = {
            "encoder": config.encoder,
            "hidden": config.hidden,
            "path": config.network,
            "options": parse_options(config.network_options),
        }
        self.policy = OffPolicyActor(
            obs, actions.state(), head, noise=noise, generator=generator_of(policy_seed), **layers
        )
        self.critics = Critics(
            obs,
            actions.state(),
            count=config.critics,
            num_inputs=actions.size if actions.is_box else 0,
            num_outputs=1 if actions.is_box else actions.size,
            layer_norm=config.layer_norm,
            generator=generator_of(critics_seed),
            **layers,
        )
        for network in (self.policy, self.critics):
            if self.ranks.shards:
                check_shards(network)
            network.to(self.device)
            network.body.half_type = torch.bfloat16 if config.precision == "bf16" else None
        self.targets = copy.deepcopy(self.critics)
        learned = nn.Module()
        learned.add_module("policy", self.policy)
        if isinstance(extra, nn.Module):
            learned.add_module("extra", extra)
        elif extra is not None:
            learned.register_parameter("extra", extra)
        self._policy_vector = flatten_parameters(learned)
        self._critic_vector = flatten_parameters(self.critics)
        self._target_vector = flatten_parameters(self.targets)
        self.targets.requires_grad_(False)
        self._policy_optimizer, self._critic_optimizer = (
            Optimizer(vector, "fp32", eps=1e-8, learning_rate=config.learning_rate)
            for vector in (self._policy_vector, self._critic_vector)
        )
        self._learning_rate = LinearSchedule(
            config.learning_rate, config.final_learning_rate, problem.total_timesteps
        )
        # Random numbers are drawn on the CPU: a run may resume on another device.
        self._generator = generator_of(noise_seed)
        # Actions are uniform until something has been learned.
        self._is_untrained = True
        self._sums = torch.zeros(len(_OF_CRITICS) + len(self.policy_metrics), device=self.device)
        self._summed = [0, 0]
        keep_freed_memory()

    def actor_spec(self) -> ActorSpec:
        return self.policy.actor_spec()

    @property
    def weights_nbytes(self) -> int:
        return self.policy.actor_nbytes

    def write_weights(self, out: Any) -> None:
        target = np.frombuffer(out, np.uint8)
        if len(target) != self.weights_nbytes:
            raise ValueError(f"the weights have {self.weights_nbytes} bytes, the buffer {len(target)}")
        self.policy.actor_weights(target.view(np.float32), uniform=self._is_untrained)

    def replay_spec(self) -> ReplaySpec:
        return ReplaySpec(self.config.batch_size, self.config.n_step, self.config.gamma)

    def update(self, experience: Transitions, watch: Stopwatch) -> Tensor:
        """Takes a gradient step with one minibatch.

        Returns:
            Absolute TD errors before it, means over the critics, float32 [B] on `device`.
        """
        with watch("update"):
            return self._learn(experience)

    @torch.no_grad()
    def _learn(self, batch: Transitions) -> Tensor:
        actions, rewards, discounts, next_obs, obs = (
            tensor.to(self.device, non_blocking=True)
            for tensor in (batch.actions, batch.rewards, batch.discounts, batch.next_obs, batch.obs)
        )
        next_obs, obs = next_obs.flatten(1), obs.flatten(1)
        masks, next_masks = (
            None if mask is None else mask.to(self.device, non_blocking=True)
            for mask in (batch.masks, batch.next_masks)
        )
        draws = self.draw_for_targets(len(rewards))

        def targets_of(rows: slice) -> Tensor:
            allowed = None if next_masks is None else next_masks[rows]
            values = self.next_values(next_obs[rows], allowed, draws.of(rows))
            return torch.addcmul(rewards[rows], discounts[rows], values)

        td_errors = self._learn_critics(obs, actions, targets_of)
        self._is_untrained = False
        self.updates += 1
        learns_policy = self.updates % self.config.policy_every == 0
        if learns_policy:
            metrics = self._learn_policy_of(obs, actions, masks)
            self._policy_optimizer.step(None, self._learning_rate(self.steps))
            self._sums[len(_OF_CRITICS) :] += metrics
            self._summed[1] += 1
        self._move_targets(learns_policy)
        return td_errors

    @property
    @abstractmethod
    def _noise_size(self) -> int:
        """Normal numbers that a draw of an action takes; 0: none."""

    @abstractmethod
    def next_values(self, next_obs: Tensor, masks: Tensor | None, draws: Draws) -> Tensor:
        """Values float32 [B] of the observations after the transitions, by the target critics.

        Args:
            masks: bool [B, M], the actions that are allowed then; None: all, or the algorithm has no `final_masks`.
        """

    @abstractmethod
    def learn_policy(
        self, obs: Tensor, actions: Tensor, masks: Tensor | None, noise: Tensor | None, weight: float
    ) -> tuple[Tensor, ...]:
        """Adds gradients to those of the policy. Returns `policy_metrics`, float32 [].

        Args:
            actions: that were taken.
            noise: float32 [B, `_noise_size`], normal.
            weight: of these rows in the batch, by which the gradients are multiplied, but not the metrics.
        """

    def _learn_policy_of(self, obs: Tensor, actions: Tensor, masks: Tensor | None) -> Tensor:
        """Adds the gradients of a batch to those of the policy; `policy_metrics`, float32 [K]."""
        noise = self._normal(len(obs)) if self.policy_explores and self._noise_size else None
        gradient = self._policy_vector.grad
        assert gradient is not None

        def learn(shard: Shard) -> Tensor | None:
            rows = shard.rows
            if rows.start == rows.stop:
                return None
            weight = (rows.stop - rows.start) / len(obs)
            found = self.learn_policy(
                obs[rows],
                actions[rows],
                None if masks is None else masks[rows],
                None if noise is None else noise[rows],
                weight,
            )
            return torch.stack(found) * weight

        return self.ranks.reduce(gradient, len(obs), len(self.policy_metrics), learn)

    def _learn_critics(self, obs: Tensor, actions: Tensor, targets_of: Callable[[slice], Tensor]) -> Tensor:
        """A gradient step of the critics on half the sum of their mean squared errors; the errors [B].

        Args:
            targets_of: computes those of some rows, float32.
        """
        gradient, size = self._critic_vector.grad, len(actions)
        assert gradient is not None

        def learn(shard: Shard) -> Tensor | None:
            rows = shard.rows
            if rows.start == rows.stop:
                return None
            means, errors = self._differentiate_critics(obs[rows], actions[rows], targets_of(rows), size)
            if not self.ranks.shards:
                return torch.cat([means, errors])
            # Those of other shards are zeros, so that sums put them side by side.
            found = torch.zeros(len(_OF_CRITICS) + size, device=self.device)
            found[: len(_OF_CRITICS)] = means * ((rows.stop - rows.start) / size)
            found[len(_OF_CRITICS) :][rows] = errors
            return found

        numbers = self.ranks.reduce(gradient, size, len(_OF_CRITICS) + size, learn)
        self._critic_optimizer.step(None, self._learning_rate(self.steps))
        self._sums[: len(_OF_CRITICS)] += numbers[: len(_OF_CRITICS)]
        self._summed[0] += 1
        return numbers[len(_OF_CRITICS) :]

    def _differentiate_critics(
        self, obs: Tensor, actions: Tensor, targets: Tensor, size: int
    ) -> tuple[Tensor, Tensor]:
        """Adds the gradients of some of ``size`` transitions to those of the critics; means of loss, value and error of
        these, float32 [3], and the errors."""
        features, trace = self._features(self.critics, obs), EnsembleTrace()
        if self.actions.is_box:
            values = self.critics.values(features.detach(), actions, trace)
            chosen = values.squeeze(-1)
        else:
            values = self.critics.values(features.detach(), None, trace)
            places = actions.expand(len(values), -1).unsqueeze(-1)
            chosen = values.gather(-1, places).squeeze(-1)
        errors = chosen - targets
        gradient = (errors / size).unsqueeze(-1)
        if not self.actions.is_box:
            gradient = torch.zeros_like(values).scatter_(-1, places, gradient)
        self._backpropagate(self.critics, features, trace, gradient)
        absolute = errors.abs().mean(0)
        loss = errors.square().mean().mul_(0.5 * len(errors))
        return torch.stack([loss, chosen.mean(), absolute.mean()]), absolute

    def _move_targets(self, has_learned_policy: bool) -> None:
        """Moves the target networks after a gradient step of the critics, and perhaps of the policy."""
        self._target_vector.lerp_(self._critic_vector, self.config.tau)

    def draw_for_targets(self, size: int) -> Draws:
        """Draws the random numbers of a batch's targets, of all shards at once."""
        noise = self._normal(size) if self._noise_size else None
        count = self.config.target_critics
        if count >= self.config.critics:
            return Draws(noise, None)
        return Draws(noise, torch.randperm(self.config.critics, generator=self._generator)[:count])

    def _least_target(self, features: Tensor, actions: Tensor | None, critics: Tensor | None) -> Tensor:
        """The least value of the target critics, or of some of them, [B, outputs]."""
        values = self.targets.values(features, actions)
        return (values if critics is None else values[critics]).amin(0)

    def _normal(self, size: int) -> Tensor:
        """Normal numbers for so many draws of actions, float32 [size, `_noise_size`]."""
        shape = (size, self._noise_size)
        return torch.randn(shape, generator=self._generator).to(self.device, non_blocking=True)

    def _features(self, network: OffPolicyActor | Critics, obs: Tensor) -> Tensor:
        """Features of observations, with gradients where an encoder learns them."""
        with torch.set_grad_enabled(network.has_encoder):
            return network.features(obs)

    def _backpropagate(
        self, network: OffPolicyActor | Critics, features: Tensor, trace: EnsembleTrace, gradient: Tensor
    ) -> None:
        inputs = slice(0, network.num_features) if network.has_encoder else None
        of_features = trace.backpropagate(gradient, inputs=inputs)
        if of_features is not None:
            features.backward(of_features)

    def metrics(self) -> dict[str, float]:
        """Means since the last call, NaN without any. Waits for the GPU.

        ``critic_loss``: half the sum of the critics' mean squared errors. ``q``: value of the actions that were taken.
        ``td_error``: absolute, mean over the critics. ``gradient_steps``: of the critics, since the last call. Those of
        `policy_metrics`: means over the policy's gradient steps.

        Raises:
            FloatingPointError: a loss was NaN or infinite; the parameters are of no use any more.
        """
        sums, (steps, policy_steps) = self._sums.tolist(), self._summed
        self._sums.zero_()
        self._summed = [0, 0]
        if not math.isfinite(sum(sums)):
            raise FloatingPointError(
                f"the loss is not finite (NaN or infinity) after {self.updates} gradient steps; go back to a"
                " checkpoint, and lower the learning rate or check rewards and observations"
            )
        counts = [steps] * len(_OF_CRITICS) + [policy_steps] * len(self.policy_metrics)
        named = zip((*_OF_CRITICS, *self.policy_metrics), sums, counts, strict=True)
        means = {name: total / count if count else math.nan for name, total, count in named}
        return {**means, "gradient_steps": steps}

    @classmethod
    def check_state(cls, config: Any, state: Mapping[str, Any]) -> None:
        check_own_network(config.network, parse_options(config.network_options), state["policy"])
        check_layers(state["policy"], hidden=config.hidden)
        OffPolicyActor.check_size(state["policy"])

    @classmethod
    def make_actor(
        cls,
        policy: Mapping[str, Any],
        obs_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
    ) -> Actor:
        network = policy_for(policy)
        obs_rows, actions = ObsRows(obs_space), Actions(ActionRows(action_space).flat_space)
        if obs_rows.state() != network.obs_rows.state() or actions.state() != policy["action_space"]:
            raise ValueError(
                f"the policy takes {network.obs_rows.size} numbers for {policy['action_space']}, the environment has"
                f" {obs_rows.size} for {actions.state()}, or others of as many"
            )
        return network.loaded_actor()

    def policy_state(self) -> dict[str, Any]:
        return self.policy.state()

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        """The critics and their targets are loaded, too. Actions follow a policy that has learned from the first step
        on, with the noise of the settings."""
        saved = state["policy"]["architecture"]
        check_architecture({**saved, "noise": self._noise}, self.policy.state()["architecture"])
        load_weights(self.policy, state["policy"]["weights"])
        load_weights(self.critics, state["critics"])
        load_weights(self.targets, state["targets"])
        self._is_untrained = bool(state["is_untrained"])
        return []

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "policy": self.policy.state(),
            "critics": self.critics.state_dict(),
            "targets": self.targets.state_dict(),
            "policy_optimizer": self._policy_optimizer.state_dict(),
            "critic_optimizer": self._critic_optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "updates": self.updates,
            "is_untrained": self._is_untrained,
            "sums": self._sums,
            "summed": list(self._summed),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_architecture(state["policy"]["architecture"], self.policy.state()["architecture"])
        load_weights(self.policy, state["policy"]["weights"])
        load_weights(self.critics, state["critics"])
        load_weights(self.targets, state["targets"])
        self._policy_optimizer.load_state_dict(state["policy_optimizer"])
        self._critic_optimizer.load_state_dict(state["critic_optimizer"])
        self._generator.set_state(state["generator"])
        self.steps, self.updates = state["steps"], state["updates"]
        self._is_untrained = state["is_untrained"]
        self._sums.copy_(state["sums"])
        batches, steps = state["summed"]
        self._summed = [int(batches), int(steps)]
