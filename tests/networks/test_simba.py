"""SimBa's networks against plain numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fastrl.networks.simba import Simba, with_bounded_deviations
from fastrl.networks.simba_v2 import SimbaV2

Array = NDArray[np.float64]
GENERATOR = torch.Generator().manual_seed(0)


def stirred(network: Any) -> tuple[Any, list[dict[str, Array]]]:
    """A network with random biases and scales, and the parameters of each of its members."""
    with torch.no_grad():
        for each in network.parameters():
            each.add_(0.1 * torch.randn(each.shape, generator=GENERATOR))
    state = {name: each.double().numpy() for name, each in network.state_dict().items()}
    return network, [{name: array[i] for name, array in state.items()} for i in range(network.count)]


def layer_norm(x: Array, member: dict[str, Array], name: str) -> Array:
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    return x * member[f"{name}.scale"] + member[f"{name}.shift"]


def linear(x: Array, member: dict[str, Array], name: str) -> Array:
    return x @ member[f"{name}.weight"] + member.get(f"{name}.bias", 0)


def unit(x: Array, axis: int = 1) -> Array:
    return x / np.linalg.norm(x, axis=axis, keepdims=True)


def test_simba_is_that_of_plain_code() -> None:
    network, members = stirred(Simba(3, (5, 8, 8, 2), generator=GENERATOR))
    obs = np.random.default_rng(0).normal(size=(7, 5))
    with torch.no_grad():
        outputs = network(torch.from_numpy(obs.astype(np.float32)))
    for member, found in zip(members, outputs, strict=True):
        x = linear(obs, member, "embedding")
        for block in ("blocks.0", "blocks.1"):
            wide = linear(layer_norm(x, member, f"{block}.norm"), member, f"{block}.widen")
            assert wide.shape == (7, 4 * 8)
            x = x + linear(np.maximum(wide, 0), member, f"{block}.narrow")
        np.testing.assert_allclose(found, linear(layer_norm(x, member, "norm"), member, "head"), atol=1e-5)


@pytest.mark.parametrize("heads", [1, 2])
def test_simba_v2_is_that_of_plain_code(heads: int) -> None:
    network, members = stirred(SimbaV2(2, (5, 8, 8, 6), heads=heads, generator=GENERATOR))
    obs = np.random.default_rng(0).normal(size=(7, 5)) * 3
    with torch.no_grad():
        outputs = network(torch.from_numpy(obs.astype(np.float32)))
    for member, found in zip(members, outputs, strict=True):
        x = unit(np.concatenate([obs, np.full((7, 1), 3.0)], 1)) @ member["embedding.weight"]
        # Scalers start at the root of 2 / width, and are multiplied by 1.
        x = unit(x * member["scaler.scaler"])
        for block in ("blocks.0", "blocks.1"):
            wide = (x @ member[f"{block}.widen.weight"]) * member[f"{block}.scaler.scaler"]
            changed = unit(np.maximum(wide, 0) @ member[f"{block}.narrow.weight"])
            alpha = member[f"{block}.alpha.scaler"] * (1 / 3) * math.sqrt(8)
            x = unit((1 - alpha) * x + alpha * changed)
        parts = []
        for i in range(heads):
            inner = (x @ member[f"heads.{i}.first.weight"]) * member[f"heads.{i}.scaler.scaler"]
            parts.append(inner @ member[f"heads.{i}.last.weight"] + member[f"heads.{i}.bias"])
        np.testing.assert_allclose(found, np.concatenate(parts, 1), atol=1e-5)


def test_effective_scales_and_weights_of_simba_v2_at_first() -> None:
    network = SimbaV2(2, (5, 8, 6), generator=GENERATOR)
    x = torch.ones(2, 1, 8)
    for scaler, initial in ((network.scaler, math.sqrt(2 / 8)), (network.blocks[0].alpha, 1 / 2)):
        torch.testing.assert_close(scaler(x), torch.full_like(x, initial))
    for name, each in network.named_parameters():
        if name.endswith("weight"):
            torch.testing.assert_close(each.norm(dim=1), torch.ones(2, each.shape[2]))


def test_deviations_stay_in_their_range_and_means_as_they_are() -> None:
    outputs = torch.tensor([[1.5, -7.0, 0.0, 9.0], [0.0, 4.0, -9.0, 0.5]])
    expected = [[1.5, -7.0, -4.0, 2.0], [0.0, 4.0, -10.0, -4 + 6 * math.tanh(0.5)]]
    torch.testing.assert_close(with_bounded_deviations(outputs), torch.tensor(expected), atol=1e-5, rtol=0)
