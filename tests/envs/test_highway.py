"""`fastrl/highway-v0` as a Gymnasium environment: config, spaces, actions, and errors.

`test_highway_lockstep.py` shows that its episodes agree with highway-env.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import fastrl  # noqa: F401 (registers the environments)
from fastrl.envs import HighwayEnv, HighwayVectorEnv, make_multi
from fastrl.envs.traffic.highway import default_config
from fastrl.testing import check_vector_env

SMALL: dict[str, Any] = {"vehicles_count": 6, "duration": 6}
IDS = ("fastrl/highway-v0", "fastrl/highway-fast-v0")


def observation(kind: str, **options: Any) -> dict[str, Any]:
    return SMALL | {"observation": {"type": kind} | options}


def action(kind: str, **options: Any) -> dict[str, Any]:
    return SMALL | {"action": {"type": kind} | options}


# Spaces and config


@pytest.mark.parametrize(
    ("config", "shape", "dtype"),
    [
        ({}, (5, 5), np.float32),
        (observation("Kinematics", vehicles_count=3, features=["x", "heading"]), (3, 2), np.float32),
        (observation("TimeToCollision"), (3, 3, 10), np.float32),
        (observation("TimeToCollision", horizon=5) | {"policy_frequency": 3}, (3, 3, 15), np.float32),
        (observation("OccupancyGrid"), (4, 11, 11), np.float32),
        (observation("OccupancyGrid", as_image=True, grid_step=[5, 4]), (4, 11, 13), np.uint8),
    ],
    ids=str,
)
def test_observations_are_in_their_space(config: dict[str, Any], shape: tuple[int, ...], dtype: type) -> None:
    env = HighwayEnv(config)
    space = env.observation_space
    assert isinstance(space, Box)
    assert space.shape == shape and space.dtype == dtype
    obs, _ = env.reset(seed=0)
    assert obs.dtype == dtype and space.contains(obs)
    for _ in range(3):
        obs = env.step(env.action_space.sample())[0]
        assert space.contains(obs)
        if env.vehicles()["crashed"][0]:
            break


@pytest.mark.parametrize(
    ("options", "space"),
    [
        ({"type": "DiscreteMetaAction"}, Discrete(5)),
        ({"type": "DiscreteMetaAction", "lateral": False}, Discrete(3)),
        ({"type": "ContinuousAction"}, Box(-1, 1, (2,), np.float32)),
        ({"type": "ContinuousAction", "longitudinal": False}, Box(-1, 1, (1,), np.float32)),
        ({"type": "DiscreteAction"}, Discrete(9)),
        ({"type": "DiscreteAction", "lateral": False, "actions_per_axis": 7}, Discrete(7)),
    ],
    ids=str,
)
def test_action_spaces_are_those_of_highway_env(options: dict[str, Any], space: Any) -> None:
    assert HighwayEnv({"action": options}).action_space == space


def test_defaults_are_those_of_highway_env() -> None:
    reference = pytest.importorskip("highway_env.envs.highway_env", reason="highway-env is not installed")
    assert default_config() == reference.HighwayEnv.default_config()
    assert default_config(fast=True) == reference.HighwayEnvFast.default_config()


def test_spaces_and_info_are_those_of_highway_env() -> None:
    pytest.importorskip("highway_env", reason="highway-env is not installed")
    theirs = gymnasium.make("highway-fast-v0", config=SMALL)
    mine = gymnasium.make("fastrl/highway-fast-v0", config=SMALL)
    assert (theirs.observation_space, theirs.action_space) == (mine.observation_space, mine.action_space)
    assert theirs.unwrapped.config == mine.unwrapped.config
    (_, before), (_, own) = theirs.reset(seed=3), mine.reset(seed=3)
    assert before.keys() == own.keys() and before["rewards"].keys() == own["rewards"].keys()
    *_, after = theirs.step(3)
    *_, own = mine.step(3)
    assert after.pop("rewards") == pytest.approx(own.pop("rewards"), abs=1e-9)
    assert after == pytest.approx(own, abs=1e-9)
    assert theirs.unwrapped.metadata["render_fps"] == mine.unwrapped.metadata["render_fps"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("steering", [0.05, np.float64(0.05)], ids=["Python's limits", "numpy's limits"])
def test_continuous_actions_are_computed_in_their_precision(dtype: type, steering: Any) -> None:
    pytest.importorskip("highway_env", reason="highway-env is not installed")
    config = {"vehicles_count": 3} | action("ContinuousAction", steering_range=[-steering, steering])
    theirs = gymnasium.make("highway-fast-v0", config=config).unwrapped
    mine = gymnasium.make("fastrl/highway-fast-v0", config=config).unwrapped
    assert theirs.action_space.dtype == np.float32
    for seed in range(3):
        theirs.action_space.seed(seed)
        theirs.reset(seed=seed), mine.reset(seed=seed)
        for _ in range(12):
            # A third is another number in float64 than in float32.
            drawn = theirs.action_space.sample().astype(dtype) / dtype(3)
            theirs.step(drawn)
            _, _, terminated, truncated, _ = mine.step(drawn)
            here = mine.vehicle
            assert np.abs(theirs.vehicle.position - here.position).max() < 1e-11
            assert abs(theirs.vehicle.speed - here.speed) + abs(theirs.vehicle.heading - here.heading) < 1e-12
            if terminated or truncated:
                break


def test_numbers_in_between_stay_float64_in_step_into() -> None:
    single, double = (HighwayVectorEnv(2, config=action("ContinuousAction"), num_threads=1) for _ in range(2))
    actions = np.full((2, 2), 0.3)
    rows = [np.empty((2, 25), np.float32) for _ in range(2)]
    for env, sent, obs in ((single, actions.astype(np.float32), rows[0]), (double, actions, rows[1])):
        env.reset_into(obs, seed=0)
        env.step_into(sent, obs, np.empty(2), np.empty(2, np.bool_), np.empty(2, np.bool_))
    moved = [env.vehicles(1)["heading"][0] for env in (single, double)]
    assert moved[0] != moved[1] and moved[0] == pytest.approx(moved[1], abs=1e-6)
    with pytest.raises(TypeError, match="expected a C-contiguous float32 array of shape"):
        double.step_into(
            actions.astype(np.int64), obs, np.empty(2), np.empty(2, np.bool_), np.empty(2, np.bool_)
        )


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ([], TypeError, "config: expected a dict, got list"),  # type: ignore[list-item]
    ({"lane_count": 3}, ValueError, r"config: unknown key 'lane_count'; did you mean lanes_count\?"),
    ({"weather": "rain"}, ValueError, "config: unknown key 'weather': known are observation, action"),
    ({"lanes_count": 0}, ValueError, r"config\['lanes_count'\]: expected 1 to"),
    ({"lanes_count": 2.0}, TypeError, "lanes_count.*expected an integer"),
    ({"lanes_count": True}, TypeError, "lanes_count.*expected an integer"),
    ({"vehicles_count": -1}, ValueError, "vehicles_count"),
    ({"vehicles_count": 10**9}, ValueError, "vehicles_count"),
    ({"controlled_vehicles": 0}, ValueError, "controlled_vehicles"),
    ({"initial_lane_id": 4}, ValueError, r"initial_lane_id.*expected 0 to 3, got 4"),
    ({"duration": float("nan")}, ValueError, "duration.*finite number above 0"),
    ({"duration": "40"}, TypeError, "duration.*expected a number"),
    ({"vehicles_density": 0}, ValueError, "vehicles_density"),
    ({"ego_spacing": -1}, ValueError, "ego_spacing.*at least 0"),
    ({"simulation_frequency": 0}, ValueError, "simulation_frequency"),
    ({"simulation_frequency": 5, "policy_frequency": 10}, ValueError, "policy_frequency.*1 to 100000 frames"),
    ({"simulation_frequency": 1e8}, ValueError, "policy_frequency.*1 to 100000 frames"),
    ({"simulation_frequency": 1e300}, ValueError, "simulation_frequency.*at most 1e"),
    ({"vehicles_density": 1e-300}, ValueError, "vehicles_density"),
    ({"reward_speed_range": [20, 20]}, ValueError, "reward_speed_range"),
    ({"reward_speed_range": [20]}, ValueError, "reward_speed_range.*2 numbers"),
    ({"collision_reward": float("inf")}, ValueError, "collision_reward"),
    ({"collision_reward": 0.5}, ValueError, "normalize_reward.*division by zero"),
    ({"normalize_reward": 1}, TypeError, "normalize_reward.*True or False"),
    ({"other_vehicles_type": "IDMVehicle"}, ValueError, "other_vehicles_type.*expected one of 'highway_env"),
    ({"manual_control": True}, ValueError, "manual_control.*only False"),
    ({"observation": "Kinematics"}, TypeError, r"config\['observation'\]: expected a dict"),
    ({"observation": {"type": []}}, TypeError, "'type'.*expected a name"),
    ({"observation": {}}, ValueError, "expected a 'type'"),
    ({"observation": {"type": "ExitObservation"}}, ValueError, "'ExitObservation' is not supported"),
    (
        {"observation": {"type": "MultiAgentObservation", "observation_config": {"type": "Kinematics"}}},
        ValueError,
        "fastrl/coop-highway-v0",
    ),
    (observation("Kinematics", vehicle_count=3), ValueError, "did you mean vehicles_count"),
    (observation("Kinematics", vehicles_count=0), ValueError, "vehicles_count"),
    (
        observation("Kinematics", vehicles_count=1),
        ValueError,
        "expected 2 to 100000, got 1, with which highway",
    ),
    (observation("Kinematics", features=["x", "vz"]), ValueError, "features.*got 'vz'"),
    (observation("Kinematics", features=["x", "x"]), ValueError, "each name once"),
    (observation("Kinematics", features="x"), TypeError, "list of names"),
    (observation("Kinematics", features_range={"x": [1, 1]}), ValueError, r"features_range'\]\['x'\]"),
    (observation("Kinematics", features_range={"z": [0, 1]}), ValueError, "unknown key 'z'"),
    (observation("Kinematics", order="random"), ValueError, "order.*'sorted', 'shuffled'"),
    (observation("Kinematics", absolute=None), TypeError, "absolute"),
    (observation("TimeToCollision", horizon=0), ValueError, "horizon"),
    (
        observation("TimeToCollision") | {"action": {"type": "ContinuousAction"}},
        ValueError,
        "TimeToCollision needs target speeds",
    ),
    (observation("OccupancyGrid", absolute=True), ValueError, "absolute"),
    (observation("OccupancyGrid", grid_step=[5, 0]), ValueError, "grid_step"),
    (observation("OccupancyGrid", grid_size=[[0, 1], [3, 2]]), ValueError, "low < high"),
    (observation("OccupancyGrid", grid_size=[[0, 1], [0, 1]]), ValueError, "grid of 1 to"),
    (action("MultiAgentAction"), ValueError, "fastrl/coop-highway-v0"),
    (action("DiscreteMetaAction", longitudinal=False, lateral=False), ValueError, "got neither"),
    (action("DiscreteMetaAction", target_speeds=[20]), ValueError, "two different speeds"),
    (action("DiscreteMetaAction", target_speeds=[-5, 20]), ValueError, r"target_speeds'\]\[0\]"),
    (action("DiscreteMetaAction", target_speeds=[20, float("nan")]), ValueError, "target_speeds"),
    (action("ContinuousAction", speed_range=[30, 20]), ValueError, "speed_range"),
    (action("ContinuousAction", steering_range=[-2, 2]), ValueError, "steering_range"),
    (action("DiscreteAction", speed_range=[0, 30]), ValueError, "unknown key 'speed_range'"),
    (action("DiscreteAction", actions_per_axis=1), ValueError, "actions_per_axis"),
]


@pytest.mark.parametrize(("config", "kind", "message"), WRONG, ids=[str(wrong[0]) for wrong in WRONG])
def test_a_wrong_config_is_refused_and_named(
    config: dict[str, Any], kind: type[Exception], message: str
) -> None:
    for make in (HighwayEnv, lambda config: HighwayVectorEnv(2, config=config)):
        with pytest.raises(kind, match=message):
            make(config)


def test_a_config_is_not_changed_and_not_shared() -> None:
    given_config = {"observation": {"type": "Kinematics", "features": ["x", "y"]}}
    before = deepcopy(given_config)
    env = HighwayEnv(given_config)
    env.config["observation"]["features"].append("vx")
    assert given_config == before


def test_the_config_may_be_changed_between_episodes() -> None:
    env = gymnasium.make("fastrl/highway-v0", config=SMALL)
    env.reset(seed=5)
    env.unwrapped.config["lanes_count"] = 2
    first, _ = env.reset(seed=5)
    straight, _ = gymnasium.make("fastrl/highway-v0", config=SMALL | {"lanes_count": 2}).reset(seed=5)
    assert np.array_equal(first, straight)
    obs, _ = env.reset(seed=5, options={"config": {"observation": {"type": "OccupancyGrid"}}})
    assert obs.shape == env.unwrapped.observation_space.shape == (4, 11, 11)
    with pytest.raises(ValueError, match="did you mean duration"):
        env.reset(options={"config": {"durations": 3}})
    assert gymnasium.make("fastrl/highway-fast-v0").unwrapped.default_config() == default_config(fast=True)
    with pytest.raises(ValueError, match="options: expected 'config'"):
        env.reset(options={"mask": 1})
    env.unwrapped.config["lanes_count"] = 0
    with pytest.raises(ValueError, match="lanes_count"):
        env.reset()


def test_a_change_of_config_continues_the_random_stream() -> None:
    env, other = HighwayEnv(SMALL), HighwayEnv(SMALL)
    env.reset(seed=5), other.reset(seed=5)
    changed, _ = env.reset(options={"config": {"duration": 3}})
    assert np.array_equal(changed, other.reset()[0])


# Seeds and actions


@pytest.mark.parametrize(
    ("seed", "kind"), [(1.5, TypeError), ("1", TypeError), (-1, ValueError), (2**64, ValueError)]
)
def test_seeds_of_the_wrong_type_are_refused(seed: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        HighwayVectorEnv(1, config=SMALL).reset(seed=seed)
    with pytest.raises((kind, gymnasium.error.Error)):
        HighwayEnv(SMALL).reset(seed=seed)


@pytest.mark.parametrize(
    ("options", "wrong", "kind", "message"),
    [
        ({"type": "DiscreteMetaAction"}, 5, ValueError, "from 0 to 4, got 5"),
        ({"type": "DiscreteMetaAction"}, -1, ValueError, "from 0 to 4"),
        ({"type": "DiscreteMetaAction"}, 1.0, TypeError, "integers"),
        ({"type": "DiscreteMetaAction"}, [1, 2], ValueError, "actions"),
        ({"type": "DiscreteMetaAction"}, None, TypeError, "actions"),
        ({"type": "DiscreteAction"}, 9, ValueError, "from 0 to 8"),
        ({"type": "ContinuousAction"}, [0.0, np.nan], ValueError, "finite numbers"),
        ({"type": "ContinuousAction"}, [np.inf, 0.0], ValueError, "finite numbers"),
        ({"type": "ContinuousAction"}, [0.0], ValueError, r"shape \(1, 2\)"),
        ({"type": "ContinuousAction"}, [0.0, 0.0, 0.0], ValueError, r"shape \(1, 2\)"),
        ({"type": "ContinuousAction"}, ["0", "0"], TypeError, "numbers"),
        ({"type": "ContinuousAction", "clip": False}, [1.5, 0.0], ValueError, "clip is False"),
    ],
    ids=str,
)
def test_unusable_actions_are_refused_and_change_nothing(
    options: dict[str, Any], wrong: Any, kind: type[Exception], message: str
) -> None:
    env = HighwayEnv(SMALL | {"action": options})
    env.reset(seed=0)
    before = env.save_state()
    with pytest.raises(kind, match=message):
        env.step(wrong)
    assert env.save_state() == before


def test_actions_beyond_the_range_are_clipped_as_in_highway_env() -> None:
    one, other = (HighwayEnv(action("ContinuousAction")) for _ in range(2))
    one.reset(seed=0), other.reset(seed=0)
    assert np.array_equal(one.step([9.0, -0.01])[0], other.step([1.0, -0.01])[0])


def test_an_ended_episode_cannot_be_stepped() -> None:
    env = HighwayEnv(SMALL | {"duration": 1})
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(1)
    env.reset(seed=0)
    assert env.step(1)[3]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(1)


def test_available_actions_follow_lane_and_speed() -> None:
    env = HighwayEnv(SMALL | {"initial_lane_id": 0, "vehicles_count": 0})
    env.reset(seed=0)
    assert env.get_available_actions() == [1, 2, 3, 4]
    env.step(3)
    assert env.get_available_actions() == [1, 2, 4]
    assert env.action_masks().tolist() == [False, True, True, False, True]
    with pytest.raises(ValueError, match="expected environments that have masks, got some without"):
        HighwayEnv(action("ContinuousAction")).action_masks()


def test_highway_env_attributes_are_available() -> None:
    env = gymnasium.make("fastrl/highway-fast-v0", config=SMALL).unwrapped
    with pytest.raises(gymnasium.error.ResetNeeded):
        _ = env.vehicle
    env.reset(seed=0)
    assert env.action_type.actions_indexes["FASTER"] == 3 and env.action_type.actions[1] == "IDLE"
    assert env.action_type.get_available_actions() == env.get_available_actions()
    before = env.vehicle
    env.step(env.action_type.actions_indexes["IDLE"])
    after = env.vehicle
    assert after.position[0] > before.position[0] + 20 and after.lane_index == (
        "0",
        "1",
        before.lane_index[2],
    )
    assert (after.speed, after.target_speed, after.crashed) == (25.0, 25.0, False)


def test_a_copy_is_independent() -> None:
    env = gymnasium.make("fastrl/highway-fast-v0", config=SMALL)
    env.reset(seed=1)
    copy = deepcopy(env)
    theirs = [copy.step(action)[0] for action in (1, 3, 3)]
    mine = [env.step(action)[0] for action in (1, 3, 4)]
    assert all(np.array_equal(a, b) for a, b in zip(theirs[:2], mine[:2], strict=True))
    assert not np.array_equal(theirs[2], mine[2])


# Contracts


@pytest.mark.filterwarnings("ignore:.*A Box observation space m")
@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("config", [{}, action("ContinuousAction"), observation("TimeToCollision")], ids=str)
def test_gymnasium_takes_it(id: str, config: dict[str, Any]) -> None:  # noqa: A002
    check_env(gymnasium.make(id, config=config).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("options", [{"num_envs": -1}, {"num_envs": 2**70}, {"num_threads": -1}], ids=str)
def test_the_multi_agent_env_refuses_invalid_options(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}: expected [01] to"):
        make_multi("fastrl/highway-v0", **{"num_envs": 2, **options})


def test_the_multi_agent_env_has_one_agent_each() -> None:
    multi = make_multi("fastrl/highway-fast-v0", 2, config=SMALL)
    obs, alive = multi.reset(seed=4)
    first, _ = HighwayEnv(SMALL, fast=True).reset(seed=5)
    assert np.array_equal(obs[1, 0], first.ravel())
    assert alive.all() and multi.single_observation_space.shape == (25,)


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        *(
            pytest.param(config, marks=pytest.mark.slow)
            for config in (
                SMALL
                | {
                    "vehicles_density": 3,
                    "other_vehicles_type": "highway_env.vehicle.behavior.AggressiveVehicle",
                },
                observation("Kinematics", order="shuffled"),
                observation("OccupancyGrid", as_image=True) | {"action": {"type": "ContinuousAction"}},
                observation("TimeToCollision"),
                action("DiscreteAction") | {"controlled_vehicles": 2},
            )
        ),
    ],
    ids=str,
)
def test_it_passes_the_conformance_kit(config: dict[str, Any]) -> None:
    def make(**options: Any) -> VectorEnv:
        return HighwayVectorEnv(config=config, **options)

    check_vector_env(make, steps=20, time_limit=6)


@pytest.mark.slow
def test_it_passes_without_info_and_made_by_gymnasium() -> None:
    def make(**options: Any) -> VectorEnv:
        return gymnasium.make_vec(
            "fastrl/highway-fast-v0",
            vectorization_mode="vector_entry_point",
            config=SMALL,
            info=False,
            **options,
        )

    check_vector_env(make, steps=20, time_limit=6)


@pytest.mark.slow
def test_a_time_limit_in_steps_ends_episodes_too() -> None:
    def make(**options: Any) -> VectorEnv:
        config = SMALL | {"policy_frequency": 5}
        return gymnasium.make_vec("fastrl/highway-fast-v0", config=config, max_episode_steps=7, **options)

    check_vector_env(make, steps=20, time_limit=7)
    with pytest.raises(ValueError, match="max_episode_steps"):
        HighwayVectorEnv(1, max_episode_steps=0)


def test_rollouts_may_have_the_shape_of_observations() -> None:
    env = HighwayVectorEnv(2, config=SMALL, autoreset_mode=AutoresetMode.SAME_STEP, info=False)
    flat, shaped = np.empty((2, 25), np.float32), np.empty((2, 5, 5), np.float32)
    env.reset_into(shaped, seed=1)
    env.reset_into(flat, seed=1)
    assert np.array_equal(flat.reshape(shaped.shape), shaped)
    flags = np.empty(2, np.bool_), np.empty(2, np.bool_)
    env.step_into(np.ones(2, np.int64), shaped, np.empty(2, np.float32), *flags)
    assert np.isfinite(shaped).all()
    with pytest.raises(ValueError, match="obs"):
        env.step_into(np.ones(2, np.int64), shaped[:, ::-1], np.empty(2, np.float32), *flags)


# Properties


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_traffic_keeps_its_invariants_under_any_actions(data: st.DataObject) -> None:
    """No NaN, bounded speeds, a constant number of vehicles, no jumps."""
    manual = data.draw(st.booleans(), "manual")
    lanes = data.draw(st.integers(1, 5), "lanes")
    config = {
        "lanes_count": lanes,
        "vehicles_count": data.draw(st.integers(0, 25), "vehicles"),
        "vehicles_density": data.draw(st.floats(0.5, 4.0), "density"),
        "ego_spacing": data.draw(st.floats(0.0, 3.0), "spacing"),
        "simulation_frequency": data.draw(st.sampled_from([5, 10, 15]), "frequency"),
        "other_vehicles_type": "highway_env.vehicle.behavior."
        + data.draw(st.sampled_from(["IDM", "Linear", "Aggressive", "Defensive"]), "type")
        + "Vehicle",
        "action": {"type": "ContinuousAction"} if manual else {"type": "DiscreteMetaAction"},
        "duration": 10,
    }
    env = HighwayEnv(config)
    obs, _ = env.reset(seed=data.draw(st.integers(0, 2**64 - 1), "seed"))
    count = config["vehicles_count"] + 1
    before, ended = env.vehicles(), False
    crashed = np.zeros(count, np.bool_)
    while not ended:
        chosen = (
            data.draw(st.tuples(*2 * [st.floats(-2, 2, width=32)]), "action")
            if manual
            else data.draw(st.integers(0, 4), "action")
        )
        obs, reward, terminated, truncated, _ = env.step(np.array(chosen, np.float32 if manual else np.int64))
        after = env.vehicles()
        assert np.isfinite(obs).all() and 0.0 <= reward <= 1.0
        assert all(len(values) == count for values in after.values())
        for key in ("x", "y", "heading", "speed"):
            assert np.isfinite(after[key]).all(), key
        assert (np.abs(after["speed"]) <= 41.2).all(), "an acceleration of 6 m/s2 for 0.2 s beyond 40 m/s"
        # A second at full speed, and the displacement by collisions in its frames.
        assert (np.abs(after["x"] - before["x"]) <= 41.2 + 5.0 * 15).all()
        assert (after["crashed"] >= crashed).all(), "nobody recovers from a crash"
        assert ((after["lane"] >= 0) & (after["lane"] < lanes)).all()
        before, crashed, ended = after, after["crashed"], terminated or truncated


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(key=st.sampled_from(sorted(default_config())), value=st.data())
def test_any_value_of_a_key_works_or_is_refused(key: str, value: st.DataObject) -> None:
    """The environment works, or a ValueError or TypeError names the key."""
    drawn = value.draw(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-3, 60),
            st.floats(),
            st.text(max_size=5),
            st.lists(st.floats(), max_size=3),
            st.dictionaries(st.sampled_from(["type", "features", "x"]), st.text(max_size=3), max_size=2),
        )
    )
    try:
        env = HighwayEnv(SMALL | {key: drawn})
    except (ValueError, TypeError) as error:
        refused = str(error)
    else:
        refused = ""
        obs, _ = env.reset(seed=0)
        assert env.observation_space.contains(obs)
        assert np.isfinite(env.step(env.action_space.sample())[1])
    assert not refused or refused.startswith("config"), refused
