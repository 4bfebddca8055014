"""Deep Q-learning (Mnih et al., 2015) and its improvements, each of which can be switched on by itself:

- double: van Hasselt et al., "Deep Reinforcement Learning with Double Q-learning", 2016, equation 4;
- dueling: Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning", 2016;
- n-step returns: Sutton, 1988; summed by the sampler, whose ``discounts`` say what the bootstrap weighs;
- prioritized replay: Schaul et al., 2016; the sampler's ``weights`` enter the loss, |td| goes back to it;
- noisy: Fortunato et al., "Noisy Networks for Exploration", 2018, instead of epsilon-greedy;
- target network moved at once or gradually, Huber or squared loss.
"""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator
from torch import Tensor, nn

from fastrl.networks.actor_critic import check_architecture, check_moments, flatten_parameters, load_weights
from fastrl.networks.q_network import NATURE, QNetwork, flatten_statistics, parse_conv
from fastrl.utils.config import section


def _conv(layer: str) -> str:
    parse_conv(layer)
    return layer


@section
class DQNConfig:
    """Hyper-parameters of DQN. Schedules are linear in the environment steps done."""

    gamma: Annotated[float, Field(ge=0, le=1, description="discount of future rewards")] = 0.99
    n_step: Annotated[int, Field(ge=1, description="rewards that are summed before the bootstrap")] = 3
    double: Annotated[
        bool, Field(description="the online network chooses the action that the target network values")
    ] = True
    dueling: Annotated[
        bool, Field(description="the network estimates the value and the actions' advantages apart")
    ] = True
    noisy: Annotated[
        bool, Field(description="explore by learnt noise in the linear layers; epsilon is 0 then")
    ] = False
    noisy_sigma: Annotated[float, Field(gt=0, description="initial deviation of that noise")] = 0.5
    epsilon: Annotated[float, Field(ge=0, le=1, description="share of random actions at the start")] = 1.0
    final_epsilon: Annotated[
        float, Field(ge=0, le=1, description="share of random actions from epsilon_steps on")
    ] = 0.01
    epsilon_steps: Annotated[
        int, Field(ge=0, description="environment steps from the first value to the final one")
    ] = 10_000
    prioritized: Annotated[bool, Field(description="sample by the size of the last error")] = False
    alpha: Annotated[float, Field(ge=0, description="prioritized: exponent of the error; 0 is uniform")] = 0.6
    beta: Annotated[
        float, Field(ge=0, le=1, description="prioritized: correction by importance sampling, at the start")
    ] = 0.4
    final_beta: Annotated[float, Field(ge=0, le=1, description="the same from beta_steps on")] = 1.0
    beta_steps: Annotated[
        int, Field(ge=0, description="environment steps from the first value to the final one")
    ] = 1_000_000
    target_every: Annotated[int, Field(ge=1, description="gradient steps between moves of the target")] = 500
    target_tau: Annotated[
        float,
        Field(gt=0, le=1, description="how far the target network moves to the online one; 1: all the way"),
    ] = 1.0
    huber: Annotated[
        float | None,
        Field(gt=0, description="errors beyond this weigh linearly in the loss; none: squared loss"),
    ] = 1.0
    learning_rate: Annotated[float, Field(ge=0, description="Adam's learning rate")] = 5e-4
    adam_eps: Annotated[float, Field(gt=0, description="Adam's epsilon")] = 1e-5
    max_grad_norm: Annotated[
        float | None, Field(gt=0, description="gradients are scaled down to this norm; none: never")
    ] = 10.0
    batch_size: Annotated[int, Field(ge=1, description="transitions in a batch")] = 128
    accumulate: Annotated[
        int, Field(ge=1, description="batches whose gradients are averaged into one gradient step")
    ] = 1
    conv: Annotated[
        tuple[Annotated[str, AfterValidator(_conv)], ...],
        Field(description="convolutions of images, each CHANNELSxKERNEL/STRIDE; not used for vectors"),
    ] = NATURE
    hidden: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(description="widths of the hidden layers; dueling networks have the last one twice"),
    ] = (512,)
    batch_norm: Annotated[bool, Field(description="BatchNorm after each layer but the last")] = False
    precision: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        Field(description="of the network's arithmetic when learning; auto: bf16 on CUDA, fp32 on CPUs"),
    ] = "auto"
    compile: Annotated[bool, Field(description="torch.compile the networks for learning")] = False
    channels_last: Annotated[
        Literal["auto", "on", "off"],
        Field(description="layout of images when learning; auto: on CUDA in half precision"),
    ] = "auto"

    @model_validator(mode="after")
    def _fits_together(self) -> "DQNConfig":
        if self.batch_norm and self.batch_size < 2:
            raise ValueError("batch_norm needs a batch_size of at least 2: it normalises by the batch")
        return self

    def epsilon_at(self, steps: int) -> float:
        """The share of random actions after ``steps`` environment steps; 0 with noisy networks."""
        if self.noisy:
            return 0.0
        return _linear(self.epsilon, self.final_epsilon, self.epsilon_steps, steps)

    def beta_at(self, steps: int) -> float:
        """The exponent of the importance weights after ``steps`` environment steps."""
        return _linear(self.beta, self.final_beta, self.beta_steps, steps)


# Settings under a name, to be given to DQNConfig: DQNConfig(**PRESETS["atari"]). They add up:
# DQNConfig(**PRESETS["atari"], **PRESETS["large-batch"]).
PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Hessel et al., "Rainbow", 2018, table 1, where it applies; steps are those of the agent, four frames each.
    "atari": {
        "prioritized": True,
        "alpha": 0.5,
        "beta_steps": 12_500_000,
        "epsilon_steps": 250_000,
        "target_every": 2_000,
        "learning_rate": 6.25e-5,
        "adam_eps": 1.5e-4,
    },
    # 2048 transitions a gradient step, 512 of them in memory at a time.
    "large-batch": {"batch_size": 512, "accumulate": 4},
}


class Batch(Protocol):
    """B transitions to learn from, as the samplers of ``fastrl.replay`` give them."""

    @property
    def obs(self) -> Tensor: ...  # [B, ...] as the observation space has them
    @property
    def actions(self) -> Tensor: ...  # int64 [B]
    @property
    def rewards(self) -> Tensor: ...  # float32 [B], discounted sum of up to n steps
    @property
    def next_obs(self) -> Tensor: ...  # [B, ...], after these steps
    @property
    def discounts(self) -> Tensor: ...  # float32 [B], gamma^steps, or 0 where the episode terminated
    @property
    def weights(self) -> Tensor: ...  # float32 [B], importance weights


@dataclass(frozen=True)
class DQNMetrics:
    """What the learner did since the last row: means over its batches, unless noted; NaN without any.

    Attributes:
        loss: the weighted Huber or squared (halved) loss.
        q: value of the actions that were taken.
        td_error: absolute temporal-difference error, not weighted.
        grad_norm: before clipping; mean over gradient steps.
        batches: number of them.
        gradient_steps: number of them; ``batches / accumulate``.
    """

    loss: float
    q: float
    td_error: float
    grad_norm: float
    batches: int
    gradient_steps: int


def bootstrap(next_values: Tensor, next_online_values: Tensor | None = None) -> Tensor:
    """Value of the best action after each transition, float32 [B].

    Args:
        next_values: of all actions, by the target network, [B, A].
        next_online_values: the same by the online network, for double Q-learning; it says which action is
            the best one. None: the target network does.
    """
    if next_online_values is None:
        return next_values.amax(1).float()
    best = next_online_values.argmax(1, keepdim=True)
    return next_values.gather(1, best).squeeze(1).float()


def td_targets(rewards: Tensor, discounts: Tensor, bootstraps: Tensor) -> Tensor:
    """``rewards + discounts * bootstraps``. Where the episode terminated the discount is 0; where it was
    truncated it is not, and what follows counts with its estimated value."""
    return torch.addcmul(rewards, discounts, bootstraps)


def q_gradient(
    values: Tensor, actions: Tensor, targets: Tensor, weights: Tensor, huber: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient of the loss in the values of actions, in closed form: cheaper than automatic differentiation.

    The loss is the mean over the batch of ``weight * h(td)`` with td = target - values[action] and
    h(x) = x^2 / 2, beyond ``huber`` continued linearly. With c = td clipped to +-huber, h = c (td - c / 2),
    and its derivative is c.

    Args:
        values: [B, A].
        actions: int64 [B].
        targets, weights: float32 [B].
        huber: see above; None: never linear.

    Returns:
        The gradient float32 [B, A], then td float32 [B], the loss and the mean value of ``actions``.
    """
    chosen = values.gather(1, actions.unsqueeze(1)).squeeze(1).float()
    td = targets - chosen
    clipped = td if huber is None else td.clamp(-huber, huber)
    pull = clipped * weights / len(td)
    loss = torch.dot(pull, td - clipped / 2)
    gradient = torch.zeros_like(values, dtype=torch.float32).scatter_(
        1, actions.unsqueeze(1), pull.neg().unsqueeze(1)
    )
    return gradient, td, loss, chosen.mean()


class Actor:
    """Chooses actions: the network and a way to explore, without anything to learn.

    Collectors make one each and fill it with the learner's newest weights by `read_weights`. Acting is always
    in float32 and, with BatchNorm, uses the running statistics: an action must not depend on what other
    environments happen to be in the same call.

    Args:
        config: the learner's.
        obs_space: ``Box`` float32 or uint8 ``[D]``, or ``[C, H, W]`` for images, of one environment. uint8 is
            divided by the largest value that the space allows, 255 for pixels.
        action_space: ``Discrete`` starting at 0.
        seed: of the initial weights and the exploration; not negative. Give every collector one of its own.
        device: where the network lives.

    Attributes:
        network: in ``eval()`` mode.
        weights_nbytes: bytes of all weights, the statistics of BatchNorm included.
    """

    def __init__(
        self,
        config: DQNConfig,
        obs_space: gymnasium.Space,
        action_space: gymnasium.Space,
        seed: int,
        device: str = "cpu",
    ) -> None:
        self._obs_shape, self._obs_dtype, scale, self._num_actions = _sizes(obs_space, action_space)
        self.device = torch.device(device)
        weights_seed, exploration_seed, noise_seed = np.random.SeedSequence(seed).spawn(3)
        # All draws are made on the CPU: they are few, and a run may go on on another device.
        self._exploration = np.random.Generator(np.random.PCG64(exploration_seed))
        self.noise = _generator(noise_seed)
        self.network = QNetwork(
            self._obs_shape,
            self._num_actions,
            conv=config.conv if len(self._obs_shape) == 3 else (),
            hidden=config.hidden,
            dueling=config.dueling,
            noisy=config.noisy,
            noisy_sigma=config.noisy_sigma,
            batch_norm=config.batch_norm,
            obs_scale=scale,
            generator=_generator(weights_seed),
        )
        self.network.to(self.device).eval()
        self.parameters = flatten_parameters(self.network)
        self._statistics = flatten_statistics(self.network)
        self._noisy = config.noisy
        self.weights_nbytes = 4 * (self.parameters.numel() + self._statistics.numel())

    def act(
        self, obs: NDArray[Any] | Tensor, epsilon: float | NDArray[np.floating] = 0.0
    ) -> NDArray[np.int64]:
        """Actions int64 [N] that explore: with probability ``epsilon`` any action, else the best one, by the
        network with fresh noise if it is noisy.

        Args:
            obs: ``[N, ...]`` of the observation space's shape and dtype.
            epsilon: one for all, or [N].

        Raises:
            TypeError: wrong dtype.
            ValueError: wrong shape.
            FloatingPointError: the network gave NaN or infinity.
        """
        obs = self._checked(obs)
        random = self._exploration.random(len(obs)) < epsilon
        count = int(np.count_nonzero(random))
        if count == len(obs):
            return self._exploration.integers(self._num_actions, size=count)
        if self._noisy:
            self.network.draw_noise(self.noise)
        actions = self._best(obs)
        if count:
            actions[random] = self._exploration.integers(self._num_actions, size=count)
        return actions

    def greedy(self, obs: NDArray[Any] | Tensor) -> NDArray[np.int64]:
        """The best actions int64 [N], without noise: for evaluation. Errors are those of `act`."""
        if self._noisy:
            self.network.clear_noise()
        return self._best(self._checked(obs))

    def write_weights(self, out: Any) -> None:
        """Copies all weights into a writeable buffer of ``weights_nbytes`` bytes, as one vector.

        Raises:
            ValueError: a buffer of another size, or read-only.
        """
        target = self._bytes_of(out)
        if not target.flags.writeable:
            raise ValueError("write_weights needs a writeable buffer, got a read-only one")
        cut = 4 * self.parameters.numel()
        target[:cut] = self.parameters.detach().cpu().numpy().view(np.uint8)
        target[cut:] = self._statistics.cpu().numpy().view(np.uint8)

    def read_weights(self, buffer: Any) -> None:
        """Takes over all weights from a buffer that `write_weights` has filled, of the same configuration.

        Raises:
            ValueError: a buffer of another size.
        """
        # A copy, for torch wants memory that it may write to, and aligned.
        source = torch.from_numpy(self._bytes_of(buffer).copy().view(np.float32))
        cut = self.parameters.numel()
        self.parameters.data.copy_(source[:cut])
        self._statistics.copy_(source[cut:])

    def state_dict(self) -> dict[str, Any]:
        """Network and generators; tensors are not copies."""
        return {
            "network": self.network.state(),
            "exploration": self._exploration.bit_generator.state,
            "noise": self.noise.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on exactly where the other one stood.

        Raises:
            ValueError: the state is of another network, or is not finite.
        """
        architecture = self.network.state()["architecture"]
        if state["network"]["architecture"] != architecture:
            raise ValueError(
                f"the saved network is {state['network']['architecture']}, this run's is {architecture}"
            )
        load_weights(self.network, state["network"]["weights"])
        self._exploration.bit_generator.state = state["exploration"]
        self.noise.set_state(state["noise"])

    def _best(self, obs: Tensor) -> NDArray[np.int64]:
        with torch.inference_mode():
            values = self.network(obs.to(self.device)).cpu().numpy()
        if not np.isfinite(values).all():
            raise FloatingPointError(
                "the network gave NaN or infinity; are the observations finite? If so, go back to a"
                " checkpoint, and lower the learning rate or check the rewards"
            )
        best: NDArray[np.int64] = values.argmax(1)
        return best

    def _checked(self, obs: NDArray[Any] | Tensor) -> Tensor:
        if isinstance(obs, np.ndarray):
            # Read-only arrays are welcome, but not to torch.
            obs = torch.from_numpy(obs if obs.flags.writeable else obs.copy())
        elif not isinstance(obs, Tensor):
            raise TypeError(f"obs should be a numpy array or a tensor, got {type(obs).__name__}")
        if obs.dtype != self._obs_dtype:
            raise TypeError(f"obs should be {_name(self._obs_dtype)}, got {_name(obs.dtype)}")
        if tuple(obs.shape[1:]) != self._obs_shape or obs.ndim == 0:
            hint = "; for one observation pass obs[None]" if tuple(obs.shape) == self._obs_shape else ""
            expected = ", ".join(["N", *map(str, self._obs_shape)])
            raise ValueError(f"obs should have shape [{expected}], got {list(obs.shape)}{hint}")
        return obs

    def _bytes_of(self, buffer: Any) -> NDArray[np.uint8]:
        view = np.frombuffer(buffer, np.uint8)
        if len(view) != self.weights_nbytes:
            raise ValueError(
                f"the network has {self.weights_nbytes} bytes of weights, the buffer {len(view)}:"
                " were both made from the same configuration and spaces?"
            )
        return view


class DQN:
    """A learner of action values, fed with batches of transitions.

    ::

        dqn = DQN(config, env.single_observation_space, env.single_action_space, seed=0)
        while steps < total_steps:
            actions = dqn.act(obs, config.epsilon_at(steps))
            ...                                              # step the environment, replay.add_many(...)
            batch = sampler.sample()
            td_errors = dqn.update(batch)
            if config.prioritized:
                sampler.update_priorities(batch.indices, td_errors)

    Everything random comes from ``seed``. On a CPU, for a given number of torch threads, the same seed and
    the same batches give the same parameters to the bit, also across `state_dict` and `load_state_dict`.

    With BatchNorm the values of the actions taken are computed with the statistics of the batch (which also
    move the running ones), but actions, targets and the choice of double Q-learning with the running ones:
    a target must not depend on which other transitions were drawn. The target network's statistics follow
    the online network's as its weights do. With ``accumulate`` each batch is normalised by itself.

    `update` does not wait for a GPU: metrics are summed there, and fetched by `metrics`.

    Args:
        config: hyper-parameters.
        obs_space, action_space: as of `Actor`.
        seed: not negative.
        device: where the networks live; "cpu" or "cuda".

    Attributes:
        actor: the online network, and how it acts.
        target: the target network.
        updates: gradient steps so far.
        weights_nbytes: size of what `write_weights` writes.
    """

    def __init__(
        self,
        config: DQNConfig,
        obs_space: gymnasium.Space,
        action_space: gymnasium.Space,
        *,
        seed: int,
        device: str = "cpu",
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self.actor = Actor(config, obs_space, action_space, seed, device)
        self.weights_nbytes = self.actor.weights_nbytes
        online = self.actor.network
        self._amp_dtype = _amp_dtype(config.precision, self.device)
        on_tensor_cores = self.device.type == "cuda" and self._amp_dtype is not None
        online.channels_last = config.channels_last == "on" or (
            config.channels_last == "auto" and on_tensor_cores
        )
        self.target = online.frozen_copy()
        self._online_forward = torch.compile(online) if config.compile else online
        self._target_forward = torch.compile(self.target) if config.compile else self.target
        self._optimizer = torch.optim.Adam(
            [self.actor.parameters], lr=config.learning_rate, eps=config.adam_eps, fused=True
        )
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self._amp_dtype == torch.float16)
        self.updates = 0
        self._batches = 0
        # Sums of loss, q and td_error over batches, and of grad_norm over gradient steps.
        self._sums = torch.zeros(4, device=self.device)
        self._summed = [0, 0]

    def act(
        self, obs: NDArray[Any] | Tensor, epsilon: float | NDArray[np.floating] = 0.0
    ) -> NDArray[np.int64]:
        """`Actor.act` with the online network."""
        return self.actor.act(obs, epsilon)

    def greedy(self, obs: NDArray[Any] | Tensor) -> NDArray[np.int64]:
        """`Actor.greedy` with the online network."""
        return self.actor.greedy(obs)

    def write_weights(self, out: Any) -> None:
        """`Actor.write_weights` of the online network."""
        self.actor.write_weights(out)

    def update(self, batch: Batch) -> Tensor:
        """Learns from one batch; every ``accumulate``-th call is a gradient step.

        The batch may be overwritten once this returns, or, if it lies in pinned memory and the learner is on
        a GPU, once the GPU is done with it.

        Returns:
            |td| float32 [B] on the learner's device, before the update: the new priorities.
        """
        config = self.config
        actions, rewards, discounts, weights = (
            tensor.to(self.device, non_blocking=True)
            for tensor in (batch.actions, batch.rewards, batch.discounts, batch.weights)
        )
        with torch.no_grad():
            targets = self._targets(batch.next_obs.to(self.device, non_blocking=True), rewards, discounts)
        values = self._values(batch.obs.to(self.device, non_blocking=True))
        with torch.no_grad():
            gradient, td, loss, q = q_gradient(values, actions, targets, weights, config.huber)
            td_errors = td.abs()
            self._sums[:3] += torch.stack([loss, q, td_errors.mean()])
        # Scaled in float32: in fp16 it might be gone before.
        gradient = self._scaler.scale(gradient / config.accumulate).to(values.dtype)
        torch.autograd.backward(values, gradient)
        self._batches += 1
        self._summed[0] += 1
        if self._batches % config.accumulate == 0:
            self._step()
        return td_errors

    def metrics(self) -> DQNMetrics:
        """Means since the last call. Waits for the GPU.

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
        return DQNMetrics(
            loss=_ratio(loss, batches),
            q=_ratio(q, batches),
            td_error=_ratio(td_error, batches),
            grad_norm=_ratio(grad_norm, gradient_steps),
            batches=batches,
            gradient_steps=gradient_steps,
        )

    def take_weights(self, state: dict[str, Any]) -> None:
        """Begins with the weights of a network that `policy_state` gave.

        Raises:
            ValueError: it is another one, or not finite.
        """
        network = self.actor.network
        check_architecture(state["architecture"], network.state()["architecture"])
        load_weights(network, state["weights"])
        load_weights(self.target, state["weights"])

    def policy_state(self) -> dict[str, Any]:
        """What inference needs (see `QNetwork.from_state`): weights and architecture. Not a copy."""
        return self.actor.network.state()

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on exactly.

        Nested dicts with string keys, of tensors and plain (JSON-able) values. Tensors are not copies: write
        them out before the next update.
        """
        return {
            "actor": self.actor.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": dict(self._optimizer.state[self.actor.parameters]),
            "scaler": self._scaler.state_dict(),
            "gradient": self.actor.parameters.grad,
            "updates": self.updates,
            "batches": self._batches,
            "sums": self._sums,
            "summed": list(self._summed),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the other learner stood.

        Raises:
            ValueError: the state is of another network, or is not finite.
        """
        self.actor.load_state_dict(state["actor"])
        load_weights(self.target, state["target"])
        check_moments(state["optimizer"], self.actor.parameters)
        self._optimizer.state[self.actor.parameters] = {
            key: value.to(self.device, copy=True) for key, value in state["optimizer"].items()
        }
        if self._scaler.is_enabled() and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        gradient = self.actor.parameters.grad
        assert gradient is not None
        gradient.copy_(state["gradient"])
        self.updates = state["updates"]
        self._batches = state["batches"]
        self._sums.copy_(state["sums"])
        self._summed = list(state["summed"])

    def _targets(self, next_obs: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        """The caller has switched gradients off. Noise is independent of that in `_values` (Fortunato et al.,
        2018, equation 16 and below)."""
        online_values = None
        self.target.draw_noise(self.actor.noise)
        with self._autocast():
            if self.config.double:
                self.actor.network.draw_noise(self.actor.noise)
                online_values = self._online_forward(next_obs)
            return td_targets(rewards, discounts, bootstrap(self._target_forward(next_obs), online_values))

    def _values(self, obs: Tensor) -> Tensor:
        """Values [B, A] to be learnt from."""
        network = self.actor.network
        network.draw_noise(self.actor.noise)
        if self.config.batch_norm:
            network.train()
        # Not under the autocast of the targets: it keeps weights that it has converted, without gradients.
        with self._autocast():
            values: Tensor = self._online_forward(obs)
        if self.config.batch_norm:
            network.eval()
        return values

    def _step(self) -> None:
        config, parameters = self.config, self.actor.parameters
        self._scaler.unscale_(self._optimizer)
        gradient = parameters.grad
        assert gradient is not None
        if config.max_grad_norm is None:
            grad_norm = gradient.norm()
        else:
            grad_norm = nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if self._scaler.is_enabled():
            # A step that overflowed in fp16 is left out by the scaler.
            grad_norm = grad_norm.nan_to_num(0.0, 0.0, 0.0)
        self._sums[3] += grad_norm
        gradient.zero_()
        self.updates += 1
        self._summed[1] += 1
        if self.updates % config.target_every == 0:
            self._move_target()

    @torch.no_grad()
    def _move_target(self) -> None:
        """Weights and running statistics; BatchNorm's counters, which nothing reads, stay."""
        online = self.actor.network.state_dict()
        for name, tensor in self.target.state_dict().items():
            if tensor.is_floating_point():
                tensor.lerp_(online[name], self.config.target_tau)

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        if self._amp_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self._amp_dtype)


def _amp_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """What autocast is to use; None: nothing."""
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def _sizes(
    obs_space: gymnasium.Space, action_space: gymnasium.Space
) -> tuple[tuple[int, ...], torch.dtype, float, int]:
    """Shape, dtype and scale of observations, and the number of actions; other spaces are refused."""
    if (
        not isinstance(obs_space, gymnasium.spaces.Box)
        or len(obs_space.shape) not in (1, 3)
        or obs_space.dtype not in (np.float32, np.uint8)
    ):
        raise ValueError(
            "DQN needs observations of a float32 or uint8 Box of shape [D], or [C, H, W] for images,"
            f" got {obs_space}"
        )
    if not isinstance(action_space, gymnasium.spaces.Discrete) or action_space.start != 0:
        raise ValueError(f"DQN needs a Discrete action space that starts at 0, got {action_space}")
    shape, num_actions = obs_space.shape, int(action_space.n)
    if obs_space.dtype == np.float32:
        return shape, torch.float32, 1.0, num_actions
    return shape, torch.uint8, 1 / max(int(obs_space.high.max()), 1), num_actions


def _linear(start: float, end: float, duration: int, steps: int) -> float:
    progress = min(steps / duration, 1.0) if duration else 1.0
    return start + (end - start) * progress


def _ratio(total: float, count: int) -> float:
    return total / count if count else math.nan


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _generator(seed: np.random.SeedSequence) -> torch.Generator:
    return torch.Generator().manual_seed(int(seed.generate_state(1, np.uint64)[0]) >> 1)
