"""Values that actors give beside actions: fragments of all collectors have those of the network."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from space_cases import ACTION_SPACES, OBS_SPACES, plan

from fastrl.algorithms.async_ppo import AsyncPPO, AsyncPPOConfig
from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.factory import make_collector
from fastrl.networks.compiled_actor import MlpActor, ValuingActor
from fastrl.networks.policy_network import EncodedPolicy
from fastrl.networks.torch_actor import TorchActor
from fastrl.utils.timer import Stopwatch

pytestmark = pytest.mark.usefixtures("one_thread")


def learner(obs: str = "dict with image", **settings: Any) -> PPO:
    config = PPOConfig(num_steps=12, minibatch_size=30, hidden=(8,), **settings)
    return PPO(config, Problem(OBS_SPACES[obs], ACTION_SPACES["discrete"], 5, total_timesteps=1000, seed=3))


def collected(ppo: PPO, name: str = "sequential", unit: str = "steps") -> list[Any]:
    made = dataclasses.replace(plan("dict with image", unit=unit), make_actor=ppo.actor_spec())
    weights = np.zeros(ppo.weights_nbytes, np.uint8)
    ppo.write_weights(weights)
    with make_collector(name, made, **({} if name == "sequential" else {"n_workers": 2})) as collector:
        collector.publish(weights)
        collector.collect()
        return [dataclasses.replace(fragment) for fragment in collector.collect()]


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize("name", ["sequential", "sync", pytest.param("executor", marks=pytest.mark.slow)])
def test_fragments_have_the_values_of_the_network(name: str, unit: str) -> None:
    ppo = learner()
    assert isinstance(ppo.policy, EncodedPolicy)
    fragments = collected(ppo, name, unit)
    assert fragments
    for fragment in fragments:
        obs = torch.from_numpy(fragment.obs[:-1]).flatten(0, 1)
        with torch.inference_mode():
            expected = ppo.policy.value(obs).numpy().reshape(fragment.rewards.shape)
        np.testing.assert_allclose(fragment.values, expected, rtol=1e-4, atol=1e-5)


def test_ppo_learns_the_same_from_them_as_from_its_own() -> None:
    fragments = collected(learner())
    found = []
    for each in (fragments, [dataclasses.replace(fragment, values=None) for fragment in fragments]):
        ppo = learner()
        ppo.update(each, Stopwatch())
        assert ppo.rollout.has_values == (each is fragments)
        found.append((ppo.rollout.values.copy(), ppo.rollout.returns.copy(), ppo.metrics()))
    for ours, theirs in zip(*(each[:2] for each in found), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert found[0][2] == pytest.approx(found[1][2], rel=1e-2, abs=1e-3)


def test_values_of_older_policies_are_not_used() -> None:
    fragments = collected(learner())
    wrong = [
        dataclasses.replace(fragment, values=np.full_like(fragment.rewards, 9.0)) for fragment in fragments
    ]
    for corrected in (True, False):
        config = AsyncPPOConfig(num_steps=12, hidden=(8,), correct_off_policy=corrected)
        problem = Problem(OBS_SPACES["dict with image"], ACTION_SPACES["discrete"], 5, 1000)
        ppo = AsyncPPO(config, problem)
        ppo.update(wrong, Stopwatch())
        assert np.abs(ppo.rollout.values).max() < 5


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"shared_trunk": False}, False),
        ({"memory": "gru"}, False),
        ({"obs": "vector", "network": "own_networks:Net"}, True),
    ],
    ids=str,
)
def test_networks_that_share_no_layers_or_have_a_memory_give_none(
    settings: dict[str, Any], expected: bool
) -> None:
    actor = learner(**settings).actor_spec()()
    assert isinstance(actor, TorchActor)
    assert isinstance(actor, ValuingActor) == expected
    assert not isinstance(learner("vector").actor_spec()(), ValuingActor)
    assert isinstance(learner("vector").actor_spec()(), MlpActor)
