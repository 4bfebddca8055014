"""Observations and actions of highway-env's configs: nested dicts with a "type", strictly checked.

highway-env accepts any keys; here a key that is unknown, or known there and not supported here, raises an error that
names it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from numpy.typing import NDArray

from fastrl.envs.traffic.config_checks import (
    choice,
    different,
    flag,
    flags,
    known_keys,
    number,
    numbers,
    only,
)
from fastrl.utils.arguments import as_integer

VEHICLE_FEATURES = (
    "presence", "x", "y", "vx", "vy", "heading", "cos_h", "sin_h", "cos_d", "sin_d", "long_off", "lat_off", "ang_off",
)  # fmt: skip
MOST_VEHICLES = 100_000
MOST_CELLS = 10_000_000
# Features that landmarks have, too.
GOAL_FEATURES = ("presence", "x", "y", "vx", "vy", "cos_h", "sin_h", "cos_d", "sin_d")
# Pixels along a side of a picture.
MOST_SIDE = 2048
# Observations that are tables of vehicles.
TABLES = ("Kinematics", "ExitObservation")

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
        "flatten": False,  # highway-env's own configs set it; it has no effect there either
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
    "LidarObservation": {"cells": 16, "maximum_range": 60, "normalize": True},
    "GrayscaleObservation": {
        "observation_shape": None,
        "stack_size": None,
        "weights": None,
        "scaling": None,
        "centering_position": None,
    },
    "TupleObservation": {"observation_configs": None},
}
# On roads with an exit only.
EXIT_OBSERVATION = {"ExitObservation": OBSERVATIONS["Kinematics"]}
# Where vehicles have goals only.
GOAL_OBSERVATION: dict[str, dict[str, Any]] = {
    # highway-env's own configs set `normalize`; it has no effect there either.
    "KinematicsGoal": {"features": None, "scales": None, "normalize": True}
}
# On road networks only.
ATTRIBUTES_OBSERVATION: dict[str, dict[str, Any]] = {"AttributesObservation": {"attributes": None}}
ALL_OBSERVATIONS = OBSERVATIONS | EXIT_OBSERVATION | GOAL_OBSERVATION | ATTRIBUTES_OBSERVATION
# Attributes of highway-env's environments that are numbers.
ATTRIBUTES = ("time", "steps")
# highway-env's order.
GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")
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
        "target_speeds": None,  # the same
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


def _check_names(where: str, names: Any, known: Sequence[str]) -> None:
    """Checks a list of different names."""
    if not isinstance(names, Sequence) or isinstance(names, str):
        raise TypeError(f"{where}: expected a list of names, got {names!r}")
    if not names:
        raise ValueError(f"{where}: expected at least one name, got none")
    for name in names:
        choice(where, name, known)
    if len(set(names)) != len(names):
        raise ValueError(f"{where}: expected each name once, got {list(names)}")


def _check_features(path: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Checks the names of features and the ranges of their values, where they are given."""
    names, ranges = given["features"], given["features_range"]
    if names is not None:
        _check_names(f"{path}['features']", names, known)
    if ranges is not None:
        where = f"{path}['features_range']"
        known_keys(where, ranges, dict.fromkeys(VEHICLE_FEATURES))
        for name, limits in ranges.items():
            different(f"{where}[{name!r}]", limits)


def _check_kinematics(path: str, given: Mapping[str, Any]) -> None:
    count = given["vehicles_count"]
    as_integer(f"{path}['vehicles_count']", count, 1, MOST_VEHICLES)
    if count == 1:
        raise ValueError(
            f"{path}['vehicles_count']: expected 2 to {MOST_VEHICLES}, got 1, with which highway-env shows every"
            " vehicle within 200 m, outside of its own observation space: use 2 and leave out the second row"
        )
    _check_features(path, given, VEHICLE_FEATURES)
    choice(f"{path}['order']", given["order"], ("sorted", "shuffled"))
    flags(
        path,
        given,
        "absolute",
        "normalize",
        "clip",
        "see_behind",
        "observe_intentions",
        "include_obstacles",
        "flatten",
    )


def _check_goal(path: str, given: Mapping[str, Any]) -> None:
    if given["features"] is not None:
        _check_names(f"{path}['features']", given["features"], GOAL_FEATURES)
    if given["scales"] is None:
        raise ValueError(f"{path}['scales']: expected a divisor for each feature, got none")
    numbers(f"{path}['scales']", given["scales"], len(observation_features(given)))
    if not all(given["scales"]):
        raise ValueError(f"{path}['scales']: expected numbers other than 0, got {given['scales']!r}")
    flag(f"{path}['normalize']", given["normalize"])


def _check_attributes(path: str, given: Mapping[str, Any]) -> None:
    where = f"{path}['attributes']"
    if given["attributes"] is None:
        raise ValueError(f"{where}: expected a list out of {', '.join(ATTRIBUTES)}, got none")
    _check_names(where, given["attributes"], ATTRIBUTES)


def _check_time_to_collision(path: str, given: Mapping[str, Any]) -> None:
    number(f"{path}['horizon']", given["horizon"], above=0)


def _check_occupancy_grid(path: str, given: Mapping[str, Any]) -> None:
    _check_features(path, given, (*VEHICLE_FEATURES, "on_road"))
    if given["grid_size"] is not None:
        if not isinstance(given["grid_size"], Sequence | np.ndarray) or len(given["grid_size"]) != 2:
            raise ValueError(
                f"{path}['grid_size']: expected [[x_min, x_max], [y_min, y_max]], got {given['grid_size']!r}"
            )
        for i in range(2):
            different(f"{path}['grid_size'][{i}]", given["grid_size"][i], rising=True)
    if given["grid_step"] is not None:
        numbers(f"{path}['grid_step']", given["grid_step"], 2)
        for i in range(2):
            number(f"{path}['grid_step'][{i}]", given["grid_step"][i], above=0)
    only(f"{path}['absolute']", given["absolute"], False, "highway-env does not implement it either")
    flags(path, given, "align_to_vehicle_axes", "clip", "as_image")
    if given["vehicles_count"] is not None:
        as_integer(f"{path}['vehicles_count']", given["vehicles_count"], 1, MOST_VEHICLES)
    shape = grid_shape(given)
    if min(shape) < 1 or math.prod(shape) > MOST_CELLS:
        raise ValueError(f"{path}: expected a grid of 1 to {MOST_CELLS} cells, got {shape[0]} x {shape[1]}")


def _check_lidar(path: str, given: Mapping[str, Any]) -> None:
    as_integer(f"{path}['cells']", given["cells"], 1, MOST_CELLS)
    number(f"{path}['maximum_range']", given["maximum_range"], above=0)
    flag(f"{path}['normalize']", given["normalize"])


def _check_grayscale(path: str, given: Mapping[str, Any]) -> None:
    shape, wanted = given["observation_shape"], f"{path}['observation_shape']"
    if not isinstance(shape, Sequence | np.ndarray) or len(shape) != 2:
        raise ValueError(f"{wanted}: expected pixels along x and y such as (128, 64), got {shape!r}")
    for i in range(2):
        as_integer(f"{wanted}[{i}]", shape[i], 1, MOST_SIDE)
    if given["stack_size"] is None:
        raise ValueError(f"{path}['stack_size']: expected a number of pictures such as 4, got None")
    as_integer(f"{path}['stack_size']", given["stack_size"], 1, MOST_CELLS // (int(shape[0]) * int(shape[1])))
    if given["weights"] is None:
        raise ValueError(
            f"{path}['weights']: expected those of red, green and blue, such as [0.2989, 0.587, 0.114]"
        )
    numbers(f"{path}['weights']", given["weights"], 3)
    if given["scaling"] is not None:
        number(f"{path}['scaling']", given["scaling"], above=0)
    if given["centering_position"] is not None:
        numbers(f"{path}['centering_position']", given["centering_position"], 2)


def _check_tuple(path: str, given: Mapping[str, Any]) -> None:
    parts, where = given["observation_configs"], f"{path}['observation_configs']"
    if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
        raise ValueError(f"{where}: expected a list of observations, got {parts!r}")
    for i, part in enumerate(parts):
        check_nested(f"{where}[{i}]", part, OBSERVATIONS, "observation")


def _check_axes(path: str, given: Mapping[str, Any]) -> None:
    flags(path, given, "longitudinal", "lateral")
    if not given["longitudinal"] and not given["lateral"]:
        raise ValueError(f"{path}: expected 'longitudinal' or 'lateral' to be True, got neither")


def _check_meta_action(path: str, given: Mapping[str, Any]) -> None:
    _check_axes(path, given)
    speeds = given["target_speeds"]
    if speeds is None:
        return
    numbers(f"{path}['target_speeds']", speeds)
    if len(speeds) < 2 or speeds[0] == speeds[-1]:
        raise ValueError(f"{path}['target_speeds']: expected at least two different speeds, got {speeds!r}")
    for i, speed in enumerate(speeds):
        number(f"{path}['target_speeds'][{i}]", speed, least=0)


def _check_continuous_action(path: str, given: Mapping[str, Any]) -> None:
    _check_axes(path, given)
    for key in ("acceleration_range", "steering_range"):
        if given[key] is not None:
            numbers(f"{path}[{key!r}]", given[key], 2)
    if given.get("speed_range") is not None:
        different(f"{path}['speed_range']", given["speed_range"], rising=True)
    steering = given["steering_range"]
    if steering is not None and max(map(abs, steering)) >= math.pi / 2:
        raise ValueError(f"{path}['steering_range']: expected angles within ±pi/2, got {steering!r}")
    flag(f"{path}['clip']", given["clip"])
    flag(f"{path}['dynamical']", given["dynamical"])


def _check_discrete_action(path: str, given: Mapping[str, Any]) -> None:
    _check_continuous_action(path, given)
    as_integer(f"{path}['actions_per_axis']", given["actions_per_axis"], 2, 1000)


_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], None]] = {
    "Kinematics": _check_kinematics,
    "ExitObservation": _check_kinematics,
    "KinematicsGoal": _check_goal,
    "AttributesObservation": _check_attributes,
    "TimeToCollision": _check_time_to_collision,
    "OccupancyGrid": _check_occupancy_grid,
    "LidarObservation": _check_lidar,
    "GrayscaleObservation": _check_grayscale,
    "TupleObservation": _check_tuple,
    "DiscreteMetaAction": _check_meta_action,
    "ContinuousAction": _check_continuous_action,
    "DiscreteAction": _check_discrete_action,
}


def fill_defaults(given: Mapping[str, Any], kinds: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A nested dict with missing keys set to the defaults of its type."""
    return kinds[given["type"]] | dict(given)


def check_nested(path: str, given: Any, kinds: Mapping[str, dict[str, Any]], noun: str) -> None:
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
    known_keys(path, {key: value for key, value in given.items() if key != "type"}, known)
    _CHECKS[given["type"]](path, fill_defaults(given, kinds))


def single_observations(observation: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The observation itself, or the parts of a tuple."""
    if observation["type"] == "TupleObservation":
        for part in observation["observation_configs"]:
            yield from single_observations(part)
    else:
        yield observation


def _parts(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A config for each part of the observation, which is a tuple."""
    return [{**config, "observation": part} for part in config["observation"]["observation_configs"]]


def time_steps(config: Mapping[str, Any]) -> int:
    """Cells along the time axis of a TimeToCollision observation."""
    horizon = fill_defaults(config["observation"], ALL_OBSERVATIONS)["horizon"]
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


def _unbounded(shape: tuple[int, ...]) -> Box:
    return Box(-np.inf, np.inf, shape, np.float64)


def observation_space(config: Mapping[str, Any]) -> Box | Dict | Tuple:
    """The observation space of highway-env: unbounded float32; times to collision in [0, 1]; images uint8; goals and
    attributes in a Dict of float64; several observations in a Tuple."""
    observation = fill_defaults(config["observation"], ALL_OBSERVATIONS)
    if observation["type"] == "TupleObservation":
        return Tuple([observation_space(part) for part in _parts(config)])
    if observation["type"] == "AttributesObservation":
        return Dict({name: _unbounded(()) for name in observation["attributes"]})
    if observation["type"] == "KinematicsGoal":
        size = len(observation_features(observation))
        return Dict({key: _unbounded((size,)) for key in GOAL_KEYS})
    if observation["type"] == "TimeToCollision":
        return Box(0, 1, (3, 3, time_steps(config)), np.float32)
    if observation["type"] == "LidarObservation":
        high = 1.0 if observation["normalize"] else float(observation["maximum_range"])
        return Box(-high, high, (observation["cells"], 2), np.float32)
    if observation["type"] == "GrayscaleObservation":
        return Box(0, 255, (observation["stack_size"], *map(int, observation["observation_shape"])), np.uint8)
    features = observation_features(observation)
    if observation["type"] in TABLES:
        return Box(-np.inf, np.inf, (observation["vehicles_count"], len(features)), np.float32)
    shape = (len(features), *grid_shape(observation))
    if observation["as_image"]:
        return Box(0, 255, shape, np.uint8)
    return Box(-np.inf, np.inf, shape, np.float32)


def flat_space(space: Box | Dict | Tuple) -> Box:
    """The space of flat observations; the parts of a Dict or Tuple lie side by side, in float32."""
    if isinstance(space, Dict):
        return Box(
            -np.inf, np.inf, (sum(math.prod(part.shape or ()) for part in space.values()),), np.float32
        )
    if isinstance(space, Tuple):
        parts = [flat_space(part) for part in space]  # type: ignore[arg-type]
        low, high = ([getattr(part, bound) for part in parts] for bound in ("low", "high"))
        return Box(np.concatenate(low).astype(np.float32), np.concatenate(high).astype(np.float32))
    return Box(space.low.ravel(), space.high.ravel(), dtype=space.dtype.type)  # type: ignore[union-attr]


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


def native_observation(config: Mapping[str, Any], lanes: int) -> dict[str, Any]:
    """The observation for the compiled side; `lanes`: of the road that the observer starts on."""
    observation = fill_defaults(config["observation"], ALL_OBSERVATIONS)
    if observation["type"] == "TupleObservation":
        parts = [native_observation(part, lanes) for part in _parts(config)]
        return {"type": observation["type"], "parts": parts}
    if observation["type"] == "AttributesObservation":
        # In the order of the space, whose keys are sorted.
        return {"type": observation["type"], "attributes": sorted(observation["attributes"])}
    if observation["type"] == "KinematicsGoal":
        scales = [float(scale) for scale in observation["scales"]]
        return {"type": observation["type"], "features": observation_features(observation), "scales": scales}
    if observation["type"] == "TimeToCollision":
        return {"type": "TimeToCollision", "time_steps": time_steps(config)}
    if observation["type"] == "LidarObservation":
        return {**observation, "maximum_range": float(observation["maximum_range"])}
    if observation["type"] == "GrayscaleObservation":
        # As there, 0 and an empty list stand for the config's, too.
        view = {key: observation[key] or config[key] for key in ("scaling", "centering_position")}
        return _pick(observation, "type", "stack_size") | {
            "shape": tuple(map(int, observation["observation_shape"])),
            "weights": tuple(map(float, observation["weights"])),
            "scaling": float(view["scaling"]),
            "centering_position": tuple(map(float, view["centering_position"])),
        }
    kinds = {"features": observation_features(observation), "ranges": _ranges(observation, lanes)}
    if observation["type"] in TABLES:
        shuffled = observation["order"] == "shuffled"
        along = config.get("exit_lane") if observation["type"] == "ExitObservation" else None
        return (
            _pick(
                observation,
                "vehicles_count",
                "absolute",
                "clip",
                "see_behind",
                "observe_intentions",
                "include_obstacles",
            )
            | kinds
            | {"type": "Kinematics", "shuffled": shuffled, "along": along}
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


def _ranges(observation: Mapping[str, Any], lanes: int) -> dict[str, tuple[float, float]]:
    """Limits that are mapped to -1 and 1, for the scaled features."""
    ranges = observation["features_range"]
    if not observation.get("normalize", True):
        return {}
    if not ranges:
        speeds = {"vx": (-80.0, 80.0), "vy": (-80.0, 80.0)}
        width = 4.0 * lanes
        places = {"x": (-200.0, 200.0), "y": (-width, width)} if observation["type"] in TABLES else {}
        return places | speeds
    return {name: (float(low), float(high)) for name, (low, high) in ranges.items()}


def native_action(action: Mapping[str, Any]) -> dict[str, Any]:
    """The action for the compiled side, from a dict with all keys."""
    axes = {key: bool(action[key]) for key in ("longitudinal", "lateral")}
    if action["type"] == "DiscreteMetaAction":
        speeds = action["target_speeds"]
        listed = [20.0, 25.0, 30.0] if speeds is None else [float(speed) for speed in speeds]
        return {"type": action["type"], "target_speeds": listed} | axes
    if action["type"] == "DiscreteAction":
        return {"type": action["type"], "commands": _commands(action), "dynamical": bool(action["dynamical"])}
    limits = action["speed_range"]
    return axes | {
        "type": action["type"],
        "acceleration_range": _span(_acceleration_range(action)),
        "steering_range": _span(_steering_range(action)),
        "speed_range": None if limits is None else tuple(map(float, limits)),
        "clip": bool(action["clip"]),
        "dynamical": bool(action["dynamical"]),
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
