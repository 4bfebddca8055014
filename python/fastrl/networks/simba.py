"""SimBa: Lee et al., "SimBa: Simplicity Bias for Scaling Up Parameters in Deep Reinforcement Learning", 2024."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fastrl.networks.ensemble import EnsembleLinear

# Of the inner width of a block, the inverted bottleneck.
EXPANSION = 4

# Logarithms of a policy's deviations, of both versions of SimBa.
_LOG_STD_RANGE = (-10.0, 2.0)


class LayerNorm(nn.Module):
    """Layer normalisation of each of E networks, with ``scale`` and ``shift`` [E, 1, width]."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(count, 1, width))
        self.shift = nn.Parameter(torch.zeros(count, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [E, B, width] of inputs [E, B, width]."""
        return torch.addcmul(self.shift, functional.layer_norm(x, (self.scale.shape[-1],)), self.scale)


class ResidualBlock(nn.Module):
    """x + MLP(LayerNorm(x)), equation 4, whose hidden layer is four times as wide and has ReLU."""

    def __init__(self, count: int, width: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.norm = LayerNorm(count, width)
        self.widen = EnsembleLinear(count, width, EXPANSION * width, generator, "he")
        self.narrow = EnsembleLinear(count, EXPANSION * width, width, generator, "he")

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.narrow(self.widen(self.norm(x)).relu())
        return x + changed


class Simba(nn.Module):
    """E residual networks of the same sizes: a linear embedding, pre-layer-norm residual blocks, a final layer norm and
    a linear head. Their inputs are whitened elsewhere.

    Args:
        sizes: inputs, the width of each block, which all have the same, and outputs.
        count, generator: as of `fastrl.networks.ensemble.Ensemble`.
    """

    def __init__(self, count: int, sizes: Sequence[int], *, generator: torch.Generator | None) -> None:
        super().__init__()
        self.count, self.sizes = count, tuple(sizes)
        inputs, width, *_, outputs = sizes
        self.embedding = EnsembleLinear(count, inputs, width, generator)
        self.blocks = nn.Sequential(*(ResidualBlock(count, width, generator) for _ in sizes[1:-1]))
        self.norm = LayerNorm(count, width)
        self.head = EnsembleLinear(count, width, outputs, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs float32 [E, B, outputs] of inputs float32 [B, inputs], which all networks get."""
        x = x.expand(self.count, -1, -1)
        outputs: Tensor = self.head(self.norm(self.blocks(self.embedding(x))))
        return outputs


def with_bounded_deviations(outputs: Tensor) -> Tensor:
    """Outputs of a Gaussian policy [B, 2 n], means and logarithms of deviations; these are brought into their range by
    tanh."""
    means, log_stds = outputs.chunk(2, -1)
    low, high = _LOG_STD_RANGE
    return torch.cat([means, low + (high - low) / 2 * (1 + log_stds.tanh())], -1)
