"""fastrl trains reinforcement-learning agents as fast as one machine allows.

``fastrl.PPO("CartPole-v1").learn(100_000)`` trains; `fastrl.Model` explains the rest. What is named here and in `envs`,
`demos`, `replay`, `queue`, `callbacks`, `loggers` and `runtime` is public; everything else may change.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastrl import algorithms, callbacks, demos, envs, loggers, queue, replay, runtime
    from fastrl._native._rust import __version__
    from fastrl.exports.export import export
    from fastrl.model import Model
    from fastrl.model_loading import load
    from fastrl.play.policy import load_policy
    from fastrl.runs.compare import compare
    from fastrl.tuning.tune import tune

    # Models of algorithms: `fastrl.model_types` makes them.
    class PPO(Model): ...

    class AsyncPPO(Model): ...

    class IMPALA(Model): ...

    class DQN(Model): ...

    class PQN(Model): ...

    class BC(Model): ...

    class MABC(Model): ...

    class IPPO(Model): ...

    class MAPPO(Model): ...

    class REINFORCE(Model): ...

    class SAC(Model): ...

    class CrossQ(Model): ...

    class TD3(Model): ...

    class IQL(Model): ...


__all__ = [
    "BC",
    "DQN",
    "IMPALA",
    "IPPO",
    "IQL",
    "MABC",
    "MAPPO",
    "PPO",
    "PQN",
    "REINFORCE",
    "SAC",
    "TD3",
    "AsyncPPO",
    "CrossQ",
    "Model",
    "__version__",
    "algorithms",
    "callbacks",
    "compare",
    "demos",
    "envs",
    "export",
    "load",
    "load_policy",
    "loggers",
    "queue",
    "replay",
    "runtime",
    "tune",
]

# Modules that are imported when they are first used, and the names in others; the rest are models of algorithms. Only
# models need PyTorch, which takes seconds to import.
_MODULES = ("algorithms", "callbacks", "demos", "envs", "loggers", "queue", "replay", "runtime")
_ELSEWHERE = {
    "Model": "fastrl.model",
    "__version__": "fastrl._native._rust",
    "compare": "fastrl.runs.compare",
    "export": "fastrl.exports.export",
    "load": "fastrl.model_loading",
    "load_policy": "fastrl.play.policy",
    "tune": "fastrl.tuning.tune",
}

# The environments register with Gymnasium.
try:
    import gymnasium  # noqa: F401
except ModuleNotFoundError:
    # `fastrl.runtime` acts on machines without it.
    pass
else:
    importlib.import_module("fastrl.envs")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in __all__:
        return getattr(importlib.import_module(_ELSEWHERE.get(name, "fastrl.model_types")), name)
    from fastrl.utils.other_names import no_attribute

    raise no_attribute("module 'fastrl'", name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
