"""`fastrl/merge-v0` and the other environments on road networks; `tests/conformance` compares them with highway-env."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Tuple
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from saved_states import assert_a_state_continues

from fastrl.envs.registration import make_multi
from fastrl.envs.traffic.roads import RoadVectorEnv, default_config
from fastrl.envs.traffic.roads_config import KINDS

gymnasium.logger.min_level = gymnasium.logger.ERROR
CROSSING = "fastrl/intersection-multi-agent-v0"


def make(id: str, **options: Any) -> Any:  # noqa: A002
    return gymnasium.make(f"fastrl/{id}", **options)


def one_of(batch: Any, i: int) -> Any:
    """The i-th of a batch of observations, which are arrays, tuples of several agents or dicts."""
    if isinstance(batch, tuple):
        return tuple(one_of(part, i) for part in batch)
    return {key: part[i] for key, part in batch.items()} if isinstance(batch, dict) else batch[i]


@pytest.mark.parametrize(
    "id", ["merge-v0", "roundabout-v0", "intersection-v1", "two-way-v0", "exit-v0", "racetrack-v0"]
)
def test_gymnasium_accepts_them(id: str) -> None:  # noqa: A002
    check_env(make(id).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("id", KINDS)
def test_vectors_play_as_single_environments(id: str) -> None:  # noqa: A002
    vector = RoadVectorEnv(3, id=id, autoreset_mode="disabled", num_threads=1)
    singles = [make(id).unwrapped for _ in range(3)]
    obs, _ = vector.reset(seed=5)
    for i, env in enumerate(singles):
        own, info = env.reset(seed=5 + i)
        np.testing.assert_equal(own, one_of(obs, i))
        known = ["speed", "crashed", "action", "rewards"]
        # Where highway-env has no names for the parts of a reward there are none.
        assert list(info)[:3] == known[:3]
        assert list(info)[3:4] == known[3:] or id.startswith(("parking", "lane-keeping"))
    vector.action_space.seed(0)
    actions = vector.action_space.sample()
    obs, rewards, *_ = vector.step(actions)
    for i, env in enumerate(singles):
        action = tuple(part[i] for part in actions) if isinstance(actions, tuple) else actions[i]
        own, reward, _, truncated, _ = env.step(action)
        np.testing.assert_equal(own, one_of(obs, i))
        assert np.mean(reward) == pytest.approx(rewards[i]) and not truncated


@pytest.mark.parametrize("id", ["merge-v1", "intersection-v0", "intersection-multi-agent-v0", "parking-v0"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_states_continue_as_they_were(id: str, mode: AutoresetMode) -> None:  # noqa: A002
    env, twin = (RoadVectorEnv(4, id=id, autoreset_mode=mode, num_threads=1) for _ in range(2))
    assert_a_state_continues(env, twin, steps=24, before=8)
    with pytest.raises(ValueError, match="state"):
        RoadVectorEnv(4, id="roundabout-v0", autoreset_mode=mode).load_state(env.save_state())


def test_vehicles_that_come_later_are_not_seen_earlier() -> None:
    env = RoadVectorEnv(2, id="intersection-v0", config={"spawn_probability": 1.0}, autoreset_mode="disabled")
    env.reset(seed=0)
    for _ in range(3):
        obs, *_ = env.step(np.array([1, 1]))
        again = np.empty((2, obs[0].size), np.float32)
        env.observe_into(again)
        np.testing.assert_array_equal(again, obs.reshape(2, -1))


def test_several_agents_have_tuples() -> None:
    env = gymnasium.make(CROSSING, config={"controlled_vehicles": 3})
    assert isinstance(env.observation_space, Tuple) and len(env.observation_space) == 3
    obs, info = env.reset(seed=1)
    assert env.observation_space.contains(obs) and len(info["agents_rewards"]) == 3
    obs, reward, terminated, truncated, info = env.step((1, 1, 1))
    assert reward == pytest.approx(np.mean(info["agents_rewards"])) and isinstance(terminated, bool)
    available = env.unwrapped.get_available_actions()  # type: ignore[attr-defined]
    assert (1, 1, 1) in available and all(len(action) == 3 for action in available)
    with pytest.raises(TypeError, match="a tuple of 3"):
        env.unwrapped.vector.step(np.array([[1, 1, 1]]))  # type: ignore[attr-defined]
    own = gymnasium.make(CROSSING.replace("v0", "v1"))
    own.reset(seed=1)
    _, rewards, ends, truncated, _ = own.step((1, 1))
    assert len(rewards) == len(ends) == 2 and truncated is False  # type: ignore[arg-type]


def test_agents_end_one_by_one() -> None:
    env = make_multi(CROSSING, 32, num_threads=1, autoreset_mode="disabled")
    _, alive = env.reset(seed=0)
    assert alive.shape == (32, 2) and alive.all()
    alone = 0
    for _ in range(12):
        obs, rewards, terminations, truncations, still, _ = env.step(np.full((32, 2), 2))
        assert not (terminations & truncations).any()
        assert not rewards[~alive].any() and not obs[~alive].any()
        np.testing.assert_array_equal(still, alive & ~terminations & ~truncations)
        alive = still
        alone += int((alive.sum(axis=1) == 1).sum())
        ended = ~alive.any(axis=1)
        if ended.any():
            _, alive = env.reset(reset_mask=ended)
    assert alone > 10


@pytest.mark.parametrize(
    ("name", "agents"),
    [("merge-v0", 3), ("merge-generic-v1", 8), ("roundabout-v1", 5), ("roundabout-generic-v0", 9)],
)
def test_several_agents_drive_where_highway_env_has_one(name: str, agents: int) -> None:
    env = make_multi(f"fastrl/{name}", 16, config={"controlled_vehicles": agents}, autoreset_mode="disabled")
    _, alive = env.reset(seed=0)
    assert alive.shape == (16, agents) and alive.all()
    for k in range(16):
        vehicles = env.vehicles(k)
        assert sorted(vehicles["agent"][vehicles["agent"] >= 0]) == list(range(agents))
        assert not vehicles["crashed"].any()
    rng = np.random.default_rng(0)
    ended_alone = False
    for _ in range(10):
        before = alive
        _, rewards, terminations, truncations, alive, _ = env.step(rng.integers(0, 5, (16, agents)))
        assert not rewards[~before].any() and np.isfinite(rewards).all()
        np.testing.assert_array_equal(alive, before & ~terminations & ~truncations)
        ended_alone |= bool((terminations.any(axis=1) & alive.any(axis=1)).any())
        if not alive.any(axis=1).all():
            _, alive = env.reset(reset_mask=~alive.any(axis=1))
    assert ended_alone


@pytest.mark.parametrize("name", ["merge-v0", "roundabout-v0"])
def test_agents_take_the_places_of_traffic(name: str) -> None:
    """The vehicles stand where they stand with one agent, who drives the first."""
    alone = make_multi(f"fastrl/{name}", 8)
    together = make_multi(f"fastrl/{name}", 8, config={"controlled_vehicles": 5})
    alone.reset(seed=5)
    together.reset(seed=5)
    for k in range(8):
        one, all_of_them = alone.vehicles(k), together.vehicles(k)
        if name == "merge-v0":
            np.testing.assert_array_equal(one["x"], all_of_them["x"])
            np.testing.assert_array_equal(one["y"], all_of_them["y"])
        # Traffic's other draws, of which agents need none, lie between those of the roundabout's places.
        np.testing.assert_array_equal(one["x"][:2], all_of_them["x"][:2])
        assert (one["agent"] >= 0).tolist() == [True, False, False, False, False]
        assert all_of_them["agent"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["racetrack-v0", "racetrack-large-v1", "racetrack-oval-v0"])
def test_agents_of_a_racetrack_start_on_it_and_end_one_by_one(name: str) -> None:
    env = make_multi(
        f"fastrl/{name}",
        32,
        config={"controlled_vehicles": 4, "other_vehicles": 0},
        autoreset_mode="disabled",
    )
    obs, alive = env.reset(seed=0)
    assert obs.shape == (32, 4, 2 * 12 * 12) and alive.all()
    for k in range(32):
        vehicles = env.vehicles(k)
        places = np.stack([vehicles["x"], vehicles["y"]], axis=1)
        apart = np.linalg.norm(places[:, None] - places[None], axis=2) + 100 * np.eye(4)
        assert apart.min() >= 20 and vehicles["agent"].tolist() == [0, 1, 2, 3]
    _, rewards, terminations, *_ = env.step(np.zeros((32, 4, 1), np.float32))
    assert not terminations.any() and (rewards > 0.5).mean() > 0.9
    rng = np.random.default_rng(0)
    ended_alone = False
    for _ in range(15):
        before = alive
        _, rewards, terminations, truncations, alive, _ = env.step(rng.uniform(-1, 1, (32, 4, 1)))
        assert not rewards[~before].any() and not rewards[terminations].any()
        np.testing.assert_array_equal(alive, before & ~terminations & ~truncations)
        ended_alone |= bool((terminations.any(axis=1) & alive.any(axis=1)).any())
        if not alive.any(axis=1).all():
            _, alive = env.reset(reset_mask=~alive.any(axis=1))
    assert ended_alone


def test_the_team_of_a_merge_shares_reward_and_end() -> None:
    one = {"type": "DiscreteMetaAction"}
    config = {
        "controlled_vehicles": 2,
        "action": {"type": "MultiAgentAction", "action_config": one},
        "observation": {"type": "MultiAgentObservation", "observation_config": {"type": "Kinematics"}},
    }
    team = gymnasium.make_vec("fastrl/merge-v0", 4, config=config)
    each = make_multi("fastrl/merge-v0", 4, config={"controlled_vehicles": 2})
    team.reset(seed=1)
    each.reset(seed=1)
    running = np.ones(4, np.bool_)
    for _ in range(8):
        _, shared, terminated, *_ = team.step((np.full(4, 1), np.full(4, 1)))
        _, own, terminations, *_ = each.step(np.full((4, 2), 1))
        np.testing.assert_allclose(shared[running], own.mean(axis=1)[running], atol=1e-6)
        np.testing.assert_array_equal(terminated[running], terminations.any(axis=1)[running])
        running &= ~terminated
    assert not running.all()


def test_agents_without_room_are_refused() -> None:
    with pytest.raises(ValueError, match="controlled_vehicles: expected a whole number from 1 to 25, got 40"):
        make_multi("fastrl/merge-generic-v0", 2, config={"controlled_vehicles": 40})


def test_one_agent_is_a_team_of_one() -> None:
    env = make_multi("fastrl/merge-v0", 4, autoreset_mode="same_step")
    single = RoadVectorEnv(4, id="merge-v0", autoreset_mode="same_step")
    obs, alive = env.reset(seed=3)
    expected, _ = single.reset(seed=3)
    assert alive.all()
    for _ in range(20):
        np.testing.assert_array_equal(obs[:, 0], expected.reshape(4, -1))
        obs, rewards, terminations, *_ = env.step(np.full((4, 1), 3))
        expected, own, ends, *_ = single.step(np.full(4, 3))
        np.testing.assert_allclose(rewards[:, 0], own.astype(np.float32))
        np.testing.assert_array_equal(terminations[:, 0], ends)


def test_a_copy_plays_on_by_itself() -> None:
    env = make("roundabout-v0").unwrapped
    env.reset(seed=4)
    twin = deepcopy(env)
    for action in (3, 0, 4):
        np.testing.assert_equal(env.step(action)[:4], twin.step(action)[:4])
    assert env.vehicle.lane_index == twin.vehicle.lane_index
    assert env.vehicle.lane_index[:2] in {("ses", "se"), ("se", "ex"), ("ex", "ee"), ("ser", "ses")}


def test_the_config_may_change_at_a_reset() -> None:
    env = make("intersection-v0").unwrapped
    env.reset(seed=0, options={"config": {"duration": 1, "observation": {"type": "OccupancyGrid"}}})
    assert env.observation_space.shape == (4, 11, 11)
    assert env.step(1)[3]
    assert env.default_config() == default_config("intersection-v0")


def test_a_tuple_of_observations_has_a_space_of_each_part() -> None:
    parts = [
        {"type": "Kinematics", "order": "shuffled"},
        {"type": "OccupancyGrid", "as_image": True},
        {"type": "TupleObservation", "observation_configs": [{"type": "LidarObservation", "cells": 6}]},
    ]
    config = {"observation": {"type": "TupleObservation", "observation_configs": parts}}
    single, vector = make("merge-v0", config=config), RoadVectorEnv(3, id="merge-v0", config=config)
    table, image, (rays,) = single.reset(seed=4)[0]
    assert (table.shape, image.shape, rays.shape) == ((5, 5), (4, 11, 11), (6, 2))
    assert (table.dtype, image.dtype) == (np.float32, np.uint8)
    tables, images, (all_rays,) = vector.reset(seed=4)[0]
    assert vector.observation_space.contains((tables, images, (all_rays,)))
    for own, batch in ((table, tables), (image, images), (rays, all_rays)):
        np.testing.assert_array_equal(own, batch[0])
    team = make_multi("fastrl/merge-v0", 3, config=config)
    flat = team.reset(seed=4)[0][0, 0]
    assert flat.shape == (25 + 484 + 12,)
    np.testing.assert_array_equal(flat, np.concatenate([table.ravel(), image.ravel(), rays.ravel()]))
    twin = RoadVectorEnv(3, id="merge-v0", config=config)
    twin.load_state(vector.save_state())
    np.testing.assert_equal(twin.step(np.full(3, 1))[0], vector.step(np.full(3, 1))[0])


def test_time_limits_hold_in_all_faces() -> None:
    slow = {"action": {"type": "DiscreteMetaAction", "target_speeds": [5, 30]}}
    mode: Any = "vector_entry_point"
    vector = gymnasium.make_vec("fastrl/two-way-v0", 64, vectorization_mode=mode, config=slow)
    vector.reset(seed=8)
    lengths = np.zeros(64, int)
    for step in range(15):
        _, _, terminations, truncations, _ = vector.step(np.full(64, 4))
        lengths[(lengths == 0) & (terminations | truncations)] = step + 1
    assert lengths.min() > 0 and lengths.max() == 15


@pytest.mark.parametrize("id", KINDS)
def test_pictures_show_the_roads(id: str) -> None:  # noqa: A002
    env = make(id, render_mode="rgb_array")
    env.reset(seed=0)
    picture, config = env.render(), default_config(id)
    assert picture.shape == (config["screen_height"], config["screen_width"], 3)
    assert len(np.unique(picture @ (65536, 256, 1))) > 5


@pytest.mark.parametrize(
    ("id", "config", "message"),
    [
        ("merge-v0", {"lanes_count": 3}, "unknown key 'lanes_count'"),
        ("merge-v0", {"colision_reward": 1}, "collision_reward"),
        ("merge-v0", {"high_speed_reward": -1.6}, "division by zero"),
        ("merge-generic-v0", {"after_merge_length": 89}, "at least 90"),
        ("roundabout-v0", {"incoming_vehicle_destination": 3}, "expected 0 to 2"),
        ("intersection-v0", {"destination": "o4"}, "'o3'"),
        ("intersection-v0", {"simulation_frequency": 7.5}, "simulation_frequency"),
        ("intersection-v0", {"action": {"type": "MultiAgentAction"}}, "'action_config'"),
        (
            "merge-v0",
            {"observation": {"type": "ExitObservation"}},
            "'ExitObservation' is not supported as observation",
        ),
        ("two-way-v0", {"action": {"type": "ContinuousAction"}}, "target speeds"),
        (
            "intersection-v0",
            {"action": {"type": "MultiAgentAction", "action_config": {"type": "DiscreteMetaAction"}}},
            "together",
        ),
        ("exit-v0", {"vehicles_density": 0}, "above 0"),
        ("racetrack-v0", {"action": {"type": "DiscreteMetaAction"}}, "racetracks fail"),
        ("merge-v0", {"observation": {"type": "LidarObservation", "cells": 0}}, "1 to"),
        ("merge-v0", {"observation": {"type": "TupleObservation"}}, "a list of observations"),
        ("merge-v0", {"observation": {"type": "GrayscaleObservation"}}, "pixels along x and y"),
        (
            "merge-v0",
            {
                "observation": {
                    "type": "GrayscaleObservation",
                    "observation_shape": (8, 8),
                    "stack_size": 1,
                    "weights": [0.3, 0.6, 0.1],
                    "scaling": 1000,
                }
            },
            "0.1 to 100 pixels a metre",
        ),
        (
            "racetrack-v0",
            {
                "observation": {
                    "type": "TupleObservation",
                    "observation_configs": [{"type": "TimeToCollision"}],
                }
            },
            "target speeds",
        ),
        ("racetrack-v0", {"collision_reward": 1}, "other than the best reward"),
        ("racetrack-oval-v1", {"no_lanes": 0}, "expected 2 to 1000"),
        ("racetrack-oval-v1", {"length": 0}, "above 0"),
    ],
)
def test_a_wrong_config_is_refused_by_name(id: str, config: dict[str, Any], message: str) -> None:  # noqa: A002
    with pytest.raises((ValueError, TypeError), match=message):
        make(id, config=config)


def test_actions_of_several_agents_have_names() -> None:
    names = make("intersection-multi-agent-v0").unwrapped.action_type.actions
    assert names == {0: "SLOWER", 1: "IDLE", 2: "FASTER"}


def test_highways_have_no_links() -> None:
    with pytest.raises(ValueError, match="highway-v0 has no radio links, got 'range': use fastrl/coop"):
        make_multi("fastrl/highway-v0", 1, comms="range")


def test_unknown_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="'merge-v0'"):
        RoadVectorEnv(1, id="merge")
