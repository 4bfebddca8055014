"""The config dict of `fastrl/highway-v0`: highway-env 1.12.1's keys and defaults, strictly checked.

highway-env accepts any keys; here a key that is unknown, or known there and not supported here, raises an error that
names it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from fastrl.utils.arguments import as_integer, as_number
from fastrl.utils.names import did_you_mean

VEHICLE_FEATURES = (
    "presence", "x", "y", "vx", "vy", "heading", "cos_h", "sin_h", "cos_d", "sin_d", "long_off", "lat_off", "ang_off",
)  # fmt: skip
VEHICLE_TYPES = {
    f"highway_env.vehicle.behavior.{name}Vehicle": name.lower()
    for name in ("IDM", "Linear", "Aggressive", "Defensive")
}
MOST_ENVS = 1 << 24
MOST_LANES = 1000
MOST_VEHICLES = 100_000
MOST_CELLS = 10_000_000
MOST_FRAMES = 100_000
# The largest number of a config, so that a simulation stays finite.
LARGEST = 1e9

HIGHWAY_DEFAULTS: dict[str, Any] = {
    "observation": {"type": "Kinematics"},
    "action": {"type": "DiscreteMetaAction"},
    "simulation_frequency": 15,
    "policy_frequency": 1,
    "other_vehicles_type": "highway_env.vehicle.behavior.IDMVehicle",
    "screen_width": 600,
    "screen_height": 150,
    "centering_position": [0.3, 0.5],
    "scaling": 5.5,
    "show_trajectories": False,
    "render_agent": True,
    "offscreen_rendering": None,
    "manual_control": False,
    "real_time_rendering": False,
    "neighbour_vehicles_connected_lanes": False,
    "lanes_count": 4,
    "vehicles_count": 50,
    "controlled_vehicles": 1,
    "initial_lane_id": None,
    "duration": 40,
    "ego_spacing": 2,
    "vehicles_density": 1,
    "collision_reward": -1,
    "right_lane_reward": 0.1,
    "high_speed_reward": 0.4,
    "lane_change_reward": 0,
    "reward_speed_range": [20, 30],
    "normalize_reward": True,
    "offroad_terminal": False,
}
HIGHWAY_FAST_DEFAULTS: dict[str, Any] = HIGHWAY_DEFAULTS | {
    "simulation_frequency": 5,
    "lanes_count": 3,
    "vehicles_count": 20,
    "duration": 30,
    "ego_spacing": 1.5,
}

# Keys of nested dicts beside their type, with highway-env's defaults.
OBSERVATIONS: dict[str, dict[str, Any]] = {
    "Kinematics": {
        "features": None,
        "vehicles_count": 5,
        "features_range": None,
        "absolute": False,
        "order": "sorted",
        "normalize": True,
        "clip": True,
        "see_behind": False,
        "observe_intentions": False,
        "include_obstacles": True,
    },
    "TimeToCollision": {"horizon": 10},
    "OccupancyGrid": {
        "features": None,
        "grid_size": None,
        "grid_step": None,
        "features_range": None,
        "absolute": False,
        "align_to_vehicle_axes": False,
        "clip": True,
        "as_image": False,
        "vehicles_count": None,  # highway-env's manual sets it; it has no effect there either
    },
}
ACTIONS: dict[str, dict[str, Any]] = {
    "DiscreteMetaAction": {"longitudinal": True, "lateral": True, "target_speeds": None},
    "ContinuousAction": {
        "acceleration_range": None,
        "steering_range": None,
        "speed_range": None,
        "longitudinal": True,
        "lateral": True,
        "dynamical": False,
        "clip": True,
    },
    "DiscreteAction": {
        "acceleration_range": None,
        "steering_range": None,
        "longitudinal": True,
        "lateral": True,
        "dynamical": False,
        "clip": True,
        "actions_per_axis": 3,
    },
}
META_ACTIONS = ("LANE_LEFT", "IDLE", "LANE_RIGHT", "FASTER", "SLOWER")
LONGITUDINAL_META_ACTIONS = ("SLOWER", "IDLE", "FASTER")
LATERAL_META_ACTIONS = ("LANE_LEFT", "IDLE", "LANE_RIGHT")


def _known(path: str, given: Any, known: Mapping[str, Any]) -> None:
    """Checks that a value is a dict with known keys."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{path}: expected a dict, got {type(given).__name__}")
    for key in given:
        if key in known:
            continue
        hint = did_you_mean(key, known) or f": known are {', '.join(known)}"
        raise ValueError(f"{path}: unknown key {key!r}{hint}")


def _number(path: str, value: Any, *, least: float = -math.inf, above: float = -math.inf) -> None:
    as_number(path, value)
    positive = above == 0.0
    size: Any = abs(value)
    if not size <= LARGEST or value < least or value <= above or (positive and value < 1 / LARGEST):
        bound = " above 0" if positive else f" of at least {least:g}" if least > -math.inf else ""
        raise ValueError(f"{path}: expected a finite number{bound}, at most {LARGEST:g}, got {value!r}")


def _flags(path: str, given: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        _flag(f"{path}[{key!r}]", given[key])


def _flag(path: str, value: Any) -> None:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{path}: expected True or False, got {value!r}")


def _only(path: str, value: Any, kept: Any, why: str) -> None:
    _flag(path, value)
    if value != kept:
        raise ValueError(f"{path}: only {kept} is supported, got {value}: {why}")


def _numbers(path: str, value: Any, length: int | None = None) -> None:
    """Checks a list of numbers, of the given length if there is one."""
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str):
        raise TypeError(f"{path}: expected a list of numbers, got {value!r}")
    if length is not None and len(value) != length:
        raise ValueError(f"{path}: expected {length} numbers, got {value!r}")
    for i, one in enumerate(value):
        _number(f"{path}[{i}]", one)


def _range(path: str, value: Any, *, rising: bool = False) -> None:
    """Checks a pair of different numbers, so that their distance can be a divisor."""
    _numbers(path, value, 2)
    if value[0] == value[1] or (rising and value[0] > value[1]):
        wanted = "[low, high] with low < high" if rising else "two different numbers"
        raise ValueError(f"{path}: expected {wanted}, got {value!r}")


def _choice(path: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        hint = did_you_mean(value, choices)
        raise ValueError(f"{path}: expected one of {', '.join(map(repr, choices))}, got {value!r}{hint}")


def _check_features(path: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Checks the names of features and the ranges of their values, where they are given."""
    names, ranges = given["features"], given["features_range"]
    if names is not None:
        where = f"{path}['features']"
        if not isinstance(names, Sequence) or isinstance(names, str):
            raise TypeError(f"{where}: expected a list of names, got {names!r}")
        if not names:
            raise ValueError(f"{where}: expected at least one name, got none")
        for name in names:
            _choice(where, name, known)
        if len(set(names)) != len(names):
            raise ValueError(f"{where}: expected each name once, got {list(names)}")
    if ranges is not None:
        where = f"{path}['features_range']"
        _known(where, ranges, dict.fromkeys(VEHICLE_FEATURES))
        for name, limits in ranges.items():
            _range(f"{where}[{name!r}]", limits)


def _check_kinematics(path: str, given: Mapping[str, Any]) -> None:
    count = given["vehicles_count"]
    as_integer(f"{path}['vehicles_count']", count, 1, MOST_VEHICLES)
    if count == 1:
        raise ValueError(
            f"{path}['vehicles_count']: expected 2 to {MOST_VEHICLES}, got 1, with which highway-env shows every"
            " vehicle within 200 m, outside of its own observation space: use 2 and leave out the second row"
        )
    _check_features(path, given, VEHICLE_FEATURES)
    _choice(f"{path}['order']", given["order"], ("sorted", "shuffled"))
    _flags(
        path, given, "absolute", "normalize", "clip", "see_behind", "observe_intentions", "include_obstacles"
    )


def _check_time_to_collision(path: str, given: Mapping[str, Any]) -> None:
    _number(f"{path}['horizon']", given["horizon"], above=0)


def _check_occupancy_grid(path: str, given: Mapping[str, Any]) -> None:
    _check_features(path, given, (*VEHICLE_FEATURES, "on_road"))
    if given["grid_size"] is not None:
        if not isinstance(given["grid_size"], Sequence | np.ndarray) or len(given["grid_size"]) != 2:
            raise ValueError(
                f"{path}['grid_size']: expected [[x_min, x_max], [y_min, y_max]], got {given['grid_size']!r}"
            )
        for i in range(2):
            _range(f"{path}['grid_size'][{i}]", given["grid_size"][i], rising=True)
    if given["grid_step"] is not None:
        _numbers(f"{path}['grid_step']", given["grid_step"], 2)
        for i in range(2):
            _number(f"{path}['grid_step'][{i}]", given["grid_step"][i], above=0)
    _only(f"{path}['absolute']", given["absolute"], False, "highway-env does not implement it either")
    _flags(path, given, "align_to_vehicle_axes", "clip", "as_image")
    if given["vehicles_count"] is not None:
        as_integer(f"{path}['vehicles_count']", given["vehicles_count"], 1, MOST_VEHICLES)
    shape = grid_shape(given)
    if min(shape) < 1 or math.prod(shape) > MOST_CELLS:
        raise ValueError(f"{path}: expected a grid of 1 to {MOST_CELLS} cells, got {shape[0]} x {shape[1]}")


def _check_axes(path: str, given: Mapping[str, Any]) -> None:
    _flags(path, given, "longitudinal", "lateral")
    if not given["longitudinal"] and not given["lateral"]:
        raise ValueError(f"{path}: expected 'longitudinal' or 'lateral' to be True, got neither")


def _check_meta_action(path: str, given: Mapping[str, Any]) -> None:
    _check_axes(path, given)
    speeds = given["target_speeds"]
    if speeds is None:
        return
    _numbers(f"{path}['target_speeds']", speeds)
    if len(speeds) < 2 or speeds[0] == speeds[-1]:
        raise ValueError(f"{path}['target_speeds']: expected at least two different speeds, got {speeds!r}")
    for i, speed in enumerate(speeds):
        _number(f"{path}['target_speeds'][{i}]", speed, least=0)


def _check_continuous_action(path: str, given: Mapping[str, Any]) -> None:
    _check_axes(path, given)
    for key in ("acceleration_range", "steering_range"):
        if given[key] is not None:
            _numbers(f"{path}[{key!r}]", given[key], 2)
    if given.get("speed_range") is not None:
        _range(f"{path}['speed_range']", given["speed_range"], rising=True)
    steering = given["steering_range"]
    if steering is not None and max(map(abs, steering)) >= math.pi / 2:
        raise ValueError(f"{path}['steering_range']: expected angles within ±pi/2, got {steering!r}")
    _flag(f"{path}['clip']", given["clip"])
    _only(f"{path}['dynamical']", given["dynamical"], False, "vehicles move by the kinematic model only")


def _check_discrete_action(path: str, given: Mapping[str, Any]) -> None:
    _check_continuous_action(path, given)
    as_integer(f"{path}['actions_per_axis']", given["actions_per_axis"], 2, 1000)


_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], None]] = {
    "Kinematics": _check_kinematics,
    "TimeToCollision": _check_time_to_collision,
    "OccupancyGrid": _check_occupancy_grid,
    "DiscreteMetaAction": _check_meta_action,
    "ContinuousAction": _check_continuous_action,
    "DiscreteAction": _check_discrete_action,
}


def fill_defaults(given: Mapping[str, Any], kinds: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A nested dict with missing keys set to the defaults of its type."""
    return kinds[given["type"]] | dict(given)


def _check_nested(path: str, given: Any, kinds: Mapping[str, dict[str, Any]], noun: str) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{path}: expected a dict, got {type(given).__name__}")
    if "type" not in given:
        raise ValueError(f"{path}: expected a 'type', one of {', '.join(kinds)}")
    if not isinstance(given["type"], str):
        raise TypeError(f"{path}['type']: expected a name, got {given['type']!r}")
    if given["type"] not in kinds:
        many = "; for several agents use fastrl/coop-highway-v0" if "Multi" in str(given["type"]) else ""
        raise ValueError(
            f"{path}['type']: {given['type']!r} is not supported as {noun}, only {', '.join(kinds)}{many}"
        )
    known = kinds[given["type"]]
    _known(path, {key: value for key, value in given.items() if key != "type"}, known)
    _CHECKS[given["type"]](path, fill_defaults(given, kinds))


def check_config(given: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Checks `base` updated by `given`, as highway-env updates it: a nested dict is replaced as a whole.

    Raises:
        ValueError, TypeError: a key or value that is not supported; the message names the key.
    """
    _known("config", given, HIGHWAY_DEFAULTS)
    config = deepcopy({**base, **given})
    _check_nested("config['observation']", config["observation"], OBSERVATIONS, "observation")
    _check_nested("config['action']", config["action"], ACTIONS, "action")

    def path(key: str) -> str:
        return f"config[{key!r}]"

    for key in ("simulation_frequency", "policy_frequency", "duration", "vehicles_density", "scaling"):
        _number(path(key), config[key], above=0)
    _number(path("ego_spacing"), config["ego_spacing"], least=0)
    for key in ("collision_reward", "right_lane_reward", "high_speed_reward", "lane_change_reward"):
        _number(path(key), config[key])
    as_integer(path("lanes_count"), config["lanes_count"], 1, MOST_LANES)
    as_integer(path("vehicles_count"), config["vehicles_count"], 0, MOST_VEHICLES)
    as_integer(path("controlled_vehicles"), config["controlled_vehicles"], 1, MOST_VEHICLES)
    if config["initial_lane_id"] is not None:
        as_integer(path("initial_lane_id"), config["initial_lane_id"], 0, config["lanes_count"] - 1)
    _choice(path("other_vehicles_type"), config["other_vehicles_type"], tuple(VEHICLE_TYPES))
    _range(path("reward_speed_range"), config["reward_speed_range"])
    _flags("config", config, "normalize_reward", "offroad_terminal", "render_agent", "show_trajectories")
    _flags("config", config, "neighbour_vehicles_connected_lanes")
    _only(path("manual_control"), config["manual_control"], False, "there is no keyboard control")
    _only(path("real_time_rendering"), config["real_time_rendering"], False, "frames are drawn on request")
    if config["offscreen_rendering"] is not None:
        _flag(path("offscreen_rendering"), config["offscreen_rendering"])
    as_integer(path("screen_width"), config["screen_width"], 1, 10_000)
    as_integer(path("screen_height"), config["screen_height"], 1, 10_000)
    _numbers(path("centering_position"), config["centering_position"], 2)
    if not 1 <= frames_per_step(config) <= MOST_FRAMES:
        raise ValueError(
            f"config['policy_frequency']: expected 1 to {MOST_FRAMES} frames of the simulation_frequency"
            f" {config['simulation_frequency']} a step, got {config['policy_frequency']}"
        )
    best = config["high_speed_reward"] + config["right_lane_reward"]
    if config["normalize_reward"] and best == config["collision_reward"]:
        raise ValueError(
            "config['normalize_reward']: division by zero, because high_speed_reward + right_lane_reward equals"
            f" collision_reward ({best})"
        )
    if config["observation"]["type"] == "TimeToCollision":
        if config["action"]["type"] != "DiscreteMetaAction":
            raise ValueError(
                "config['observation']['type']: TimeToCollision needs target speeds, which only DiscreteMetaAction"
                f" has, got {config['action']['type']}"
            )
        as_integer("config['observation']['horizon'] in steps", time_steps(config), 1, MOST_CELLS)
    return config


def frames_per_step(config: Mapping[str, Any]) -> int:
    return int(config["simulation_frequency"] // config["policy_frequency"])


def time_steps(config: Mapping[str, Any]) -> int:
    """Cells along the time axis of a TimeToCollision observation."""
    horizon = fill_defaults(config["observation"], OBSERVATIONS)["horizon"]
    return int(horizon / (1 / config["policy_frequency"]))


def grid_shape(observation: Mapping[str, Any]) -> tuple[int, int]:
    """Cells of an occupancy grid along x and y."""
    size, step = _grid(observation)
    cells = np.floor((size[:, 1] - size[:, 0]) / step)
    return int(cells[0]), int(cells[1])


def _grid(observation: Mapping[str, Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Edges [[x_min, x_max], [y_min, y_max]] and steps [x, y] of an occupancy grid."""
    size, step = observation["grid_size"], observation["grid_step"]
    edges = [[-27.5, 27.5], [-27.5, 27.5]] if size is None else size
    return np.asarray(edges, np.float64), np.asarray([5, 5] if step is None else step, np.float64)


def observation_features(observation: Mapping[str, Any]) -> list[str]:
    if observation["features"] is not None:
        return list(observation["features"])
    last = ["on_road"] if observation["type"] == "OccupancyGrid" else []
    first = ["presence", "vx", "vy"] if last else ["presence", "x", "y", "vx", "vy"]
    return first + last


def observation_space(config: Mapping[str, Any]) -> Box:
    """The observation space of highway-env: unbounded float32; times to collision in [0, 1]; images uint8."""
    observation = fill_defaults(config["observation"], OBSERVATIONS)
    if observation["type"] == "TimeToCollision":
        return Box(0, 1, (3, 3, time_steps(config)), np.float32)
    features = observation_features(observation)
    if observation["type"] == "Kinematics":
        return Box(-np.inf, np.inf, (observation["vehicles_count"], len(features)), np.float32)
    shape = (len(features), *grid_shape(observation))
    if observation["as_image"]:
        return Box(0, 255, shape, np.uint8)
    return Box(-np.inf, np.inf, shape, np.float32)


def action_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the meta-actions in their order; empty for other action types."""
    action = fill_defaults(config["action"], ACTIONS)
    if action["type"] != "DiscreteMetaAction":
        return ()
    if action["longitudinal"] and action["lateral"]:
        return META_ACTIONS
    return LONGITUDINAL_META_ACTIONS if action["longitudinal"] else LATERAL_META_ACTIONS


def action_space(config: Mapping[str, Any]) -> Discrete | Box:
    action = fill_defaults(config["action"], ACTIONS)
    if action["type"] == "DiscreteMetaAction":
        return Discrete(len(action_names(config)))
    size = int(action["longitudinal"]) + int(action["lateral"])
    if action["type"] == "ContinuousAction":
        return Box(-1.0, 1.0, (size,), np.float32)
    return Discrete(int(action["actions_per_axis"]) ** size)


def native_options(config: Mapping[str, Any], *, fast: bool) -> dict[str, Any]:
    """The options of `_rust.HighwayVec` from a checked config."""
    low, high = config["reward_speed_range"]
    return {
        "lanes": int(config["lanes_count"]),
        "vehicles": int(config["vehicles_count"]),
        "controlled_vehicles": int(config["controlled_vehicles"]),
        "vehicle_type": VEHICLE_TYPES[config["other_vehicles_type"]],
        "initial_lane": None if config["initial_lane_id"] is None else int(config["initial_lane_id"]),
        "simulation_frequency": float(config["simulation_frequency"]),
        "policy_frequency": float(config["policy_frequency"]),
        "frames": frames_per_step(config),
        "duration": float(config["duration"]),
        "ego_spacing": float(config["ego_spacing"]),
        "density": float(config["vehicles_density"]),
        "collision_reward": float(config["collision_reward"]),
        "right_lane_reward": float(config["right_lane_reward"]),
        "high_speed_reward": float(config["high_speed_reward"]),
        "speed_range": (float(low), float(high)),
        "normalize_reward": bool(config["normalize_reward"]),
        "offroad_terminal": bool(config["offroad_terminal"]),
        "all_collisions": not fast,
        "observation": _native_observation(config),
        "action": _native_action(fill_defaults(config["action"], ACTIONS)),
    }


def _native_observation(config: Mapping[str, Any]) -> dict[str, Any]:
    observation = fill_defaults(config["observation"], OBSERVATIONS)
    if observation["type"] == "TimeToCollision":
        return {"type": "TimeToCollision", "time_steps": time_steps(config)}
    kinds = {"features": observation_features(observation), "ranges": _ranges(config, observation)}
    if observation["type"] == "Kinematics":
        shuffled = observation["order"] == "shuffled"
        return (
            _pick(observation, "type", "vehicles_count", "absolute", "clip", "see_behind")
            | kinds
            | {"shuffled": shuffled}
        )
    size, step = _grid(observation)
    corner = {
        "low": tuple(size[:, 0].tolist()),
        "step": tuple(step.tolist()),
        "shape": grid_shape(observation),
    }
    return _pick(observation, "type", "align_to_vehicle_axes", "clip", "as_image") | kinds | corner


def _pick(given: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: given[key] for key in keys}


def _ranges(config: Mapping[str, Any], observation: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Limits that are mapped to -1 and 1, for the scaled features."""
    ranges = observation["features_range"]
    if not observation.get("normalize", True):
        return {}
    if not ranges:
        speeds = {"vx": (-80.0, 80.0), "vy": (-80.0, 80.0)}
        width = 4.0 * config["lanes_count"]
        places = {"x": (-200.0, 200.0), "y": (-width, width)} if observation["type"] == "Kinematics" else {}
        return places | speeds
    return {name: (float(low), float(high)) for name, (low, high) in ranges.items()}


def _native_action(action: Mapping[str, Any]) -> dict[str, Any]:
    axes = {key: bool(action[key]) for key in ("longitudinal", "lateral")}
    if action["type"] == "DiscreteMetaAction":
        speeds = action["target_speeds"]
        listed = [20.0, 25.0, 30.0] if speeds is None else [float(speed) for speed in speeds]
        return {"type": action["type"], "target_speeds": listed} | axes
    if action["type"] == "DiscreteAction":
        return {"type": action["type"], "commands": _commands(action)}
    limits = action["speed_range"]
    return axes | {
        "type": action["type"],
        "acceleration_range": _span(_acceleration_range(action)),
        "steering_range": _span(_steering_range(action)),
        "speed_range": None if limits is None else tuple(map(float, limits)),
        "clip": bool(action["clip"]),
    }


def _commands(action: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Acceleration and steering of each DiscreteAction, in highway-env's arithmetic: the grid is float32, and Python
    numbers are converted to that precision, NumPy's float64 numbers are not."""
    low = np.full(int(action["longitudinal"]) + int(action["lateral"]), -1.0, np.float32)
    axes = np.linspace(low, -low, action["actions_per_axis"]).T

    def scaled(value: Any, limits: Any) -> float:
        return float(limits[0] + (value - -1) * (limits[1] - limits[0]) / (1 - -1))

    commands = []
    for values in itertools.product(*axes):
        on_axis = list(values)
        acceleration = scaled(on_axis.pop(0), _acceleration_range(action)) if action["longitudinal"] else 0.0
        steering = scaled(on_axis.pop(0), _steering_range(action)) if action["lateral"] else 0.0
        commands.append((acceleration, steering))
    return commands


def _span(limits: Any) -> tuple[float, float, bool]:
    """Two limits, and a flag: NumPy scales a float32 number between them in float64, because they are NumPy's float64
    and not Python numbers (NEP 50)."""
    low, high = limits
    return float(low), float(high), np.result_type(np.float32, low, high) == np.float64


def _acceleration_range(action: Mapping[str, Any]) -> Any:
    return (-5, 5.0) if action["acceleration_range"] is None else action["acceleration_range"]


def _steering_range(action: Mapping[str, Any]) -> Any:
    return (-math.pi / 4, math.pi / 4) if action["steering_range"] is None else action["steering_range"]
