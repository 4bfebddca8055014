"""Scripted experts of tasks: each folder finds its own, and says what is wrong in one line."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest

from fastrl.collectors.expert import RandomExpert
from fastrl.demos.find_expert import find_expert, forms
from fastrl.envs.exact_rows import ExactRows, RecordedEnv
from fastrl.networks.compiled_actor import Rows
from fastrl.tasks import tasks, with_experts
from fastrl.utils.config import ConfigError

# One environment of each expert.
EXPERTS = {
    "baseline:sleep": "fastrl/Cage2-v0",
    "baseline:random": "fastrl/Cage2-v0",
    "baseline:react-remove": "fastrl/Cage2-v0",
    "baseline:react-restore": "fastrl/Cage2-v0",
    "driver:follower-stopper": "fastrl/ring-v0",
    "driver:pi": "fastrl/ring-v0",
    "driver:idm": "fastrl/highway-v0",
}

SHOP: dict[str, Any] = {
    "scenario": str(Path(__file__).parents[1] / "support" / "golden" / "cage2_scenarios" / "shop.yaml")
}


def prefix(folder: ModuleType) -> str:
    return str(folder.EXPERTS.partition("NAME")[0])


def test_messages_and_help_name_the_experts_of_all_tasks() -> None:
    assert {"cage2", "traffic"} <= {folder.NAME for folder in with_experts()}
    assert forms() == (
        "a run directory, a checkpoint file, baseline:NAME (CAGE 2), driver:NAME (traffic), random, a zip file of"
        " Stable-Baselines3, module:function, or module:Agent"
    )
    prefixes = [prefix(folder) for folder in with_experts()]
    assert len(set(prefixes)) == len(prefixes) and all(each.endswith(":") for each in prefixes)
    for expert in EXPERTS:
        [folder] = [each for each in with_experts() if expert.startswith(prefix(each))]
        assert expert.partition(":")[2] in folder.EXPERT_NAMES
    for folder in tasks().values():
        assert (folder in with_experts()) == bool(importlib.util.find_spec(f"{folder.__name__}.experts"))


@pytest.mark.parametrize(
    ("expert", "env_id", "options"),
    [
        *((expert, env_id, {}) for expert, env_id in EXPERTS.items()),
        *((expert, env_id, SHOP) for expert, env_id in EXPERTS.items() if env_id == "fastrl/Cage2-v0"),
    ],
)
def test_an_expert_pickles_and_plays(expert: str, env_id: str, options: dict[str, Any]) -> None:
    env = gymnasium.make(env_id, **options)
    spec = pickle.loads(pickle.dumps(find_expert(expert, env)))
    kind, _, name = expert.partition(":")
    assert (spec.name, spec.facts, spec.batched) == (expert, {"kind": kind, "name": name}, True)
    rows = ExactRows(env.observation_space, spec.sense)
    recorded: Any = RecordedEnv(env, rows, env_id)
    made = spec.make(rows, env.action_space)
    states = np.zeros((1, made.state_size), np.float32) if made.state_size else None
    row, _ = recorded.reset(seed=0)
    for step in range(5):
        stream, at = np.array([7], np.uint64), np.array([step])
        [action] = made.act(Rows(row[None], stream, at, None, states))
        assert env.action_space.contains(action)
        row, *_ = recorded.step(action)
    env.close()


def test_a_scripted_defender_fixes_the_hosts_of_a_scenario() -> None:
    """Nine hosts, and actions in an order of their own."""
    env = gymnasium.make("fastrl/Cage2-v0", red_agent="meander", actions="effective", **SHOP)
    spec = find_expert("baseline:react-restore", env)
    rows = ExactRows(env.observation_space, spec.sense)
    recorded: Any = RecordedEnv(env, rows, "fastrl/Cage2-v0")
    made = spec.make(rows, env.action_space)
    states, row, restored = np.zeros((1, made.state_size), np.float32), recorded.reset(seed=0)[0], 0
    game: Any = env.unwrapped
    for step in range(99):
        alerts, waiting = game.alerts(), states[0, :-1].any()
        [action] = made.act(Rows(row[None], np.array([7], np.uint64), np.array([step]), None, states))
        name, _, host = game.vector.action_names[action].partition(" ")
        assert name in ("Sleep", "Restore"), "each step monitors, so that Sleep does what Monitor does"
        assert host != "User0"
        if name == "Restore":
            restored += 1
            assert waiting or alerts[game.vector.hosts.index(host)]
        row, *_ = recorded.step(action)
    assert restored > 5


def test_the_random_baseline_is_the_random_expert() -> None:
    assert find_expert("baseline:random", gymnasium.make("fastrl/Cage2-v0")).make is RandomExpert


@pytest.mark.parametrize(
    ("env", "options", "expert", "message"),
    [
        (
            "CartPole-v1",
            {},
            "baseline:react-restore",
            "--expert baseline:react-restore is a defender of fastrl/Cage2-v0, which CartPole-v1 is not",
        ),
        ("CartPole-v1", {}, "baseline:slep", "--expert baseline:slep: did you mean sleep?"),
        (
            "CartPole-v1",
            {},
            "driver:pi",
            "--expert driver:pi drives on fastrl/ring-v0, which CartPole-v1 is not",
        ),
        (
            "fastrl/ring-v0",
            {},
            "driver:idm",
            "--expert driver:idm drives on fastrl/highway-v0, which fastrl/ring-v0 is not",
        ),
        ("fastrl/ring-v0", {}, "driver:pii", "--expert driver:pii: did you mean pi?"),
        (
            "fastrl/ring-v0",
            {"drive": "humans"},
            "driver:pi",
            "--expert driver:pi: the environment's option drive is 'humans', so that actions do nothing: leave it out",
        ),
        (
            "fastrl/highway-v0",
            {"config": {"action": {"type": "DiscreteMetaAction", "longitudinal": False}}},
            "driver:idm",
            "--expert driver:idm: the environment's actions should be DiscreteMetaAction with longitudinal ones",
        ),
    ],
)
def test_what_does_not_fit_is_refused(env: str, options: dict[str, Any], expert: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_expert(expert, gymnasium.make(env, **options))
    assert str(caught.value) == message
