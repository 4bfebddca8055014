"""The config dicts of `fastrl/highway-v0` and `fastrl/highway-fast-v0`: highway-env 1.12.1's keys and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from fastrl._native import _rust
from fastrl.envs.traffic.config_checks import whole
from fastrl.envs.traffic.config_interfaces import MOST_VEHICLES
from fastrl.envs.traffic.config_kind import BASE_DEFAULTS, Kind
from fastrl.utils.arguments import as_integer

MOST_LANES = 1000


class _HighwayKind(Kind):
    """The kind of straight highways, which have a simulator of their own and one agent."""

    compiled: ClassVar[Callable[..., Any]] = _rust.HighwayVec

    @property
    def has_teams(self) -> bool:
        return False

    def check(self, given: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> dict[str, Any]:
        config = super().check(given, base)
        if config["initial_lane_id"] is not None:
            as_integer("config['initial_lane_id']", config["initial_lane_id"], 0, config["lanes_count"] - 1)
        return config

    def native_options(self, config: Mapping[str, Any], ends: str) -> dict[str, Any]:
        lane, (low, high) = config["initial_lane_id"], config["reward_speed_range"]
        weights = ("ego_spacing", "collision_reward", "right_lane_reward", "high_speed_reward")
        return self.shared_options(config) | {
            **{key: float(config[key]) for key in weights},
            "lanes": int(config["lanes_count"]),
            "vehicles": int(config["vehicles_count"]),
            "controlled_vehicles": int(config["controlled_vehicles"]),
            "initial_lane": None if lane is None else int(lane),
            "density": float(config["vehicles_density"]),
            "speed_range": (float(low), float(high)),
            "normalize_reward": bool(config["normalize_reward"]),
            "offroad_terminal": bool(config["offroad_terminal"]),
            "all_collisions": self.scenario == "highway",
        }


_HIGHWAY = _HighwayKind(
    "highway",
    BASE_DEFAULTS
    | {
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
    },
    {"lanes_count": whole(1, MOST_LANES), "controlled_vehicles": whole(1, MOST_VEHICLES)},
    best=("high_speed_reward", "right_lane_reward"),
    start="lanes_count",
    observations=(),
)
HIGHWAYS: dict[str, Kind] = {
    "highway-v0": _HIGHWAY,
    "highway-fast-v0": replace(
        _HIGHWAY,
        scenario="highway-fast",
        defaults=_HIGHWAY.defaults
        | {
            "simulation_frequency": 5,
            "lanes_count": 3,
            "vehicles_count": 20,
            "duration": 30,
            "ego_spacing": 1.5,
        },
    ),
}
"""Kinds of highways by highway-env's ids."""
