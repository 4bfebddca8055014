"""Settings of runs on parallel environments of PettingZoo."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from fastrl.tasks.gym import settings as gym_settings
from fastrl.tasks.opponents import OpponentsConfig
from fastrl.tasks.preset_file import PresetFile
from fastrl.utils.config import Setting, section
from fastrl.utils.trust import Reach, imports_environment


@section
class EnvConfig(OpponentsConfig, gym_settings.EnvConfig):
    """The environment."""

    id: Annotated[
        str,
        Field(description="import path of a function that makes a ParallelEnv: my_module:parallel_env"),
        Reach(imports_environment),
        Setting(option="--env"),
    ] = "mpe2.simple_spread_v3:parallel_env"
    size: Annotated[
        int | None,
        Field(
            ge=1,
            le=1024,
            description="images that agents observe become grey frames of so many pixels a side; none: unchanged",
        ),
    ] = None
    stack: Annotated[
        int,
        Field(ge=1, le=64, description="newest frames that an agent sees at once; more than 1 needs size"),
    ] = 1
    max_episode_steps: Annotated[
        int, Field(ge=1, description="agents are truncated after so many steps of an episode")
    ] = 1000


PRESETS = PresetFile(Path(__file__).with_name("presets.toml"))
