"""With the same plan, seed and weights, all collectors bring the same episodes, to the last bit."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from collect_cases import rows
from gymnasium.spaces import Discrete

import fastrl  # noqa: F401 - registers the ids
from fastrl.collectors.factory import make_collector
from fastrl.collectors.protocol import Plan
from fastrl.collectors.ray_cluster import start
from fastrl.envs.spec import as_spec
from fastrl.networks.compiled_actor import MlpActor

PYTHON = ("sync", "executor", "ray")
COMPILED = (*PYTHON, "native", "native, asynchronous")
UPDATES = 3


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    start(2, 100 * 2**20)
    yield
    ray.shutdown()


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
        "obs_dim": math.prod(obs_space.shape or ()),
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


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize(
    ("env", "num_steps", "options", "names"),
    [
        ("CartPole-v1", 40, {}, PYTHON),
        ("CartPole-v1", 40, {"memory": "lstm"}, PYTHON),
        ("Pendulum-v1", 30, {"max_episode_steps": 20}, PYTHON),
        ("fastrl/Cage2-v0", 40, {"episode_length": 30, "red_agent": "mix"}, COMPILED),
        (
            "fastrl/Cage2-v0",
            40,
            {"masks": True, "episode_length": 30, "red_agent": "mix"},
            COMPILED,
        ),
        ("fastrl/Cage2-v0", 40, {"memory": "gru", "episode_length": 30, "red_agent": "mix"}, COMPILED),
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
    expected = updates("sequential", same)
    # Something happened, and not the same thing again and again.
    assert len({str(update) for update in expected[:UPDATES]}) == UPDATES
    assert all(len(update) == (11 if unit == "episodes" else 5) for update in expected[:UPDATES])
    for name in names:
        found = updates(name, same)
        for update in range(UPDATES):
            assert found[update].keys() == expected[update].keys(), (name, update)
            differing = [key for key, mine in found[update].items() if mine != expected[update][key]]
            assert differing == [], (name, update)
        assert found[UPDATES] == expected[UPDATES], name
