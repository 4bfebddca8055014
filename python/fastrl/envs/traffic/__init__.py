"""Simulators of traffic: highways, cooperative driving, the ring road, radio resources of vehicles."""

from gymnasium import register

from fastrl.envs.registration import register_multi

# `fastrl.envs.traffic.roads_config.KINDS`, which is not imported here, with Gymnasium's time limits.
ROAD_IDS: dict[str, int | None] = {
    "merge-v0": None,
    "merge-v1": None,
    "merge-generic-v0": None,
    "merge-generic-v1": None,
    "roundabout-v0": None,
    "roundabout-v1": None,
    "roundabout-generic-v0": None,
    "roundabout-generic-v1": None,
    "intersection-v0": None,
    "intersection-v1": None,
    "intersection-v2": None,
    "intersection-multi-agent-v0": None,
    "intersection-multi-agent-v1": None,
    "intersection-multi-agent-v2": None,
    "exit-v0": None,
    "exit-v1": None,
    "two-way-v0": 15,
    "parking-v0": None,
    "parking-ActionRepeat-v0": None,
    "parking-parked-v0": None,
    "u-turn-v0": None,
    "u-turn-v1": None,
    "racetrack-v0": None,
    "racetrack-v1": None,
    "racetrack-large-v0": None,
    "racetrack-large-v1": None,
    "racetrack-oval-v0": None,
    "racetrack-oval-v1": None,
}
# With highway-env's MultiAgentWrapper.
WRAPPED = ("intersection-multi-agent-v1", "intersection-multi-agent-v2")

for name, fast in (("highway", False), ("highway-fast", True)):
    register(
        f"fastrl/{name}-v0",
        entry_point="fastrl.envs.traffic.highway:HighwayEnv",
        vector_entry_point="fastrl.envs.traffic.highway:HighwayVectorEnv",
        kwargs={"fast": fast},
    )
for name, most_steps in ROAD_IDS.items():
    kind = "roads:OwnEndsRoad" if name in WRAPPED else "roads:Road"
    if name.startswith("parking"):
        kind = "parking:Parking"
    register(
        f"fastrl/{name}",
        entry_point=f"fastrl.envs.traffic.{kind}Env",
        vector_entry_point=f"fastrl.envs.traffic.{kind.replace('OwnEnds', '')}VectorEnv",
        max_episode_steps=most_steps,
        kwargs={"id": name},
    )
    register_multi(f"fastrl/{name}", "fastrl.envs.traffic.roads:RoadMultiAgentVectorEnv", id=name)
register(
    "fastrl/road-v0",
    entry_point="fastrl.envs.traffic.sumo_env:SumoRoadEnv",
    vector_entry_point="fastrl.envs.traffic.sumo_env:SumoRoadVectorEnv",
)
register_multi("fastrl/road-v0", "fastrl.envs.traffic.sumo_env:SumoRoadMultiAgentVectorEnv")
register(
    "fastrl/ring-v0",
    entry_point="fastrl.envs.traffic.ring:RingEnv",
    vector_entry_point="fastrl.envs.traffic.ring:RingVectorEnv",
)
register_multi("fastrl/coop-highway-v0", "fastrl.envs.traffic.coop:coop_highway")
register_multi("fastrl/coop-merge-v0", "fastrl.envs.traffic.coop:coop_merge")
register_multi("fastrl/highway-v0", "fastrl.envs.traffic.highway:HighwayMultiAgentVectorEnv")
register_multi("fastrl/highway-fast-v0", "fastrl.envs.traffic.highway:highway_fast")
register_multi("fastrl/v2x-resource-v0", "fastrl.envs.traffic.v2x:V2xResourceVectorEnv")
register_multi("fastrl/ring-v0", "fastrl.envs.traffic.ring:RingMultiAgentVectorEnv")
