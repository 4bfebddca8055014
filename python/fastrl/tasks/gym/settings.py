"""Settings of runs on environments of Gymnasium, and presets."""

from typing import Annotated

from pydantic import Field

from fastrl.tasks.gym import dqn_presets
from fastrl.utils.config import Preset, Setting, section
from fastrl.utils.env_options import EnvOptions
from fastrl.utils.trust import Reach, imports_environment, passes_import_paths


@section
class EnvConfig:
    """The environment."""

    id: Annotated[
        str,
        Field(
            description="any Gymnasium id, or the import path of a function that makes one: my_module:make_env"
        ),
        Reach(imports_environment),
        Setting(option="--env"),
    ] = "CartPole-v1"
    options: Annotated[EnvOptions, Reach(passes_import_paths)] = ()
    num_envs: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="environments that are stepped together"),
        Setting(option="--num-envs", common=True),
    ] = 16


# PPO and asynchronous PPO have the same hyper-parameters.
_CLASSIC_PPO = {
    "num_steps": 128,
    "minibatch_size": 256,
    "num_epochs": 8,
    "learning_rate": 2e-3,
    "gamma": 0.99,
}
_PENDULUM_PPO = {"gamma": 0.9, "learning_rate": 1e-3, "entropy_coef": 0.0, "final_entropy_coef": 0.0}
_SMOKE_PPO = {"num_steps": 64, "minibatch_size": 256, "hidden": [32, 32]}

PRESETS: dict[str, Preset] = {
    "classic": Preset(
        "small networks, short rollouts; the default of CartPole, Acrobot, MountainCar and Pendulum",
        {
            "env": {"num_envs": 16},
            "ppo": _CLASSIC_PPO,
            "async_ppo": _CLASSIC_PPO,
            "impala": {"num_steps": 32},
            **dqn_presets.CLASSIC,
        },
    ),
    "mountain-car": Preset(
        "for DQN: few transitions are kept, explored for long; the default of MountainCar, on top of classic",
        dqn_presets.MOUNTAIN_CAR,
    ),
    "acrobot": Preset(
        "for DQN: a minibatch for each step; the default of Acrobot, on top of classic; suits LunarLander too",
        dqn_presets.ACROBOT,
    ),
    "pendulum": Preset(
        "a short horizon and no entropy bonus; the default of Pendulum, on top of classic",
        {
            "ppo": _PENDULUM_PPO,
            "async_ppo": _PENDULUM_PPO,
            "impala": {
                "num_steps": 16,
                "gamma": 0.9,
                "learning_rate": 5e-4,
                "entropy_coef": 0.0,
                "final_entropy_coef": 0.0,
                "initial_log_std": -0.5,
            },
        },
    ),
    "smoke": Preset(
        "a few seconds, to see that everything works",
        {
            "run": {"total_timesteps": 20_000, "eval_episodes": 5},
            "env": {"num_envs": 4},
            "ppo": _SMOKE_PPO,
            "async_ppo": _SMOKE_PPO,
        },
    ),
}


def presets_for(env_id: str) -> list[str]:
    """The presets of an environment; further presets override them."""
    if env_id.startswith("Pendulum"):
        return ["classic", "pendulum"]
    for prefix, own in {"CartPole": [], "Acrobot": ["acrobot"], "MountainCar-": ["mountain-car"]}.items():
        if env_id.startswith(prefix):
            return ["classic", *own]
    return []
