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
from typing import Annotated, Any, Literal, NamedTuple, Self

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator
from torch import Tensor

from fastrl.algorithms import hyper_parameters as hp
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
from fastrl.networks.parameters import (
    check_architecture,
    check_layers,
    flatten_parameters,
    generator_of,
    load_weights,
)
from fastrl.networks.q_network import NATURE, QNetwork, flatten_statistics, parse_conv
from fastrl.utils.config import Setting, section
from fastrl.utils.timer import Stopwatch


def _conv(layer: str) -> str:
    parse_conv(layer)
    return layer


@section
class DQNConfig:
    """Hyper-parameters of DQN. Schedules are linear in the environment steps done."""

    gamma: hp.Gamma = 0.99
    n_step: Annotated[int, Field(ge=1, description="rewards that are summed before the bootstrap")] = 3
    double: Annotated[
        bool, Field(description="the online network chooses the action that the target network values")
    ] = True
    dueling: Annotated[
        bool, Field(description="the network estimates the value and the actions' advantages apart")
    ] = True
    noisy: Annotated[
        bool, Field(description="explore by learned noise in the linear layers; epsilon is 0 then")
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
    learning_rate: Annotated[float, Field(ge=0, description="Adam's learning rate"), Setting(common=True)] = (
        5e-4
    )
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
        hp.Widths,
        Field(description="widths of the hidden layers; dueling networks have the last one twice"),
        Setting(common=True),
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


# Settings by name, arguments of DQNConfig: DQNConfig(**PRESETS["atari"]). They can be combined:
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


class Sizes(NamedTuple):
    """Sizes of a network. (Spaces of images have bounds for each pixel, and would be slow to pickle.)"""

    obs_shape: tuple[int, ...]
    obs_dtype: torch.dtype
    obs_scale: float
    num_actions: int

    @classmethod
    def of(cls, obs_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> Self:
        """Sizes for an environment's spaces.

        Raises:
            ValueError: spaces that `DQN` does not take.
        """
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
            return cls(shape, torch.float32, 1.0, num_actions)
        return cls(shape, torch.uint8, 1 / max(int(obs_space.high.max()), 1), num_actions)


class DQNActor:
    """Chooses actions: the network and a way to explore, without anything to learn.

    Collectors make one each and `load` the newest weights into it. Acting is always in float32 and, with BatchNorm,
    uses the running statistics: an action must not depend on what other environments happen to be in the same call.

    Args:
        config: the algorithm's.
        sizes: of the environment's spaces.
        seed: of the initial weights and the exploration; not negative. Give every collector one of its own.
        device: where the network lives.

    Attributes:
        network: in ``eval()`` mode.
        weights_nbytes: bytes of all weights, the statistics of BatchNorm included.
    """

    def __init__(self, config: DQNConfig, sizes: Sizes, seed: int, device: str = "cpu") -> None:
        self._sizes = sizes
        self.device = torch.device(device)
        weights_seed, exploration_seed, noise_seed = np.random.SeedSequence(seed).spawn(3)
        # All draws are made on the CPU: they are few, and a run may resume on another device.
        self._exploration = np.random.Generator(np.random.PCG64(exploration_seed))
        self.noise = generator_of(noise_seed)
        self.network = QNetwork(
            sizes.obs_shape,
            sizes.num_actions,
            conv=config.conv if len(sizes.obs_shape) == 3 else (),
            hidden=config.hidden,
            dueling=config.dueling,
            noisy=config.noisy,
            noisy_sigma=config.noisy_sigma,
            batch_norm=config.batch_norm,
            obs_scale=sizes.obs_scale,
            generator=generator_of(weights_seed),
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
            return self._exploration.integers(self._sizes.num_actions, size=count)
        if self._noisy:
            self.network.draw_noise(self.noise)
        actions = self._best(obs)
        if count:
            actions[random] = self._exploration.integers(self._sizes.num_actions, size=count)
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

    def load(self, weights: Any) -> None:
        """Takes all weights from a buffer that `write_weights` has filled, of the same configuration.

        Raises:
            ValueError: a buffer of another size.
        """
        # A copy: PyTorch requires writable, aligned memory.
        source = torch.from_numpy(self._bytes_of(weights).copy().view(np.float32))
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

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes exactly from the state of another actor.

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
            # Callers may pass read-only arrays, which PyTorch does not take.
            obs = torch.from_numpy(obs if obs.flags.writeable else obs.copy())
        elif not isinstance(obs, Tensor):
            raise TypeError(f"obs should be a numpy array or a tensor, got {type(obs).__name__}")
        if obs.dtype != self._sizes.obs_dtype:
            raise TypeError(f"obs should be {_name(self._sizes.obs_dtype)}, got {_name(obs.dtype)}")
        if tuple(obs.shape[1:]) != self._sizes.obs_shape or obs.ndim == 0:
            hint = "; for one observation pass obs[None]" if tuple(obs.shape) == self._sizes.obs_shape else ""
            expected = ", ".join(["N", *map(str, self._sizes.obs_shape)])
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


class DQN(OffPolicyAlgorithm):
    """Learns values of actions from minibatches of transitions.

    ::

        dqn = DQN(config, Problem(obs_space, action_space, num_envs, total_timesteps))
        epsilon = dqn.exploration()
        while steps < total_timesteps:
            actions = dqn.act(obs, epsilon(steps))
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
        problem: its observations are a ``Box`` float32 or uint8 ``[D]``, or ``[C, H, W]`` for images; uint8 is divided
            by the largest value that the space allows, 255 for pixels. Its actions are ``Discrete`` from 0 on.

    Attributes:
        actor: the online network, and how it acts.
        target: the target network.
        updates: gradient steps so far.
    """

    obs_kinds = frozenset({"vector", "image"})
    action_kinds = frozenset({"discrete"})

    name = "dqn"
    summary = "deep Q-learning, with double, dueling, n-step, prioritized and noisy as options"
    config_type = DQNConfig
    config: DQNConfig

    def __init__(self, config: DQNConfig, problem: Problem) -> None:
        self.config = config
        self.steps = 0
        self.device = torch.device(problem.device)
        self._sizes = Sizes.of(problem.obs_space, problem.action_space)
        self.actor = DQNActor(config, self._sizes, problem.seed, problem.device)
        online = self.actor.network
        self._optimizer = Optimizer(
            self.actor.parameters, config.precision, eps=config.adam_eps, learning_rate=config.learning_rate
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

    def act(
        self, obs: NDArray[Any] | Tensor, epsilon: float | NDArray[np.floating] = 0.0
    ) -> NDArray[np.int64]:
        """`DQNActor.act` with the online network."""
        return self.actor.act(obs, epsilon)

    def greedy(self, obs: NDArray[Any] | Tensor) -> NDArray[np.int64]:
        """`DQNActor.greedy` with the online network."""
        return self.actor.greedy(obs)

    def actor_spec(self) -> Callable[[int], DQNActor]:
        return functools.partial(DQNActor, self.config, self._sizes)

    @property
    def weights_nbytes(self) -> int:
        return self.actor.weights_nbytes

    def write_weights(self, out: Any) -> None:
        self.actor.write_weights(out)

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
        values = self._values(batch.obs.to(self.device, non_blocking=True))
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
        network, saved = self.actor.network, state["actor"]["network"]
        check_architecture(saved["architecture"], network.state()["architecture"])
        load_weights(network, saved["weights"])
        load_weights(self.target, saved["weights"])
        return []

    @classmethod
    def check_state(cls, config: Any, state: Mapping[str, Any]) -> None:
        network = state["actor"]["network"]
        sees_images = len(network["architecture"]["obs_shape"]) == 3
        check_layers(network, hidden=config.hidden, conv=config.conv if sees_images else ())
        QNetwork.check_size(network)

    def policy_state(self) -> dict[str, Any]:
        """Weights and architecture, see `QNetwork.from_state`. Not a copy."""
        return self.actor.network.state()

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "actor": self.actor.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "gradient": self.actor.parameters.grad,
            "updates": self.updates,
            "batches": self._batches,
            "sums": self._sums,
            "summed": list(self._summed),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.actor.load_state_dict(state["actor"])
        load_weights(self.target, state["target"])
        self._optimizer.load_state_dict(state["optimizer"])
        gradient = self.actor.parameters.grad
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
        self.target.draw_noise(self.actor.noise)
        with self._optimizer.autocast():
            if self.config.double:
                self.actor.network.draw_noise(self.actor.noise)
                online_values = self._online_forward(next_obs)
            return td_targets(rewards, discounts, bootstrap(self._target_forward(next_obs), online_values))

    def _values(self, obs: Tensor) -> Tensor:
        """Values [B, A] with gradients."""
        network = self.actor.network
        network.draw_noise(self.actor.noise)
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
        online = self.actor.network.state_dict()
        for name, tensor in self.target.state_dict().items():
            if tensor.is_floating_point():
                tensor.lerp_(online[name], self.config.target_tau)


def _ratio(total: float, count: int) -> float:
    return total / count if count else math.nan


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
