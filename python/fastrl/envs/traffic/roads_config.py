"""The config dicts of the environments on road networks: highway-env 1.12.1's keys and defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fastrl.envs.traffic.config_checks import choice, number, numbers, optional, whole
from fastrl.envs.traffic.config_interfaces import (
    LATERAL,
    VEHICLE_FEATURES,
    fill_defaults,
)
from fastrl.envs.traffic.config_kind import (
    ARMS,
    AT_LEAST_0,
    BASE_DEFAULTS,
    MOST_AGENTS,
    POSITIVE,
    Kind,
    as_numbers,
    is_multi_agent,
)


def _features(*names: str, limit: float, speed: float) -> dict[str, Any]:
    ranges = {"x": [-limit, limit], "y": [-limit, limit], "vx": [-speed, speed], "vy": [-speed, speed]}
    return {"type": "Kinematics", "features_range": ranges} | ({"features": list(names)} if names else {})


_MERGE = Kind(
    "merge",
    BASE_DEFAULTS
    | {
        "collision_reward": -1,
        "right_lane_reward": 0.1,
        "high_speed_reward": 0.2,
        "reward_speed_range": [20, 30],
        "merging_speed_reward": -0.5,
        "lane_change_reward": -0.05,
        "controlled_vehicles": 1,
    },
    {"controlled_vehicles": whole(1, 5)},
    worst=("collision_reward", "merging_speed_reward"),
    best=("high_speed_reward", "right_lane_reward"),
    always_normalised=True,
    start=2,
)
_MERGE_GENERIC = replace(
    _MERGE,
    scenario="merge-generic",
    defaults=_MERGE.defaults
    | {
        "lanes_count": 2,
        "vehicles_count": 3,
        "before_merge_length": 150,
        "converge_merge_length": 80,
        "parallel_merge_length": 80,
        "after_merge_length": 150,
    },
    checks={
        "controlled_vehicles": whole(1, MOST_AGENTS),
        "lanes_count": whole(1, 1000),
        "before_merge_length": POSITIVE,
        "converge_merge_length": POSITIVE,
        "parallel_merge_length": POSITIVE,
        "after_merge_length": partial(number, least=90),
    },
    start="lanes_count",
)
_ROUNDABOUT = Kind(
    "roundabout",
    BASE_DEFAULTS
    | {
        "observation": _features(limit=100, speed=15) | {"absolute": True},
        "action": {"type": "DiscreteMetaAction", "target_speeds": [0, 8, 16]},
        "incoming_vehicle_destination": None,
        "collision_reward": -1,
        "high_speed_reward": 0.2,
        "right_lane_reward": 0,
        "lane_change_reward": -0.05,
        "screen_width": 600,
        "screen_height": 600,
        "centering_position": [0.5, 0.6],
        "duration": 11,
        "normalize_reward": True,
        "controlled_vehicles": 1,
    },
    {"incoming_vehicle_destination": optional(whole(0, 2)), "controlled_vehicles": whole(1, 5)},
    best=("high_speed_reward",),
)
_ROUNDABOUT_GENERIC = replace(
    _ROUNDABOUT,
    scenario="roundabout-generic",
    defaults=_ROUNDABOUT.defaults
    | {"roundabout_radius": 20, "roundabout_lanes": 2, "vehicles_count": 5, "duration": 17},
    checks={
        "incoming_vehicle_destination": optional(whole(0, 1000)),
        "controlled_vehicles": whole(1, 20),
        "roundabout_radius": partial(number, least=5),
        "roundabout_lanes": whole(1, 100),
        "vehicles_count": whole(0, 10_000),
    },
)
_CROSSING_TABLE = {
    **_features("presence", "x", "y", "vx", "vy", "cos_h", "sin_h", limit=100, speed=20),
    "vehicles_count": 15,
    "absolute": True,
    "flatten": False,
    "observe_intentions": False,
}
_CROSSING_SPEEDS = {
    "type": "DiscreteMetaAction",
    "longitudinal": True,
    "lateral": False,
    "target_speeds": [0, 4.5, 9],
}
_INTERSECTION = Kind(
    "intersection",
    BASE_DEFAULTS
    | {
        "observation": _CROSSING_TABLE,
        "action": _CROSSING_SPEEDS,
        "duration": 13,
        "destination": "o1",
        "controlled_vehicles": 1,
        "initial_vehicle_count": 10,
        "spawn_probability": 0.6,
        "screen_width": 600,
        "screen_height": 600,
        "centering_position": [0.5, 0.6],
        "scaling": 5.5 * 1.3,
        "collision_reward": -5,
        "high_speed_reward": 1,
        "arrived_reward": 1,
        "reward_speed_range": [7.0, 9.0],
        "normalize_reward": False,
        "offroad_terminal": False,
    },
    {
        # highway-env counts frames with it.
        "simulation_frequency": whole(2, 10_000),
        "destination": optional(partial(choice, choices=ARMS)),
        "controlled_vehicles": whole(1, MOST_AGENTS),
        "initial_vehicle_count": whole(0, 10_000),
    },
    best=("arrived_reward",),
)
_INTERSECTION_MULTI_AGENT = _INTERSECTION.with_defaults(
    action={"type": "MultiAgentAction", "action_config": _CROSSING_SPEEDS},
    observation={"type": "MultiAgentObservation", "observation_config": _CROSSING_TABLE},
    controlled_vehicles=2,
)
_INTERSECTION_CONTINUOUS = _INTERSECTION.with_defaults(
    observation={
        **_CROSSING_TABLE,
        "features": ["presence", "x", "y", "vx", "vy", "long_off", "lat_off", "ang_off"],
        "vehicles_count": 5,
    },
    action={
        "type": "ContinuousAction",
        "steering_range": [-math.pi / 3, math.pi / 3],
        "longitudinal": True,
        "lateral": True,
        "dynamical": True,
        "target_speeds": [0, 4.5, 9],
    },
)
_EXIT = Kind(
    "exit",
    BASE_DEFAULTS
    | {
        "observation": {
            "type": "ExitObservation",
            "vehicles_count": 15,
            "features": ["presence", "x", "y", "vx", "vy", "cos_h", "sin_h"],
            "clip": False,
        },
        "action": {"type": "DiscreteMetaAction", "target_speeds": [18, 24, 30]},
        "lanes_count": 6,
        "vehicles_count": 20,
        "controlled_vehicles": 1,
        "initial_lane_id": None,
        "duration": 18,
        "ego_spacing": 2,
        "vehicles_density": 1.5,
        "collision_reward": 0,
        "right_lane_reward": 0,
        "high_speed_reward": 0.1,
        "lane_change_reward": 0,
        "reward_speed_range": [20, 30],
        "normalize_reward": True,
        "offroad_terminal": False,
        "goal_reward": 1,
        "simulation_frequency": 5,
        "scaling": 5,
    },
    {
        "lanes_count": whole(2, 1000),
        "controlled_vehicles": whole(1, MOST_AGENTS),
        # It has no effect there either.
        "initial_lane_id": optional(whole(0, 1000)),
    },
    best=("goal_reward",),
    start="lanes_count",
    observations=("ExitObservation", "AttributesObservation"),
)
_TWO_WAY = Kind(
    "two-way",
    BASE_DEFAULTS
    | {
        "observation": {"type": "TimeToCollision", "horizon": 5},
        "collision_reward": 0,
        "left_lane_constraint": 1,
        "left_lane_reward": 0.2,
        "high_speed_reward": 0.8,
    },
    start=2,
    meta_only=True,
    most_steps=15,
)
_U_TURN = Kind(
    "u-turn",
    BASE_DEFAULTS
    | {
        "observation": {"type": "TimeToCollision", "horizon": 16},
        "action": {"type": "DiscreteMetaAction", "target_speeds": [8, 16, 24]},
        "screen_width": 789,
        "screen_height": 289,
        "duration": 10,
        "collision_reward": -1.0,
        "left_lane_reward": 0.1,
        "high_speed_reward": 0.4,
        "reward_speed_range": [8, 24],
        "normalize_reward": True,
        "offroad_terminal": False,
    },
    best=("high_speed_reward", "left_lane_reward"),
    start=2,
)
_RACETRACK = Kind(
    "racetrack",
    BASE_DEFAULTS
    | {
        "observation": {
            "type": "OccupancyGrid",
            "features": ["presence", "on_road"],
            "grid_size": [[-18, 18], [-18, 18]],
            "grid_step": [3, 3],
            "as_image": False,
            "align_to_vehicle_axes": True,
        },
        "action": {
            "type": "ContinuousAction",
            "longitudinal": False,
            "lateral": True,
            "target_speeds": [0, 5, 10],
        },
        "policy_frequency": 5,
        "duration": 300,
        "collision_reward": -1,
        "lane_centering_cost": 4,
        "lane_centering_reward": 1,
        "action_reward": -0.3,
        "controlled_vehicles": 1,
        "other_vehicles": 1,
        "screen_width": 600,
        "screen_height": 600,
        "centering_position": [0.5, 0.5],
        "speed_limit": 10.0,
        "terminate_off_road": True,
    },
    {
        "lane_centering_cost": AT_LEAST_0,
        "controlled_vehicles": whole(1, MOST_AGENTS),
        "other_vehicles": whole(0, 10_000),
        "speed_limit": POSITIVE,
    },
    start=2,
    without_meta=True,
)
_RACETRACK_LARGE = replace(_RACETRACK, scenario="racetrack-large", start=3)
_RACETRACK_OVAL = replace(
    _RACETRACK,
    scenario="racetrack-oval",
    defaults=_RACETRACK.defaults
    | {"length": 100, "no_lanes": 3, "block_lane": False, "force_decision": False},
    # For 0 highway-env draws a length from a generator that has no seed, and fails for no lanes. It puts a single lane
    # there twice.
    checks=_RACETRACK.checks | {"length": POSITIVE, "no_lanes": whole(2, 1000)},
    start="no_lanes",
)

_PARKING_GOAL: dict[str, Any] = {
    "type": "KinematicsGoal",
    "features": ["x", "y", "vx", "vy", "cos_h", "sin_h"],
    "scales": [100, 100, 5, 5, 1, 1],
    "normalize": False,
}


class _ParkingKind(Kind):
    """The kind of car parks, in which `info["is_success"]` and rewards are computed from what an agent observes."""

    def check(self, given: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> dict[str, Any]:
        config = super().check(given, base)
        if is_multi_agent(config):
            observation = config["observation"]["observation_config"]
            wanted = len(_PARKING_GOAL["features"])
            is_goal = observation["type"] == "KinematicsGoal"
            if not is_goal or len(fill_defaults(observation)["features"]) != wanted:
                raise ValueError(
                    f"config['observation']['observation_config']: expected KinematicsGoal with {wanted} features, as"
                    " many as reward_weights, because highway-env measures the success of each agent by what it"
                    f" observes; got {observation}"
                )
        return config

    def scenario_options(self, config: Mapping[str, Any]) -> dict[str, list[float]]:
        shown = config["observation"]["observation_config"] if is_multi_agent(config) else _PARKING_GOAL
        features = fill_defaults(shown)["features"]
        return super().scenario_options(config) | {
            "shown_features": [float(VEHICLE_FEATURES.index(name)) for name in features],
            "shown_scales": as_numbers(shown["scales"]),
        }


_PARKING = _ParkingKind(
    "parking",
    BASE_DEFAULTS
    | {
        "observation": _PARKING_GOAL,
        "action": {"type": "ContinuousAction"},
        "reward_weights": [1, 0.3, 0, 0, 0.02, 0.02],
        "success_goal_reward": 0.12,
        "collision_reward": -5,
        "steering_range": math.pi / 4,  # it has no effect there either
        "policy_frequency": 5,
        "duration": 100,
        "screen_width": 600,
        "screen_height": 300,
        "centering_position": [0.5, 0.5],
        "scaling": 7,
        "controlled_vehicles": 1,
        "vehicles_count": 0,
        "add_walls": True,
    },
    {
        "reward_weights": partial(numbers, length=len(_PARKING_GOAL["features"]), least=0),
        # More find no place of their own there.
        "controlled_vehicles": whole(1, 7),
    },
    start=14,
    observations=("KinematicsGoal", "AttributesObservation"),
)


class _LaneKeepingKind(Kind):
    """The kind of lane keeping, which shows how the vehicle slips."""

    def _check_action(self, action: Mapping[str, Any]) -> None:
        if not fill_defaults(action).get("dynamical", False):
            raise ValueError(
                "config['action']: expected ContinuousAction or DiscreteAction with 'dynamical': True, because"
                f" highway-env's lane keeping fails with other vehicles, got {dict(action)}"
            )


_LANE_KEEPING = _LaneKeepingKind(
    "lane-keeping",
    BASE_DEFAULTS
    | {
        "observation": {"type": "AttributesObservation", "attributes": list(LATERAL)},
        "action": {
            "type": "ContinuousAction",
            "steering_range": [-math.pi / 3, math.pi / 3],
            "longitudinal": False,
            "lateral": True,
            "dynamical": True,
        },
        "simulation_frequency": 10,
        "policy_frequency": 10,
        "state_noise": 0.05,
        "derivative_noise": 0.05,
        "screen_width": 600,
        "screen_height": 250,
        "scaling": 7,
        "centering_position": [0.4, 0.5],
    },
    {"state_noise": AT_LEAST_0, "derivative_noise": AT_LEAST_0},
    without_meta=True,
    most_steps=200,
)


def _both(name: str, kind: Kind) -> dict[str, Kind]:
    """Versions 0 and 1, in which vehicles also see neighbours on connected roads."""
    return {f"{name}-v0": kind, f"{name}-v1": kind.connected()}


KINDS: dict[str, Kind] = {
    **_both("merge", _MERGE),
    **_both("merge-generic", _MERGE_GENERIC),
    **_both("roundabout", _ROUNDABOUT),
    **_both("roundabout-generic", _ROUNDABOUT_GENERIC),
    "intersection-v0": _INTERSECTION,
    "intersection-v1": _INTERSECTION_CONTINUOUS,
    "intersection-v2": _INTERSECTION.connected(),
    "intersection-multi-agent-v0": _INTERSECTION_MULTI_AGENT,
    "intersection-multi-agent-v1": _INTERSECTION_MULTI_AGENT,
    "intersection-multi-agent-v2": _INTERSECTION_MULTI_AGENT.connected(),
    **_both("exit", _EXIT),
    "two-way-v0": _TWO_WAY,
    "lane-keeping-v0": _LANE_KEEPING,
    "parking-v0": _PARKING,
    "parking-ActionRepeat-v0": _PARKING.with_defaults(policy_frequency=1, duration=20),
    "parking-parked-v0": _PARKING.with_defaults(vehicles_count=10),
    **_both("u-turn", _U_TURN),
    **_both("racetrack", _RACETRACK),
    **_both("racetrack-large", _RACETRACK_LARGE),
    **_both("racetrack-oval", _RACETRACK_OVAL),
}
"""Scenes by highway-env's ids."""
