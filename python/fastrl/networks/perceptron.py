"""Multi-layer perceptrons."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn

from fastrl.networks.kinds import Init, PerceptronActivation

T = TypeVar("T")


def in_float32(function: Callable[..., T], features: Tensor, *others: Any) -> T:
    """``function(features, *others)`` in float32, within `torch.autocast`, too."""
    device = features.device.type
    if not torch.is_autocast_enabled(device):
        return function(features, *others)
    with torch.autocast(device, enabled=False):
        return function(features.float(), *others)


class Linear(nn.Module):
    """``nn.Linear`` without values, which otherwise come from torch's global generator. (``skip_init`` would do, but
    loads PyTorch's compiler, 50 MB.)"""

    def __init__(self, fan_in: int, fan_out: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(fan_out, fan_in))
        self.bias: nn.Parameter
        self.register_parameter("bias", nn.Parameter(torch.empty(fan_out)) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class OutputLayer(Linear):
    """The last layer of a policy or value function, in float32 within `torch.autocast`, too: rounded outputs would make
    ratios of probabilities wrong by per cents."""

    def forward(self, x: Tensor) -> Tensor:
        return in_float32(super().forward, x)


def initialize(
    layer: nn.Module, gain: float, generator: torch.Generator | None, init: Init = "orthogonal"
) -> None:
    """Draws the weights of a layer, and sets its biases, if it has some, to zero; does nothing to layers without memory
    (device "meta").

    Args:
        gain: of orthogonal weights, and of normal ones ("he").
    """
    weight, bias = layer.get_parameter("weight"), getattr(layer, "bias", None)
    if weight.is_meta:
        return
    if init == "orthogonal":
        nn.init.orthogonal_(weight, gain, generator=generator)
    elif init == "he":
        nn.init.kaiming_normal_(weight, nonlinearity="linear" if gain == 1 else "relu", generator=generator)
    else:
        nn.init.xavier_uniform_(weight, generator=generator)
    if bias is not None:
        nn.init.zeros_(bias)


class Perceptron(nn.ModuleList):
    """The linear layers of a multi-layer perceptron, initialised by name, with dropout by masks that the caller draws.

    Hidden weights are initialised ``orthogonal`` with gain sqrt(2) (Huang et al., 2022, detail 2), ``he`` (normal,
    He et al., 2015, fan in) or ``xavier`` (uniform, Glorot and Bengio, 2010); the last layer's are orthogonal with
    ``last_gain`` in every case, for its scale decides how random a fresh policy is. Biases are 0.

    Args:
        sizes: widths from input to output.
        activation: after each hidden layer. On CPUs ReLU is many times cheaper than the others.
        init: see above.
        last_gain: of the last layer.
        generator: where the initial weights come from; None: torch's global generator.
        last_inputs: width of the last layer's input, if another network stands before it; None: as the layer before.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: PerceptronActivation,
        init: Init,
        last_gain: float,
        generator: torch.Generator | None,
        last_inputs: int | None = None,
    ) -> None:
        super().__init__()
        if any(size < 1 for size in sizes):
            raise ValueError(f"every width of a network must be at least 1, got {list(sizes)}")
        if activation not in get_args(PerceptronActivation):
            raise ValueError(
                f"activation should be one of {get_args(PerceptronActivation)}, got {activation!r}"
            )
        self.activation = activation
        self.sizes, self.hidden = tuple(sizes), tuple(sizes[1:-1])
        for fan_in, fan_out in itertools.pairwise(sizes[:-1]):
            linear = Linear(fan_in, fan_out)
            initialize(linear, math.sqrt(2), generator, init)
            self.append(linear)
        last = OutputLayer(last_inputs or sizes[-2], sizes[-1])
        initialize(last, last_gain, generator)
        self.append(last)

    def forward(self, x: Tensor, drops: Sequence[Tensor] = ()) -> Tensor:
        """Outputs float [B, sizes[-1]] of inputs float [B, sizes[0]]; ``drops`` as of `features`."""
        outputs: Tensor = self[-1](self.features(x, drops))
        return outputs

    def features(self, x: Tensor, drops: Sequence[Tensor] = ()) -> Tensor:
        """Outputs of the last hidden layer.

        Args:
            drops: what each hidden layer's outputs are multiplied by, as `dropout_masks` draws them; empty: nothing.
        """
        activate = {"relu": torch.relu, "tanh": torch.tanh, "elu": nn.functional.elu}[self.activation]
        for i, layer in enumerate(itertools.islice(self, len(self.hidden))):
            x = activate(layer(x))
            if drops:
                x = x * drops[i]
        return x

    def dropout_masks(self, rows: int, rate: float, generator: torch.Generator) -> list[Tensor]:
        """Masks of the hidden layers, float32 [rows, width] each: 0 with probability ``rate``, else 1 / (1 - rate)."""
        return [
            torch.rand((rows, width), generator=generator).ge_(rate).div_(1 - rate) for width in self.hidden
        ]
