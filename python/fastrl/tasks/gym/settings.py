"""Settings of a run on environments of Gymnasium, and presets."""

from typing import Annotated, Literal

from pydantic import Field

from fastrl.algorithms.impala import ImpalaConfig
from fastrl.algorithms.ppo import PPOConfig
from fastrl.training.collecting import CollectConfig, Method
from fastrl.utils.config import InitFrom, Preset, Setting, section
from fastrl.utils.env_options import EnvOptions
from fastrl.utils.trust import Reach, imports_environment, passes_import_paths

Algorithm = Literal["ppo", "async-ppo", "impala"]


@section
class RunConfig:
    """How long, where, how and from which random numbers."""

    seed: Annotated[
        int,
        Field(
            ge=0,
            lt=2**63,
            description="fixes everything random; async-ppo and impala depend on timing, too",
        ),
        Setting(option="--seed", common=True),
    ] = 0
    init_from: InitFrom = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(description="where the learner's network lives; auto: cuda if there is one, else cpu"),
        Setting(resumable=True, option="--device", common=True),
    ] = "auto"
    algorithm: Annotated[
        Algorithm,
        Field(
            description="ppo: collects, then learns; async-ppo: PPO that collects while it learns; impala: the same"
            " with one gradient step in each update"
        ),
        Setting(option="--algorithm", common=True),
    ] = "ppo"
    total_steps: Annotated[
        int,
        Field(ge=1, description="environment steps in all; the last update may go beyond"),
        Setting(resumable=True, option="--total-steps", common=True),
    ] = 1_000_000
    torch_threads: Annotated[
        int,
        Field(ge=0, le=1024, description="threads of PyTorch in the learner; 0: chosen by PyTorch"),
        Setting(resumable=True),
    ] = 1
    checkpoint_seconds: Annotated[
        float,
        Field(ge=0, description="seconds between checkpoints; 0: one after every row"),
        Setting(resumable=True),
    ] = 30.0
    keep_checkpoints: Annotated[
        int, Field(ge=1, description="how many of the newest checkpoints are kept"), Setting(resumable=True)
    ] = 3
    row_seconds: Annotated[
        float,
        Field(ge=0, description="seconds between rows of metrics; 0: one after every update"),
        Setting(resumable=True),
    ] = 1.0
    eval_episodes: Annotated[
        int,
        Field(ge=0, description="episodes of the final evaluation, without exploration; 0: no evaluation"),
        Setting(resumable=True),
    ] = 20


@section
class EnvConfig:
    """The environment."""

    id: Annotated[
        str,
        Field(description="any Gymnasium id, or the import path of what makes one: my_module:make_env"),
        Reach(imports_environment),
        Setting(option="--env", common=True),
    ] = "CartPole-v1"
    options: Annotated[EnvOptions, Reach(passes_import_paths)] = ()
    num_envs: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="environments that are stepped together"),
        Setting(option="--num-envs", common=True),
    ] = 16


@section
class GymCollectConfig(CollectConfig):
    """Collection of experience, and how old the policies in it may be."""

    method: Annotated[Method, Setting(resumable=True, option="--collect", common=True)] = "auto"
    asynchronous: Annotated[
        int | None,
        Field(
            ge=1,
            description="native: step so many environments on as soon as they are ready, for long and uneven steps;"
            " none: all environments of a thread step together",
        ),
        Setting(resumable=True),
    ] = None
    max_policy_lag: Annotated[
        int,
        Field(
            ge=0,
            description="async-ppo and impala: updates that the policy of learnt experience may be behind; older"
            " experience is dropped; 0: collect and learn in turns",
        ),
        Setting(resumable=True, option="--max-policy-lag", common=True),
    ] = 2
    correct_off_policy: Annotated[
        bool,
        Field(
            description="async-ppo: correct experience of older policies by V-trace, as impala always does"
        ),
    ] = True


@section
class GymConfig:
    """All of a run's settings. ``ppo`` is for async-ppo, too."""

    run: RunConfig = RunConfig()
    env: EnvConfig = EnvConfig()
    collect: GymCollectConfig = GymCollectConfig()
    ppo: PPOConfig = PPOConfig()
    impala: ImpalaConfig = ImpalaConfig()


PRESETS: dict[str, Preset] = {
    "classic": Preset(
        "small networks, short rollouts; the default of CartPole, Acrobot, MountainCar and Pendulum",
        {
            "env": {"num_envs": 16},
            "ppo": {
                "num_steps": 128,
                "minibatch_size": 256,
                "num_epochs": 8,
                "learning_rate": 2e-3,
                "gamma": 0.99,
            },
            "impala": {"num_steps": 32},
        },
    ),
    "pendulum": Preset(
        "a short horizon and no entropy bonus; the default of Pendulum, on top of classic",
        {
            "ppo": {"gamma": 0.9, "learning_rate": 1e-3, "entropy_coef": 0.0, "final_entropy_coef": 0.0},
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
            "run": {"total_steps": 20_000, "eval_episodes": 5},
            "env": {"num_envs": 4},
            "ppo": {"num_steps": 64, "minibatch_size": 256, "hidden": [32, 32]},
        },
    ),
}


def presets_for(env_id: str) -> list[str]:
    """The presets that an environment begins with; others go on top."""
    if env_id.startswith("Pendulum"):
        return ["classic", "pendulum"]
    return ["classic"] if env_id.startswith(("CartPole", "Acrobot", "MountainCar-")) else []
