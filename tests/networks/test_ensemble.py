"""Ensembles of perceptrons against plain code."""

import pytest
import torch
from torch.nn import functional

from fastrl.networks.ensemble import Ensemble


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("sizes", [(5, 3), (5, 8, 3), (5, 8, 6, 1)])
@pytest.mark.parametrize("count", [1, 3])
def test_each_network_is_a_perceptron(count: int, sizes: tuple[int, ...], layer_norm: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    body = Ensemble(count, sizes, layer_norm=layer_norm, generator=generator)
    with torch.no_grad():
        for parameter in body.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    x = torch.randn(7, sizes[0], generator=generator)
    for member in range(count):
        own = {name: each[member] for name, each in body.named_parameters()}
        expected, last = x, len(sizes) - 2
        for i in range(last + 1):
            expected = expected @ own[f"weight_{i}"] + own[f"bias_{i}"]
            if i < last and layer_norm:
                expected = functional.layer_norm(expected, expected.shape[-1:])
                expected = expected * own[f"scale_{i}"] + own[f"shift_{i}"]
            expected = expected.relu() if i < last else expected
        torch.testing.assert_close(body(x)[member], expected)
        with torch.no_grad():
            torch.testing.assert_close(body(x)[member], expected)


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
    x = torch.randn(200, 4, generator=generator).requires_grad_()
    found = []
    for half in (None, torch.bfloat16):
        body.half_type = half
        outputs = body(x)
        gradients = torch.autograd.grad(outputs.sum(), [x, *body.parameters()])
        assert outputs.dtype == torch.float32 and all(each.dtype == torch.float32 for each in gradients)
        found.append([outputs, *gradients])
    for i, (exact, rounded) in enumerate(zip(*found, strict=True)):
        # Rounding turns some units on or off, which a row's gradient shows most.
        assert (exact - rounded).norm() < (0.1 if i == 1 else 0.03) * exact.norm() + 1e-6


@pytest.mark.parametrize(("count", "sizes"), [(0, (2, 2)), (1, (2, 0, 1))])
def test_sizes_below_one_are_refused(count: int, sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one network and widths of at least 1"):
        Ensemble(count, sizes)
