"""Gradients of ensembles of perceptrons against autograd."""

import pytest
import torch

from fastrl.networks.ensemble import Ensemble, EnsembleTrace
from fastrl.networks.parameters import flatten_parameters


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("sizes", [(5, 3), (5, 8, 3), (5, 8, 6, 1)])
@pytest.mark.parametrize("count", [1, 3])
def test_gradients_are_those_of_autograd(count: int, sizes: tuple[int, ...], layer_norm: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    body = Ensemble(count, sizes, layer_norm=layer_norm, generator=generator)
    vector = flatten_parameters(body)
    with torch.no_grad():
        vector.add_(0.1 * torch.randn(vector.shape, generator=generator))
    x = torch.randn(7, sizes[0], generator=generator)
    out_gradient = torch.randn(count, 7, sizes[-1], generator=generator)
    parameters = list(body.parameters())
    leaf = x.clone().requires_grad_(True)
    expected = torch.autograd.grad(body(leaf), [leaf, *parameters], out_gradient)
    trace = EnsembleTrace()
    with torch.no_grad():
        outputs = body(x, trace)
    torch.testing.assert_close(outputs, body(x).detach())
    found = trace.backpropagate(out_gradient, inputs=slice(1, 4))
    assert found is not None
    torch.testing.assert_close(found, expected[0][:, 1:4])
    for parameter, gradient in zip(parameters, expected[1:], strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)
    # Gradients of inputs alone leave those of parameters as they are.
    assert vector.grad is not None
    before = vector.grad.clone()
    trace.backpropagate(out_gradient, parameters=False)
    assert torch.equal(vector.grad, before)


def test_networks_of_an_ensemble_are_independent() -> None:
    generator = torch.Generator().manual_seed(0)
    body = Ensemble(2, (4, 6, 2), generator=generator)
    x = torch.randn(3, 4)
    outputs = body(x)
    alone = Ensemble(1, (4, 6, 2), generator=generator)
    with torch.no_grad():
        for own, both in zip(alone.parameters(), body.parameters(), strict=True):
            own.copy_(both[1:])
    torch.testing.assert_close(alone(x)[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[1])


def test_half_precision_rounds_and_keeps_outputs_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    body = Ensemble(2, (4, 32, 32, 1), generator=generator)
    flatten_parameters(body)
    x, gradient = torch.randn(200, 4, generator=generator), torch.ones(2, 200, 1)
    found = []
    for half in (None, torch.bfloat16):
        body.half_type = half
        trace = EnsembleTrace()
        with torch.no_grad():
            outputs = body(x, trace)
        for parameter in body.parameters():
            parameter.grad.zero_()  # type: ignore[union-attr]
        inputs = trace.backpropagate(gradient, inputs=slice(0, 4))
        assert inputs is not None and outputs.dtype == inputs.dtype == torch.float32
        found.append([outputs, inputs, *(p.grad.clone() for p in body.parameters())])  # type: ignore[union-attr]
    for i, (exact, rounded) in enumerate(zip(*found, strict=True)):
        # Rounding turns some units on or off, which a row's gradient shows most.
        assert (exact - rounded).norm() < (0.1 if i == 1 else 0.03) * exact.norm() + 1e-6


@pytest.mark.parametrize(("count", "sizes"), [(0, (2, 2)), (1, (2, 0, 1))])
def test_sizes_below_one_are_refused(count: int, sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one network and widths of at least 1"):
        Ensemble(count, sizes)
