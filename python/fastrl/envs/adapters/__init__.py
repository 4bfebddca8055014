"""Adapters to and from other libraries.

- `SB3VecEnv`: a Gymnasium vector environment as Stable-Baselines3's `VecEnv`.
- `PettingZooEnv`, `parallel_env`: an environment of several agents as PettingZoo's `ParallelEnv`.
- `fastrl.envs.adapters.cyborg`, `fastrl.envs.adapters.mario`: CybORG and Super Mario Bros. as Gymnasium environments.

Each is imported on first use, so that only its user needs the other library.
"""

from typing import TYPE_CHECKING, Any

from gymnasium import register

if TYPE_CHECKING:
    from fastrl.envs.adapters.pettingzoo import PettingZooEnv, parallel_env
    from fastrl.envs.adapters.sb3 import SB3VecEnv

__all__ = ["PettingZooEnv", "SB3VecEnv", "parallel_env"]

register("fastrl/CybORG-v0", entry_point="fastrl.envs.adapters.cyborg:CyborgEnv")


def __getattr__(name: str) -> Any:
    if name in ("PettingZooEnv", "parallel_env"):
        try:
            from fastrl.envs.adapters import pettingzoo
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "pettingzoo":
                raise
            raise ImportError(
                f"{name} needs PettingZoo, which is not installed: pip install 'fastrl[pettingzoo]'"
            ) from None
        return getattr(pettingzoo, name)
    if name == "SB3VecEnv":
        try:
            from fastrl.envs.adapters.sb3 import SB3VecEnv
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "stable_baselines3":
                raise
            raise ImportError(
                "SB3VecEnv needs Stable-Baselines3, which is not installed: pip install 'fastrl[sb3]'"
            ) from None
        return SB3VecEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
