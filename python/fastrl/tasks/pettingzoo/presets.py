"""Presets of parallel environments of PettingZoo, found by the factory.

Sources of the numbers: for simple_spread the settings of Yu et al., "The Surprising Effectiveness of PPO in Cooperative
Multi-Agent Games", 2022, appendix (rollouts of whole episodes, 10 passes, networks of two layers of 64), with a higher
learning rate and smaller minibatches, for a budget of minutes instead of hours. For pistonball those of PettingZoo's
tutorial with Stable-Baselines3 (grey, shrunk, stacked images; gae_lambda, max_grad_norm), with larger minibatches.
"""

import fnmatch
from typing import Any

from fastrl.utils.config import Preset

_SMOKE: dict[str, Any] = {"num_steps": 32, "hidden": [32, 32]}

_SPREAD: dict[str, Any] = {
    "num_steps": 25,
    "minibatch_size": 1200,
    "critic_epochs": 10,
    "gamma": 0.95,
    "hidden": [64, 64],
    "learning_rate": 2e-3,
    "lr_schedule": "linear",
    "entropy_coef": 0.01,
    "final_entropy_coef": 0.0,
}
_PISTONBALL: dict[str, Any] = {
    "num_steps": 125,
    "minibatch_size": 1000,
    "critic_epochs": 3,
    "gamma": 0.98,
    "gae_lambda": 0.9,
    "hidden": [128],
    "learning_rate": 5e-4,
    "lr_schedule": "linear",
    "entropy_coef": 0.01,
    "final_entropy_coef": 0.0,
    "max_grad_norm": 0.9,
}


def _algorithms(num_epochs: int, **values: Any) -> dict[str, Any]:
    """The tables of all algorithms; REINFORCE takes one step an update."""
    ppo = {**values, "num_epochs": num_epochs}
    return {"ippo": ppo, "mappo": ppo, "reinforce": values}


PRESETS: dict[str, Preset] = {
    "simple-spread": Preset(
        "the default of simple_spread, where three agents cover three landmarks",
        {
            "run": {"total_timesteps": 1_000_000},
            "env": {"num_envs": 64},
            **_algorithms(10, **_SPREAD),
        },
    ),
    "pistonball": Preset(
        "the default of pistonball, where twenty pistons that see images move a ball",
        {
            "run": {"total_timesteps": 30_000},
            "env": {"num_envs": 8, "n_workers": "auto", "size": 42, "stack": 2},
            **_algorithms(3, **_PISTONBALL),
        },
    ),
    "smoke": Preset(
        "a few seconds, to see that everything works",
        {
            "run": {"total_timesteps": 4_000, "eval_episodes": 4},
            "env": {"num_envs": 4},
            "ippo": _SMOKE,
            "mappo": _SMOKE,
            "reinforce": _SMOKE,
        },
    ),
}

_BY_FACTORY = {
    "*simple_spread_v*:parallel_env": ("simple-spread",),
    "*pistonball_v*:parallel_env": ("pistonball",),
}


def presets_for(factory: str) -> tuple[str, ...]:
    """The presets of an environment by the import path of its factory."""
    return next(
        (names for pattern, names in _BY_FACTORY.items() if fnmatch.fnmatchcase(factory, pattern)), ()
    )
