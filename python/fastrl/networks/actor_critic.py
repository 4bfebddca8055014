"""Torch modules: the actor-critic network, its way of choosing actions, and running normalisation."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastrl.networks.action_space import Actions

Activation = Literal["tanh", "relu"]

# The logit of a masked action. Finite, for 0 * inf is NaN; exp() of it, less any logit, is exactly 0.
MASKED = -1e9

# The deviation of a Gaussian policy stays between exp(-5) and exp(2).
LOG_STD_RANGE = (-5.0, 2.0)


class ActorCritic(nn.Module):
    """A policy and a value function: two separate multi-layer perceptrons.

    Discrete actions have a categorical distribution. Continuous ones have a Gaussian, its mean the policy's output and
    its deviation a parameter of its own, the same everywhere; `fastrl.networks.action_space.Actions` says what
    becomes of a draw.

    Weights are orthogonal with gain sqrt(2) in hidden layers, 0.01 in the policy's last layer and 1 in the
    value's; biases are zero (Huang et al., "The 37 Implementation Details of Proximal Policy Optimization",
    2022, detail 2).

    Args:
        obs_dim: length of an observation.
        num_actions: number of discrete actions, or of numbers in a continuous one.
        hidden: width of each hidden layer; empty for linear functions of the observation.
        activation: after each hidden layer. On CPUs ReLU is many times cheaper than tanh.
        normalize_obs: whiten observations by the running statistics in ``obs_norm``.
        continuous: whether actions are.
        initial_log_std: of the Gaussian, in units of half the range of an action.
        generator: where the initial weights come from; None leaves them to torch's global generator.

    Attributes:
        log_std: Parameter [num_actions], or None for discrete actions; kept within `LOG_STD_RANGE` by the learner.
    """

    log_std: nn.Parameter | None

    def __init__(
        self,
        obs_dim: int,
        num_actions: int,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        *,
        normalize_obs: bool = False,
        continuous: bool = False,
        initial_log_std: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sizes = [obs_dim, num_actions, *hidden]
        if any(size < 1 for size in sizes):
            raise ValueError(
                "obs_dim, num_actions and every hidden width must be at least 1, got"
                f" {obs_dim}, {num_actions} and {list(hidden)}"
            )
        self.obs_dim = obs_dim
        self.num_actions = num_actions
        self.hidden = tuple(hidden)
        self.activation: Activation = activation
        self.obs_norm = RunningNorm(obs_dim) if normalize_obs else None
        self.actor = _perceptron([obs_dim, *hidden, num_actions], activation, 0.01, generator)
        self.critic = _perceptron([obs_dim, *hidden, 1], activation, 1.0, generator)
        log_std = torch.full((num_actions,), float(initial_log_std)).clamp_(*LOG_STD_RANGE)
        self.log_std = nn.Parameter(log_std) if continuous else None

    def outputs(self, obs: Tensor) -> Tensor:
        """What the policy is at observations float [B, obs_dim], float [B, num_actions]: unnormalised log-probabilities
        (logits) of discrete actions, means of continuous ones."""
        return self.actor(self._normalized(obs))

    def value(self, obs: Tensor) -> Tensor:
        """Expected discounted returns float [B] at observations float [B, obs_dim]."""
        return self.critic(self._normalized(obs)).squeeze(-1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """``outputs(obs)`` and ``value(obs)``."""
        obs = self._normalized(obs)
        return self.actor(obs), self.critic(obs).squeeze(-1)

    def _normalized(self, obs: Tensor) -> Tensor:
        return obs if self.obs_norm is None else self.obs_norm(obs)

    def state(self) -> dict[str, Any]:
        """All that `from_state` needs: ``architecture`` (JSON-able) and ``weights`` (name -> tensor)."""
        return {
            "architecture": {
                "obs_dim": self.obs_dim,
                "num_actions": self.num_actions,
                "hidden": list(self.hidden),
                "activation": self.activation,
                "normalize_obs": self.obs_norm is not None,
                "continuous": self.log_std is not None,
            },
            "weights": self.state_dict(),
        }

    def actor_architecture(self) -> dict[str, Any]:
        """What `fastrl.networks.compiled_actor.MlpActor` needs to be the policy of this network without torch."""
        return {
            "kind": "discrete" if self.log_std is None else "gaussian",
            "obs_dim": self.obs_dim,
            "outputs": self.num_actions,
            "hidden": list(self.hidden),
            "activation": self.activation,
            "obs_clip": None if self.obs_norm is None else self.obs_norm.clip,
        }

    def actor_weights(self, out: NDArray[np.float32]) -> None:
        """Writes what ``MlpActor.load`` reads: the policy's weights, as they are now.

        Args:
            out: float32 [``MlpActor.weights_nbytes`` / 4].

        Raises:
            ValueError: ``out`` is not such an array.
        """
        parts = [] if self.obs_norm is None else [self.obs_norm.mean, self.obs_norm.scale()]
        for layer in self.actor:
            if isinstance(layer, nn.Linear):
                parts += [layer.weight.t(), layer.bias]
        if self.log_std is not None:
            parts.append(self.log_std)
        size = sum(part.numel() for part in parts)
        if out.shape != (size,) or out.dtype != np.float32:
            raise ValueError(f"out: expected float32 [{size}], got {out.dtype} {list(out.shape)}")
        end = 0
        for part in parts:
            start, end = end, end + part.numel()
            out[start:end] = part.detach().cpu().numpy().reshape(-1)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The network that `state` came from.

        Raises:
            ValueError: the weights do not fit the architecture, or are not finite.
        """
        cls.check_size(state)
        # A generator of its own: building the network must not draw from torch's global one.
        network = cls(**state["architecture"], generator=torch.Generator())
        load_weights(network, state["weights"])
        return network

    @staticmethod
    def check_size(state: Mapping[str, Any]) -> None:
        """Refuses an architecture of more numbers than there are weights: see `check_numbers`."""
        architecture = state["architecture"]
        obs_dim, hidden = architecture["obs_dim"], architecture["hidden"]
        actor, critic = [obs_dim, *hidden, architecture["num_actions"]], [obs_dim, *hidden, 1]
        check_numbers(state["weights"], actor, critic)


def check_numbers(weights: Mapping[str, Tensor], *layers: Sequence[int], others: int = 0) -> None:
    """Compares the sizes that a file claims with the weights in it, before memory is taken for networks of these sizes.

    Args:
        weights: by name.
        layers: widths of each perceptron from input to output.
        others: numbers of other layers.

    Raises:
        ValueError: there are fewer weights than these have.
    """
    there = sum(tensor.numel() for tensor in weights.values())
    count = sum(len(sizes) - 1 for sizes in layers)
    numbers = others + sum((a + 1) * b for sizes in layers for a, b in itertools.pairwise(sizes))
    if numbers > there or count > len(weights):
        raise ValueError(
            f"a network of {count} layers and at least {numbers:,} numbers is claimed, the weights are"
            f" {len(weights)} arrays of {there:,} numbers"
        )


def check_architecture(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuses weights of a network of another architecture.

    Raises:
        ValueError: it says in what they differ.
    """
    differ = [
        f"{name} {saved.get(name)}, not {value}" for name, value in own.items() if saved.get(name) != value
    ]
    if differ:
        raise ValueError(f"its network has {', '.join(differ)}")


def check_layers(state: Mapping[str, Any], **layers: Sequence[Any]) -> None:
    """Refuses the saved state of a network whose layers are not those of the settings.

    Args:
        state: with an ``architecture``.
        layers: widths, such as ``hidden=(64, 64)``.

    Raises:
        ValueError
    """
    for name, sizes in layers.items():
        if state["architecture"][name] != list(sizes):
            raise ValueError(f"the saved {name} layers are {state['architecture'][name]}, not {list(sizes)}")


def check_moments(state: Mapping[str, Tensor], parameters: Tensor) -> None:
    """Refuses the saved state of an optimiser of other parameters.

    Raises:
        ValueError
    """
    for name, tensor in state.items():
        if tensor.ndim and tensor.shape != parameters.shape:
            raise ValueError(
                f"the optimizer's {name} should have shape {list(parameters.shape)}, got {list(tensor.shape)}"
            )


def generator_of(seed: np.random.SeedSequence) -> torch.Generator:
    """A generator on the CPU with a seed of its own."""
    return torch.Generator().manual_seed(int(seed.generate_state(1, np.uint64)[0]) >> 1)


def load_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """``network.load_state_dict(weights)`` that refuses in one line.

    Raises:
        ValueError: missing, unknown, wrongly shaped or not finite weights. The network is unchanged then.
    """
    own = network.state_dict()
    if own.keys() != weights.keys():
        raise ValueError(f"weights do not fit the network: expected {sorted(own)}, got {sorted(weights)}")
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape:
            raise ValueError(
                f"weights {name!r} must have shape {list(own[name].shape)}, got {list(tensor.shape)}"
            )
        if not tensor.isfinite().all():
            raise ValueError(f"weights {name!r} are not finite (NaN or infinity)")
    network.load_state_dict(weights)


def flatten_parameters(module: nn.Module) -> nn.Parameter:
    """Makes the parameters of a module, and their gradients, views of one vector, which is returned.

    An optimiser then has one tensor to step instead of many small ones, which for small networks costs a
    tenth of a gradient step. Gradients add up in ``vector.grad``: zero it, do not set it to None. Moving the
    module to another device breaks the connection.
    """
    parameters = list(module.parameters())
    vector = nn.Parameter(nn.utils.parameters_to_vector(parameters).detach().clone())
    vector.grad = torch.zeros_like(vector)
    sizes = [parameter.numel() for parameter in parameters]
    views = zip(parameters, vector.data.split(sizes), vector.grad.split(sizes), strict=True)
    for parameter, data, gradient in views:
        parameter.data = data.view_as(parameter)
        parameter.grad = gradient.view_as(parameter)
    return vector


def _perceptron(
    sizes: Sequence[int], activation: Activation, last_gain: float, generator: torch.Generator | None
) -> nn.Sequential:
    make_activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[activation]
    hidden_gain = math.sqrt(2)
    layers: list[nn.Module] = []
    for i in range(len(sizes) - 1):
        last = i == len(sizes) - 2
        linear = nn.utils.skip_init(nn.Linear, sizes[i], sizes[i + 1])
        nn.init.orthogonal_(linear.weight, last_gain if last else hidden_gain, generator=generator)
        nn.init.zeros_(linear.bias)
        layers.append(linear)
        if not last:
            layers.append(make_activation())
    return nn.Sequential(*layers)


def mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits [B, A] in which the actions where ``mask`` (bool [B, A]) is False have probability exactly 0."""
    return logits if mask is None else torch.where(mask, logits, MASKED)


def sample_actions(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draws an action from each row of logits by inverting the cumulative distribution.

    One random number a row; the Gumbel trick needs one for each action, which costs more than the network.

    Args:
        logits: float32 [B, A]; actions at `MASKED` are never drawn while another action is not masked.
        uniforms: float32 [B, 1], uniform in [0, 1 - 2**-24], as ``torch.rand`` draws them.

    Returns:
        Actions int64 [B], and their log-probabilities float32 [B]. Where logits are NaN the action is some
        action, and its log-probability NaN.
    """
    all_log_probs = torch.log_softmax(logits, -1)
    cumulative = all_log_probs.exp().cumsum(-1)
    total = cumulative[:, -1:]
    # The first action whose cumulative sum exceeds uniforms * total. There is one, for (1 - 2**-24) * total
    # rounds to less than total; and it is no masked one, which repeats the sum before it.
    actions = torch.searchsorted(cumulative, uniforms * total, right=True)
    actions.clamp_(max=logits.shape[-1] - 1)
    return actions.squeeze(-1), all_log_probs.gather(-1, actions).squeeze(-1)


def gaussian_log_probs(means: Tensor, log_std: Tensor, draws: Tensor) -> Tensor:
    """Log-densities float [B] of draws [B, n] under independent Gaussians."""
    z = (draws - means) * (-log_std).exp()
    return -0.5 * z.square().sum(-1) - (log_std.sum() + 0.5 * math.log(2 * math.pi) * len(log_std))


def sampling_noise(actions: Actions, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """The random numbers that it takes to draw actions for rows [*shape].

    Returns:
        Uniform float32 [*shape, 1] for discrete actions (see `sample_actions`), normal [*shape, n] for a Box.
    """
    if actions.is_box:
        return torch.randn((*shape, actions.size), generator=generator)
    return torch.rand((*shape, 1), generator=generator)


class RunningNorm(nn.Module):
    """Whitens vectors by the mean and variance of all that `update` has seen.

    Statistics are float64 and merged exactly (Chan, Golub and LeVeque, "Algorithms for computing the sample
    variance", 1983). Before the first update it is the identity.

    Args:
        size: length of a vector.
        clip: outputs are clipped to [-clip, clip].
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, size: int, clip: float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def update(self, batch: Tensor) -> None:
        """Takes in a batch of vectors, float [B, size]."""
        batch_var, batch_mean = torch.var_mean(batch.double(), dim=0, correction=0)
        total = self.count + len(batch)
        weight = len(batch) / total
        difference = batch_mean - self.mean
        self.var.lerp_(batch_var, weight).add_(difference.square() * weight * (1 - weight))
        self.mean.add_(difference * weight)
        self.count.copy_(total)

    def scale(self) -> Tensor:
        """What whitening multiplies by, float32 [size]: one over the standard deviation."""
        return (self.var + 1e-8).rsqrt().float()

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean.float()) * self.scale()).clamp(-self.clip, self.clip)
