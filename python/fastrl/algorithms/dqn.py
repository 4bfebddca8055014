"""Deep Q-learning (Mnih et al., 2015) and its improvements, each of which is an option:

- double: van Hasselt et al., "Deep Reinforcement Learning with Double Q-learning", 2016, equation 4;
- dueling: Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning", 2016;
- n-step returns: Sutton, 1988; summed by the sampler, whose ``discounts`` say the weight of the bootstrap;
- prioritized replay: Schaul et al., 2016; the sampler's ``weights`` enter the loss, |td| goes back to it;
- noisy: Fortunato et al., "Noisy Networks for Exploration", 2018, instead of epsilon-greedy;
- target network moved at once or gradually, Huber or squared loss.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from fastrl.algorithms.dqn_explorer import Explorer, Sizes
from fastrl.algorithms.dqn_loss import bootstrap, q_gradient, td_targets
from fastrl.algorithms.dqn_settings import DQNConfig
from fastrl.algorithms.optimizer import Optimizer
from fastrl.algorithms.protocol import (
    OffPolicyAlgorithm,
    Prioritization,
    Problem,
    ReplaySpec,
    Transitions,
    no_exploration,
)
from fastrl.algorithms.schedules import LinearSchedule
from fastrl.envs.rows import ActionRows, ObsRows
from fastrl.networks.compiled_actor import Actor, ActorSpec
from fastrl.networks.encoded_q import OwnQ, greedy_spec, greedy_weights, q_type
from fastrl.networks.epsilon_greedy import EpsilonGreedyActor
from fastrl.networks.own_network import check_own_network
from fastrl.networks.parameters import check_architecture, check_layers, load_weights
from fastrl.networks.q_network import QNetwork
from fastrl.utils.env_options import parse_options
from fastrl.utils.timer import Stopwatch


class DQN(OffPolicyAlgorithm):
    """Learns values of actions from minibatches of transitions.

    ::

        dqn = DQN(config, Problem(obs_space, action_space, num_envs, total_timesteps))
        epsilon = dqn.exploration()
        while steps < total_timesteps:
            actions = dqn.explorer.act(obs, epsilon(steps))
            ...                                              # step the environment, replay.add_many(...)
            batch = sampler.sample()
            td_errors = dqn.update(batch, watch)
            if config.prioritized:
                sampler.update_priorities(batch.indices, td_errors)

    Everything random comes from ``seed``. On a CPU, for a given number of torch threads, the same seed and
    the same batches give the same parameters to the bit, also across `state_dict` and `load_state_dict`.

    With BatchNorm the values of the actions taken are computed with the statistics of the batch (which also
    move the running ones), but actions, targets and the choice of double Q-learning with the running ones:
    a target must not depend on which other transitions were drawn. The target network's statistics follow
    the online network's as its weights do. With ``accumulate`` each batch is normalised separately.

    `update` does not wait for a GPU: metrics are summed there, and fetched by `metrics`.

    Args:
        config: hyper-parameters.
        problem: observations of any kind that has rows (see `fastrl.envs.rows`); pixels become numbers from 0 to 1. Its
            actions are ``Discrete`` from 0 on.

    Attributes:
        explorer: the online network, and how it acts where frames are collected for a replay.
        target: the target network.
        updates: gradient steps so far.
    """

    action_kinds = frozenset({"discrete"})

    name = "dqn"
    summary = "deep Q-learning, with double, dueling, n-step, prioritized and noisy as options"
    config_type = DQNConfig
    config: DQNConfig
    explorer: Explorer

    def __init__(self, config: DQNConfig, problem: Problem) -> None:
        self.config = config
        self.steps = 0
        self.device = torch.device(problem.device)
        self._sizes = Sizes.of(problem.obs_rows, problem.action_space)
        # Columns of the masks of actions, which follow the observation's row.
        self._obs_size = problem.obs_dim if config.action_masks else None
        self.explorer = Explorer(config, self._sizes, problem.seed, problem.device)
        online = self.explorer.network
        self._optimizer = Optimizer(
            self.explorer.parameters,
            config.precision,
            eps=config.adam_eps,
            learning_rate=config.learning_rate,
        )
        on_tensor_cores = self.device.type == "cuda" and self._optimizer.half is not None
        online.channels_last = config.channels_last == "on" or (
            config.channels_last == "auto" and on_tensor_cores
        )
        self.target = online.frozen_copy()
        self._online_forward = torch.compile(online) if config.compile else online
        self._target_forward = torch.compile(self.target) if config.compile else self.target
        self.updates = 0
        self._batches = 0
        # Sums of loss, q and td_error over batches, and of grad_norm over gradient steps.
        self._sums = torch.zeros(4, device=self.device)
        self._summed = [0, 0]

    def actor_spec(self) -> ActorSpec:
        network = self.explorer.network
        return functools.partial(EpsilonGreedyActor, greedy_spec(network), network.num_actions)

    @property
    def weights_nbytes(self) -> int:
        return 4 + sum(each.nbytes for each in greedy_weights(self.explorer.network))

    def write_weights(self, out: Any) -> None:
        """Writes epsilon after so many ``steps``, and the network. Noisy layers get new noise, which stays until the
        next weights."""
        network = self.explorer.network
        network.draw_noise(self.explorer.noise)
        vector = np.concatenate(
            [[self.exploration()(self.steps)], *greedy_weights(network)], dtype=np.float32
        )
        target = np.frombuffer(out, np.uint8)
        if len(target) != vector.nbytes:
            raise ValueError(f"the weights have {vector.nbytes} bytes, the buffer {len(target)}")
        target[:] = vector.view(np.uint8)

    @property
    def action_masks(self) -> bool:
        return self.config.action_masks

    def explorer_spec(self) -> Callable[[int], Explorer]:
        return functools.partial(Explorer, self.config, self._sizes)

    def exploration(self) -> Callable[[int], float]:
        """The share of random actions by environment steps; 0 with noisy networks."""
        config = self.config
        if config.noisy:
            return no_exploration
        return LinearSchedule(config.epsilon, config.final_epsilon, config.epsilon_steps)

    def replay_spec(self) -> ReplaySpec:
        config = self.config
        beta = LinearSchedule(config.beta, config.final_beta, config.beta_steps)
        return ReplaySpec(
            config.batch_size,
            config.n_step,
            config.gamma,
            Prioritization(config.alpha, beta) if config.prioritized else None,
        )

    def update(self, experience: Transitions, watch: Stopwatch) -> Tensor:
        """Learns from one minibatch; every ``accumulate``-th call is a gradient step.

        The minibatch may be overwritten once this returns, or, if it lies in pinned memory and the networks on a GPU,
        once the GPU is done with it.

        Returns:
            |td| float32 [B] on `device`, before the update: the new priorities.
        """
        with watch("update"):
            return self._learn(experience)

    def _learn(self, batch: Transitions) -> Tensor:
        config = self.config
        actions, rewards, discounts, weights = (
            tensor.to(self.device, non_blocking=True)
            for tensor in (batch.actions, batch.rewards, batch.discounts, batch.weights)
        )
        with torch.no_grad():
            targets = self._targets(batch.next_obs.to(self.device, non_blocking=True), rewards, discounts)
        obs, _ = self._without_masks(batch.obs.to(self.device, non_blocking=True))
        values = self._values(obs)
        with torch.no_grad():
            gradient, td, loss, q = q_gradient(values, actions, targets, weights, config.huber)
            td_errors = td.abs()
            self._sums[:3] += torch.stack([loss, q, td_errors.mean()])
        # Scaled in float32, because in fp16 it may underflow.
        gradient = self._optimizer.scale(gradient / config.accumulate).to(values.dtype)
        torch.autograd.backward(values, gradient)
        self._batches += 1
        self._summed[0] += 1
        if self._batches % config.accumulate == 0:
            self._step()
        return td_errors

    def metrics(self) -> dict[str, float]:
        """Means over the minibatches since the last call, NaN without any. Waits for the GPU.

        ``loss``: weighted, Huber or squared (halved). ``q``: value of the actions that were taken. ``td_error``:
        absolute temporal-difference error, not weighted. ``grad_norm``: before clipping, mean over gradient steps.
        ``batches``, ``gradient_steps``: numbers of them.

        Raises:
            FloatingPointError: a loss was NaN or infinite; the parameters are of no use any more.
        """
        batches, gradient_steps = self._summed
        loss, q, td_error, grad_norm = self._sums.tolist()
        self._sums.zero_()
        self._summed = [0, 0]
        if not math.isfinite(loss + q + td_error):
            raise FloatingPointError(
                f"the loss is not finite (NaN or infinity) after {self.updates} gradient steps; go back to a"
                " checkpoint, and lower the learning rate or check rewards and observations"
            )
        return {
            "loss": _ratio(loss, batches),
            "q": _ratio(q, batches),
            "td_error": _ratio(td_error, batches),
            "grad_norm": _ratio(grad_norm, gradient_steps),
            "batches": batches,
            "gradient_steps": gradient_steps,
        }

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        network, saved = self.explorer.network, state["explorer"]["network"]
        check_architecture(saved["architecture"], network.state()["architecture"])
        load_weights(network, saved["weights"])
        load_weights(self.target, saved["weights"])
        return []

    @classmethod
    def check_state(cls, config: Any, state: Mapping[str, Any]) -> None:
        network = state["explorer"]["network"]
        kind = q_type(network)
        check_own_network(config.network, parse_options(config.network_options), network)
        if kind is not OwnQ:
            check_layers(network, hidden=config.hidden)
        if kind is QNetwork and len(network["architecture"]["obs_shape"]) == 3:
            check_layers(network, conv=config.conv)
        kind.check_size(network)

    @classmethod
    def make_actor(
        cls,
        policy: Mapping[str, Any],
        obs_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
    ) -> Actor:
        network = q_type(policy).from_state(policy)
        obs_rows, flat = ObsRows(obs_space), ActionRows(action_space).flat_space
        num_actions = int(flat.n) if isinstance(flat, gymnasium.spaces.Discrete) else 0
        if (network.obs_dim, network.num_actions) != (obs_rows.size, num_actions):
            raise ValueError(
                f"the policy takes {network.obs_dim} numbers for {network.num_actions} actions, the environment has"
                f" {obs_rows.size} for {action_space}"
            )
        actor = greedy_spec(network)()
        actor.load(np.concatenate(greedy_weights(network)).data)
        return actor

    def policy_state(self) -> dict[str, Any]:
        """Weights, architecture and kind, see `fastrl.networks.encoded_q.q_type`. Not a copy."""
        return self.explorer.network.state()

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "explorer": self.explorer.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "gradient": self.explorer.parameters.grad,
            "updates": self.updates,
            "batches": self._batches,
            "sums": self._sums,
            "summed": list(self._summed),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.explorer.load_state_dict(state["explorer"])
        load_weights(self.target, state["target"])
        self._optimizer.load_state_dict(state["optimizer"])
        gradient = self.explorer.parameters.grad
        assert gradient is not None
        gradient.copy_(state["gradient"])
        self.steps, self.updates = state["steps"], state["updates"]
        self._batches = state["batches"]
        self._sums.copy_(state["sums"])
        self._summed = list(state["summed"])

    def _targets(self, next_obs: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        """The caller has switched gradients off. Noise is independent of that in `_values` (Fortunato et al.,
        2018, equation 16 and below)."""
        online_values = None
        next_obs, masks = self._without_masks(next_obs)
        self.target.draw_noise(self.explorer.noise)
        with self._optimizer.autocast():
            if self.config.double:
                self.explorer.network.draw_noise(self.explorer.noise)
                online_values = self._online_forward(next_obs)
            return td_targets(
                rewards, discounts, bootstrap(self._target_forward(next_obs), online_values, masks)
            )

    def _without_masks(self, obs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Splits observations of a replay with action masks (see `OffPolicyAlgorithm`) into rows and masks."""
        if self._obs_size is None:
            return obs, None
        return obs[:, : self._obs_size], obs[:, self._obs_size :] != 0

    def _values(self, obs: Tensor) -> Tensor:
        """Values [B, A] with gradients."""
        network = self.explorer.network
        network.draw_noise(self.explorer.noise)
        if self.config.batch_norm:
            network.train()
        # Not under the autocast of the targets, which caches converted weights without gradients.
        with self._optimizer.autocast():
            values: Tensor = self._online_forward(obs)
        if self.config.batch_norm:
            network.eval()
        return values

    def _step(self) -> None:
        self._sums[3] += self._optimizer.step(self.config.max_grad_norm)
        self.updates += 1
        self._summed[1] += 1
        if self.updates % self.config.target_every == 0:
            self._move_target()

    @torch.no_grad()
    def _move_target(self) -> None:
        """Weights and running statistics; BatchNorm's counters, which nothing reads, stay."""
        online = self.explorer.network.state_dict()
        for name, tensor in self.target.state_dict().items():
            if tensor.is_floating_point():
                tensor.lerp_(online[name], self.config.target_tau)


def _ratio(total: float, count: int) -> float:
    return total / count if count else math.nan
