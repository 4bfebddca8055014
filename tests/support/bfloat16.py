"""Networks in float64 that round to bfloat16 where compiled gradient steps in bf16 do."""

import functools
from typing import Any

import torch
from torch import Tensor

from fastrl.networks.perceptron import Perceptron


class RoundedProduct(torch.autograd.Function):
    """A product in float64 whose factors are rounded to bfloat16, and those of its gradients, but for `x` in the first
    layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, is_first: bool) -> Tensor:
        ctx.is_first = is_first
        ctx.save_for_backward(x, weight)
        return rounded(x) @ rounded(weight)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        of_x = slope @ weight.mT if ctx.is_first else rounded(slope) @ rounded(weight).mT
        return of_x, rounded(x).mT @ rounded(slope), None


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def round_hidden_layers(body: Perceptron) -> None:
    """Makes the hidden layers of a perceptron multiply rounded numbers."""
    for i in range(len(body.hidden)):
        body[i].forward = functools.partial(_linear, body[i], i == 0)


def _linear(layer: Any, is_first: bool, x: Tensor) -> Tensor:
    found: Tensor = RoundedProduct.apply(x, layer.weight.mT, is_first)
    return found + layer.bias
