"""Networks that estimate the value of each action: plain or dueling, noisy or not, for vectors and images."""

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from fastrl.envs.rows import ObsRows
from fastrl.networks.acting_network import ActingNetwork
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import MAX_OBS_DIM, Actor
from fastrl.networks.encoders import Convolution
from fastrl.networks.epsilon_greedy import EpsilonGreedyActor
from fastrl.networks.kinds import parse_conv
from fastrl.networks.perceptron import Linear, initialize


class NoisyLinear(nn.Module):
    """A linear layer whose weights have learned noise (Fortunato et al., "Noisy Networks for Exploration",
    2018, section 3, the factorised kind)::

        y = W x + b + (S * (e_out e_in^T)) x + s * e_out        with e = f(normal), f(x) = sign(x) sqrt(|x|)

    computed as ``W x + b + e_out * (S (e_in * x) + s)``, which makes no array of the weights' size. Weights
    are initialised as in the paper: uniform in +-1/sqrt(in_features), deviations sigma / sqrt(in_features).
    The noise is 0 until `QNetwork.draw_noise` fills it: then this is an ordinary layer.

    Args:
        in_features, out_features: sizes.
        bias: whether there are ``b`` and ``s``.
        sigma: initial deviation of the noise, times sqrt(in_features); 0.5 in the paper.
        generator: where the initial weights come from; None leaves them to torch's global generator.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        sigma: float = 0.5,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.weight_sigma = nn.Parameter(torch.full((out_features, in_features), sigma * bound))
        self.bias: nn.Parameter | None = None
        self.bias_sigma: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features))
            self.bias_sigma = nn.Parameter(torch.full((out_features,), sigma * bound))
        for means in (self.weight, self.bias):
            if means is not None and not means.is_meta:
                nn.init.uniform_(means, -bound, bound, generator=generator)
        # Noise is drawn for each use, so it is no part of a checkpoint.
        self.register_buffer("noise_in", torch.zeros(in_features), persistent=False)
        self.register_buffer("noise_out", torch.zeros(out_features), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        noise = nn.functional.linear(x * self.noise_in, self.weight_sigma, self.bias_sigma)
        return nn.functional.linear(x, self.weight, self.bias) + self.noise_out * noise

    def drawn(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the ordinary layer that this one is with its present noise."""
        weight = self.weight + self.weight_sigma * torch.outer(self.noise_out, self.noise_in)
        if self.bias is None or self.bias_sigma is None:
            return weight, None
        return weight, self.bias + self.bias_sigma * self.noise_out


class ActionValues(ActingNetwork):
    """A network that estimates the value of each action; the best action has the highest output.

    Attributes:
        num_quantiles: N, of the return after each action; 0: its mean alone is estimated.
        channels_last: images are laid out as ``[B, H, W, C]`` in memory, which changes results by rounding alone; may
            be set at any time. Networks that always do so ignore it.
    """

    num_quantiles: int = 0
    channels_last: bool = False
    log_std: None = None
    _noisy: Sequence[NoisyLinear] = ()

    def forward(self, obs: Tensor) -> Tensor:
        """Values of actions, float [B, A], at observations [B, ...] or their rows [B, size]."""
        return mean_values(self.estimates(obs))

    def estimates(self, obs: Tensor) -> Tensor:
        """Values [B, A], or their quantiles [B, A, N]: what the network learns."""
        raise NotImplementedError

    def _combined(self, advantage: Tensor, value: Tensor | None) -> Tensor:
        """`estimates` from the outputs of branches, [B, A * N] and [B, N]; N = 1 without quantiles."""
        if self.num_quantiles:
            advantage = advantage.unflatten(-1, (self.num_actions, self.num_quantiles))
            value = None if value is None else value.unsqueeze(1)
        return advantage if value is None else value + advantage - advantage.mean(1, keepdim=True)

    def outputs(self, obs: Tensor) -> Tensor:
        values: Tensor = self(obs)
        return values

    def update_statistics(self, rows: Tensor) -> None:
        """Adds observations [B, obs_dim] to the running statistics that whiten them, if there are any."""

    def draw_noise(self, generator: torch.Generator) -> None:
        """New noise for all noisy layers, from a generator on the CPU."""
        noises = [noise for layer in self._noisy for noise in (layer.noise_in, layer.noise_out)]
        if not noises:
            return
        normal = torch.cat([torch.randn(noise.shape, generator=generator) for noise in noises])
        roots = (normal.sign() * normal.abs().sqrt()).to(noises[0].device, non_blocking=True)
        for noise, drawn in zip(noises, roots.split([len(noise) for noise in noises]), strict=True):
            noise.copy_(drawn)

    @torch.no_grad()
    def actor_tensors(self) -> list[Tensor]:
        """See `ActingNetwork.actor_tensors`; with the present noise."""
        weights = dict(self.state_dict())
        for name, layer in self.named_modules():
            if isinstance(layer, NoisyLinear):
                weights[f"{name}.weight"], bias = layer.drawn()
                if bias is not None:
                    weights[f"{name}.bias"] = bias
        return list(weights.values())

    def _drawn(self, layer: nn.Module, *, is_last: bool) -> tuple[Tensor, Tensor]:
        """Weight and bias of a layer as a compiled actor has them: with the present noise; of the last one the mean of
        the quantiles'."""
        assert isinstance(layer, NoisyLinear | Linear)
        weight, bias = layer.drawn() if isinstance(layer, NoisyLinear) else (layer.weight, layer.bias)
        assert bias is not None, "without batch normalisation layers have one"
        if self.num_quantiles and is_last:
            weight, bias = (each.unflatten(0, (self.num_actions, -1)).mean(1) for each in (weight, bias))
        return weight, bias

    def loaded_actor(self, actions: Actions, saved: Mapping[str, Any] | None = None) -> Actor:
        """See `ActingNetwork.loaded_actor`; ``epsilon`` says how often any action is drawn.

        Raises:
            ValueError: it is no share.
        """
        weights = np.zeros(self.actor_nbytes // 4, np.float32)
        self.actor_weights(weights)
        epsilon = (saved or {}).get("epsilon", 0.0)
        return EpsilonGreedyActor.with_weights(self.actor_spec(actions), self.num_actions, weights, epsilon)

    def clear_noise(self) -> None:
        """Noisy layers act by their mean weights from here on, until `draw_noise`."""
        for layer in self._noisy:
            layer.noise_in.zero_()
            layer.noise_out.zero_()

    def frozen_copy(self) -> Self:
        """A copy whose parameters need no gradients, in ``eval()`` mode: a target network."""
        return copy.deepcopy(self).requires_grad_(False).eval()

    @classmethod
    def from_state(cls, state: Mapping[str, Any], **options: Any) -> Self:
        """See `SavedNetwork.from_state`; in ``eval()`` mode and without noise."""
        return super().from_state(state, **options).eval()


def mean_values(estimates: Tensor) -> Tensor:
    """Values of actions [B, A] from `ActionValues.estimates`."""
    return estimates.mean(-1) if estimates.ndim == 3 else estimates


class QNetwork(ActionValues):
    """Values of all actions, for observations that are vectors or images.

    An image goes through convolutions first; then, as vectors do, through hidden layers, and one linear layer
    gives the values. ReLU follows each layer but the last. A dueling network (Wang et al., 2016, equation 9)
    has the last hidden layer twice, once for the value of the observation and once for the advantages of the
    actions: Q = V + A - mean(A). With quantiles (Dabney et al., "Distributional Reinforcement Learning with Quantile
    Regression", 2018) the last layers have N outputs in place of each one, and values are means of N.

    Weights are normal with variance 2 / fan_in (He et al., 2015), 1 / fan_in in the last layer, which no ReLU
    follows; biases are zero. Noisy layers have the weights of `NoisyLinear`.

    With ``batch_norm`` each layer but the last is followed by BatchNorm before its ReLU, and has no bias: it
    would be subtracted again. In ``train()`` mode that normalises by the batch and moves the running
    statistics, in ``eval()`` mode it uses these.

    Args:
        obs_shape: ``[D]``, or ``[C, H, W]`` for an image.
        num_actions: A.
        conv: convolutions of an image, each ``CHANNELSxKERNEL/STRIDE``; vectors have none.
        hidden: width of each hidden layer; may be empty.
        dueling: see above.
        noisy: the last hidden layer and the last layer are noisy, see `NoisyLinear`; layers before them are as the
            convolutions are.
        noisy_sigma: its ``sigma``.
        batch_norm: see above.
        quantiles: N; 0: none.
        obs_scale: observations are multiplied by this; 1/255 for pixels.
        generator: where the initial weights come from; None leaves them to torch's global generator.

    Raises:
        ValueError: the image is too small for the convolutions, or sizes make no sense.
    """

    kind = "q"

    def __init__(
        self,
        obs_shape: Sequence[int],
        num_actions: int,
        *,
        conv: Sequence[str] = (),
        hidden: Sequence[int] = (512,),
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = 0.5,
        batch_norm: bool = False,
        quantiles: int = 0,
        obs_scale: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if len(obs_shape) not in (1, 3):
            raise ValueError(f"obs_shape must be [D] or, for images, [C, H, W], got {list(obs_shape)}")
        if any(size < 1 for size in [*obs_shape, num_actions, *hidden]):
            raise ValueError(
                "num_actions and all sizes of obs_shape and hidden must be at least 1, got"
                f" {num_actions}, {list(obs_shape)} and {list(hidden)}"
            )
        if conv and len(obs_shape) == 1:
            raise ValueError(f"convolutions need images [C, H, W], got observations {list(obs_shape)}")
        self.obs_scale, self.num_actions, self.num_quantiles = obs_scale, num_actions, quantiles
        self._obs_shape, self.obs_dim = tuple(obs_shape), math.prod(obs_shape)

        def linear(size: int, width: int, noisy: bool, last: bool = False) -> nn.Module:
            bias = last or not batch_norm
            if noisy:
                return NoisyLinear(size, width, bias=bias, sigma=noisy_sigma, generator=generator)
            layer = Linear(size, width, bias)
            initialize(layer, 1.0 if last else math.sqrt(2), generator, "he")
            return layer

        def perceptron(sizes: Sequence[int], noisy: bool = noisy) -> nn.Sequential:
            layers: list[nn.Module] = []
            for size, width in itertools.pairwise(sizes):
                layers += [
                    linear(size, width, noisy),
                    *([nn.BatchNorm1d(width)] if batch_norm else []),
                    nn.ReLU(),
                ]
            return nn.Sequential(*layers)

        convolutions, features = _convolutions(obs_shape, conv, batch_norm, generator)
        shared = hidden[:-1] if dueling or noisy else hidden
        self.trunk = nn.Sequential(*convolutions, nn.Flatten(), *perceptron([features, *shared], False))
        features = [features, *shared][-1]
        head_widths = hidden[-1:] if dueling or noisy else ()
        width = [features, *head_widths][-1]
        outputs = max(quantiles, 1)
        self.advantage = perceptron([features, *head_widths]).append(
            linear(width, num_actions * outputs, noisy, last=True)
        )
        self.value = (
            perceptron([features, *head_widths]).append(linear(width, outputs, noisy, last=True))
            if dueling
            else None
        )
        self._noisy = [module for module in self.modules() if isinstance(module, NoisyLinear)]
        # Of a compiled actor: looking layers up by name would take as long as all else of `actor_weights`.
        self._acting = [
            each for each in (*self.trunk, *self.advantage) if isinstance(each, Linear | NoisyLinear)
        ]

    def estimates(self, obs: Tensor) -> Tensor:
        """Values of actions, float [B, A], or quantiles [B, A, N].

        Args:
            obs: ``[B, D]`` or ``[B, C, H, W]``, also as ``[B, C * H * W]``; of any dtype.
        """
        if obs.shape[1:] != self._obs_shape:
            obs = obs.flatten(1).unflatten(1, self._obs_shape)
        x = obs.float() if self.obs_scale == 1 else obs * self.obs_scale
        if self.channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        features = self.trunk(x)
        return self._combined(self.advantage(features), None if self.value is None else self.value(features))

    def takes(self, obs_rows: ObsRows) -> bool:
        shape = [obs_rows.size]
        if obs_rows.kind == "image":
            image = list(obs_rows.space.shape or ())
            shape = image if len(image) == 3 else [1, *image]
        return list(self._obs_shape) == shape

    def actor_architecture(self) -> dict[str, Any] | None:
        """See `ActingNetwork.actor_architecture`. The value of a dueling network, which is the same for all actions,
        is left out; the last layer is the mean of those of the quantiles."""
        architecture = self._architecture
        if len(self._obs_shape) != 1 or architecture["batch_norm"] or self.obs_dim > MAX_OBS_DIM:
            return None
        return {
            "kind": "discrete",
            "obs_dim": self.obs_dim,
            "outputs": self.num_actions,
            "hidden": architecture["hidden"],
            "activation": "relu",
            "obs_clip": None,
        }

    @torch.no_grad()
    def actor_tensors(self) -> list[Tensor]:
        if self.actor_architecture() is None:
            return super().actor_tensors()
        tensors, scale = list[Tensor](), self.obs_scale
        for layer in self._acting:
            weight, bias = self._drawn(layer, is_last=layer is self._acting[-1])
            # The actor takes observations as they are.
            tensors += [(weight if scale == 1 else weight * scale).t(), bias]
            scale = 1.0
        return tensors


def _convolutions(
    obs_shape: Sequence[int], conv: Sequence[str], batch_norm: bool, generator: torch.Generator | None
) -> tuple[list[nn.Module], int]:
    """The layers, and how many numbers come out of them."""
    layers: list[nn.Module] = []
    if len(obs_shape) == 1:
        return layers, obs_shape[0]
    channels, height, width = obs_shape
    for layer in conv:
        out, kernel, stride = parse_conv(layer)
        if kernel > min(height, width):
            raise ValueError(
                f"convolution {layer} has a kernel of {kernel}x{kernel}, but what reaches it is"
                f" {height}x{width} (observations are {list(obs_shape)}, channels first):"
                " set conv to smaller ones, such as 16x3/1"
            )
        layers.append(
            Convolution(channels, out, kernel, stride, 0, generator, bias=not batch_norm, init="he")
        )
        layers += [*([nn.BatchNorm2d(out)] if batch_norm else []), nn.ReLU()]
        channels, height, width = out, (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return layers, channels * height * width
