"""Settings of runs on environments of Gymnasium."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from fastrl.tasks.preset_file import PresetFile
from fastrl.utils.config import Setting, section
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
        Setting(option="--num-envs"),
    ] = 16


PRESETS = PresetFile(Path(__file__).with_name("presets.toml"))
