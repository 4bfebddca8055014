"""Perceptrons of the same sizes, computed side by side, whose backpropagation is spelled out."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

_EPSILON = 1e-5


class Ensemble(nn.Module):
    """E perceptrons with ReLU, one batched matrix product a layer.

    Parameters are ``weight_0`` [E, inputs, outputs], ``bias_0`` [E, 1, outputs], with layer normalisation ``scale_0``
    and ``shift_0`` [E, 1, outputs], then those of the next layer. Initial weights and biases are uniform within
    1 / sqrt(inputs), as PyTorch's linear layers are by default.

    Args:
        count: E.
        sizes: widths from input to output.
        layer_norm: normalise the inputs of the activations.
        generator: where the initial weights come from; None: torch's global generator.

    Attributes:
        half_type: type of the hidden layers' matrix products; None: float32. The last layer is always float32.
    """

    def __init__(
        self,
        count: int,
        sizes: Sequence[int],
        *,
        layer_norm: bool = False,
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
        self._linear: list[list[nn.Parameter]] = []
        self._norm: list[list[nn.Parameter]] = []
        for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            bound = 1 / math.sqrt(fan_in)
            for name, rows in (("weight", fan_in), ("bias", 1)):
                values = torch.empty(count, rows, fan_out)
                if not values.is_meta:
                    values.uniform_(-bound, bound, generator=generator)
                self.register_parameter(f"{name}_{i}", nn.Parameter(values))
            self._linear.append([self.get_parameter(f"{name}_{i}") for name in ("weight", "bias")])
            if layer_norm and i < len(sizes) - 2:
                self.register_parameter(f"scale_{i}", nn.Parameter(torch.ones(count, 1, fan_out)))
                self.register_parameter(f"shift_{i}", nn.Parameter(torch.zeros(count, 1, fan_out)))
                self._norm.append([self.get_parameter(f"{name}_{i}") for name in ("scale", "shift")])

    @property
    def num_layers(self) -> int:
        return len(self.sizes) - 1

    def forward(self, x: Tensor, trace: "EnsembleTrace | None" = None) -> Tensor:
        """Outputs float32 [E, B, outputs] of inputs float32 [B, inputs], which all networks get.

        Args:
            trace: records what `EnsembleTrace.backpropagate` needs; None: for outputs alone, or for autograd.
        """
        x = x.expand(self.count, *x.shape)
        last = self.num_layers - 1
        if trace is not None:
            trace.body = self
        for i in range(self.num_layers):
            weight: Tensor
            bias: Tensor
            weight, bias = self._linear[i]
            if self.half_type is not None and i < last:
                x, weight, bias = x.to(self.half_type), weight.to(self.half_type), bias.to(self.half_type)
            elif x.dtype != torch.float32:
                x = x.float()
            if trace is not None:
                trace.inputs.append(x)
                trace.weights.append(weight)
            if weight.shape[2] == 1:
                # Matrix routines are slow with one output.
                x = (x * weight.transpose(1, 2)).sum(-1, keepdim=True) + bias
            else:
                x = torch.baddbmm(bias, x, weight)
            if i == last:
                return x
            if self.layer_norm:
                normal, _, spread = torch.native_layer_norm(x.float(), [x.shape[-1]], None, None, _EPSILON)
                scale, shift = self._norm[i]
                x = torch.addcmul(shift, normal, scale)
                if trace is not None:
                    trace.normal.append((normal, spread))
            x = x.relu_() if trace is not None or not torch.is_grad_enabled() else x.relu()
        raise AssertionError("an ensemble has a layer")


class EnsembleTrace:
    """Record of a pass through an `Ensemble`, for gradients of its parameters and inputs."""

    body: Ensemble

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []  # of each layer, [E, B, inputs]
        self.weights: list[Tensor] = []  # of each layer, in the type that it was computed with
        self.normal: list[
            tuple[Tensor, Tensor]
        ] = []  # of each hidden layer: normalised values, 1 / deviation

    @torch.no_grad()
    def backpropagate(
        self, gradient: Tensor, *, parameters: bool = True, inputs: slice | None = None
    ) -> Tensor | None:
        """Adds gradients to those of the parameters, which must have some (zeros at first).

        Args:
            gradient: of the outputs, float32 [E, B, outputs].
            parameters: False: leaves the gradients of the parameters as they are.
            inputs: columns of the inputs whose gradient is asked for.

        Returns:
            The gradient of these columns, summed over the networks, float32 [B, columns]; None if not asked for.
        """
        body = self.body
        for i in reversed(range(body.num_layers)):
            x, weight = self.inputs[i], self.weights[i]
            if gradient.dtype != weight.dtype:
                gradient = gradient.to(weight.dtype)
            if parameters:
                of_weight, of_bias = body._linear[i]
                _add_product(of_weight, x.transpose(1, 2), gradient)
                _add(of_bias, gradient.sum(1, keepdim=True))
            if i == 0:
                break
            backwards = weight.transpose(1, 2)
            gradient = gradient * backwards if weight.shape[2] == 1 else torch.bmm(gradient, backwards)
            gradient = torch.ops.aten.threshold_backward(gradient, x, 0)
            if body.layer_norm:
                gradient = self._through_norm(i - 1, gradient.float(), parameters)
        if inputs is None:
            return None
        if body.count == 1:
            return (gradient[0] @ weight[0, inputs].T).float()
        return torch.bmm(gradient, weight[:, inputs].transpose(1, 2)).float().sum(0)

    def _through_norm(self, i: int, gradient: Tensor, parameters: bool) -> Tensor:
        normal, spread = self.normal[i]
        scale, shift = self.body._norm[i]
        if parameters:
            _add(scale, (gradient * normal).sum(1, keepdim=True))
            _add(shift, gradient.sum(1, keepdim=True))
        gradient = gradient * scale
        along = (gradient * normal).mean(-1, keepdim=True)
        return (gradient - gradient.mean(-1, keepdim=True) - normal * along) * spread


def _add_product(parameter: nn.Parameter, left: Tensor, right: Tensor) -> None:
    assert parameter.grad is not None
    if right.shape[2] == 1:
        parameter.grad.add_((left.transpose(1, 2) * right).sum(1).unsqueeze(-1))
    elif left.dtype == torch.float32:
        parameter.grad.baddbmm_(left, right)
    else:
        parameter.grad.add_(torch.bmm(left, right))


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.add_(gradient)
