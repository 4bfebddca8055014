"""SimBaV2: Lee et al., "Hyperspherical Normalization for Scalable Deep Reinforcement Learning", 2025.

Weights of linear layers and features have the norm 1; scalers, which are learned, give features their sizes.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fastrl.networks.ensemble import EnsembleLinear
from fastrl.networks.simba import EXPANSION

# The coordinate that is appended to inputs before they are brought to the norm 1, so that their sizes are not lost.
_SHIFT = 3.0

# Bound of the scaled returns, and the number of atoms of a critic from minus to plus that.
MAX_RETURN = 5.0
NUM_ATOMS = 101


class Scaler(nn.Module):
    """Multiplies features [E, B, width] by a vector of each network, at first ``initial``.

    Args:
        scale: of the parameters; the larger it is, the slower the vector changes.
    """

    def __init__(self, count: int, width: int, initial: float, scale: float) -> None:
        super().__init__()
        self.scaler = nn.Parameter(torch.full((count, 1, width), scale))
        self._factor = initial / scale

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.scaler * self._factor)


class LerpBlock(nn.Module):
    """Moves features x on the sphere towards those of a perceptron: norm(x + alpha (norm(MLP(x)) - x)).

    Args:
        num_blocks: of the network.
    """

    def __init__(self, count: int, width: int, num_blocks: int, generator: torch.Generator | None) -> None:
        super().__init__()
        inner, size = EXPANSION * width, math.sqrt(2 / (EXPANSION * width))
        self.widen = EnsembleLinear(count, width, inner, generator, bias=False)
        self.scaler = Scaler(count, inner, size, size)
        self.narrow = EnsembleLinear(count, inner, width, generator, bias=False)
        self.alpha = Scaler(count, width, 1 / (num_blocks + 1), 1 / math.sqrt(width))

    def forward(self, x: Tensor) -> Tensor:
        changed = functional.normalize(self.narrow(self.scaler(self.widen(x)).relu()), dim=-1)
        return functional.normalize(x + self.alpha(changed - x), dim=-1)


class Head(nn.Module):
    """W_2 (s * (W_1 x)) + b."""

    def __init__(self, count: int, width: int, outputs: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.first = EnsembleLinear(count, width, width, generator, bias=False)
        self.scaler = Scaler(count, width, 1.0, 1.0)
        self.last = EnsembleLinear(count, width, outputs, generator, bias=False)
        self.bias = nn.Parameter(torch.zeros(count, 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.scaler(self.first(x))) + self.bias
        return outputs


class SimbaV2(nn.Module):
    """E networks of the same sizes: inputs and a constant on the unit sphere, a linear embedding, blocks, and heads.

    Args:
        heads: parts of equal size that the outputs have, each with two layers of its own.
        count, sizes, generator: as of `fastrl.networks.simba.Simba`.
    """

    def __init__(
        self, count: int, sizes: Sequence[int], *, heads: int = 1, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.count, self.sizes = count, tuple(sizes)
        inputs, *widths, outputs = sizes
        width, size = widths[0], math.sqrt(2 / widths[0])
        self.embedding = EnsembleLinear(count, inputs + 1, width, generator, bias=False)
        self.scaler = Scaler(count, width, size, size)
        self.blocks = nn.Sequential(*(LerpBlock(count, width, len(widths), generator) for _ in widths))
        self.heads = nn.ModuleList(Head(count, width, outputs // heads, generator) for _ in range(heads))
        self.normalize_weights()

    def forward(self, x: Tensor) -> Tensor:
        """Outputs float32 [E, B, outputs] of inputs float32 [B, inputs], which all networks get."""
        x = functional.normalize(functional.pad(x, (0, 1), value=_SHIFT), dim=-1).expand(self.count, -1, -1)
        x = self.blocks(functional.normalize(self.scaler(self.embedding(x)), dim=-1))
        return torch.cat([head(x) for head in self.heads], -1)

    @torch.no_grad()
    def normalize_weights(self) -> None:
        """Brings the weights of each unit of the linear layers to the norm 1, as after each gradient step."""
        for layer in self.modules():
            if isinstance(layer, EnsembleLinear):
                layer.weight.copy_(functional.normalize(layer.weight, dim=1))
