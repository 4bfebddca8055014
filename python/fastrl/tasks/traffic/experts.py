"""Experts of traffic, which run in worker processes: controllers of the ring road, a driver of the highway.

This module loads no torch.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from fastrl.collectors.expert import ExpertSpec
from fastrl.envs.contract import env_name
from fastrl.envs.exact_rows import ExactRows
from fastrl.envs.traffic.highway import HighwayEnv
from fastrl.envs.traffic.ring import RingEnv, equilibrium_speed
from fastrl.networks.compiled_actor import Rows
from fastrl.utils.names import suggestion

# Drivers of the ring road by their names on the command line.
_RING_DRIVERS = {"follower-stopper": "follower_stopper", "pi": "pi_saturation"}

_HIGHWAY_DRIVER = "idm"


def find_expert(expert: str, env: gymnasium.Env[Any, Any]) -> ExpertSpec:
    """The driver of ``driver:NAME``.

    Args:
        env: the environment, as the expert will see it.

    Raises:
        ConfigError: there is none, or it does not fit the environment.
    """
    # Workers import this module, and need no settings.
    from fastrl.utils.config import ConfigError

    name, road = expert.partition(":")[2], env.unwrapped
    if name == _HIGHWAY_DRIVER:
        return _highway_driver(expert, env)
    if name not in _RING_DRIVERS:
        raise ConfigError(f"--expert {expert}: {suggestion(name, [*_RING_DRIVERS, _HIGHWAY_DRIVER])}")
    if not isinstance(road, RingEnv):
        raise ConfigError(f"--expert {expert} drives on fastrl/ring-v0, which {env_name(env)} is not")
    options = road.options
    if options.drive != "agents":
        raise ConfigError(
            f"--expert {expert}: the environment's option drive is {options.drive!r}, so that actions do nothing: leave"
            " it out"
        )
    make = functools.partial(
        RingDriver,
        _RING_DRIVERS[name],
        options.dt * options.sims_per_step,
        options.distance_scale or options.length_range()[1],
        options.num_vehicles,
        options.desired_speed,
    )
    sense = RingLength() if name == "follower-stopper" and options.desired_speed is None else None
    return ExpertSpec(expert, make, {"kind": "driver", "name": name}, sense=sense, batched=True)


def _highway_driver(expert: str, env: gymnasium.Env[Any, Any]) -> ExpertSpec:
    from fastrl.utils.config import ConfigError

    road = env.unwrapped
    if not isinstance(road, HighwayEnv):
        raise ConfigError(f"--expert {expert} drives on fastrl/highway-v0, which {env_name(env)} is not")
    actions = dict(road.action_type.actions_indexes)
    if "FASTER" not in actions:
        raise ConfigError(
            f"--expert {expert}: the environment's actions should be DiscreteMetaAction with longitudinal ones"
        )
    config = road.config
    speeds = config["action"].get("target_speeds")
    make = functools.partial(
        HighwayDriver,
        int(config["lanes_count"]),
        actions,
        tuple(map(float, (20.0, 25.0, 30.0) if speeds is None else speeds)),
        1 / config["policy_frequency"],
    )
    sense = Neighbours(int(config["lanes_count"]))
    return ExpertSpec(expert, make, {"kind": "driver", "name": _HIGHWAY_DRIVER}, sense=sense, batched=True)


# The ring road


@dataclass(frozen=True)
class RingLength:
    """The circumference of the ring road, m."""

    name: str = "ring_length"
    size: int = 1

    def read(self, env: gymnasium.Env[Any, Any]) -> NDArray[Any]:
        return np.reshape(env.get_wrapper_attr("vehicles")().ring_lengths, 1)

    def read_vector(self, env: Any) -> NDArray[Any]:
        lengths: NDArray[Any] = env.vehicles().ring_lengths
        return lengths[:, None]


# Of observed speeds, m/s, and of a vehicle, m.
_OBS_SPEED, _VEHICLE_LENGTH = 15.0, 5.0

# Seconds over which PI with saturation averages its own speed.
_PI_MEMORY = 38.0


@dataclass
class RingDriver:
    """A controller of Stern et al. (2018), whose speed is reached by an acceleration within the bounds of actions.

    States of PI with saturation: its command, the number of speeds so far, then its last speeds, a ring.

    Attributes:
        name: "follower_stopper" or "pi_saturation".
        dt: seconds of a step of the environment.
        distance_scale: m, of its observations.
        num_vehicles: on the ring.
        desired_speed: of FollowerStopper, m/s; None: the equilibrium speed of the ring.
    """

    name: str
    dt: float
    distance_scale: float
    num_vehicles: int
    desired_speed: float | None
    rows: ExactRows
    space: Any
    state_size: int = field(init=False)

    def __post_init__(self) -> None:
        self._memory = max(1, int(_PI_MEMORY / self.dt + 1e-9))
        self.state_size = self._memory + 2 if self.name == "pi_saturation" else 0
        self._equilibria: dict[float, float] = {}

    def act(self, rows: Rows) -> NDArray[Any]:
        obs = self.rows.read(rows.obs).astype(np.float64)
        v, lead = obs[:, 0] * _OBS_SPEED, (obs[:, 0] + obs[:, 1]) * _OBS_SPEED
        gap = obs[:, 2] * self.distance_scale - _VEHICLE_LENGTH
        if rows.states is not None:
            wish = self._pi(v, lead, gap, rows.states)
        else:
            wish = follower_stopper(self._desired(rows.obs), v, gap, lead)
        wanted = ((wish - v) / self.dt).astype(np.float32)[:, None]
        return np.clip(wanted, self.space.low, self.space.high)

    def _desired(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        if self.desired_speed is not None:
            return np.full(len(rows), self.desired_speed)
        found = []
        for length in self.rows.read_sense(rows)[:, 0].tolist():
            if length not in self._equilibria:
                self._equilibria[length] = equilibrium_speed(length, self.num_vehicles)
            found.append(self._equilibria[length])
        return np.array(found)

    def _pi(
        self,
        v: NDArray[np.float64],
        lead: NDArray[np.float64],
        gap: NDArray[np.float64],
        states: NDArray[np.float32],
    ) -> NDArray[np.float64]:
        command, count = states[:, 0].astype(np.float64), states[:, 1].astype(np.int64)
        command = np.where(count == 0, v, command)
        states[np.arange(len(v)), 2 + count % self._memory] = v
        count += 1
        mean = states[:, 2:].sum(1, dtype=np.float64) / np.minimum(count, self._memory)
        target = mean + np.clip((gap - 7.0) / 23.0, 0.0, 1.0)
        alpha = np.clip((gap - np.maximum(2.0 * (lead - v), 4.0)) / 2.0, 0.0, 1.0)
        beta = 1.0 - 0.5 * alpha
        command = beta * (alpha * target + (1.0 - alpha) * lead) + (1.0 - beta) * command
        states[:, 0], states[:, 1] = command, count
        return command


def follower_stopper(
    desired: NDArray[np.float64],
    v: NDArray[np.float64],
    gap: NDArray[np.float64],
    lead: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The speeds to drive, m/s [K]: the desired one far behind the leader, the leader's closer up, a stop closer still.

    Source: Stern et al., "Dissipation of stop-and-go waves via control of autonomous vehicles: Field experiments"
    (2018), as the compiled ring road has it.
    """
    closing = np.minimum(lead - v, 0.0) ** 2 / 2.0
    stop, adapt, safe = 4.5 + closing / 1.5, 5.25 + closing, 6.0 + closing / 0.5
    follow = np.minimum(np.maximum(lead, 0.0), desired)
    return np.select(
        [gap <= stop, gap <= adapt, gap <= safe],
        [
            np.zeros_like(v),
            follow * (gap - stop) / (adapt - stop),
            follow + (desired - follow) * (gap - adapt) / (safe - adapt),
        ],
        desired,
    )


# The highway


@dataclass(frozen=True)
class Neighbours:
    """The controlled vehicle of the highway and its neighbours in every lane: lane, target lane, speed and target
    speed; then of each lane the distance to the vehicle in front (centre to centre, m), its speed (m/s), and the same
    of the one behind.

    Attributes:
        lanes: of the road.
    """

    lanes: int
    name: str = "neighbours"

    @property
    def size(self) -> int:
        return 4 + 4 * self.lanes

    def read(self, env: gymnasium.Env[Any, Any]) -> NDArray[Any]:
        return self._sensed(env.get_wrapper_attr("vehicles")())

    def read_vector(self, env: Any) -> NDArray[Any]:
        return np.stack([self._sensed(env.vehicles(i)) for i in range(env.num_envs)])

    def _sensed(self, vehicles: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
        ego = [float(vehicles[key][0]) for key in ("lane", "target_lane", "speed", "target_speed")]
        ahead, speed, lane = vehicles["x"][1:] - vehicles["x"][0], vehicles["speed"][1:], vehicles["lane"][1:]
        sensed = [*ego]
        for each in range(self.lanes):
            for side in (ahead, -ahead):
                there = np.flatnonzero((lane == each) & (side >= 0))
                if len(there):
                    nearest = there[side[there].argmin()]
                    sensed += [float(side[nearest]), float(speed[nearest])]
                else:
                    sensed += [_FAR, ego[2]]
        return np.array(sensed)


# Distance that stands for no neighbour, m.
_FAR = 1e6


class HighwayDriver:
    """Chooses speeds by the Intelligent Driver Model and lanes by MOBIL, as highway-env's other vehicles do, and takes
    the meta-action that comes nearest.

    Sources: Treiber, Hennecke and Helbing (2000); Kesting, Treiber and Helbing (2007); numbers as of highway-env's
    `IDMVehicle`, with the highest target speed as the desired one.

    Args:
        lanes: of the road.
        actions: indices of the meta-actions by their names.
        target_speeds: that the vehicle chooses among, m/s, ascending.
        seconds: between two actions.
    """

    state_size = 0

    def __init__(
        self,
        lanes: int,
        actions: dict[str, int],
        target_speeds: tuple[float, ...],
        seconds: float,
        rows: ExactRows,
        action_space: Space[Any],
    ) -> None:
        self._lanes, self._actions, self._seconds, self._rows = lanes, actions, seconds, rows
        self._speeds = np.array(target_speeds)

    def act(self, rows: Rows) -> NDArray[Any]:
        sensed = self._rows.read_sense(rows.obs).astype(np.float64)
        return np.array([self._choose(each) for each in sensed], np.int64)

    def _choose(self, sensed: NDArray[np.float64]) -> int:
        actions = self._actions
        lane, target, speed, present = sensed[:4].tolist()
        lanes = sensed[4:].reshape(self._lanes, 4).tolist()
        at = int(lane)
        keep = self._acceleration(speed, *lanes[at][:2])
        if lane == target:
            found, most = "", 0.2
            for other, name in ((at - 1, "LANE_LEFT"), (at + 1, "LANE_RIGHT")):
                if not 0 <= other < self._lanes or name not in actions:
                    continue
                front, front_speed, rear, rear_speed = lanes[other]
                gain = self._acceleration(speed, front, front_speed) - keep
                if self._acceleration(rear_speed, rear, speed) >= -2.0 and gain > most:
                    found, most = name, gain
            if found:
                return actions[found]
        wanted = int(np.abs(self._speeds - (speed + keep * self._seconds)).argmin())
        now = int(np.abs(self._speeds - present).argmin())
        name = "FASTER" if wanted > now else "SLOWER" if wanted < now else "IDLE"
        return actions.get(name, actions["IDLE"])

    def _acceleration(self, speed: float, gap: float, front_speed: float) -> float:
        """Acceleration of the Intelligent Driver Model, m/s^2."""
        desired = float(self._speeds[-1])
        wanted = 10.0 + 1.5 * speed + speed * (speed - front_speed) / (2 * 15.0**0.5)
        free = 1 - (max(speed, 0.0) / desired) ** 4
        return float(np.clip(3.0 * (free - (wanted / max(gap, 0.01)) ** 2), -6.0, 6.0))
