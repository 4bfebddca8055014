"""Deep Q-learning (Mnih et al., 2015) and its improvements, each of which is an option:

- double: van Hasselt et al., "Deep Reinforcement Learning with Double Q-learning", 2016, equation 4;
- dueling: Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning", 2016;
- n-step returns: Sutton, 1988; summed by the sampler, whose ``discounts`` say the weight of the bootstrap;
- prioritized replay: Schaul et al., 2016; the sampler's ``weights`` enter the loss, |td| goes back to it;
- quantiles: Dabney et al., "Distributional Reinforcement Learning with Quantile Regression", 2018. Unlike C51's, they
  need no bounds of the return, which are others in each environment;
- noisy: Fortunato et al., "Noisy Networks for Exploration", 2018, instead of epsilon-greedy;
- memory: Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2), 2019: stored
  states and burn-in, without the rescaling of values;
- margin of demonstrations: Hester et al., "Deep Q-learning from Demonstrations", 2017, equation 2;
- target network moved at once or gradually, Huber or squared loss.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from fastrl.algorithms.batch_arrays import minibatches_at_once
from fastrl.algorithms.compiled_q import CompiledQ
from fastrl.algorithms.dqn_loss import (
    bootstrap,
    margin_losses,
    of_actions,
    q_losses,
    quantile_losses,
    td_targets,
)
from fastrl.algorithms.dqn_settings import DQNConfig, DQNDeclaration
from fastrl.algorithms.loss import LossMeans, TDLoss, overridden, reduce_loss
from fastrl.algorithms.protocol import (
    OffPolicyAlgorithm,
    Prioritization,
    Problem,
    ReplaySpec,
    Transitions,
    no_exploration,
)
from fastrl.algorithms.q_learner import QLearner
from fastrl.algorithms.schedules import TimestepSchedule
from fastrl.networks.acting_network import network_type
from fastrl.networks.compiled_actor import ActorSpec
from fastrl.networks.encoded_q import EncodedQ
from fastrl.networks.encoders import check_encoder, image_place
from fastrl.networks.memory import unrolled_once
from fastrl.networks.parameters import check_layers, generator_of, load_weights
from fastrl.networks.q_network import ActionValues, QNetwork, mean_values
from fastrl.replay.samplers import Batches
from fastrl.utils.ranks import Shard
from fastrl.utils.timer import Stopwatch


@dataclass(frozen=True)
class Minibatch:
    """B transitions, and what the network says of them.

    Attributes:
        obs: rows [B, D].
        estimates: values of all actions [B, A], or their quantiles [B, A, N], with gradients.
        actions: int64 [B].
        targets: y, float32 [B] or [B, N].
        weights: of importance, float32 [B].
        num_second: demonstrations among the transitions, the last ones; none where it is not positive.
    """

    obs: Tensor
    estimates: Tensor
    actions: Tensor
    targets: Tensor
    weights: Tensor
    num_second: int


class DQN(DQNDeclaration, QLearner, OffPolicyAlgorithm):
    """Learns values of actions from minibatches of transitions.

    ::

        dqn = DQN(config, Problem(obs_space, action_space, num_envs, total_timesteps))
        actor, weights = dqn.actor_spec()(), bytearray(dqn.weights_nbytes)
        while dqn.steps < total_timesteps:
            dqn.write_weights(weights)
            actor.load(weights)
            actor.act(obs, streams, steps, actions, log_probs)
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

    Arguments and other attributes are those of `QLearner`, whose network is the online one; pixels become numbers from
    0 to 1.

    Attributes:
        target: the target network.
        compiled: takes the gradient steps; None: PyTorch does.
    """

    config: DQNConfig
    takes_shards = True

    def __init__(self, config: DQNConfig, problem: Problem) -> None:
        super().__init__(config, problem, precision=config.precision)
        # All draws are made on the CPU: they are few, and a run may resume on another device. The first seed is that of
        # the weights; the second is unused: without it a run of a given seed would draw other noise.
        self._noise = generator_of(np.random.SeedSequence(problem.seed).spawn(3)[2])
        online = self.network
        on_tensor_cores = self.device.type == "cuda" and self._optimizer.half is not None
        online.channels_last = config.channels_last == "on" or (
            config.channels_last == "auto" and on_tensor_cores
        )
        self.target = online.frozen_copy()
        self._online_estimates, self._target_estimates = (
            torch.compile(network.estimates) if config.compile else network.estimates
            for network in (online, self.target)
        )
        self._margin_coef = problem.schedule(config.margin_coef, config.final_margin_coef)
        self._batches = 0
        self._means = LossMeans(self.device, TDLoss.names(), ("grad_norm",))
        self.compiled, self._why_not_compiled = CompiledQ.of(self, DQN, self._optimizer)
        if self.compiled is not None and not overridden(type(self), DQN, ("update",)):
            self.minibatches_at_once = minibatches_at_once(config.batch_size, problem.obs_dim)

    def actor_spec(self) -> ActorSpec:
        spec: Any = super().actor_spec()
        return functools.partial(spec, spread=self.config.epsilon_spread)

    def write_weights(self, out: Any) -> None:
        """Writes epsilon after ``steps`` and the network. Noisy layers get new noise, until the next weights."""
        self.network.draw_noise(self._noise)
        super().write_weights(out)

    def exploration(self) -> Callable[[int], float]:
        """The share of random actions by environment steps; 0 with noisy networks."""
        return no_exploration if self.config.noisy else super().exploration()

    def replay_spec(self) -> ReplaySpec:
        config = self.config
        beta = TimestepSchedule(config.beta, config.final_beta, config.beta_steps)
        prioritized = Prioritization(config.alpha, beta) if config.prioritized else None
        return ReplaySpec.of(config, prioritized=prioritized)

    def update(self, experience: Transitions, watch: Stopwatch) -> Tensor:
        """Learns from a minibatch, or from several, see `minibatches_at_once`; after every ``accumulate``-th there is a
        gradient step.

        The minibatch may be overwritten once this returns, or, if it lies in pinned memory and the networks on a GPU,
        once the GPU is done with it.

        Returns:
            |td| float32 [B] on `device`, before the update: the new priorities.
        """
        with watch("update"):
            return self._learn(experience)

    def _learn(self, batch: Transitions) -> Tensor:
        margin_coef = self._margin_coef(self.steps)
        # With a margin the last ones are demonstrations.
        num_second = batch.num_second if margin_coef else 0
        steps, moves_target = list[bool](), list[bool]()
        for _ in range(batch.count if isinstance(batch, Batches) else 1):
            self._batches += 1
            steps.append(self._batches % self.config.accumulate == 0)
            self.updates += steps[-1]
            moves_target.append(steps[-1] and self.updates % self.config.target_every == 0)
        learning_rate = self._learning_rate(self.steps)
        if self.compiled is not None:
            return self.compiled(
                batch,
                self._means,
                num_second=num_second,
                margin_coef=margin_coef,
                learning_rate=learning_rate,
                steps=steps,
                moves_target=moves_target,
            )
        [is_step], [moves] = steps, moves_target
        with unrolled_once(True, self.network):
            means, td_errors = self._descend(batch, num_second)
        self._means.add(0, means)
        if is_step:
            self._means.add(1, self._optimizer.step(self.config.max_grad_norm, learning_rate).view(1))
        if moves:
            self._move_target()
        return td_errors

    def _descend(self, batch: Transitions, num_second: int) -> tuple[Tensor, Tensor]:
        """Adds the gradient of `loss` with PyTorch; returns the means and the TD errors of a `TDLoss`."""
        actions, rewards, discounts, weights, next_obs = (
            tensor.to(self.device, non_blocking=True)
            for tensor in (batch.actions, batch.rewards, batch.discounts, batch.weights, batch.next_obs)
        )
        # The frames of a stack become one row.
        next_obs = next_obs.flatten(1)
        masks = None if batch.next_masks is None else batch.next_masks.to(self.device, non_blocking=True)
        size = len(actions)
        first_second = size - num_second
        self.target.draw_noise(self._noise)
        if self.config.double:
            self.network.draw_noise(self._noise)
        with torch.no_grad():
            # Before the noise of estimates is drawn.
            targets = {
                number: self._targets(
                    next_obs[rows], rewards[rows], discounts[rows], None if masks is None else masks[rows]
                )
                for number, rows in self.ranks.own_shards(size)
                if rows.start < rows.stop
            }
        obs = batch.obs.to(self.device, non_blocking=True).flatten(1)
        self.network.draw_noise(self._noise)
        gradient = self.parameters.grad
        assert gradient is not None

        def learn(shard: Shard, share: float) -> TDLoss:
            rows = shard.rows
            loss = self.loss(
                Minibatch(
                    obs[rows],
                    self._estimates(obs[rows]),
                    actions[rows],
                    targets[shard.number],
                    weights[rows],
                    num_second=rows.stop - max(rows.start, first_second),
                )
            )
            torch.autograd.backward(self._optimizer.scale(loss.total * share / self.config.accumulate))
            return loss

        return reduce_loss(self.ranks, gradient, size, TDLoss, learn)

    def loss(self, batch: Minibatch) -> TDLoss:
        """The mean over transitions of ``weight * h(y - Q(s, a))``, and the margin of demonstrations. A subclass may
        change it, see the guide "A loss of your own"."""
        config, y, Q = self.config, batch.targets, of_actions(batch.estimates, batch.actions).float()
        if config.quantiles:
            assert config.huber is not None
            losses, td = quantile_losses(Q, y, config.huber), (y - Q).mean(1)
        else:
            losses, td = q_losses(Q, y, config.huber), y - Q
        loss = (batch.weights * losses).mean()
        if (count := batch.num_second) > 0:
            values, chosen = mean_values(batch.estimates[-count:]), batch.actions[-count:]
            margins = margin_losses(values, chosen, config.margin)
            loss = loss + self._margin_coef(self.steps) * margins.sum() / len(batch.actions)
        return TDLoss(loss, loss=loss, q=Q.mean(), td_errors=td.detach().abs())

    def metrics(self) -> dict[str, float]:
        """Means over the minibatches since the last call, NaN without any. Waits for the GPU.

        ``loss``: weighted, Huber or squared (halved), and that of margins. ``q``: value of the actions that were taken.
        ``td_error``: absolute temporal-difference error, not weighted. ``grad_norm``: before clipping, mean over
        gradient steps. ``batches``, ``gradient_steps``: numbers of them.

        Raises:
            FloatingPointError: a loss was NaN or infinite; the parameters are of no use any more.
        """
        batches, gradient_steps = self._means.counts
        means = self._means.take(f"{self.updates} gradient steps")
        return {**means, "batches": batches, "gradient_steps": gradient_steps}

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        remarks = super().load_policy(state)
        self.target.load_state_dict(self.network.state_dict())
        return remarks

    @classmethod
    def _network_in(cls, state: Mapping[str, Any]) -> Mapping[str, Any]:
        network: Mapping[str, Any] = state["explorer"]["network"]
        return network

    @classmethod
    def check_state(cls, config: Any, state: Mapping[str, Any]) -> None:
        super().check_state(config, state)
        network = cls._network_in(state)
        if network_type(network) is QNetwork and len(network["architecture"]["obs_shape"]) == 3:
            check_layers(network, conv=config.conv)

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "explorer": {"network": self.network.state(), "noise": self._noise.get_state()},
            "target": self.target.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "gradient": self.parameters.grad,
            "updates": self.updates,
            "batches": self._batches,
            **self._means.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._noise.set_state(state["explorer"]["noise"])
        load_weights(self.target, state["target"])
        gradient = self.parameters.grad
        assert gradient is not None
        gradient.copy_(state["gradient"])
        self._batches = state["batches"]
        self._means.load_state_dict(state)

    def _targets(self, next_obs: Tensor, rewards: Tensor, discounts: Tensor, masks: Tensor | None) -> Tensor:
        """Targets [B], or of quantiles [B, N]. The caller has switched gradients off, and drawn noise, independent of
        that of `_estimates` (Fortunato et al., 2018, equation 16 and below)."""
        online_values = None
        with self._optimizer.autocast():
            if self.config.double:
                online_values = mean_values(self._online_estimates(next_obs))
            return td_targets(
                rewards, discounts, bootstrap(self._target_estimates(next_obs), online_values, masks)
            )

    def _estimates(self, obs: Tensor) -> Tensor:
        """`ActionValues.estimates` with gradients."""
        network = self.network
        if self.config.batch_norm:
            network.train()
        # Not under the autocast of the targets, which caches converted weights without gradients.
        with self._optimizer.autocast():
            estimates: Tensor = self._online_estimates(obs)
        if self.config.batch_norm:
            network.eval()
        return estimates

    @torch.no_grad()
    def _move_target(self) -> None:
        """Weights and running statistics; BatchNorm's counters, which nothing reads, stay."""
        online = self.network.state_dict()
        for name, tensor in self.target.state_dict().items():
            if tensor.is_floating_point():
                tensor.lerp_(online[name], self.config.target_tau)

    def _make_network(self, generator: torch.Generator) -> ActionValues:
        config, obs_rows, num_actions = self.config, self._obs_rows, self._actions.size
        has_images = obs_rows.dtype == np.uint8
        check_encoder(config.encoder, has_images)
        network_shape: tuple[int, ...] | None = None
        if not has_images and config.encoder != "rows":
            network_shape = (obs_rows.size,)
        elif obs_rows.kind == "image" and config.encoder == "auto":
            place = image_place(obs_rows.parts[0])
            network_shape = None if place.channels_last else place.shape
        layers: dict[str, Any] = {
            "hidden": config.hidden,
            "dueling": config.dueling,
            "noisy": config.noisy,
            "noisy_sigma": config.noisy_sigma,
            "quantiles": config.quantiles,
            "generator": generator,
        }
        if config.memory != "none":
            layers |= {"memory": config.memory, "memory_size": config.memory_size}
        if network_shape is None or config.memory != "none":
            if config.batch_norm:
                raise ValueError(
                    "batch_norm is for vectors, and for images with their channels first: set it to false"
                )
            return EncodedQ(obs_rows.state(), num_actions, encoder=config.encoder, **layers)
        # Pixels, and other bytes, as numbers from 0 to 1.
        space = obs_rows.space
        scale = 1.0
        if isinstance(space, gymnasium.spaces.Box) and space.dtype == np.uint8:
            scale = 1 / max(int(space.high.max()), 1)
        return QNetwork(
            network_shape,
            num_actions,
            conv=config.conv if has_images else (),
            batch_norm=config.batch_norm,
            obs_scale=scale,
            **layers,
        )
