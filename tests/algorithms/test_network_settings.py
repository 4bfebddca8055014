"""Tests of the networks that settings ask for."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from fastrl.algorithms.network_settings import NetworkConfig
from fastrl.algorithms.policy_learner import make_network
from fastrl.envs.rows import ObsRows
from fastrl.networks.action_space import Actions

VECTOR = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
IMAGE = gymnasium.spaces.Box(0, 255, (3, 40, 40), np.uint8)


def weights(space: gymnasium.Space[Any], seed: int = 0, **settings: Any) -> dict[str, torch.Tensor]:
    network = make_network(
        NetworkConfig(hidden=(32, 16), **settings),
        ObsRows(space),
        Actions(gymnasium.spaces.Box(-1, 1, (2,), np.float32)),
        normalize_obs=False,
        generator=torch.Generator().manual_seed(seed),
    )
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


@pytest.mark.parametrize("space", [VECTOR, IMAGE], ids=["vector", "image"])
def test_uniform_weights_reach_their_bounds_and_follow_from_the_generator(
    space: gymnasium.Space[Any],
) -> None:
    drawn, again = (weights(space, orthogonal_init=False) for _ in range(2))
    other, orthogonal = weights(space, 1, orthogonal_init=False), weights(space)
    for name, weight in drawn.items():
        assert torch.equal(weight, again[name])
        if weight.dim() < 2:
            continue
        bound = weight[0].numel() ** -0.5
        assert weight.abs().max() <= bound
        assert weight.abs().max() > 0.7 * bound
        assert not torch.equal(weight, other[name])
        assert not torch.equal(weight, orthogonal[name])
        bias = drawn[name.removesuffix("weight") + "bias"]
        assert (bias != 0).all()
        assert bias.abs().max() <= bound


def test_layer_norm_and_deviations_keep_their_initial_values() -> None:
    drawn, orthogonal = (
        weights(VECTOR, layer_norm=True, initial_log_std=-2.0, orthogonal_init=init) for init in (False, True)
    )
    kept = [
        name for name, weight in drawn.items() if weight.dim() < 2 and torch.equal(weight, orthogonal[name])
    ]
    assert "log_std" in kept
    assert len(kept) >= 5  # the log-deviation, and scale and shift of two layers' normalisation at least
