"""Settings of the game of two agents of CAGE Challenge 2."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fastrl.tasks.cage2.settings import GameConfig, NumGames
from fastrl.tasks.opponents import DrawConfig
from fastrl.tasks.preset_file import PresetFile
from fastrl.utils.config import Setting, section
from fastrl.utils.trust import Reach, imports_agents

Side = Literal["both", "blue", "red"]


@section
class EnvConfig(DrawConfig, GameConfig):
    """CAGE Challenge 2 between blue and red, see fastrl.envs.Cage2GameVectorEnv."""

    num_envs: NumGames = 256
    side: Annotated[
        Side,
        Field(description="the side that learns; against blue or red alone opponents play the other"),
        Setting(option="--side"),
    ] = "both"
    opponents: Annotated[
        tuple[str, ...],
        Field(
            description="opponents of the side that learns, one drawn for each episode: run directories, of cage2 as"
            " blue or of cage2-game, for red agents such as my_agent:Agent, for blue bline, meander or sleep, each"
            " perhaps with a weight, as runs/a:0.5; empty: for blue red_agent's"
        ),
        Reach(imports_agents),
        Setting(option="--opponents"),
    ] = ()
    num_threads: Annotated[
        int,
        Field(ge=0, le=1024, description="threads of the simulator; 0: one per core"),
        Setting(resumable=True),
    ] = 1

    def options(self) -> dict[str, Any]:
        return {**super().options(), "num_threads": self.num_threads}


PRESETS = PresetFile(Path(__file__).with_name("presets.toml"))
