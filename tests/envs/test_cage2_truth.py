"""The true state of the game in observations of CAGE 2."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from fastrl.envs.cage2.env import HOSTS, RED_AGENTS, Cage2VectorEnv
from fastrl.envs.cage2.memory import DECOY_PLACES, MEMORIES, Ruleset, observation_high, observation_names
from fastrl.envs.cage2.workflow import Cage2WorkflowVectorEnv

LEN = 390


def values(obs: np.ndarray, what: str) -> np.ndarray:
    """Of each host the value with this name, [N, 13]."""
    names = observation_names("none", "truth")
    return obs[:, [names.index(f"{host}: {what}") for host in HOSTS]]


def test_it_comes_after_the_values_of_memory() -> None:
    for memory in MEMORIES:
        names = observation_names(memory, "truth")
        assert len(names) == len(set(names)) == len(observation_names(memory)) + LEN
        assert names[:-LEN] == observation_names(memory)
        high = observation_high(memory, 250, "truth")
        assert high[-1] == 2.5 and high.max() == 2.5 and len(high) == len(names)
    with pytest.raises(ValueError, match="observe: expected 'blue' or 'truth', got 'all'"):
        observation_names("none", "all")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [Cage2VectorEnv, Cage2WorkflowVectorEnv])
def test_it_changes_nothing_else(make: Any) -> None:
    options = {"red_agent": "mix", "memory": "full", "episode_length": 9}
    blue, truth = make(4, **options), make(4, observe="truth", **options)
    rng = np.random.default_rng(0)
    a, b = blue.reset(seed=1)[0], truth.reset(seed=1)[0]
    for _ in range(25):
        np.testing.assert_array_equal(a, np.delete(b, np.s_[240 : 240 + LEN], axis=1))
        actions = rng.integers(145, size=4)
        (a, *results, _), (b, *others, _) = blue.step(actions), truth.step(actions)
        np.testing.assert_array_equal(results, others)


@pytest.mark.parametrize("ruleset", get_args(Ruleset))
def test_it_is_the_state_that_info_has(ruleset: Any) -> None:
    env = Cage2VectorEnv(
        30,
        ruleset=ruleset,
        red_agent=dict.fromkeys(RED_AGENTS, 1),
        observe="truth",
        info_state=True,
        autoreset_mode="disabled",
    )
    names = observation_names("none", "truth")
    obs, info = env.reset(seed=3)
    booted = info["processes"].astype(int)
    agents = [names.index(f"the red agent is {name}") for name in RED_AGENTS]
    np.testing.assert_array_equal(obs[:, agents].argmax(axis=1), env.red_agents())
    rng = np.random.default_rng(0)
    # Few actions of the last kinds, so that red gets far.
    actions = np.array([0] * 30 + list(range(145)))
    for t in range(1, 101):
        chosen = rng.choice(actions, 30)
        obs, _, _, _, info = env.step(chosen)
        assert obs in env.observation_space
        np.testing.assert_array_equal(values(obs, "red has a session"), info["red_access"] > 0)
        np.testing.assert_array_equal(values(obs, "red has a root session"), info["red_access"] == 2)
        kinds = ("red's user sessions that Remove ends", "red's user sessions that Remove leaves")
        user, root = (values(obs, f"count of {kind}") * 10 for kind in (kinds[0], "red's root sessions"))
        user += values(obs, f"count of {kinds[1]}") * 10
        few = info["red_sessions"] <= 10
        np.testing.assert_allclose((user + root)[few], info["red_sessions"][few], atol=1e-5)
        # Red's first session on User0 is one of its first processes.
        sessions = info["red_sessions"].astype(int) - (np.arange(13) == HOSTS.index("User0"))
        down = np.outer(
            obs[:, names.index("OTService is up")] == 0, np.arange(13) == HOSTS.index("Op_Server0")
        )
        decoys = info["processes"] - booted - sessions + down
        np.testing.assert_allclose(
            values(obs, "count of decoy processes"), decoys.clip(0, 10) / 10, atol=1e-6
        )
        runs = [names.index(f"{place.split()[1]}: {place.split()[0]} runs") for place in DECOY_PLACES]
        assert (obs[:, runs].sum(axis=1) <= decoys.sum(axis=1)).all()
        failed, worked = (obs[:, names.index(f"red's last action {how}")] for how in ("failed", "worked"))
        np.testing.assert_array_equal(
            worked - failed, np.where(info["red_action"][:, 2] < 0, 0, 2 * info["red_action"][:, 2] - 1)
        )
        np.testing.assert_array_equal(obs[:, -1], np.float32(t / 100))
    assert (info["red_access"][:, HOSTS.index("Op_Server0")] == 2).any(), "red got far"
