"""fastrl.collectors.async_runner: the fragments of the sequential collector, in any order of readiness."""

from __future__ import annotations

from functools import partial

import collect_cases as cases
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from waiting import TIMEOUT

import fastrl
from fastrl.collectors.factory import make_collector
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.collectors.sequential import SequentialCollector
from fastrl.collectors.synchronous import native_collector
from fastrl.envs.spec import as_spec
from fastrl.networks.compiled_actor import MlpActor

ENVS = [
    ("fastrl/Cage2-v0", {"episode_length": 7}),
    ("fastrl/highway-fast-v0", {"config": {"vehicles_count": 5, "duration": 4}}),
    ("fastrl/ring-v0", {"horizon": 6, "warmup_steps": 3}),
]


def plan_of(env_id, options, unit="steps", **sizes):
    assert fastrl.__version__
    env = gymnasium.make(env_id, **options)
    actions = env.action_space
    architecture = {
        "kind": "discrete" if isinstance(actions, Discrete) else "gaussian",
        "obs_dim": int(np.prod(env.observation_space.shape)),
        "outputs": int(actions.n) if isinstance(actions, Discrete) else actions.shape[0],
        "hidden": [16],
        "activation": "tanh",
        "obs_clip": None,
    }
    sizes = {"num_envs": 5, "num_steps": 8, "episodes": 12 if unit == "episodes" else 0, "seed": 4} | sizes
    spec = as_spec(env_id, **options)
    plan = Plan(spec, partial(MlpActor, architecture), env.observation_space, actions, unit=unit, **sizes)
    env.close()
    return plan


def weights_for(plan, version):
    rng = np.random.default_rng(version)
    return rng.normal(0, 0.3, plan.make_actor().weights_nbytes // 4).astype(np.float32)


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize(("env_id", "options"), ENVS)
@pytest.mark.parametrize("ready", [1, 3, 5])
def test_fragments_are_those_of_the_sequential_collector(env_id, options, unit, ready):
    # Some whole episodes are cut at num_steps.
    plan = plan_of(env_id, options, unit, num_steps=8 if unit == "steps" else 5)
    ended = 0
    with (
        SequentialCollector(plan) as expected,
        native_collector(plan, asynchronous=ready, n_workers=2) as found,
    ):
        for version in (1, 2, 3):
            for collector in (expected, found):
                assert collector.publish(weights_for(plan, version)) == version
            fragments = found.collect()
            assert cases.rows(fragments) == cases.rows(expected.collect())
            ended += sum(len(fragment.episodes) for fragment in fragments)
        assert found.report().steps == expected.report().steps
        assert found.report().episodes == expected.report().episodes == ended > 0
        assert found.state_dict() == expected.state_dict()
        assert found.report().seconds["environment"] > 0


@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_taken_fragments_are_collected_in_the_background(unit):
    plan = plan_of(*ENVS[0], unit)
    with SequentialCollector(plan) as expected, native_collector(plan, asynchronous=2) as found:
        for collector in (expected, found):
            collector.publish(weights_for(plan, 1))
        taken = [found.take(timeout=TIMEOUT) for _ in range(2 if unit == "steps" else 12)]
        if unit == "steps":
            for fragment in taken:
                assert cases.rows([fragment]) == cases.rows(expected.collect())
        else:
            assert cases.rows(taken) == cases.rows(expected.collect())


def test_more_rows_than_episodes():
    plan = plan_of(*ENVS[0], "episodes", num_envs=9, episodes=2)
    with SequentialCollector(plan) as expected, native_collector(plan, asynchronous=9) as found:
        for collector in (expected, found):
            collector.publish(weights_for(plan, 1))
        for _ in range(2):
            assert cases.rows(found.collect()) == cases.rows(expected.collect())


def test_bad_input_is_refused():
    plan = plan_of(*ENVS[0])
    for rows in (0, -1, 6):
        with pytest.raises(ValueError, match="asynchronous should be from 1 to num_envs, 5, got"):
            native_collector(plan, asynchronous=rows)
    with (
        make_collector("native", plan, asynchronous=2) as collector,
        pytest.raises(CollectError, match="no weights yet"),
    ):
        collector.collect()
    with pytest.raises(CollectError, match="CartPole-v1 is none"):
        native_collector(plan_of("CartPole-v1", {}), asynchronous=1)
