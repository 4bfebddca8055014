"""With the same plan, seed and weights, all collectors bring the same episodes, to the last bit."""

from __future__ import annotations

import functools
import math
from typing import Any

import collect_cases
import numpy as np
import pytest
from collect_cases import Forking, Noise, rows
from gymnasium.spaces import Discrete, flatdim

import fastrl  # noqa: F401 - registers the ids
from fastrl.collectors.factory import make_collector
from fastrl.collectors.protocol import Collector, Plan
from fastrl.envs.spec import as_spec
from fastrl.networks.compiled_actor import MlpActor
from fastrl.utils.seeding import NO_ENV, env_seed

PYTHON = ("sync", "executor")
COMPILED = (*PYTHON, "native", "native, asynchronous")
# Ray takes as long as all others; `test_matrix` trains with it.
RAY = pytest.param("ray", marks=pytest.mark.slow)
UPDATES = 3


@pytest.fixture(autouse=True)
def ray_for_ray(request: pytest.FixtureRequest) -> None:
    """Ray, for the tests that collect on it."""
    if "ray" in request.node.callspec.params.get("name", ""):
        request.getfixturevalue("local_ray")


def plan(
    unit: Any, env: str, num_steps: int, masks: bool = False, memory: str = "none", **options: Any
) -> Plan:
    spec = as_spec(env, **options)
    made = spec.make()
    obs_space, action_space = made.observation_space, made.action_space
    made.close()
    numbers = not isinstance(action_space, Discrete)
    architecture = {
        "kind": "gaussian" if numbers else "discrete",
        "obs_dim": flatdim(obs_space),
        "outputs": math.prod(action_space.shape or ()) if numbers else int(action_space.n),
        "hidden": [16, 16],
        "activation": "tanh",
        "memory": memory,
        "memory_size": 0 if memory == "none" else 8,
    }
    return Plan(
        spec,
        functools.partial(MlpActor, architecture),
        obs_space,
        action_space,
        num_envs=5,
        num_steps=num_steps,
        unit=unit,
        episodes=11 if unit == "episodes" else 0,
        seed=7,
        action_masks=masks,
        final_masks=masks,
        episode_info=("red_agent",) if "red_agent" in options else (),
    )


def updates(name: str, same: Plan) -> list[dict[int, Any]]:
    """Contents of each update: by row or episode all that its arrays hold, as bytes."""
    options: dict[str, Any] = {} if name == "sequential" else {"n_workers": 2}
    name, _, asynchronous = name.partition(", ")
    if asynchronous:
        options["asynchronous"] = 2
    found = []
    nbytes = same.make_actor().weights_nbytes
    with make_collector(name, same, **options) as collector:
        for update in range(UPDATES):
            weights = np.random.default_rng(update).normal(0, 0.5, nbytes // 4).astype(np.float32)
            assert collector.publish(weights) == update + 1
            found.append(rows(collector.collect()))
        report = collector.report()
        assert report.failures == ()
        state = collector.state_dict()
    assert state["version"] == UPDATES
    return [*found, state["numbers"]]


def expect_equal(same: Plan, names: tuple[str, ...]) -> None:
    """Collectors bring what one process collects."""
    expected = updates("sequential", same)
    # Something happened, and not the same thing again and again.
    assert len({str(update) for update in expected[:UPDATES]}) == UPDATES
    assert all(len(update) == (same.episodes or same.num_envs) for update in expected[:UPDATES])
    for name in names:
        found = updates(name, same)
        for update in range(UPDATES):
            assert found[update].keys() == expected[update].keys(), (name, update)
            differing = [key for key, mine in found[update].items() if mine != expected[update][key]]
            assert differing == [], (name, update)
        assert found[UPDATES] == expected[UPDATES], name


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize(
    ("env", "num_steps", "options", "names"),
    [
        ("CartPole-v1", 40, {}, PYTHON),
        ("CartPole-v1", 40, {"memory": "lstm"}, PYTHON),
        ("Pendulum-v1", 30, {"max_episode_steps": 20}, PYTHON),
        ("fastrl/Cage2-v0", 40, {"episode_length": 30, "red_agent": "mix"}, COMPILED),
        ("fastrl/Cage2-v0", 40, {"masks": True, "episode_length": 30, "red_agent": "mix"}, COMPILED),
        ("fastrl/Cage2-v0", 40, {"memory": "gru", "episode_length": 30, "red_agent": "mix"}, COMPILED),
        # Dicts, and a time limit of Gymnasium's.
        ("fastrl/lane-keeping-v0", 210, {}, COMPILED),
        ("fastrl/CartPole-v1", 40, {}, COMPILED),
        ("fastrl/Pendulum-v1", 210, {}, COMPILED),
        ("fastrl/highway-fast-v0", 12, {}, COMPILED),
        ("fastrl/highway-fast-v0", 12, {"masks": True}, COMPILED),
        (
            "fastrl/highway-fast-v0",
            8,
            {"config": {"action": {"type": "ContinuousAction"}, "vehicles_count": 8}},
            COMPILED,
        ),
    ],
)
def test_all_bring_the_same_episodes(
    env: str, num_steps: int, options: dict[str, Any], names: tuple[str, ...], unit: Any
) -> None:
    same = plan(unit, env, num_steps, **options)
    expect_equal(same, names)


@pytest.mark.parametrize("name", [RAY])
@pytest.mark.parametrize(
    ("env", "unit", "options"),
    [
        ("CartPole-v1", "steps", {"memory": "lstm"}),
        ("fastrl/Cage2-v0", "episodes", {"masks": True, "episode_length": 30, "red_agent": "mix"}),
    ],
)
def test_ray_brings_the_same_episodes(env: str, options: dict[str, Any], name: str, unit: Any) -> None:
    expect_equal(plan(unit, env, 40, **options), (name,))


def taken(collector: Collector) -> list[int]:
    """Numbers of the episodes that are taken until none is left."""
    numbers = []
    while (fragment := collector.take(60.0)) is not None:
        numbers.append(int(fragment.episodes[0, 1]))
    return sorted(numbers)


@pytest.mark.parametrize("name", ["sequential", *PYTHON, "native", RAY])
def test_no_episode_beyond_the_limit_is_taken(name: str) -> None:
    same = plan("episodes", "fastrl/Cage2-v0", 40, episode_length=10)
    options: dict[str, Any] = {} if name == "sequential" else {"n_workers": 2}
    with make_collector(name, same, **options) as collector:
        collector.publish(np.zeros(same.make_actor().weights_nbytes // 4, np.float32))
        collector.limit(7)
        assert taken(collector) == list(range(7))
        # It may be raised, and nothing is taken twice.
        collector.limit(33)
        assert taken(collector) == list(range(7, 33))
        assert collector.report().episodes == 33


@pytest.mark.parametrize("name", ["sequential", *PYTHON, "native", RAY])
def test_many_are_taken_at_once(name: str) -> None:
    same = plan("episodes", "fastrl/Cage2-v0", 40, episode_length=10)
    options: dict[str, Any] = {} if name == "sequential" else {"n_workers": 2}
    with make_collector(name, same, **options) as collector:
        collector.publish(np.zeros(same.make_actor().weights_nbytes // 4, np.float32))
        collector.limit(33)
        numbers, most = [], 0
        while found := collector.take_many(5, 60.0):
            numbers += [int(fragment.episodes[0, 1]) for fragment in found]
            most = max(most, len(found))
        assert sorted(numbers) == list(range(33))
        assert most <= 5
        # Games of 10 steps end together where they are stepped together.
        assert most == 5 or name != "native"


class ExactPlan(Plan):
    reward_dtype = np.float64


@pytest.mark.parametrize("name", ["sequential", *PYTHON])
def test_a_plan_may_have_rewards_of_float64(name: str) -> None:
    spec = as_spec("Pendulum-v1")
    env = spec.make()
    same = plan("episodes", "Pendulum-v1", 5)
    own = ExactPlan(
        spec, same.make_actor, env.observation_space, env.action_space, 5, 5, "episodes", 3, seed=same.seed
    )
    options: dict[str, Any] = {} if name == "sequential" else {"n_workers": 2}
    with make_collector(name, own, **options) as collector:
        collector.publish(np.zeros(same.make_actor().weights_nbytes // 4, np.float32))
        for fragment in collector.collect():
            env.reset(seed=env_seed(own.seed, NO_ENV, int(fragment.episodes[0, 1])))
            expected = [env.step(own.actions.to_env(draw)[0])[1] for draw in fragment.actions]
            assert fragment.rewards[:, 0].tolist() == expected


@pytest.mark.parametrize("name", ["sequential", "sync", "executor"])
@pytest.mark.parametrize("where", ["build", "reset", "step", "close"])
def test_copies_of_a_process_collect_nothing(name: str, where: str) -> None:
    """An environment may fork, and its copy leave by an exception: it would be the environment's, and collect too."""
    options = {} if name == "sequential" else {"n_workers": 1}
    hows = ["exit", "raise", "return"] if name == "sequential" else ["exit"]
    same = collect_cases.plan(env=Noise, num_envs=2, num_steps=4)
    with make_collector("sequential", same) as collector:
        expected = collect_cases.updates(collector, 2)
    for how in hows:
        forking = collect_cases.plan(env=Forking, num_envs=2, num_steps=4, where=where, how=how)
        with make_collector(name, forking, **options) as collector:
            assert collect_cases.updates(collector, 2) == expected
            assert collector.report().failures == ()
