"""Settings of games that show images, and presets."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from fastrl.tasks.preset_file import PresetFile
from fastrl.utils.config import Setting, section
from fastrl.utils.env_options import EnvOptions
from fastrl.utils.trust import Reach, imports_environment, passes_import_paths


@section
class EnvConfig:
    """The game; see fastrl.envs.pixels."""

    id: Annotated[
        str,
        Field(description="ALE/Pong-v5, SuperMarioBros-v0, fastrl/Catch-v0 or any Gymnasium id with images"),
        Reach(imports_environment),
        Setting(option="--env"),
    ] = "ALE/Pong-v5"
    options: Annotated[EnvOptions, Reach(passes_import_paths)] = ()
    size: Annotated[
        int | None,
        Field(ge=1, le=1024, description="width and height of the frames, pixels; none: unchanged"),
    ] = 84
    stack: Annotated[int, Field(ge=1, le=64, description="number of newest frames that the network sees")] = 4
    frame_skip: Annotated[
        int, Field(ge=1, description="frames of the game in a step, one action for all")
    ] = 4
    max_of_two: Annotated[bool, Field(description="take the brighter pixels of a step's last two frames")] = (
        True
    )
    noop_max: Annotated[
        int, Field(ge=0, description="a game starts after 1 to this many frames of action 0")
    ] = 30
    life_loss_ends: Annotated[
        bool, Field(description="losing a life ends the episode for the learner, not the game")
    ] = False
    clip_reward: Annotated[bool, Field(description="learn from the signs of rewards: -1, 0 or 1")] = True
    reward_scale: Annotated[float, Field(gt=0, description="factor of rewards that are not clipped")] = 1.0
    num_envs: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="games that are stepped, by all workers together"),
        Setting(resumable=True, option="--num-envs"),
    ] = 8


PRESETS = PresetFile(Path(__file__).with_name("presets.toml"))
