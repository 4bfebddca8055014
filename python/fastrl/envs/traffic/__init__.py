"""Simulators of traffic: highways, cooperative driving, the ring road, radio resources of vehicles."""

from gymnasium import register

from fastrl.envs.registration import register_multi

# Versions of each name. `fastrl.envs.traffic.roads_config.KINDS`, which is not imported here, has the ids.
_VERSIONS = {
    "merge": 2,
    "merge-generic": 2,
    "roundabout": 2,
    "roundabout-generic": 2,
    "intersection": 3,
    "intersection-multi-agent": 3,
    "exit": 2,
    "two-way": 1,
    "lane-keeping": 1,
    "parking": 1,
    "parking-ActionRepeat": 1,
    "parking-parked": 1,
    "u-turn": 2,
    "racetrack": 2,
    "racetrack-large": 2,
    "racetrack-oval": 2,
}
# Gymnasium's time limits, where there are such.
_LIMITS = {"two-way": 15, "lane-keeping": 200}
ROAD_IDS: dict[str, int | None] = {
    f"{name}-v{version}": _LIMITS.get(name)
    for name, versions in _VERSIONS.items()
    for version in range(versions)
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
    register_multi(f"fastrl/{name}-v0", "fastrl.envs.traffic.highway:HighwayMultiAgentVectorEnv", fast=fast)
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
for name in ("highway", "merge"):
    register_multi(f"fastrl/coop-{name}-v0", "fastrl.envs.traffic.coop:CoopVectorEnv", road=name)
register_multi("fastrl/lights-v0", "fastrl.envs.traffic.lights:LightsVectorEnv")
register_multi("fastrl/v2x-resource-v0", "fastrl.envs.traffic.v2x:V2xResourceVectorEnv")
register_multi("fastrl/ring-v0", "fastrl.envs.traffic.ring:RingMultiAgentVectorEnv")
