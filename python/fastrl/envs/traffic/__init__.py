"""Simulators of traffic: highways, cooperative driving, the ring road."""

from gymnasium import register

from fastrl.envs.registration import register_multi

for name, fast in (("highway", False), ("highway-fast", True)):
    register(
        f"fastrl/{name}-v0",
        entry_point="fastrl.envs.traffic.highway:HighwayEnv",
        vector_entry_point="fastrl.envs.traffic.highway:HighwayVectorEnv",
        kwargs={"fast": fast},
    )
register(
    "fastrl/ring-v0",
    entry_point="fastrl.envs.traffic.ring:RingEnv",
    vector_entry_point="fastrl.envs.traffic.ring:RingVectorEnv",
)
register_multi("fastrl/coop-highway-v0", "fastrl.envs.traffic.coop:coop_highway")
register_multi("fastrl/coop-merge-v0", "fastrl.envs.traffic.coop:coop_merge")
register_multi("fastrl/highway-v0", "fastrl.envs.traffic.highway:HighwayMultiAgentVectorEnv")
register_multi("fastrl/highway-fast-v0", "fastrl.envs.traffic.highway:highway_fast")
register_multi("fastrl/ring-v0", "fastrl.envs.traffic.ring:RingMultiAgentVectorEnv")
