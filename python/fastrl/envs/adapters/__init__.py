"""Adapters to and from other libraries.

- `SB3VecEnv`: a Gymnasium vector environment as Stable-Baselines3's `VecEnv`.
- `PettingZooEnv`, `parallel_env`: an environment of several agents as PettingZoo's `ParallelEnv`.
- `fastrl.envs.adapters.cyborg`, `fastrl.envs.adapters.mario`: CybORG and Super Mario Bros. as Gymnasium environments.
- `fastrl.envs.adapters.cyborg.Cage2Agent`: a trained policy as an agent of the real CybORG.

Each is imported on first use, so that only its user needs the other library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gymnasium import register

if TYPE_CHECKING:
    from fastrl.envs.adapters.pettingzoo import PettingZooEnv, parallel_env
    from fastrl.envs.adapters.sb3 import SB3VecEnv

__all__ = ["PettingZooEnv", "SB3VecEnv", "parallel_env"]

register("fastrl/CybORG-v0", entry_point="fastrl.envs.adapters.cyborg:CyborgEnv")


# Of each adapter: its module, the package that it needs, the name of the package for people, the extra.
_ADAPTERS = {
    "PettingZooEnv": ("pettingzoo", "pettingzoo", "PettingZoo", "pettingzoo"),
    "parallel_env": ("pettingzoo", "pettingzoo", "PettingZoo", "pettingzoo"),
    "SB3VecEnv": ("sb3", "stable_baselines3", "Stable-Baselines3", "sb3"),
}


def __getattr__(name: str) -> Any:
    if name not in _ADAPTERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, package, title, extra = _ADAPTERS[name]
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ImportError(
            f"{name} needs {title}, which is not installed: pip install 'fastrl[{extra}]'"
        ) from None
