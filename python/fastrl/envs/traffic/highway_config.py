"""The config dict of `fastrl/highway-v0`: highway-env 1.12.1's keys and defaults, strictly checked.

highway-env accepts any keys; here a key that is unknown, or known there and not supported here, raises an error that
names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from fastrl.envs.traffic.config_checks import known_keys
from fastrl.envs.traffic.config_interfaces import (
    ACTIONS,
    MOST_VEHICLES,
    OBSERVATIONS,
    check_nested,
    fill_defaults,
    native_action,
    native_observation,
)
from fastrl.envs.traffic.config_keys import (
    BASE_DEFAULTS,
    VEHICLE_TYPES,
    check_together,
    check_values,
    frames_per_step,
    whole,
)
from fastrl.utils.arguments import as_integer

MOST_LANES = 1000

HIGHWAY_DEFAULTS: dict[str, Any] = BASE_DEFAULTS | {
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
_CHECKS = {"lanes_count": whole(1, MOST_LANES), "controlled_vehicles": whole(1, MOST_VEHICLES)}


def check_config(given: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Checks `base` updated by `given`, as highway-env updates it: a nested dict is replaced as a whole.

    Raises:
        ValueError, TypeError: a key or value that is not supported; the message names the key.
    """
    known_keys("config", given, HIGHWAY_DEFAULTS)
    config = deepcopy({**base, **given})
    check_nested("config['observation']", config["observation"], OBSERVATIONS, "observation")
    check_nested("config['action']", config["action"], ACTIONS, "action")
    check_values(config, _CHECKS)
    if config["initial_lane_id"] is not None:
        as_integer("config['initial_lane_id']", config["initial_lane_id"], 0, config["lanes_count"] - 1)
    best = config["high_speed_reward"] + config["right_lane_reward"]
    if config["normalize_reward"] and best == config["collision_reward"]:
        raise ValueError(
            "config['normalize_reward']: division by zero, because high_speed_reward + right_lane_reward equals"
            f" collision_reward ({best})"
        )
    check_together(config)
    return config


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
        "observation": native_observation(config, int(config["lanes_count"])),
        "action": native_action(fill_defaults(config["action"], ACTIONS)),
    }
