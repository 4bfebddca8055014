"""fastrl trains reinforcement-learning agents as fast as one machine allows.

``fastrl.PPO("CartPole-v1").learn(100_000)`` trains; `fastrl.Model` explains the rest. What is named here and in `envs`,
`demos`, `replay`, `queue`, `callbacks` and `loggers` is public; everything else may change.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fastrl import envs  # registers the environments with Gymnasium
from fastrl._native._rust import __version__

if TYPE_CHECKING:
    from fastrl import callbacks, demos, loggers, queue, replay
    from fastrl.model import BC, DQN, IMPALA, IPPO, MAPPO, PPO, REINFORCE, SAC, TD3, AsyncPPO, Model, load
    from fastrl.training.policy import load_policy
    from fastrl.tuning.tune import tune

__all__ = [
    "BC",
    "DQN",
    "IMPALA",
    "IPPO",
    "MAPPO",
    "PPO",
    "REINFORCE",
    "SAC",
    "TD3",
    "AsyncPPO",
    "Model",
    "__version__",
    "callbacks",
    "demos",
    "envs",
    "load",
    "load_policy",
    "loggers",
    "queue",
    "replay",
    "tune",
]

# Modules that are imported when they are first used, and the names in others. Only models need PyTorch, which takes
# seconds to import.
_MODULES = ("callbacks", "demos", "loggers", "queue", "replay")
_ELSEWHERE = {"load_policy": "fastrl.training.policy", "tune": "fastrl.tuning.tune"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in __all__:
        return getattr(importlib.import_module(_ELSEWHERE.get(name, "fastrl.model")), name)
    raise AttributeError(f"module 'fastrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
