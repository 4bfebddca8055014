"""Worlds whose options are a config with highway-env's keys: highways, and roads of any shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fastrl.envs.traffic.highway_config import HIGHWAYS
from fastrl.envs.traffic.roads_config import KINDS
from fastrl.envs.traffic.sumo_config import SUMO_KINDS
from fastrl.utils.config import ConfigError

_PREFIX = "fastrl/"
_KINDS = KINDS | SUMO_KINDS | HIGHWAYS


def is_configured(env_id: str) -> bool:
    """True for an id whose options are a config: of a highway, or of a road network."""
    return env_id.startswith(_PREFIX) and env_id.removeprefix(_PREFIX) in _KINDS


class ConfiguredWorld:
    """The config of an environment and what follows from it.

    Args:
        env_id: one for which `is_configured`.
        given: keys that differ from the defaults, as users give them; the environment checks them.

    Attributes:
        config: all keys.

    Raises:
        ConfigError: the config is no dict.
    """

    def __init__(self, env_id: str, given: object = None) -> None:
        self.env_id = env_id
        self._kind = _KINDS[env_id.removeprefix(_PREFIX)]
        self._defaults = self._kind.defaults
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(
                f'--env-options config should be a dict such as {{"duration": 20}}, got {given!r}'
            )
        self._given = dict(given or {})
        self.config: dict[str, Any] = {**self._defaults, **self._given}

    @property
    def vehicles(self) -> int:
        """Vehicles that agents drive, by the config."""
        number = self.config.get("controlled_vehicles", 1) if self._kind.has_teams else 1
        return number if isinstance(number, int) else 1

    @property
    def step_seconds(self) -> float:
        """Simulated seconds of a step."""
        return 1.0 / self._number("policy_frequency")

    def episode_steps(self, usual_seconds: float) -> int:
        """Steps of an episode at the latest.

        Args:
            usual_seconds: of an episode without a limit.
        """
        seconds = self._number("duration") if "duration" in self.config else usual_seconds
        # An episode has ended when its time is up, not before.
        steps = max(math.ceil(round(seconds / self.step_seconds, 6)), 1)
        most = self._kind.most_steps
        return steps if most is None else min(steps, most)

    def _number(self, key: str) -> float:
        """A number above 0. What else a config has there the environment refuses."""
        value = self.config[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number and value > 0 else 1.0

    def with_settings(self, vehicles: int | None, **values: Any) -> dict[str, Any]:
        """The keys that differ from the defaults, those of settings too.

        Args:
            vehicles: that agents drive; None: as many as the config says.
            values: of other keys, by name.

        Raises:
            ConfigError: the environment does not have a key, or the config says something else.
        """
        if vehicles is not None and not self._kind.has_teams:
            if vehicles != 1:
                raise ConfigError(
                    f"--vehicles {vehicles}: {self.env_id} has one vehicle that learns; choose --vehicles 1"
                )
        elif vehicles is not None:
            values["controlled_vehicles"] = vehicles
        for key, value in values.items():
            option = "--vehicles" if key == "controlled_vehicles" else f"--env.{key.replace('_', '-')}"
            if key not in self._defaults:
                raise ConfigError(f"{option} is not an option of {self.env_id}")
            if self._given.get(key, value) != value:
                raise ConfigError(
                    f"{option} {value:g} and config[{key!r}] = {self._given[key]} contradict each other: give one"
                )
        return {**self._given, **values}
