from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiDiscrete, Text

from fastrl.collectors.protocol import Plan, partition_envs
from fastrl.envs.spec import EnvSpec
from fastrl.rollout.fragment import STEP_ARRAYS, Fragment, allocate
from fastrl.utils.seeding import NO_ENV

OBS = Box(-1, 1, (2, 3), np.float32)


def plan(**changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "env": EnvSpec("CartPole-v1"),
        "make_actor": list,
        "obs_space": OBS,
        "action_space": Discrete(4),
        "num_envs": 2,
        "num_steps": 5,
    }
    return Plan(**(settings | changes))


def test_sizes_come_from_the_spaces() -> None:
    assert plan().obs_dim == 6
    assert plan().actions.shape == ()
    assert plan(action_space=Box(-1, 1, (3,), np.float32)).actions.shape == (3,)


def test_environments_of_other_spaces_give_rows_and_take_flat_actions() -> None:
    other = plan(
        obs_space=Dict(a=OBS, b=Discrete(3, start=1)), action_space=MultiDiscrete([[2, 3]]), action_masks=True
    )
    assert (other.obs_dim, other.obs_rows.dtype) == (9, np.float32)
    assert other.action_space == MultiDiscrete([2, 3])
    assert other.env.rows and other.num_masked == 5
    images = plan(obs_space=Box(0, 255, (4, 4), np.uint8), action_space=Discrete(3, start=1))
    assert (images.obs_dim, images.obs_rows.dtype) == (16, np.uint8)
    assert images.action_space == Discrete(3)
    assert pickle.loads(pickle.dumps(other)) == other == dataclasses.replace(other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_envs": 0}, "num_envs should be at least 1, got 0"),
        ({"num_steps": -1}, "num_steps should be at least 1, got -1"),
        ({"unit": "episodes"}, "episodes should be at least 1, got 0"),
        ({"unit": "days"}, "unit should be 'steps' or 'episodes', got 'days'"),
        ({"seed": -1}, "seed should be from 0"),
        (
            {"obs_space": Dict(a=Graph(Discrete(2), None))},
            "observations should be a Box.*at 'a': .*TransformObservation",
        ),
        (
            {"obs_space": [0, 1]},
            "observation_space should be one of gymnasium.spaces, got a builtins.list; .*old Gym",
        ),
        ({"action_space": Dict(a=Discrete(2))}, "actions should be Discrete, .*ActionWrapper"),
        ({"action_space": Text(3)}, "actions should be Discrete, .*ActionWrapper"),
        ({"action_space": Box(-1, 1), "action_masks": True}, "action_masks are for discrete actions"),
    ],
)
def test_what_cannot_be_collected_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(**changes)


def test_workers_share_the_rows_evenly() -> None:
    assert partition_envs(plan(num_envs=7), 3) == [range(2), range(2, 4), range(4, 7)]
    assert partition_envs(plan(unit="episodes", episodes=9), 2) == [range(0), range(0)]


def test_the_place_of_a_fragment_is_its_rows_or_its_episode() -> None:
    none = {"returns": np.zeros(1), "lengths": np.ones(1, np.int64), "episodes": np.array([[NO_ENV, 8]])}
    whole = Fragment(**allocate(1, 1, 6, ()), version=1, env_indices=np.array([NO_ENV]), **none)
    rows = Fragment(**allocate(1, 2, 6, ()), version=1, env_indices=np.array([3, 4]), **none)
    assert (whole.place, rows.place) == ((NO_ENV, 8), (3, 0))


@pytest.mark.parametrize(("action_shape", "dtype"), [((), np.int64), ((3,), np.int64), ((3,), np.float32)])
def test_allocated_arrays_make_a_fragment(action_shape: tuple[int, ...], dtype: type) -> None:
    arrays = allocate(5, 2, 6, action_shape, dtype)
    assert arrays.keys() == {"obs", *STEP_ARRAYS}
    none = {"returns": np.empty(0), "lengths": np.empty(0, np.int64), "episodes": np.empty((0, 2), np.int64)}
    fragment = Fragment(**arrays, version=1, env_indices=np.arange(2), **none)
    assert (fragment.num_steps, fragment.num_rows, len(fragment)) == (5, 2, 10)
    assert fragment.obs.shape == (6, 2, 6)
    assert fragment.actions.shape == (5, 2, *action_shape)
    assert fragment.actions.dtype == dtype
    assert fragment.nbytes == sum(array.nbytes for array in arrays.values()) + 16
