"""Settings of runs on parallel environments of PettingZoo, and presets."""

from typing import Annotated

from pydantic import Field

from fastrl.utils.config import Preset, Setting, section
from fastrl.utils.env_options import EnvOptions
from fastrl.utils.trust import Reach, imports_environment, passes_import_paths


@section
class EnvConfig:
    """The environment."""

    id: Annotated[
        str,
        Field(description="import path of a function that makes a ParallelEnv: my_module:parallel_env"),
        Reach(imports_environment),
        Setting(option="--env"),
    ] = "mpe2.simple_spread_v3:parallel_env"
    options: Annotated[EnvOptions, Reach(passes_import_paths)] = ()
    num_envs: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="environments that are stepped together"),
        Setting(option="--num-envs", common=True),
    ] = 16
    max_episode_steps: Annotated[
        int, Field(ge=1, description="agents are truncated after so many steps of an episode")
    ] = 1000


_SMOKE = {"num_steps": 32, "hidden": [32, 32]}

PRESETS: dict[str, Preset] = {
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
