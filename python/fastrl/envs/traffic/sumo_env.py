"""`fastrl/road-v0`: agents among traffic on a network of SUMO, each with a trip from one edge to another.

Vehicles drive as highway-env's do (the IDM, lane changes by MOBIL, a bicycle), on lanes that are linked one by one.
They give way and stop at red lights, appear and leave in mid-episode; an agent's vehicle is taken off the roads when it
has arrived. Networks, demand and rules: `docs/environments/sumo-roads.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from fastrl.envs.traffic.config_kind import Kind
from fastrl.envs.traffic.roads import RoadEnv, RoadMultiAgentVectorEnv, RoadVectorEnv
from fastrl.envs.traffic.sumo_config import SUMO_KINDS, network_of
from fastrl.envs.traffic.sumo_network import RoadNetwork

Net = RoadNetwork | str | Path | None
ID = "road-v0"


def _with_files(config: Any, net: Net, demand: str | Path | None) -> Any:
    """The config, not checked yet, with the options that have names of their own."""
    given = {key: value for key, value in (("net", net), ("demand", demand)) if value is not None}
    if config is not None and not isinstance(config, Mapping):
        return config
    for key in given:
        if config is not None and config.get(key) is not None:
            raise ValueError(f"{key}: expected it as an option or in the config, got both")
    return {**(config or {}), **given}


class _OnNetwork:
    """Members that the environments of one and of several agents share."""

    kinds: ClassVar[Mapping[str, Kind]] = SUMO_KINDS
    config: dict[str, Any]

    def __init__(
        self,
        num_envs: int = 1,
        *,
        net: Net = None,
        demand: str | Path | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        construct: Any = super().__init__
        construct(num_envs, id=ID, config=_with_files(config, net, demand), **options)

    @property
    def network(self) -> RoadNetwork:
        """The network that vehicles drive on."""
        return network_of(self.config["net"])

    def lane_indices(self) -> list[tuple[str, str, int]]:
        """Names of the lanes by the numbers of `vehicles`: on an edge its id, twice, and SUMO's index of the lane; in a
        junction the edges that it lies between, and a number."""
        return self.network.lane_indices


class SumoRoadVectorEnv(_OnNetwork, RoadVectorEnv):
    """N environments on a network of SUMO, stepped natively.

    Args:
        num_envs: N.
        net: a `.net.xml` file or a `RoadNetwork` of `fastrl.envs.roads.from_sumo`; None for the built-in town.
        demand: a `.rou.xml` file; None for random trips.
        config: keys on top of the defaults, `fastrl.envs.traffic.sumo_config.ROAD`; `net` and `demand` may be there.
        options: as in `RoadVectorEnv`.

    `info` has is_success bool [N] besides: the first agent has arrived.

    Raises:
        ValueError, TypeError: an option out of its range, a file that is not supported; one line that names it.
    """


class SumoRoadEnv(RoadEnv):
    """One environment for `gymnasium.make("fastrl/road-v0")`, with the options of `SumoRoadVectorEnv`."""

    vector_class = SumoRoadVectorEnv

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
        *,
        net: Net = None,
        demand: str | Path | None = None,
        **options: Any,
    ) -> None:
        super().__init__(_with_files(config, net, demand), render_mode, **options)


class SumoRoadMultiAgentVectorEnv(_OnNetwork, RoadMultiAgentVectorEnv):
    """K environments with several agents, each with its own trip, reward and end, for `make_multi` and `parallel_env`.
    Their number is the config's `controlled_vehicles`.

    Args:
        num_envs: K.
        net, demand, config: as in `SumoRoadVectorEnv`.
        options: as in `RoadMultiAgentVectorEnv`.
    """
