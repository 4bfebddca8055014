"""Perceptrons of the same sizes, computed side by side."""

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fastrl.networks.batch_renorm import BatchRenorm

_EPSILON = 1e-5


class Ensemble(nn.Module):
    """E perceptrons with ReLU, one batched matrix product a layer.

    Parameters are ``weight_0`` [E, inputs, outputs], ``bias_0`` [E, 1, outputs], with layer normalisation ``scale_0``
    and ``shift_0`` [E, 1, outputs], then those of the next layer; those of the modules ``renorm_0``, ... are last.
    Initial weights and biases are uniform within 1 / sqrt(inputs), as PyTorch's linear layers are by default.

    Args:
        count: E.
        sizes: widths from input to output.
        layer_norm: normalise the inputs of the activations.
        batch_renorm: renormalise the inputs of each layer by the statistics of batches, see `BatchRenorm`. They are
            learned in ``train()`` mode; a new ensemble is in ``eval()`` mode.
        generator: where the initial weights come from; None: torch's global generator.

    Attributes:
        linear: weight and bias of each layer.
        renorms: batch renormalisation before each layer; or none.
        half_type: type of the hidden layers' matrix products; None: float32. The last layer is always float32.
    """

    def __init__(
        self,
        count: int,
        sizes: Sequence[int],
        *,
        layer_norm: bool = False,
        batch_renorm: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.count, self.sizes, self.layer_norm = count, tuple(sizes), layer_norm
        self.half_type: torch.dtype | None = None
        if count < 1 or any(size < 1 for size in sizes):
            raise ValueError(
                f"an ensemble has at least one network and widths of at least 1, got {count} of {list(sizes)}"
            )
        # Parameters of each layer: looking them up by name would take a twentieth of a gradient step.
        self.linear: list[list[Tensor]] = []
        self._norm: list[list[nn.Parameter]] = []
        for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            bound = 1 / math.sqrt(fan_in)
            for name, rows in (("weight", fan_in), ("bias", 1)):
                values = torch.empty(count, rows, fan_out)
                if not values.is_meta:
                    values.uniform_(-bound, bound, generator=generator)
                self.register_parameter(f"{name}_{i}", nn.Parameter(values))
            self.linear.append([self.get_parameter(f"{name}_{i}") for name in ("weight", "bias")])
            if layer_norm and i < len(sizes) - 2:
                self.register_parameter(f"scale_{i}", nn.Parameter(torch.ones(count, 1, fan_out)))
                self.register_parameter(f"shift_{i}", nn.Parameter(torch.zeros(count, 1, fan_out)))
                self._norm.append([self.get_parameter(f"{name}_{i}") for name in ("scale", "shift")])
        self.renorms = [BatchRenorm(count, fan_in) for fan_in in sizes[:-1]] if batch_renorm else []
        for i, renorm in enumerate(self.renorms):
            self.add_module(f"renorm_{i}", renorm)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Outputs float32 [E, B, outputs] of inputs float32 [B, inputs], which all networks get."""
        x = x.expand(self.count, *x.shape)
        for i, (weight, bias) in enumerate(self.linear[:-1]):
            x = self._renormed(i, x)
            if self.half_type is not None:
                x, weight, bias = x.to(self.half_type), weight.to(self.half_type), bias.to(self.half_type)
            x = affine(x, weight, bias)
            if self.layer_norm:
                scale, shift = self._norm[i]
                x = torch.addcmul(shift, functional.layer_norm(x.float(), x.shape[-1:], eps=_EPSILON), scale)
            x = x.relu() if torch.is_grad_enabled() else x.relu_()
        weight, bias = self.linear[-1]
        return affine(self._renormed(-1, x.float()), weight, bias)

    def _renormed(self, layer: int, x: Tensor) -> Tensor:
        return self.renorms[layer](x.float()) if self.renorms else x

    @torch.no_grad()
    def acting_layers(self) -> list[list[Tensor]]:
        """Weight and bias of each layer as the networks compute in ``eval()`` mode: batch renormalisation, which is
        affine then, is part of them. (Layer normalisation is not.)"""
        if not self.renorms:
            return self.linear
        layers = []
        for renorm, (weight, bias) in zip(self.renorms, self.linear, strict=True):
            factor, offset = renorm.affine()
            layers.append([factor.transpose(1, 2) * weight, torch.baddbmm(bias, offset, weight)])
        return layers


class EnsembleLinear(nn.Module):
    """A linear layer of each of E networks: ``weight`` [E, inputs, outputs], and ``bias`` [E, 1, outputs] of zeros.

    Args:
        init: orthogonal with gain 1, or normal of He et al. (2015).
        bias: there is one.
        count, generator: as of `Ensemble`.
    """

    def __init__(
        self,
        count: int,
        fan_in: int,
        fan_out: int,
        generator: torch.Generator | None,
        init: Literal["orthogonal", "he"] = "orthogonal",
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, fan_in, fan_out))
        self.bias = nn.Parameter(torch.zeros(count, 1, fan_out)) if bias else None
        for weight in () if self.weight.is_meta else self.weight.detach():
            if init == "orthogonal":
                nn.init.orthogonal_(weight.t(), generator=generator)
            else:
                nn.init.kaiming_normal_(weight.t(), nonlinearity="relu", generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [E, B, outputs] of inputs [E, B, inputs]."""
        return torch.bmm(x, self.weight) if self.bias is None else affine(x, self.weight, self.bias)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x @ weight + bias`` of each network of an ensemble, [E, B, outputs] of [E, B, inputs]."""
    if weight.shape[2] == 1:
        # Matrix routines are slow with one output.
        return (x * weight.transpose(1, 2)).sum(-1, keepdim=True) + bias
    return torch.baddbmm(bias, x, weight)
