"""Faces that other libraries expect, over this package's vector environments.

- `SB3VecEnv`: Stable-Baselines3's `VecEnv`.
- `PettingZooEnv`, `parallel_env`: PettingZoo's `ParallelEnv`.

Each is imported when it is asked for, so that nobody needs a library that they do not use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastrl.envs.adapters.pettingzoo import PettingZooEnv, parallel_env
    from fastrl.envs.adapters.sb3 import SB3VecEnv

__all__ = ["PettingZooEnv", "SB3VecEnv", "parallel_env"]


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
