"""Kinds of traffic environments whose config has highway-env's form: defaults, checks, options of the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from fastrl._native import _rust
from fastrl.envs.traffic.config_checks import (
    Check,
    check_values,
    choice,
    different,
    flag,
    known_keys,
    names,
    number,
    numbers,
    only,
    optional,
    whole,
)
from fastrl.envs.traffic.config_interfaces import (
    ACTIONS,
    CLOCKS,
    MOST_CELLS,
    MOST_VEHICLES,
    SHARED_OBSERVATIONS,
    check_nested,
    fill_defaults,
    native_action,
    native_observation,
    single_observations,
    time_steps,
)
from fastrl.utils.arguments import as_integer

VEHICLE_TYPES = {
    f"highway_env.vehicle.behavior.{name}Vehicle": name.lower()
    for name in ("IDM", "Linear", "Aggressive", "Defensive")
}
MOST_ENVS = 1 << 24
MOST_FRAMES = 100_000
MOST_AGENTS = 100
ARMS = ("o0", "o1", "o2", "o3")

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

POSITIVE = partial(number, above=0)
AT_LEAST_0 = partial(number, least=0)
# Checks of keys that mean the same in all kinds; flags and numbers without one, such as rewards, are checked as such.
_CHECKS: dict[str, Check] = {
    "simulation_frequency": POSITIVE,
    "policy_frequency": POSITIVE,
    "duration": POSITIVE,
    "vehicles_density": POSITIVE,
    "scaling": POSITIVE,
    "ego_spacing": AT_LEAST_0,
    "vehicles_count": whole(0, MOST_VEHICLES),
    "other_vehicles_type": partial(choice, choices=tuple(VEHICLE_TYPES)),
    "reward_speed_range": different,
    "manual_control": partial(only, kept=False, why="there is no keyboard control"),
    "real_time_rendering": partial(only, kept=False, why="frames are drawn on request"),
    "offscreen_rendering": optional(flag),
    "screen_width": whole(1, 10_000),
    "screen_height": whole(1, 10_000),
    "centering_position": partial(numbers, length=2),
}


@dataclass(frozen=True)
class Kind:
    """A kind of environment.

    Attributes:
        scenario: name of the compiled scenario.
        defaults: highway-env's config.
        checks: of keys that other kinds do not have, or check otherwise.
        worst, best: keys whose sums are the rewards that are normalised to 0 and 1.
        always_normalised: whether `normalize_reward` has no say.
        start: lanes of the road that agents start on.
        meta_only: whether rewards need target speeds.
        without_meta: whether vehicles cannot have target speeds.
        most_steps: Gymnasium's time limit.
        observations: types of observations beside those that all kinds have.
        compiled: the simulator.
    """

    compiled: ClassVar[Callable[..., Any]] = _rust.RoadVec

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
    observations: tuple[str, ...] = ("AttributesObservation",)

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

    @property
    def has_teams(self) -> bool:
        """True if several agents may drive."""
        return "controlled_vehicles" in self.defaults

    def check(self, given: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Checks a base, by default the defaults, updated by `given` as highway-env updates it: a nested dict is
        replaced as a whole.

        Raises:
            ValueError, TypeError: a key or value that is not supported; the message names the key.
        """
        known_keys("config", given, self.defaults)
        config = deepcopy({**(self.defaults if base is None else base), **given})
        single = agent_config(config) if self.has_teams and _check_team(config) else config
        check_nested("config['observation']", single["observation"], SHARED_OBSERVATIONS + self.observations)
        check_nested("config['action']", single["action"], tuple(ACTIONS))
        check_values("config", config, self.defaults, _CHECKS | self.checks)
        if not 1 <= frames_per_step(config) <= MOST_FRAMES:
            raise ValueError(
                f"config['policy_frequency']: expected 1 to {MOST_FRAMES} frames of the simulation_frequency"
                f" {config['simulation_frequency']} a step, got {config['policy_frequency']}"
            )
        self._check_rewards(config)
        self._check_action(single["action"])
        for observation in single_observations(single["observation"]):
            _check_observation(single, observation)
        return config

    def _check_rewards(self, config: Mapping[str, Any]) -> None:
        if self.always_normalised or config.get("normalize_reward", False):
            worst, best = (sum(config[key] for key in keys) for keys in (self.worst, self.best))
            if worst == best:
                key = "" if self.always_normalised else "['normalize_reward']"
                raise ValueError(
                    f"config{key}: division by zero, because the best reward, {' + '.join(self.best)}, equals the"
                    f" worst, {' + '.join(self.worst)} ({best})"
                )
        if self.scenario.startswith("racetrack") and config["collision_reward"] == 1:
            raise ValueError(
                "config['collision_reward']: expected a number other than the best reward, 1, got 1"
            )

    def _check_action(self, action: Mapping[str, Any]) -> None:
        kind = action["type"]
        if self.meta_only and kind != "DiscreteMetaAction":
            raise ValueError(
                "config['action']['type']: the reward needs target speeds, which only DiscreteMetaAction has, got"
                f" {kind}"
            )
        if self.without_meta and kind == "DiscreteMetaAction":
            raise ValueError(
                "config['action']['type']: expected ContinuousAction or DiscreteAction, got DiscreteMetaAction, with"
                " which highway-env's racetracks fail"
            )

    def native_options(self, config: Mapping[str, Any], ends: str) -> dict[str, Any]:
        """The options of `compiled` from a checked config; `ends` of several agents as there."""
        return self.shared_options(config) | {
            "scenario": self.scenario,
            "options": self.scenario_options(config),
            "connected": bool(config["neighbour_vehicles_connected_lanes"]),
            "shared": not is_multi_agent(config),
            "ends": ends,
        }

    def scenario_options(self, config: Mapping[str, Any]) -> dict[str, list[float]]:
        """The scenario's own options as numbers, from a checked config."""
        return {key: as_numbers(config[key]) for key in self.own_keys}

    def shared_options(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The options that all simulators of kinds have."""
        single = agent_config(config)
        lanes = self.start if isinstance(self.start, int) else int(config[self.start])
        if self.scenario == "exit":
            # The last lane of the second section, beyond those of the first.
            single = single | {"exit_lane": 2 * int(config["lanes_count"])}
        return {
            "vehicle_type": VEHICLE_TYPES[config["other_vehicles_type"]],
            "simulation_frequency": float(config["simulation_frequency"]),
            "policy_frequency": float(config["policy_frequency"]),
            "frames": frames_per_step(config),
            "duration": float(config.get("duration", math.inf)),
            "observation": native_observation(single, lanes),
            "action": native_action(fill_defaults(single["action"])),
        }

    def simulator(
        self,
        num_envs: int,
        config: Mapping[str, Any] | None,
        num_threads: int,
        max_episode_steps: int | None = None,
        ends: str = "together",
    ) -> tuple[dict[str, Any], Callable[..., Any]]:
        """The checked config, and a function that builds the compiled environments for an autoreset mode, with links or
        without."""
        num_envs = as_integer("num_envs", num_envs, 1, MOST_ENVS)
        num_threads = as_integer("num_threads", num_threads, 0, 1024)
        checked = self.check({} if config is None else config)
        options = self.native_options(checked, ends)
        if max_episode_steps is not None:
            steps = as_integer("max_episode_steps", max_episode_steps, 1, 2**31)
            options["duration"] = min(options["duration"], (steps - 0.5) / checked["policy_frequency"])
        return checked, lambda mode, **links: self.compiled(
            num_envs, num_threads=num_threads, autoreset_mode=mode, **options, **links
        )


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


def _check_team(config: Mapping[str, Any]) -> bool:
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
    return types["action"]


def _check_observation(config: Mapping[str, Any], observation: Mapping[str, Any]) -> None:
    """Checks that the rest of the config fits an observation: times to collision need target speeds, pictures a scale
    that they can be drawn at and no traces, attributes an environment that has them."""
    if observation["type"] == "AttributesObservation" and "state_noise" not in config:
        names("config['observation']['attributes']", observation["attributes"], CLOCKS)
    if observation["type"] == "GrayscaleObservation":
        if config["show_trajectories"]:
            raise ValueError(
                "config['show_trajectories']: pictures of a GrayscaleObservation have no traces, got True"
            )
        scaling = observation.get("scaling") or config["scaling"]
        if not 0.1 <= scaling <= 100:
            raise ValueError(
                f"scaling: expected 0.1 to 100 pixels a metre for a GrayscaleObservation, got {scaling!r}"
            )
    if observation["type"] == "TimeToCollision":
        if config["action"]["type"] != "DiscreteMetaAction":
            raise ValueError(
                "config['observation']['type']: TimeToCollision needs target speeds, which only DiscreteMetaAction"
                f" has, got {config['action']['type']}"
            )
        steps = time_steps({**config, "observation": observation})
        as_integer("config['observation']['horizon'] in steps", steps, 1, MOST_CELLS)


def frames_per_step(config: Mapping[str, Any]) -> int:
    return int(config["simulation_frequency"] // config["policy_frequency"])


def as_numbers(value: Any) -> list[float]:
    """A value as numbers: none for None, the index for an arm of a crossing."""
    if value is None:
        return []
    if isinstance(value, str):
        return [float(ARMS.index(value))]
    return [float(one) for one in value] if isinstance(value, list | tuple) else [float(value)]
