"""Settings of runs on parallel environments of PettingZoo."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fastrl.collectors.resources import cores
from fastrl.tasks.gym import settings as gym_settings
from fastrl.tasks.preset_file import PresetFile
from fastrl.utils.config import Setting, section
from fastrl.utils.trust import Reach, imports_environment


@section
class EnvConfig(gym_settings.EnvConfig):
    """The environment."""

    id: Annotated[
        str,
        Field(description="import path of a function that makes a ParallelEnv: my_module:parallel_env"),
        Reach(imports_environment),
        Setting(option="--env"),
    ] = "mpe2.simple_spread_v3:parallel_env"
    n_workers: Annotated[
        Annotated[int, Field(ge=1, le=1024)] | Literal["auto"],
        Field(description="processes that step environments; 1: this one does; auto: one per core"),
        Setting(resumable=True, option="--n-workers"),
    ] = 1
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

    @property
    def num_workers(self) -> int:
        """Processes that step environments."""
        wanted = cores() if self.n_workers == "auto" else self.n_workers
        return min(wanted, self.num_envs)


PRESETS = PresetFile(Path(__file__).with_name("presets.toml"))
