"""Compiled actors of policies whose encoder pools over the rows of a table, against PyTorch."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from compiled_actors import assert_acts_as_pytorch, perturb
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl._native._rust import Mlp
from fastrl.envs.rows import ObsRows
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import MAX_TABLE_ROWS, MlpActor
from fastrl.networks.epsilon_greedy import EpsilonGreedyActor
from fastrl.networks.multi_agent import PolicyNetwork
from fastrl.networks.normalized_q import NormalizedQ
from fastrl.networks.policy_network import EncodedPolicy
from fastrl.networks.torch_actor import TorchActor

SPACES = {
    "discrete": Discrete(7),
    "multi_discrete": MultiDiscrete([3, 4]),
    "box": Box(-1, 1, (7,), np.float32),
}


def observations(rows: int, width: int, beside: int = 0) -> dict[str, Any]:
    """`ObsRows.state` of a table, perhaps with numbers beside it."""
    table = Box(-np.inf, np.inf, (rows, width), np.float32)
    space = table if not beside else Dict({"a table": table, "more": Box(-1, 1, (beside,), np.float32)})
    return ObsRows(space).state()


def policy(
    rows: int = 5, width: int = 3, beside: int = 0, kind: str = "discrete", **options: Any
) -> EncodedPolicy:
    options = {"encoder": "rows", "continuous": kind == "box", "hidden": (16,)} | options
    return EncodedPolicy(observations(rows, width, beside), 7, generator=torch.Generator(), **options)


@settings(deadline=None, max_examples=25)
@given(
    rows=st.sampled_from([2, 5, 16]),
    width=st.sampled_from([1, 4, 27]),
    beside=st.sampled_from([0, 3]),
    kind=st.sampled_from(list(SPACES)),
    hidden=st.sampled_from([(), (16,), (17, 33)]),
    activation=st.sampled_from(["tanh", "relu"]),
    shared_trunk=st.booleans(),
    share_there=st.sampled_from([0.0, 0.7]),
    batch=st.integers(1, 150),
)
def test_the_actor_acts_as_pytorch_does(
    rows: int,
    width: int,
    beside: int,
    kind: str,
    hidden: tuple[int, ...],
    activation: str,
    shared_trunk: bool,
    share_there: float,
    batch: int,
) -> None:
    options = {"hidden": hidden, "activation": activation, "shared_trunk": shared_trunk}
    network, actions = policy(rows, width, beside, kind, **options), Actions(SPACES[kind])
    rng = np.random.default_rng(batch)
    perturb(network, rng)
    tables = rng.normal(size=(batch, rows, width)) * (rng.random((batch, rows, 1)) < share_there)
    others = rng.normal(size=(batch, beside))
    obs = np.concatenate([tables.reshape(batch, -1), others], 1).astype(np.float32)
    assert_acts_as_pytorch(network, actions, obs, rng, agreement=0.97)


@pytest.mark.parametrize("num_ids", [0, 3])
@pytest.mark.parametrize("kind", SPACES)
def test_the_actor_of_an_agent_acts_as_pytorch_does(kind: str, num_ids: int) -> None:
    actions, rng = Actions(SPACES[kind]), np.random.default_rng(1)
    network = PolicyNetwork(
        15,
        actions,
        num_ids=num_ids,
        obs=observations(5, 3),
        encoder="rows",
        hidden=(16,),
        activation="tanh",
        generator=torch.Generator(),
    )
    actor = network.loaded_actor(actions)
    assert isinstance(actor, MlpActor)
    obs = rng.normal(size=(70, 15)).astype(np.float32)
    obs[:, 6:12] = 0
    agents = torch.arange(70) % max(num_ids, 1)
    index = np.eye(num_ids, dtype=np.float32)[agents] if num_ids else np.zeros((70, 0), np.float32)
    outputs = actor.outputs(np.concatenate([obs, index], 1), None)
    with torch.inference_mode():
        np.testing.assert_allclose(outputs, network(torch.from_numpy(obs), agents), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{"layer_norm": True}, {"memory": "gru"}, {"rows": MAX_TABLE_ROWS + 1}, {"rows": 2, "width": 2**15 + 1}],
)
def test_networks_that_have_none(options: dict[str, Any]) -> None:
    network = policy(**options)
    assert network.actor_architecture() is None
    assert isinstance(network.loaded_actor(Actions(Discrete(7))), TorchActor)


def test_values_of_actions() -> None:
    network = NormalizedQ(
        observations(5, 3), 4, encoder="rows", layer_norm=False, generator=torch.Generator()
    )
    actor = cast("EpsilonGreedyActor", network.loaded_actor(Actions(Discrete(4)))).network
    assert isinstance(actor, MlpActor)
    obs = np.random.default_rng(1).normal(size=(9, 15)).astype(np.float32)
    with torch.inference_mode():
        expected = network.estimates(torch.from_numpy(obs))
    np.testing.assert_allclose(actor.outputs(obs, None), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"pooling": (1, 4, 4)}, r"pooling: expected tables, .* in 15 numbers, got \(1, 4, 4\)"),
        ({"pooling": (1, 1, 3)}, "2 rows or more and at most 1024"),
        ({"pooling": (1, 5, 3), "layer_norm": True}, "pooling: expected none of layer_norm"),
        ({"pooling": (1, 5, 3), "obs_clip": 5.0}, "pooling: expected none of layer_norm"),
        ({"pooling": (1, 5, 3), "memory": "gru", "memory_size": 4}, "pooling: expected none of layer_norm"),
        ({"pooling": (1, 5, 3), "table_rows": 5, "outputs": 5}, "pooling: expected none of layer_norm"),
    ],
)
def test_shapes_that_the_compiled_actor_refuses(options: dict[str, Any], match: str) -> None:
    shape = {"kind": "discrete", "obs_dim": 15, "outputs": 4, "hidden": [4], "activation": "relu"}
    with pytest.raises(ValueError, match=match):
        Mlp(**(shape | options))
