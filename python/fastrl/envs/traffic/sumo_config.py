"""The config of `fastrl/road-v0`, traffic on any network of SUMO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastrl.envs.traffic.config_checks import optional, whole
from fastrl.envs.traffic.config_kind import (
    AT_LEAST_0,
    BASE_DEFAULTS,
    MOST_AGENTS,
    Kind,
    agent_config,
    as_numbers,
)
from fastrl.envs.traffic.sumo_demand import Demand, read_demand
from fastrl.envs.traffic.sumo_network import RoadNetwork, from_sumo

TOWN = Path(__file__).with_name("town.net.xml")
"""The network without another one: four junctions with traffic lights, made by SUMO's netgenerate."""
RANDOM_VEHICLES, MOST_VEHICLES = 20, 10_000
# Keys that the compiled side does not need, or not under this name.
_FILES = ("net", "demand", "origin", "destination", "vehicles_count")


def network_of(net: RoadNetwork | str | Path | None) -> RoadNetwork:
    """The network that the option `net` stands for.

    Raises:
        ValueError, TypeError: see `from_sumo`.
    """
    if isinstance(net, RoadNetwork):
        return net
    if net is not None and not isinstance(net, str | Path):
        raise TypeError(
            f"net: expected the path of a .net.xml file or a RoadNetwork, got {type(net).__name__}"
        )
    path = TOWN if net is None else Path(net)
    return _read(from_sumo, path)


def demand_of(demand: str | Path | None, network: RoadNetwork) -> Demand | None:
    """The demand that the option `demand` stands for; None for random trips.

    Raises:
        ValueError, TypeError: see `read_demand`.
    """
    if demand is None:
        return None
    if not isinstance(demand, str | Path):
        raise TypeError(f"demand: expected the path of a .rou.xml file, got {type(demand).__name__}")
    return _read(read_demand, Path(demand), network)


def trips(network: RoadNetwork, demand: Demand | None, vehicles: int | None) -> dict[str, list[float]]:
    """The options of the compiled trips that are of a network and its traffic: see `trips.rs`.

    Args:
        vehicles: the number of random vehicles, or the most of a demand; None: the usual one.
    """
    if vehicles is None:
        vehicles = RANDOM_VEHICLES if demand is None else MOST_VEHICLES
    return {
        **network.native,
        **(demand or Demand("")).native(network),
        "vehicles_count": [float(vehicles)],
        "planned": [float(demand is not None)],
    }


def _read(read: Callable[..., Any], path: Path, *more: Any) -> Any:
    """Result of a function that reads a file; it reads again only where the file has changed."""
    path = path.absolute()
    try:
        found = path.stat()
    except OSError:
        return read(path, *more)
    return _read_once(read, path, found.st_mtime_ns, found.st_size, *more)


@lru_cache(maxsize=32)
def _read_once(read: Callable[..., Any], path: Path, _changed: int, _size: int, *more: Any) -> Any:
    return read(path, *more)


class _SumoKind(Kind):
    """The kind of networks of SUMO."""

    def scenario_options(self, config: Mapping[str, Any]) -> dict[str, list[float]]:
        """The options of the compiled scenario: see `trips.rs`."""
        network = network_of(config["net"])
        demand = demand_of(config["demand"], network)
        origins, destinations = (_edges(config, key, network) for key in ("origin", "destination"))
        anywhere = len(network.lane_indices)
        pairs = list(zip(origins, destinations, strict=True))
        for origin, destination in pairs:
            _check_way(network, origin, destination)
        given = {key: as_numbers(config[key]) for key in self.own_keys if key not in _FILES}
        return {
            **trips(network, demand, config["vehicles_count"]),
            **given,
            "ends": [float(anywhere if end is None else end) for pair in pairs for end in pair],
            "navigates": [float(not agent_config(config)["action"].get("lateral", True))],
        }


def _edges(config: Mapping[str, Any], key: str, network: RoadNetwork) -> list[int | None]:
    """The edge of each agent, by its number; None for random ones."""
    given, agents = config[key], int(config["controlled_vehicles"])
    each = [given] * agents if given is None or isinstance(given, str) else list(given)
    if len(each) != agents:
        raise ValueError(
            f"config[{key!r}]: expected an edge or one for each of {agents} controlled_vehicles, got {len(each)}"
        )
    error = lambda message: ValueError(f"config[{key!r}]: {message}")  # noqa: E731
    return [None if edge is None else network.sections[network.known_edge(edge, error)] for edge in each]


def _check_way(network: RoadNetwork, origin: int | None, destination: int | None) -> None:
    if origin is None or destination is None:
        return
    start, end = list(network.edges)[origin], list(network.edges)[destination]
    if network.way(start, end) is None:
        raise ValueError(f"config: there is no way from the origin {start!r} to the destination {end!r}")


def _edge(path: str, value: Any) -> None:
    """Checks the type of an edge or a list of edges."""
    each = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not all(one is None or isinstance(one, str) for one in each):
        raise TypeError(f"{path}: expected the id of an edge, a list of ids, or None, got {value!r}")


ROAD = _SumoKind(
    "trips",
    BASE_DEFAULTS
    | {
        "net": None,
        "demand": None,
        "vehicles_count": None,
        "controlled_vehicles": 1,
        "origin": None,
        "destination": None,
        "begin": 0,
        "warm_up": 0,
        "observation": {
            "type": "Kinematics",
            "features": ["presence", "x", "y", "vx", "vy", "cos_h", "sin_h", "cos_d", "sin_d"],
            "features_range": {"x": [-100, 100], "y": [-100, 100], "vx": [-15, 15], "vy": [-15, 15]},
            "vehicles_count": 10,
            "see_behind": True,
        },
        "action": {"type": "DiscreteMetaAction", "lateral": False, "target_speeds": [0, 4.5, 9, 13.5]},
        "simulation_frequency": 10,
        "policy_frequency": 2,
        "duration": 60,
        "collision_reward": -1,
        "high_speed_reward": 0.1,
        "arrived_reward": 1,
        "on_road_reward": 0,
        "violation_reward": -0.2,
        "reward_speed_range": [0, 13.5],
        "offroad_terminal": False,
        "screen_width": 600,
        "screen_height": 600,
        "centering_position": [0.5, 0.5],
        "scaling": 4,
        "neighbour_vehicles_connected_lanes": True,
    },
    {
        "net": lambda _, value: network_of(value),
        "vehicles_count": optional(whole(0, MOST_VEHICLES)),
        "controlled_vehicles": whole(1, MOST_AGENTS),
        "origin": _edge,
        "destination": _edge,
        "begin": AT_LEAST_0,
        "warm_up": AT_LEAST_0,
    },
    start=2,
)
SUMO_KINDS: dict[str, Kind] = {"road-v0": ROAD}
"""Kinds of environments by id."""
