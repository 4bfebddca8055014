"""The compiled classic control beside Gymnasium's, step by step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import fastrl  # noqa: F401 - registers the ids
from fastrl.envs.classic import IDS

OPTIONS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"sutton_barto_reward": True},
    "Pendulum-v1": {"g": 9.81},
    "Acrobot-v1": {},
    "MountainCar-v0": {"goal_velocity": 0.02},
    "MountainCarContinuous-v0": {"goal_velocity": 0.02},
}

# The first observation of an Acrobot has float32 sines and cosines, which NumPy computes on its own; all others are of
# float64, by the C library in both.
ULP = {"Acrobot-v1": 6e-8}


def play_both(name: str, seed: int, steps: int, push: float, options: dict[str, Any]) -> int:
    """Plays random actions in both; returns how many episodes have ended.

    Args:
        push: share of the actions that are the last one again, so that far places are reached.
    """
    theirs, ours = gymnasium.make(name, **options), gymnasium.make(f"fastrl/{name}", **options)
    rng = np.random.default_rng(seed)
    space: Any = theirs.action_space
    ends, action, starts = 0, None, True
    for step in range(steps):
        if starts:
            own = seed if step == 0 else None
            expected, found = theirs.reset(seed=own)[0], ours.reset(seed=own)[0]
            np.testing.assert_allclose(found, expected, rtol=0, atol=ULP.get(name, 0))
        if action is None or rng.random() > push:
            # Numbers are also out of bounds, and at them.
            drawn = rng.integers(space.n) if isinstance(space, Discrete) else rng.uniform(-3, 3, 1)
            action = int(drawn) if isinstance(space, Discrete) else drawn.round(int(rng.integers(6)))
            action = action if isinstance(space, Discrete) else np.asarray(action, np.float32)
        obs, *expected_rest = theirs.step(action)
        own_obs, *rest = ours.step(action)
        assert own_obs.dtype == obs.dtype
        np.testing.assert_array_equal(own_obs, obs, f"step {step}")
        assert rest == expected_rest, step
        starts = rest[1] or rest[2]
        ends += starts
    theirs.close()
    ours.close()
    return ends


@pytest.mark.parametrize("name", IDS)
def test_thousands_of_steps_are_those_of_gymnasium(name: str) -> None:
    assert play_both(name, 12, 6_000, 0.0, {}) > 5
    assert play_both(name, 2**40, 3_000, 0.95, {}) > 2


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), push=st.sampled_from([0.0, 0.5, 0.98]), given_options=st.booleans())
@pytest.mark.parametrize("name", IDS)
def test_any_seed_and_options(name: str, seed: int, push: float, given_options: bool) -> None:
    play_both(name, seed, 260, push, OPTIONS[name] if given_options else {})


@pytest.mark.parametrize("name", IDS)
def test_spaces_limits_and_variables_are_those_of_gymnasium(name: str) -> None:
    theirs, ours = gymnasium.make(name), gymnasium.make(f"fastrl/{name}")
    assert ours.observation_space == theirs.observation_space and ours.action_space == theirs.action_space
    assert ours.spec is not None and theirs.spec is not None
    assert ours.spec.max_episode_steps == theirs.spec.max_episode_steps == IDS[name]
    assert ours.metadata["render_fps"] == theirs.metadata["render_fps"]
    theirs.reset(seed=3)
    ours.reset(seed=3)
    own: Any = ours.unwrapped
    hidden: Any = theirs.unwrapped
    np.testing.assert_array_equal(own.vector.variables()[0], np.asarray(hidden.state, np.float64))
