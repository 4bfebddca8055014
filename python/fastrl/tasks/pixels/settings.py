"""Settings of games that show images, and presets."""

from typing import Annotated

from pydantic import Field

from fastrl.algorithms import dqn_settings
from fastrl.training.settings import PPO_ON_ALL_CORES
from fastrl.utils.config import Preset, Setting, section
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


# After CleanRL and RL Baselines3 Zoo for Atari, see docs/guides/from-cleanrl.md. PPO and asynchronous PPO have the same
# hyper-parameters.
_ATARI_PPO = {
    "num_steps": 128,
    "num_epochs": 4,
    "minibatch_size": 256,
    "learning_rate": 2.5e-4,
    "final_learning_rate": 0.0,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.1,
    "entropy_coef": 0.01,
    "final_entropy_coef": 0.01,
    "normalize_returns": False,
    "hidden": [],
}
_ATARI_ROLLOUTS = {
    "ppo": _ATARI_PPO,
    "async_ppo": _ATARI_PPO,
    "impala": {
        "learning_rate": 6e-4,
        "final_learning_rate": 0.0,
        "entropy_coef": 0.01,
        "final_entropy_coef": 0.01,
        "normalize_returns": False,
        "hidden": [],
    },
}
_TOY_PPO = {
    "num_steps": 32,
    "num_epochs": 3,
    "minibatch_size": 256,
    "learning_rate": 1e-3,
    "final_learning_rate": 0.0,
    "gamma": 0.9,
    "gae_lambda": 0.9,
    "final_entropy_coef": 0.0,
    "hidden": [128],
}

PRESETS: dict[str, Preset] = {
    "atari": Preset(
        "DQN: Rainbow's settings where they apply; PPO: after CleanRL's, without value clipping; the default of most"
        " environments",
        {"dqn": {**dqn_settings.PRESETS["atari"], "batch_size": 32}, **_ATARI_ROLLOUTS},
        PPO_ON_ALL_CORES,
    ),
    "mario": Preset(
        "rewards of up to 1 a step, each life an episode; the default of SuperMarioBros...",
        {
            "run": {"eval_episodes": 3},
            "env": {"clip_reward": False, "reward_scale": 1 / 15, "life_loss_ends": True},
            "dqn": {**dqn_settings.PRESETS["atari"], "batch_size": 32, "learning_rate": 1e-4},
            **_ATARI_ROLLOUTS,
        },
        PPO_ON_ALL_CORES,
    ),
    "toy": Preset(
        "small frames as they come, a small network, a minute; the default of fastrl/Catch-v0",
        {
            "run": {"total_timesteps": 80_000, "eval_episodes": 100},
            "env": {
                "id": "fastrl/Catch-v0",
                "size": "none",
                "stack": 2,
                "frame_skip": 1,
                "noop_max": 0,
                "clip_reward": False,
            },
            "replay": {"capacity": 50_000, "learning_starts": 2_000},
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
            "ppo": _TOY_PPO,
            "async_ppo": _TOY_PPO,
            "impala": {"hidden": [128], "gamma": 0.9},
        },
        PPO_ON_ALL_CORES,
    ),
    "rainbow": Preset(
        "DQN with all six parts of Rainbow, quantiles in place of C51; on top of the default of the environment",
        {"dqn": dict(dqn_settings.PRESETS["rainbow"])},
    ),
    "large-batch": Preset(
        "DQN: minibatches of 512 transitions, 2048 for each gradient step; on top of the default of the environment",
        {"collect": {"publish_every": 5}, "dqn": dict(dqn_settings.PRESETS["large-batch"])},
    ),
}


def preset_for(env_id: str) -> str:
    """The preset of an environment; further presets override it."""
    prefixes = {"SuperMarioBros": "mario", "fastrl/Catch": "toy"}
    return next((preset for prefix, preset in prefixes.items() if env_id.startswith(prefix)), "atari")
