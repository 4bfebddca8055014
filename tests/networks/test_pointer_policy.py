"""The policy of rows: each thing's actions come from its own row."""

from typing import Any

import numpy as np
import pytest
import torch
from compiled_actors import assert_acts_as_pytorch, perturb
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.envs.rows import ObsRows
from fastrl.networks.acting_network import saved_network
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import MAX_TABLE_ROWS, MlpActor
from fastrl.networks.pointer_policy import PointerPolicy
from fastrl.networks.torch_actor import TorchActor


def policy(rows: int, width: int = 4, num_actions: int | None = None, **options: Any) -> PointerPolicy:
    space = Box(-1, 1, (rows, width), np.float32)
    generator = torch.Generator().manual_seed(1)
    actions = 1 + 3 * rows if num_actions is None else num_actions
    return PointerPolicy(ObsRows(space).state(), actions, generator=generator, **options)


def tables(rows: int, filled: int) -> torch.Tensor:
    made = torch.randn(5, rows, 4, generator=torch.Generator().manual_seed(2))
    made[:, filled:] = 0
    return made


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_outputs_move_with_the_rows(activation: str) -> None:
    network = policy(6, activation=activation)
    obs, order = tables(6, 4), [3, 1, 0, 2, 5, 4]
    logits, values = network(obs.flatten(1))
    moved, same = network(obs[:, order].flatten(1))
    assert logits.shape == (5, 19) and values.shape == (5,)
    torch.testing.assert_close(same, values)
    torch.testing.assert_close(moved[:, 0], logits[:, 0])
    torch.testing.assert_close(
        moved[:, 1:].unflatten(1, (6, 3)), logits[:, 1:].unflatten(1, (6, 3))[:, order]
    )
    assert logits.std() > 0


def test_weights_fit_any_number_of_rows_and_empty_ones_change_nothing() -> None:
    small, large = policy(4), policy(9)
    large.load_state_dict(small.state_dict())
    logits, values = small(tables(4, 3).flatten(1))
    obs = torch.zeros(5, 9, 4)
    obs[:, :4] = tables(4, 3)
    others, same = large(obs.flatten(1))
    torch.testing.assert_close(others[:, :13], logits)
    torch.testing.assert_close(same, values)


def test_a_table_without_a_thing_has_finite_outputs() -> None:
    logits, values = policy(3)(torch.zeros(2, 12))
    assert logits.isfinite().all() and values.isfinite().all()


def test_it_is_saved_and_loaded() -> None:
    network = policy(5, hidden=(8,), num_actions=10)
    again = saved_network(network.state())
    assert isinstance(again, PointerPolicy) and again.on_nothing is None
    obs = tables(5, 5).flatten(1)
    torch.testing.assert_close(again(obs), network(obs))


@pytest.mark.parametrize(
    "space", [Box(-1, 1, (4,)), Box(-1, 1, (1, 4)), Dict({"a": Box(-1, 1, (3, 2)), "b": Box(-1, 1, (3, 2))})]
)
def test_what_is_no_table_is_refused(space: Any) -> None:
    with pytest.raises(ValueError, match="the encoder pointer is for one table"):
        PointerPolicy(ObsRows(space).state(), 20)


def test_fewer_actions_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="needs an action for each row, there are 5 for 6 rows"):
        policy(6, num_actions=5)


@settings(deadline=None, max_examples=25)
@given(
    rows=st.sampled_from([2, 5, 16]),
    width=st.sampled_from([1, 4, 27]),
    actions=st.sampled_from([16, 17, 55, 177]),
    hidden=st.sampled_from([(), (16,), (17, 33)]),
    activation=st.sampled_from(["tanh", "relu"]),
    batch=st.integers(1, 150),
    masked=st.booleans(),
)
def test_the_compiled_actor_acts_as_pytorch_does(
    rows: int, width: int, actions: int, hidden: tuple[int, ...], activation: str, batch: int, masked: bool
) -> None:
    network = policy(rows, width, actions, hidden=hidden, activation=activation)
    rng = np.random.default_rng(batch)
    perturb(network, rng)
    made = rng.normal(size=(batch, rows, width)) * (rng.random((batch, rows, 1)) < 0.7)
    obs = made.astype(np.float32).reshape(batch, -1)
    masks = rng.random((batch, actions)) < 0.5 if masked else None
    if masks is not None:
        masks[:, 0] = True
    assert_acts_as_pytorch(network, Actions(Discrete(actions)), obs, rng, masks, agreement=0.98)


def test_tables_that_no_compiled_actor_takes() -> None:
    rows = MAX_TABLE_ROWS + 1
    network = policy(rows, num_actions=rows)
    assert network.actor_architecture() is None
    assert isinstance(network.loaded_actor(Actions(Discrete(rows))), TorchActor)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"table_rows": 1}, "table_rows: expected 2 to 1024 rows"),
        ({"table_rows": 5}, "that share 12 numbers, got 5"),
        ({"outputs": 2}, "at most as many as the 2 actions"),
        ({"kind": "gaussian"}, "expected the kind 'discrete'"),
        ({"obs_clip": 1.0}, "none of layer_norm, obs_clip and memory"),
        ({"layer_norm": True}, "none of layer_norm"),
        ({"memory": "gru", "memory_size": 3}, "none of layer_norm"),
    ],
)
def test_architectures_that_are_none_are_refused(changes: dict[str, Any], match: str) -> None:
    architecture = policy(3).actor_architecture()
    assert architecture is not None
    with pytest.raises(ValueError, match=match):
        MlpActor(architecture | changes)
