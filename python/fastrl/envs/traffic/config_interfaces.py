"""Observations and actions of highway-env's configs: nested dicts with a "type", strictly checked.

highway-env accepts any keys; here a key that is unknown, or known there and not supported here, raises an error that
names it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from numpy.typing import NDArray

from fastrl.envs.traffic.config_checks import (
    Check,
    check_values,
    choice,
    different,
    known_keys,
    names,
    number,
    numbers,
    only,
    optional,
    pair,
    required,
    whole,
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
_TABLE: dict[str, Any] = {
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
}
OBSERVATIONS: dict[str, dict[str, Any]] = {
    "Kinematics": _TABLE,
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
    # On roads with an exit only.
    "ExitObservation": _TABLE,
    # In car parks only.
    # highway-env's own configs set `normalize`; it has no effect there either.
    "KinematicsGoal": {"features": None, "scales": None, "normalize": True},
    # On road networks only.
    "AttributesObservation": {"attributes": None},
}
# Observations of all environments.
SHARED_OBSERVATIONS = (
    "Kinematics", "TimeToCollision", "OccupancyGrid", "LidarObservation", "GrayscaleObservation", "TupleObservation",
)  # fmt: skip
# Attributes of highway-env's environments that are a number, and those of its lane keeping, four numbers each.
CLOCKS = ("time", "steps")
LATERAL = ("state", "derivative", "reference_state")
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
_TYPES = OBSERVATIONS | ACTIONS
# Defaults of keys in which None means the default, not "none".
_STANDARD: dict[str, Any] = {
    "features": ["presence", "x", "y", "vx", "vy"],
    "grid_size": [[-27.5, 27.5], [-27.5, 27.5]],
    "grid_step": [5, 5],
    "target_speeds": [20, 25, 30],
    "acceleration_range": [-5, 5.0],
    "steering_range": [-math.pi / 4, math.pi / 4],
}
_STANDARD_OF_GRIDS = _STANDARD | {"features": ["presence", "vx", "vy", "on_road"]}
META_ACTIONS = ("LANE_LEFT", "IDLE", "LANE_RIGHT", "FASTER", "SLOWER")
LONGITUDINAL_META_ACTIONS = ("SLOWER", "IDLE", "FASTER")
LATERAL_META_ACTIONS = ("LANE_LEFT", "IDLE", "LANE_RIGHT")


def _rows(path: str, value: Any) -> None:
    """Checks the rows of a table of vehicles."""
    as_integer(path, value, 1, MOST_VEHICLES)
    if value == 1:
        raise ValueError(
            f"{path}: expected 2 to {MOST_VEHICLES}, got 1, with which highway-env shows every"
            " vehicle within 200 m, outside of its own observation space: use 2 and leave out the second row"
        )


def _ranges_of_features(path: str, value: Any) -> None:
    known_keys(path, value, dict.fromkeys(VEHICLE_FEATURES))
    for name, limits in value.items():
        different(f"{path}[{name!r}]", limits)


def _nested_parts(path: str, value: Any) -> None:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise ValueError(f"{path}: expected a list of observations, got {value!r}")
    for i, part in enumerate(value):
        check_nested(f"{path}[{i}]", part, SHARED_OBSERVATIONS)


def _different_speeds(path: str, value: Any) -> None:
    numbers(path, value, least=0)
    if len(value) < 2 or value[0] == value[-1]:
        raise ValueError(f"{path}: expected at least two different speeds, got {value!r}")


def _angles(path: str, value: Any) -> None:
    numbers(path, value, 2)
    if max(map(abs, value)) >= math.pi / 2:
        raise ValueError(f"{path}: expected angles within ±pi/2, got {value!r}")


_POSITIVE = partial(number, above=0)
# Checks of keys that mean the same in all types; flags and numbers without one are checked as such.
_CHECKS: dict[str, Check] = {
    "features": optional(partial(names, known=VEHICLE_FEATURES)),
    "vehicles_count": _rows,
    "features_range": optional(_ranges_of_features),
    "order": partial(choice, choices=("sorted", "shuffled")),
    "horizon": _POSITIVE,
    "grid_size": optional(pair("[[x_min, x_max], [y_min, y_max]]", partial(different, rising=True))),
    "grid_step": optional(partial(numbers, length=2, above=0)),
    "cells": whole(1, MOST_CELLS),
    "maximum_range": _POSITIVE,
    "observation_shape": pair("pixels along x and y such as (128, 64)", whole(1, MOST_SIDE)),
    "stack_size": required("a number of pictures such as 4", whole(1, MOST_CELLS)),
    "weights": required(
        "those of red, green and blue, such as [0.2989, 0.587, 0.114]", partial(numbers, length=3)
    ),
    "scaling": optional(_POSITIVE),
    "centering_position": optional(partial(numbers, length=2)),
    "observation_configs": _nested_parts,
    "scales": required("a divisor for each feature", numbers),
    "attributes": required(
        f"a list out of {', '.join(CLOCKS + LATERAL)}", partial(names, known=CLOCKS + LATERAL)
    ),
    "target_speeds": optional(_different_speeds),
    "acceleration_range": optional(partial(numbers, length=2)),
    "steering_range": optional(_angles),
    "speed_range": optional(partial(different, rising=True)),
    "actions_per_axis": whole(2, 1000),
}
# Checks of keys that mean something else in one type.
_CHECKS_OF_TYPE: dict[str, dict[str, Check]] = {
    "OccupancyGrid": {
        "features": optional(partial(names, known=(*VEHICLE_FEATURES, "on_road"))),
        "vehicles_count": optional(whole(1, MOST_VEHICLES)),
        "absolute": partial(only, kept=False, why="highway-env does not implement it either"),
    },
    "KinematicsGoal": {"features": optional(partial(names, known=GOAL_FEATURES))},
    "ContinuousAction": {"target_speeds": lambda *_: None},  # without an effect there
}


def _check_goal(path: str, given: Mapping[str, Any]) -> None:
    numbers(f"{path}['scales']", given["scales"], len(given["features"]))
    if not all(given["scales"]):
        raise ValueError(f"{path}['scales']: expected numbers other than 0, got {given['scales']!r}")


def _check_grid(path: str, given: Mapping[str, Any]) -> None:
    shape = grid_shape(given)
    if min(shape) < 1 or math.prod(shape) > MOST_CELLS:
        raise ValueError(f"{path}: expected a grid of 1 to {MOST_CELLS} cells, got {shape[0]} x {shape[1]}")


def _check_pictures(path: str, given: Mapping[str, Any]) -> None:
    most = MOST_CELLS // math.prod(map(int, given["observation_shape"]))
    as_integer(f"{path}['stack_size']", given["stack_size"], 1, most)


def _check_axes(path: str, given: Mapping[str, Any]) -> None:
    if not given["longitudinal"] and not given["lateral"]:
        raise ValueError(f"{path}: expected 'longitudinal' or 'lateral' to be True, got neither")


_CHECKS_TOGETHER: dict[str, Callable[[str, Mapping[str, Any]], None]] = {
    "KinematicsGoal": _check_goal,
    "OccupancyGrid": _check_grid,
    "GrayscaleObservation": _check_pictures,
    **dict.fromkeys(ACTIONS, _check_axes),
}


def fill_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """A nested dict with missing keys, and None, set to what its type has by default."""
    filled = _TYPES[given["type"]] | dict(given)
    standard = _STANDARD_OF_GRIDS if given["type"] == "OccupancyGrid" else _STANDARD
    return filled | {key: standard[key] for key in standard.keys() & filled if filled[key] is None}


def check_nested(path: str, given: Any, types: Sequence[str]) -> None:
    """Checks the dict of an observation or action, which is of one of some types."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{path}: expected a dict, got {type(given).__name__}")
    if "type" not in given:
        raise ValueError(f"{path}: expected a 'type', one of {', '.join(types)}")
    kind = given["type"]
    if not isinstance(kind, str):
        raise TypeError(f"{path}['type']: expected a name, got {kind!r}")
    if kind not in types:
        noun = "action" if types[0] in ACTIONS else "observation"
        many = "; for several agents use fastrl/coop-highway-v0" if "Multi" in kind else ""
        raise ValueError(
            f"{path}['type']: {kind!r} is not supported as {noun}, only {', '.join(types)}{many}"
        )
    known_keys(path, {key: value for key, value in given.items() if key != "type"}, _TYPES[kind])
    filled = fill_defaults(given)
    check_values(path, filled, _TYPES[kind], _CHECKS | _CHECKS_OF_TYPE.get(kind, {}))
    if kind in _CHECKS_TOGETHER:
        _CHECKS_TOGETHER[kind](path, filled)


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
    horizon = fill_defaults(config["observation"])["horizon"]
    return int(horizon / (1 / config["policy_frequency"]))


def grid_shape(observation: Mapping[str, Any]) -> tuple[int, int]:
    """Cells of an occupancy grid along x and y."""
    size, step = _grid(observation)
    cells = np.floor((size[:, 1] - size[:, 0]) / step)
    return int(cells[0]), int(cells[1])


def _grid(observation: Mapping[str, Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Edges [[x_min, x_max], [y_min, y_max]] and steps [x, y] of an occupancy grid."""
    return np.asarray(observation["grid_size"], np.float64), np.asarray(observation["grid_step"], np.float64)


def _unbounded(shape: tuple[int, ...]) -> Box:
    return Box(-np.inf, np.inf, shape, np.float64)


def observation_space(config: Mapping[str, Any]) -> Box | Dict | Tuple:
    """The observation space of highway-env: unbounded float32; times to collision in [0, 1]; images uint8; goals and
    attributes in a Dict of float64; several observations in a Tuple."""
    observation = fill_defaults(config["observation"])
    if observation["type"] == "TupleObservation":
        return Tuple([observation_space(part) for part in _parts(config)])
    if observation["type"] == "AttributesObservation":
        return Dict(
            {name: _unbounded((4, 1) if name in LATERAL else ()) for name in observation["attributes"]}
        )
    if observation["type"] == "KinematicsGoal":
        size = len(observation["features"])
        return Dict({key: _unbounded((size,)) for key in GOAL_KEYS})
    if observation["type"] == "TimeToCollision":
        return Box(0, 1, (3, 3, time_steps(config)), np.float32)
    if observation["type"] == "LidarObservation":
        high = 1.0 if observation["normalize"] else float(observation["maximum_range"])
        return Box(-high, high, (observation["cells"], 2), np.float32)
    if observation["type"] == "GrayscaleObservation":
        return Box(0, 255, (observation["stack_size"], *map(int, observation["observation_shape"])), np.uint8)
    features = observation["features"]
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
    action = fill_defaults(config["action"])
    if action["type"] != "DiscreteMetaAction":
        return ()
    if action["longitudinal"] and action["lateral"]:
        return META_ACTIONS
    return LONGITUDINAL_META_ACTIONS if action["longitudinal"] else LATERAL_META_ACTIONS


def action_space(config: Mapping[str, Any]) -> Discrete | Box:
    action = fill_defaults(config["action"])
    if action["type"] == "DiscreteMetaAction":
        return Discrete(len(action_names(config)))
    size = int(action["longitudinal"]) + int(action["lateral"])
    if action["type"] == "ContinuousAction":
        return Box(-1.0, 1.0, (size,), np.float32)
    return Discrete(int(action["actions_per_axis"]) ** size)


def native_observation(config: Mapping[str, Any], lanes: int) -> dict[str, Any]:
    """The observation for the compiled side; `lanes`: of the road that the observer starts on."""
    observation = fill_defaults(config["observation"])
    if observation["type"] == "TupleObservation":
        parts = [native_observation(part, lanes) for part in _parts(config)]
        return {"type": observation["type"], "parts": parts}
    if observation["type"] == "AttributesObservation":
        listed = observation["attributes"]
        # Shown in the order of the space, whose keys are sorted; errors are drawn in that of the list.
        noise = [(name, float(config[f"{name}_noise"])) for name in listed if f"{name}_noise" in config]
        return {"type": observation["type"], "attributes": sorted(listed), "noise": noise}
    if observation["type"] == "KinematicsGoal":
        scales = [float(scale) for scale in observation["scales"]]
        return {"type": observation["type"], "features": list(observation["features"]), "scales": scales}
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
    kinds = {"features": list(observation["features"]), "ranges": _ranges(observation, lanes)}
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
        speeds = [float(speed) for speed in action["target_speeds"]]
        return {"type": action["type"], "target_speeds": speeds} | axes
    if action["type"] == "DiscreteAction":
        return {"type": action["type"], "commands": _commands(action), "dynamical": bool(action["dynamical"])}
    limits = action["speed_range"]
    return axes | {
        "type": action["type"],
        "acceleration_range": _span(action["acceleration_range"]),
        "steering_range": _span(action["steering_range"]),
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
        acceleration = scaled(on_axis.pop(0), action["acceleration_range"]) if action["longitudinal"] else 0.0
        steering = scaled(on_axis.pop(0), action["steering_range"]) if action["lateral"] else 0.0
        commands.append((acceleration, steering))
    return commands


def _span(limits: Any) -> tuple[float, float, bool]:
    """Two limits, and a flag: NumPy scales a float32 number between them in float64, because they are NumPy's float64
    and not Python numbers (NEP 50)."""
    low, high = limits
    return float(low), float(high), np.result_type(np.float32, low, high) == np.float64
