"""fastrl trains reinforcement-learning agents as fast as one machine allows."""

from typing import TYPE_CHECKING, Any

import gymnasium

from fastrl._native._rust import __version__

if TYPE_CHECKING:
    from fastrl.training.policy import load_policy

__all__ = ["__version__", "load_policy"]

gymnasium.register(
    "fastrl/Cage2-v0",
    entry_point="fastrl.envs.cage2.env:Cage2Env",
    vector_entry_point="fastrl.envs.cage2.env:Cage2VectorEnv",
)

gymnasium.register(
    "fastrl/Cage2Workflow-v0",
    vector_entry_point="fastrl.envs.cage2.workflow:Cage2WorkflowVectorEnv",
)

gymnasium.register(
    "fastrl/ring-v0",
    entry_point="fastrl.envs.traffic.ring:RingEnv",
    vector_entry_point="fastrl.envs.traffic.ring:RingVectorEnv",
)


gymnasium.register("fastrl/Catch-v0", entry_point="fastrl.envs.toys.catch:CatchEnv")
gymnasium.register("fastrl/Uneven-v0", entry_point="fastrl.envs.toys.uneven:UnevenEnv")
gymnasium.register("fastrl/CybORG-v0", entry_point="fastrl.envs.adapters.cyborg:CyborgEnv")

for _id, _fast in (("fastrl/highway-v0", False), ("fastrl/highway-fast-v0", True)):
    gymnasium.register(
        _id,
        entry_point="fastrl.envs.traffic.highway:HighwayEnv",
        vector_entry_point="fastrl.envs.traffic.highway:HighwayVectorEnv",
        kwargs={"fast": _fast},
    )


def __getattr__(name: str) -> Any:
    # Only a policy needs torch, which takes seconds to import.
    if name == "load_policy":
        from fastrl.training.policy import load_policy

        return load_policy
    raise AttributeError(f"module 'fastrl' has no attribute {name!r}")
