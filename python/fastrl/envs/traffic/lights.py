"""Traffic lights as agents, on networks of SUMO: each chooses its next green phase.

Observations, actions and rewards are those that sumo-rl has by default (https://lucasalegre.github.io/sumo-rl), so
that one task can be posed to both. The traffic is that of `fastrl/road-v0`: the IDM, and right of way by the junctions'
rules.

A light of the file has its green phases, those with a green link and no amber one, in the order of its program. G is
the most green phases of a light, L the most lanes that lead to one.

**Observation** of a light, float32 [G + 1 + 2 L]: 1 for the green phase that it shows or that follows its amber; 1 if
it may change now; the density of each lane that leads to it, vehicles by those that have room at 7.5 m each; the share
of a queue on each, vehicles below 0.1 m/s by the same. Lanes are in the order of the light's links. What a light does
not have is 0.

**Action**, `Discrete(G)`: the next green phase, for the next `delta_time` seconds. Amber comes before it where a green
link turns red. One that comes before `yellow_time + min_green` seconds since the last change, or that the light does
not have, keeps the phase.

**Reward** of a light: the decrease of the waiting time on its lanes since its last action, in hundreds of seconds. The
waiting time is the sum over the vehicles there of the seconds below 0.1 m/s on this edge (sumo-rl's
`diff-waiting-time`).

**End**: after `duration` seconds all lights are truncated. Statistics of episodes have `waiting_time`, the seconds
below 0.1 m/s of a vehicle, anywhere and before it found room on the network, mean over all vehicles that were due;
`arrived` and `crashes` are numbers of vehicles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from fastrl._native import _rust
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.traffic.sumo_config import demand_of, network_of, trips
from fastrl.envs.traffic.sumo_network import RoadNetwork
from fastrl.envs.vector import as_autoreset_mode
from fastrl.envs.viewer import View
from fastrl.utils.arguments import as_integer

_FOLDER = Path(__file__).with_name("networks")
NETWORKS = ("crossing", "grid", "arterial")
"""Names of the built-in networks, of 1, 2 x 2 and 3 junctions, each with its own demand; made by SUMO's netconvert."""
VIEW = View(screen_width=600, screen_height=600)
# Further options of the compiled trips: they are of agents that drive, of which there are none.
_NO_AGENTS: dict[str, list[float]] = {
    **{key: [0.0] for key in ("controlled_vehicles", "offroad_terminal", "navigates", "warm_up", "begin")},
    **{f"{key}_reward": [0.0] for key in ("collision", "high_speed", "arrived", "on_road", "violation")},
    "reward_speed_range": [0.0, 1.0],
    "ends": [],
}


def files_of(net: str) -> tuple[Path, Path]:
    """The `.net.xml` and the `.rou.xml` file of a built-in network."""
    return _FOLDER / f"{net}.net.xml", _FOLDER / f"{net}.rou.xml"


def count_lights(net: RoadNetwork | str | Path) -> int:
    """The number of lights of a network, as `LightsVectorEnv` takes it."""
    return len(_network(net).lights)


def _network(net: RoadNetwork | str | Path) -> RoadNetwork:
    return network_of(files_of(net)[0] if isinstance(net, str) and net in NETWORKS else net)


class LightsVectorEnv(MultiAgentVectorEnv):
    """K environments with a traffic light for each agent; the module documents observations, actions and rewards.

    Args:
        num_envs: K.
        net: "crossing", "grid" or "arterial", a `.net.xml` file, or a `RoadNetwork` of `fastrl.envs.roads.from_sumo`.
        demand: a `.rou.xml` file; None for the network's own, or for random trips where it has none.
        vehicles_count: random trips: so many vehicles, kept up; with a demand: the most at once. None: 20, or 10,000.
        fixed: True: the lights follow the programs of the file, and actions have no effect.
        duration: seconds of an episode, an integer.
        delta_time: seconds between two actions, an integer.
        yellow_time: seconds of amber, an integer.
        min_green: seconds that a green phase lasts at least, an integer.
        simulation_frequency: frames a second, an integer to 100.
        autoreset_mode: Gymnasium's enum or the name of a mode.
        num_threads: threads that step the environments, 0 for one a core.

    Attributes:
        network: the network, with the ids of its lights in the order of the agents.

    Raises:
        ValueError: an option out of range, a file that is not supported, a network without lights.
        TypeError: an option of another type.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        net: RoadNetwork | str | Path = "crossing",
        demand: str | Path | None = None,
        vehicles_count: int | None = None,
        fixed: bool = False,
        duration: int = 900,
        delta_time: int = 5,
        yellow_time: int = 2,
        min_green: int = 5,
        simulation_frequency: int = 10,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        num_threads: int = 0,
    ) -> None:
        if demand is None and isinstance(net, str) and net in NETWORKS:
            demand = files_of(net)[1]
        self.network: RoadNetwork = _network(net)
        if vehicles_count is not None:
            vehicles_count = as_integer("vehicles_count", vehicles_count, 0)
        planned = trips(self.network, demand_of(demand, self.network), vehicles_count)
        times = {
            "duration": duration,
            "delta_time": delta_time,
            "yellow_time": yellow_time,
            "min_green": min_green,
            "simulation_frequency": simulation_frequency,
        }
        options: dict[str, Any] = {name: as_integer(name, value, 0) for name, value in times.items()}
        size, threads = as_integer("num_envs", num_envs, 0), as_integer("num_threads", num_threads, 0)
        native = _rust.LightsVec(
            size,
            options=_NO_AGENTS | planned,
            fixed=fixed,
            num_threads=threads,
            autoreset_mode=as_autoreset_mode(autoreset_mode).name.lower(),
            **options,
        )
        super().__init__(
            lambda _: native,
            Box(0.0, 1.0, (native.obs_dim,), np.float32),
            Discrete(native.num_actions),
            autoreset_mode=autoreset_mode,
            name="fastrl/lights-v0",
            view=VIEW,
            fps=1.0 / options["delta_time"],
        )
