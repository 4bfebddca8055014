"""Roads from elsewhere: networks and traffic demand of SUMO for `fastrl/road-v0`.

>>> from fastrl.envs.roads import from_sumo  # doctest: +SKIP
>>> network = from_sumo("town.net.xml")  # doctest: +SKIP
>>> env = gymnasium.make("fastrl/road-v0", net=network)  # doctest: +SKIP
"""

from fastrl.envs.traffic.sumo_demand import Demand as Demand
from fastrl.envs.traffic.sumo_demand import read_demand as read_demand
from fastrl.envs.traffic.sumo_network import Connection as Connection
from fastrl.envs.traffic.sumo_network import Light as Light
from fastrl.envs.traffic.sumo_network import RoadNetwork as RoadNetwork
from fastrl.envs.traffic.sumo_network import SumoEdge as SumoEdge
from fastrl.envs.traffic.sumo_network import SumoLane as SumoLane
from fastrl.envs.traffic.sumo_network import from_sumo as from_sumo

__all__ = ["Connection", "Demand", "Light", "RoadNetwork", "SumoEdge", "SumoLane", "from_sumo", "read_demand"]
