"""The config dicts of the environments on road networks: highway-env 1.12.1's keys and defaults, strictly checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from fastrl.envs.traffic.config_checks import flag, known_keys, number, numbers
from fastrl.envs.traffic.config_interfaces import (
    ACTIONS,
    ATTRIBUTES_OBSERVATION,
    EXIT_OBSERVATION,
    GOAL_OBSERVATION,
    OBSERVATIONS,
    VEHICLE_FEATURES,
    check_nested,
    fill_defaults,
    native_action,
    native_observation,
    observation_features,
)
from fastrl.envs.traffic.config_keys import (
    BASE_DEFAULTS,
    VEHICLE_TYPES,
    Check,
    check_together,
    check_values,
    frames_per_step,
    named,
    optional,
    whole,
)

ARMS = ("o0", "o1", "o2", "o3")
MOST_AGENTS = 100
# Observations that one scenario alone has.
OWN_OBSERVATIONS = {"exit": EXIT_OBSERVATION, "parking": GOAL_OBSERVATION}


@dataclass(frozen=True)
class Kind:
    """A kind of environment.

    Attributes:
        scenario: name of the compiled scenario.
        defaults: highway-env's config.
        checks: of the keys that no other kind has.
        worst, best: keys whose sums are the rewards that are normalised to 0 and 1.
        always_normalised: whether `normalize_reward` has no say.
        start: lanes of the road that agents start on.
        meta_only: whether rewards need target speeds.
        without_meta: whether vehicles cannot have target speeds.
        most_steps: Gymnasium's time limit.
        numbers: makes the numbers of the scenario's options from a checked config; None: from its values.
    """

    scenario: str
    defaults: dict[str, Any]
    checks: dict[str, Check] = field(default_factory=dict)
    worst: tuple[str, ...] = ("collision_reward",)
    best: tuple[str, ...] = ()
    always_normalised: bool = False
    start: int | str = 1
    meta_only: bool = False
    without_meta: bool = False
    most_steps: int | None = None
    numbers: Callable[[Mapping[str, Any]], dict[str, list[float]]] | None = None

    def connected(self) -> Kind:
        """The kind whose vehicles also see neighbours on connected roads."""
        return self.with_defaults(neighbour_vehicles_connected_lanes=True)

    def with_defaults(self, **values: Any) -> Kind:
        """The kind with other defaults of some keys."""
        return replace(self, defaults=self.defaults | values)

    @property
    def own_keys(self) -> tuple[str, ...]:
        """Keys of the scenario: those that not all environments have."""
        return tuple(key for key in self.defaults if key not in BASE_DEFAULTS and key != "duration")


def _features(*names: str, limit: float, speed: float) -> dict[str, Any]:
    ranges = {"x": [-limit, limit], "y": [-limit, limit], "vx": [-speed, speed], "vy": [-speed, speed]}
    return {"type": "Kinematics", "features_range": ranges} | ({"features": list(names)} if names else {})


_LENGTH = lambda path, value: number(path, value, above=0)  # noqa: E731

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
_MERGE_GENERIC = Kind(
    "merge-generic",
    _MERGE.defaults
    | {
        "lanes_count": 2,
        "vehicles_count": 3,
        "before_merge_length": 150,
        "converge_merge_length": 80,
        "parallel_merge_length": 80,
        "after_merge_length": 150,
    },
    {
        "controlled_vehicles": whole(1, MOST_AGENTS),
        "lanes_count": whole(1, 1000),
        "before_merge_length": _LENGTH,
        "converge_merge_length": _LENGTH,
        "parallel_merge_length": _LENGTH,
        "after_merge_length": lambda path, value: number(path, value, least=90),
    },
    worst=_MERGE.worst,
    best=_MERGE.best,
    always_normalised=True,
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
_ROUNDABOUT_GENERIC = Kind(
    "roundabout-generic",
    _ROUNDABOUT.defaults
    | {"roundabout_radius": 20, "roundabout_lanes": 2, "vehicles_count": 5, "duration": 17},
    {
        "incoming_vehicle_destination": optional(whole(0, 1000)),
        "controlled_vehicles": whole(1, 20),
        "roundabout_radius": lambda path, value: number(path, value, least=5),
        "roundabout_lanes": whole(1, 100),
        "vehicles_count": whole(0, 10_000),
    },
    best=_ROUNDABOUT.best,
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
        "destination": optional(named(ARMS)),
        "controlled_vehicles": whole(1, MOST_AGENTS),
        "initial_vehicle_count": whole(0, 10_000),
        "spawn_probability": number,
    },
    best=("arrived_reward",),
)
_INTERSECTION_MULTI_AGENT = Kind(
    "intersection",
    _INTERSECTION.defaults
    | {
        "action": {"type": "MultiAgentAction", "action_config": _CROSSING_SPEEDS},
        "observation": {"type": "MultiAgentObservation", "observation_config": _CROSSING_TABLE},
        "controlled_vehicles": 2,
    },
    _INTERSECTION.checks,
    best=_INTERSECTION.best,
)
_INTERSECTION_CONTINUOUS = Kind(
    "intersection",
    _INTERSECTION.defaults
    | {
        "observation": {
            **_features(
                "presence", "x", "y", "vx", "vy", "long_off", "lat_off", "ang_off", limit=100, speed=20
            ),
            "vehicles_count": 5,
            "absolute": True,
            "flatten": False,
            "observe_intentions": False,
        },
        "action": {
            "type": "ContinuousAction",
            "steering_range": [-math.pi / 3, math.pi / 3],
            "longitudinal": True,
            "lateral": True,
            "dynamical": True,
            "target_speeds": [0, 4.5, 9],
        },
    },
    _INTERSECTION.checks,
    best=_INTERSECTION.best,
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
    {"left_lane_constraint": number},
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
        "lane_centering_cost": lambda path, value: number(path, value, least=0),
        "controlled_vehicles": whole(1, MOST_AGENTS),
        "other_vehicles": whole(0, 10_000),
        "speed_limit": _LENGTH,
        "terminate_off_road": flag,
    },
    start=2,
    without_meta=True,
)
_RACETRACK_LARGE = Kind("racetrack-large", _RACETRACK.defaults, _RACETRACK.checks, start=3, without_meta=True)
_RACETRACK_OVAL = Kind(
    "racetrack-oval",
    _RACETRACK.defaults | {"length": 100, "no_lanes": 3, "block_lane": False, "force_decision": False},
    _RACETRACK.checks
    | {
        # For 0 highway-env draws a length from a generator that has no seed, and fails for no lanes. It puts a single
        # lane there twice.
        "length": _LENGTH,
        "no_lanes": whole(2, 1000),
        "block_lane": flag,
        "force_decision": flag,
    },
    start="no_lanes",
    without_meta=True,
)

_PARKING_GOAL: dict[str, Any] = {
    "type": "KinematicsGoal",
    "features": ["x", "y", "vx", "vy", "cos_h", "sin_h"],
    "scales": [100, 100, 5, 5, 1, 1],
    "normalize": False,
}


def _check_weights(path: str, value: Any) -> None:
    numbers(path, value, len(_PARKING_GOAL["features"]))
    for i, weight in enumerate(value):
        number(f"{path}[{i}]", weight, least=0)


_PARKING = Kind(
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
        "reward_weights": _check_weights,
        "steering_range": number,
        # More find no place of their own there.
        "controlled_vehicles": whole(1, 7),
        "add_walls": flag,
    },
    start=14,
)

KINDS: dict[str, Kind] = {
    "merge-v0": _MERGE,
    "merge-v1": _MERGE.connected(),
    "merge-generic-v0": _MERGE_GENERIC,
    "merge-generic-v1": _MERGE_GENERIC.connected(),
    "roundabout-v0": _ROUNDABOUT,
    "roundabout-v1": _ROUNDABOUT.connected(),
    "roundabout-generic-v0": _ROUNDABOUT_GENERIC,
    "roundabout-generic-v1": _ROUNDABOUT_GENERIC.connected(),
    "intersection-v0": _INTERSECTION,
    "intersection-v1": _INTERSECTION_CONTINUOUS,
    "intersection-v2": _INTERSECTION.connected(),
    "intersection-multi-agent-v0": _INTERSECTION_MULTI_AGENT,
    "intersection-multi-agent-v1": _INTERSECTION_MULTI_AGENT,
    "intersection-multi-agent-v2": _INTERSECTION_MULTI_AGENT.connected(),
    "exit-v0": _EXIT,
    "exit-v1": _EXIT.connected(),
    "two-way-v0": _TWO_WAY,
    "parking-v0": _PARKING,
    "parking-ActionRepeat-v0": _PARKING.with_defaults(policy_frequency=1, duration=20),
    "parking-parked-v0": _PARKING.with_defaults(vehicles_count=10),
    "u-turn-v0": _U_TURN,
    "u-turn-v1": _U_TURN.connected(),
    "racetrack-v0": _RACETRACK,
    "racetrack-v1": _RACETRACK.connected(),
    "racetrack-large-v0": _RACETRACK_LARGE,
    "racetrack-large-v1": _RACETRACK_LARGE.connected(),
    "racetrack-oval-v0": _RACETRACK_OVAL,
    "racetrack-oval-v1": _RACETRACK_OVAL.connected(),
}
"""Scenes by highway-env's ids."""


def agent_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the observation and the action of one agent, where they are of several."""
    inner = {
        key: config[key].get(f"{key}_config", config[key]) if is_multi_agent(config) else config[key]
        for key in ("observation", "action")
    }
    return {**config, **inner}


def is_multi_agent(config: Mapping[str, Any]) -> bool:
    """True where observations and actions are tuples, one entry an agent."""
    return config["action"]["type"] == "MultiAgentAction"


def for_agents(kind: Kind, given: Mapping[str, Any]) -> dict[str, Any]:
    """The config with an observation or an action of one agent as that of each, where there are several agents."""
    config = dict(given)
    several = {**kind.defaults, **given}.get("controlled_vehicles", 1)
    types = {"observation": "MultiAgentObservation", "action": "MultiAgentAction"}
    nested = {key: config.get(key, kind.defaults[key]) for key in types}
    if not all(isinstance(one, Mapping) for one in nested.values()):
        return config
    single = [key for key in types if nested[key].get("type") != types[key]]
    if several != 1 or len(single) == 1:
        config |= {key: {"type": types[key], f"{key}_config": nested[key]} for key in single}
    return config


def check_config(kind: Kind, given: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Checks `base` updated by `given`, as highway-env updates it: a nested dict is replaced as a whole.

    Raises:
        ValueError, TypeError: a key or value that is not supported; the message names the key.
    """
    known_keys("config", given, kind.defaults)
    config = deepcopy({**base, **given})
    single = agent_config(config) if _check_multi_agent(kind, config) else config
    observations = OBSERVATIONS | OWN_OBSERVATIONS.get(kind.scenario, {}) | ATTRIBUTES_OBSERVATION
    check_nested("config['observation']", single["observation"], observations, "observation")
    if kind.scenario == "parking" and is_multi_agent(config):
        _check_team_goals(single["observation"])
    check_nested("config['action']", single["action"], ACTIONS, "action")
    check_values(config, kind.checks)
    if kind.always_normalised or config.get("normalize_reward", False):
        worst, best = (sum(config[key] for key in keys) for keys in (kind.worst, kind.best))
        if worst == best:
            raise ValueError(
                f"config: division by zero, because the best reward, {' + '.join(kind.best)}, equals the worst,"
                f" {' + '.join(kind.worst)} ({best})"
            )
    if kind.meta_only and single["action"]["type"] != "DiscreteMetaAction":
        raise ValueError(
            "config['action']['type']: the reward needs target speeds, which only DiscreteMetaAction has, got"
            f" {single['action']['type']}"
        )
    if kind.without_meta and single["action"]["type"] == "DiscreteMetaAction":
        raise ValueError(
            "config['action']['type']: expected ContinuousAction or DiscreteAction, got DiscreteMetaAction, with"
            " which highway-env's racetracks fail"
        )
    if kind.scenario.startswith("racetrack") and config["collision_reward"] == 1:
        raise ValueError("config['collision_reward']: expected a number other than the best reward, 1, got 1")
    check_together(single)
    return config


def _check_team_goals(observation: Mapping[str, Any]) -> None:
    """Checks the observation of each of several agents in a car park, which `info["is_success"]` is computed from."""
    wanted = len(_PARKING_GOAL["features"])
    is_goal = observation["type"] == "KinematicsGoal"
    if not is_goal or len(observation_features(observation)) != wanted:
        raise ValueError(
            f"config['observation']['observation_config']: expected KinematicsGoal with {wanted} features, as many as"
            " reward_weights, because highway-env measures the success of each agent by what it observes; got"
            f" {observation}"
        )


def _check_multi_agent(kind: Kind, config: Mapping[str, Any]) -> bool:
    """Tells whether the config is of several agents, and checks the outer dicts if so."""
    types = {}
    for key, name in (("observation", "MultiAgentObservation"), ("action", "MultiAgentAction")):
        given = config[key]
        types[key] = isinstance(given, Mapping) and given.get("type") == name
        if types[key]:
            known_keys(f"config[{key!r}]", given, dict.fromkeys(("type", f"{key}_config")))
            if not isinstance(given.get(f"{key}_config"), Mapping):
                raise ValueError(f"config[{key!r}]: expected {key + '_config'!r}, the {key} of one agent")
    if types["observation"] != types["action"]:
        raise ValueError(
            "config: expected MultiAgentObservation together with MultiAgentAction, got one of them only"
        )
    if types["action"] and "controlled_vehicles" not in kind.defaults:
        raise ValueError(f"config['action']['type']: {kind.scenario} has one agent, got MultiAgentAction")
    return types["action"]


def native_options(kind: Kind, config: Mapping[str, Any], max_steps: int | None) -> dict[str, Any]:
    """The options of `_rust.RoadVec` from a checked config."""
    single = agent_config(config)
    lanes = kind.start if isinstance(kind.start, int) else int(config[kind.start])
    duration = float(config.get("duration", math.inf))
    if max_steps is not None:
        duration = min(duration, (max_steps - 0.5) / config["policy_frequency"])
    if kind.scenario == "exit":
        # The last lane of the second section, beyond those of the first.
        single = single | {"exit_lane": 2 * int(config["lanes_count"])}
    own = kind.numbers(config) if kind.numbers else {key: as_numbers(config[key]) for key in kind.own_keys}
    if kind.scenario == "parking":
        shown = single["observation"] if is_multi_agent(config) else _PARKING_GOAL
        own["shown_features"] = [float(VEHICLE_FEATURES.index(name)) for name in observation_features(shown)]
        own["shown_scales"] = as_numbers(shown["scales"])
    return {
        "scenario": kind.scenario,
        "options": own,
        "vehicle_type": VEHICLE_TYPES[config["other_vehicles_type"]],
        "simulation_frequency": float(config["simulation_frequency"]),
        "policy_frequency": float(config["policy_frequency"]),
        "frames": frames_per_step(config),
        "duration": duration,
        "connected": bool(config["neighbour_vehicles_connected_lanes"]),
        "observation": native_observation(single, lanes),
        "action": native_action(fill_defaults(single["action"], ACTIONS)),
        "shared": not is_multi_agent(config),
    }


def as_numbers(value: Any) -> list[float]:
    """A value as numbers: none for None, the index for an arm of a crossing."""
    if value is None:
        return []
    if isinstance(value, str):
        return [float(ARMS.index(value))]
    return [float(one) for one in value] if isinstance(value, list | tuple) else [float(value)]
