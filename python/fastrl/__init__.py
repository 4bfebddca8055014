"""fastrl trains reinforcement-learning agents as fast as one machine allows."""

from typing import TYPE_CHECKING, Any

import gymnasium

from fastrl._rust import __version__

if TYPE_CHECKING:
    from fastrl.policy import load_policy

__all__ = ["__version__", "load_policy"]

gymnasium.register(
    "fastrl/Cage2-v0",
    entry_point="fastrl.envs.cage2:Cage2Env",
    vector_entry_point="fastrl.envs.cage2:Cage2VectorEnv",
)

gymnasium.register(
    "fastrl/Cage2Workflow-v0",
    vector_entry_point="fastrl.envs.cage2_workflow:Cage2WorkflowVectorEnv",
)

gymnasium.register(
    "fastrl/ring-v0",
    entry_point="fastrl.envs.ring:RingEnv",
    vector_entry_point="fastrl.envs.ring:RingVectorEnv",
)


gymnasium.register("fastrl/Catch-v0", entry_point="fastrl.envs.catch:CatchEnv")
gymnasium.register("fastrl/Uneven-v0", entry_point="fastrl.envs.uneven:UnevenEnv")
gymnasium.register("fastrl/CybORG-v0", entry_point="fastrl.envs.adapters.cyborg:CyborgEnv")

for _id, _fast in (("fastrl/highway-v0", False), ("fastrl/highway-fast-v0", True)):
    gymnasium.register(
        _id,
        entry_point="fastrl.envs.highway:HighwayEnv",
        vector_entry_point="fastrl.envs.highway:HighwayVectorEnv",
        kwargs={"fast": _fast},
    )


def __getattr__(name: str) -> Any:
    # Only a policy needs torch, which takes seconds to import.
    if name == "load_policy":
        from fastrl.policy import load_policy

        return load_policy
    raise AttributeError(f"module 'fastrl' has no attribute {name!r}")
