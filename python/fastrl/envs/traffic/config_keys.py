"""The keys that configs of all traffic environments in highway-env's form share, and checks of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fastrl.envs.traffic.config_checks import choice, different, flag, number, numbers, only
from fastrl.envs.traffic.config_interfaces import MOST_CELLS, MOST_VEHICLES, single_observations, time_steps
from fastrl.utils.arguments import as_integer

VEHICLE_TYPES = {
    f"highway_env.vehicle.behavior.{name}Vehicle": name.lower()
    for name in ("IDM", "Linear", "Aggressive", "Defensive")
}
MOST_ENVS = 1 << 24
MOST_FRAMES = 100_000

BASE_DEFAULTS: dict[str, Any] = {
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
}

Check = Callable[[str, Any], object]


def whole(least: int, most: int) -> Check:
    """A check of a whole number within bounds."""
    return lambda path, value: as_integer(path, value, least, most)


def optional(check: Check) -> Check:
    """A check that lets None pass."""
    return lambda path, value: None if value is None else check(path, value)


def named(choices: tuple[str, ...]) -> Check:
    """A check of one of several names."""
    return lambda path, value: choice(path, value, choices)


_POSITIVE = partial(number, above=0)
_CHECKS: dict[str, Check] = {
    "simulation_frequency": _POSITIVE,
    "policy_frequency": _POSITIVE,
    "duration": _POSITIVE,
    "vehicles_density": _POSITIVE,
    "scaling": _POSITIVE,
    "ego_spacing": partial(number, least=0),
    "vehicles_count": whole(0, MOST_VEHICLES),
    "other_vehicles_type": named(tuple(VEHICLE_TYPES)),
    "reward_speed_range": different,
    "normalize_reward": flag,
    "offroad_terminal": flag,
    "render_agent": flag,
    "show_trajectories": flag,
    "neighbour_vehicles_connected_lanes": flag,
    "manual_control": lambda path, value: only(path, value, False, "there is no keyboard control"),
    "real_time_rendering": lambda path, value: only(path, value, False, "frames are drawn on request"),
    "offscreen_rendering": optional(flag),
    "screen_width": whole(1, 10_000),
    "screen_height": whole(1, 10_000),
    "centering_position": lambda path, value: numbers(path, value, 2),
}


def check_values(config: Mapping[str, Any], checks: Mapping[str, Check]) -> None:
    """Checks all values but the nested ones: by `checks`, else as all environments do; rewards are numbers."""
    for key, value in config.items():
        check = checks.get(key) or _CHECKS.get(key) or (number if key.endswith("_reward") else None)
        if check is not None:
            check(f"config[{key!r}]", value)
    if not 1 <= frames_per_step(config) <= MOST_FRAMES:
        raise ValueError(
            f"config['policy_frequency']: expected 1 to {MOST_FRAMES} frames of the simulation_frequency"
            f" {config['simulation_frequency']} a step, got {config['policy_frequency']}"
        )


def check_together(config: Mapping[str, Any]) -> None:
    """Checks that the rest of the config fits the observations: those of times to collision need target speeds,
    pictures a scale that they can be drawn at and no traces."""
    for observation in single_observations(config["observation"]):
        if observation["type"] == "GrayscaleObservation":
            _check_pictures(config, observation)
        if observation["type"] != "TimeToCollision":
            continue
        if config["action"]["type"] != "DiscreteMetaAction":
            raise ValueError(
                "config['observation']['type']: TimeToCollision needs target speeds, which only DiscreteMetaAction"
                f" has, got {config['action']['type']}"
            )
        steps = time_steps({**config, "observation": observation})
        as_integer("config['observation']['horizon'] in steps", steps, 1, MOST_CELLS)


def _check_pictures(config: Mapping[str, Any], observation: Mapping[str, Any]) -> None:
    if config["show_trajectories"]:
        raise ValueError(
            "config['show_trajectories']: pictures of a GrayscaleObservation have no traces, got True"
        )
    scaling = observation.get("scaling") or config["scaling"]
    if not 0.1 <= scaling <= 100:
        raise ValueError(
            f"scaling: expected 0.1 to 100 pixels a metre for a GrayscaleObservation, got {scaling!r}"
        )


def frames_per_step(config: Mapping[str, Any]) -> int:
    return int(config["simulation_frequency"] // config["policy_frequency"])
