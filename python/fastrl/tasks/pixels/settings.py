"""Settings of a run that learns from pixels, and presets."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fastrl.algorithms import dqn
from fastrl.algorithms.dqn import DQNConfig
from fastrl.utils.config import InitFrom, Preset, Setting, section
from fastrl.utils.trust import Reach, imports_environment, writes_files


@section
class RunConfig:
    """How long, where and from which random numbers."""

    seed: Annotated[
        int,
        Field(
            ge=0,
            lt=2**63,
            description="of environments, weights and exploration; the run also depends on timing",
        ),
        Setting(option="--seed", common=True),
    ] = 0
    deterministic: Annotated[
        bool,
        Field(
            description="games and learner take turns, so one seed gives one run, to the bit; on a CPU, see"
            " docs/reproducibility.md"
        ),
    ] = False
    init_from: InitFrom = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(description="where the learner's network lives; auto: cuda if there is one, else cpu"),
        Setting(resumable=True, option="--device", common=True),
    ] = "auto"
    total_steps: Annotated[
        int,
        Field(ge=1, description="environment steps of all collectors together; a few more may be played"),
        Setting(resumable=True, option="--total-steps", common=True),
    ] = 10_000_000
    torch_threads: Annotated[
        int,
        Field(ge=0, le=1024, description="threads of PyTorch in the learner; 0: chosen by PyTorch"),
        Setting(resumable=True),
    ] = 1
    checkpoint_seconds: Annotated[
        float, Field(ge=0, description="seconds between checkpoints"), Setting(resumable=True)
    ] = 300.0
    keep_checkpoints: Annotated[
        int, Field(ge=1, description="how many of the newest checkpoints are kept"), Setting(resumable=True)
    ] = 3
    save_replay: Annotated[
        bool,
        Field(
            description="write the replay, too, when the run ends or is stopped, so that a resumed run has it"
        ),
        Setting(resumable=True),
    ] = False
    row_seconds: Annotated[
        float, Field(gt=0, description="seconds between rows of metrics"), Setting(resumable=True)
    ] = 2.0
    eval_episodes: Annotated[
        int,
        Field(ge=0, description="games of the final evaluation, without exploration; 0: no evaluation"),
        Setting(resumable=True),
    ] = 10


@section
class EnvConfig:
    """The game, see fastrl.envs.pixels."""

    id: Annotated[
        str,
        Field(description="ALE/Pong-v5, SuperMarioBros-v0, fastrl/Catch-v0 or any Gymnasium id with images"),
        Reach(imports_environment),
        Setting(option="--env", common=True),
    ] = "ALE/Pong-v5"
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
        int, Field(ge=0, description="a game begins after 1 to this many frames of action 0")
    ] = 30
    life_loss_ends: Annotated[
        bool, Field(description="losing a life ends the episode for the learner, not the game")
    ] = False
    clip_reward: Annotated[bool, Field(description="learn from the signs of rewards: -1, 0 or 1")] = True
    reward_scale: Annotated[float, Field(gt=0, description="factor of rewards that are not clipped")] = 1.0
    sticky: Annotated[
        float | None,
        Field(ge=0, le=1, description="Atari: chance that the last action is repeated; none: the id's own"),
    ] = None
    actions: Annotated[
        Literal["right", "simple", "complex"], Field(description="Mario: which combinations of buttons")
    ] = "simple"


@section
class ReplayConfig:
    """The replay buffer."""

    capacity: Annotated[
        int,
        Field(ge=1, description="steps that are kept, 7.1 kB each with frames of 84x84"),
        Setting(resumable=True),
    ] = 400_000
    starts: Annotated[int, Field(ge=1, description="steps in the replay before learning begins")] = 10_000
    path: Annotated[
        Path | None,
        Field(description="file that holds the replay, which may be larger than memory; none: in memory"),
        Reach(writes_files),
        Setting(resumable=True),
    ] = None


@section
class CollectConfig:
    """Worker processes that play (collectors), and how learner and collectors keep pace."""

    collectors: Annotated[
        int,
        Field(ge=1, le=256, description="worker processes that play, of one thread each"),
        Setting(resumable=True, option="--collectors", common=True),
    ] = 2
    envs: Annotated[
        int, Field(ge=1, le=4096, description="games that each collector plays"), Setting(resumable=True)
    ] = 4
    fragment: Annotated[
        int, Field(ge=1, description="steps that a collector hands over at a time"), Setting(resumable=True)
    ] = 32
    queue: Annotated[
        int,
        Field(
            ge=1,
            description="steps of each collector that may wait for the learner, rounded up to a power of two",
        ),
        Setting(resumable=True),
    ] = 1024
    publish_every: Annotated[
        int,
        Field(ge=1, description="gradient steps between two publications of the weights to collectors"),
        Setting(resumable=True),
    ] = 100
    weights_every: Annotated[
        int,
        Field(ge=1, description="steps after which a collector looks for newer weights"),
        Setting(resumable=True),
    ] = 1
    epsilon_spread: Annotated[
        float,
        Field(
            ge=0,
            description="exploration differs: the last game's epsilon is the schedule's to the power of 1 + this;"
            " Ape-X has 7",
        ),
    ] = 0.0
    updates_per_step: Annotated[
        float | None,
        Field(gt=0, description="most batches per environment step; none: no limit"),
    ] = None
    min_updates_per_step: Annotated[
        float,
        Field(
            ge=0,
            description="least batches per environment step, for which collectors wait; 0: they never wait",
        ),
    ] = 0.0
    prefetch: Annotated[
        Literal["auto", "on", "off"],
        Field(description="draw the next batch while one is learnt from; auto: with a GPU"),
        Setting(resumable=True),
    ] = "auto"


@section
class PixelConfig:
    """All of a run's settings."""

    run: RunConfig = RunConfig()
    env: EnvConfig = EnvConfig()
    replay: ReplayConfig = ReplayConfig()
    collect: CollectConfig = CollectConfig()
    dqn: DQNConfig = DQNConfig()


PRESETS: dict[str, Preset] = {
    "atari": Preset(
        "Rainbow's settings where they apply; the default of most environments",
        {"dqn": {**dqn.PRESETS["atari"], "batch_size": 32}},
    ),
    "mario": Preset(
        "rewards of up to 1 a step, each life an episode; the default of SuperMarioBros...",
        {
            "run": {"eval_episodes": 3},
            "env": {"clip_reward": False, "reward_scale": 1 / 15, "life_loss_ends": True},
            "dqn": {**dqn.PRESETS["atari"], "batch_size": 32, "learning_rate": 1e-4},
        },
    ),
    "toy": Preset(
        "small frames as they come, a small network, a minute; the default of fastrl/Catch-v0",
        {
            "run": {"total_steps": 80_000, "eval_episodes": 100},
            "env": {
                "id": "fastrl/Catch-v0",
                "size": "none",
                "stack": 2,
                "frame_skip": 1,
                "noop_max": 0,
                "clip_reward": False,
            },
            "replay": {"capacity": 50_000, "starts": 2_000},
            "collect": {
                "queue": 256,
                "publish_every": 20,
                "updates_per_step": 0.1,
                "min_updates_per_step": 0.05,
            },
            "dqn": {
                "conv": ["16x3/1"],
                "hidden": [128],
                "batch_size": 64,
                "learning_rate": 1e-3,
                "epsilon_steps": 50_000,
                "target_every": 200,
                "n_step": 3,
            },
        },
    ),
    "large-batch": Preset(
        "512 transitions at a time, 2048 a gradient step; on top of the default of the environment",
        {"collect": {"publish_every": 5}, "dqn": dict(dqn.PRESETS["large-batch"])},
    ),
}


# What ``fastrl bench pixels`` measures unless it is told otherwise: frames of Atari's size from a game that costs next
# to nothing, actions at random, a small learner: so that what counts is how experience gets there.
BENCH: dict[str, dict[str, Any]] = {
    "env": {"id": "fastrl/Catch-v0", "size": 84, "frame_skip": 1, "noop_max": 0, "clip_reward": False},
    "replay": {"capacity": 50_000, "starts": 2_000},
    "dqn": {"conv": ["8x8/8"], "hidden": [32], "batch_size": 32, "epsilon": 1.0, "final_epsilon": 1.0},
}


def preset_for(env_id: str) -> str:
    """The preset that an environment begins with; others go on top."""
    beginnings = {"SuperMarioBros": "mario", "fastrl/Catch": "toy"}
    return next((preset for start, preset in beginnings.items() if env_id.startswith(start)), "atari")
