"""Presets of environments of Gymnasium: by kind of space, and by id.

Sources of the numbers:

- RL-Zoo: rl-baselines3-zoo, ``hyperparams/ppo.yml``, commit 22e3ff2 (April 2026), tuned for Stable-Baselines3.
- CleanRL: ``ppo_continuous_action.py`` and ``ppo_atari.py``; docs/guides/from-cleanrl.md has what differs.

Theirs become ours as follows. Our value loss is half a mean square, as CleanRL's: ``value_coef`` is twice RL-Zoo's
``vf_coef``. Our deviations are in units of half the range of an action: ``initial_log_std`` is RL-Zoo's less the
logarithm of that half, 0.4 for Humanoid and 3 for InvertedPendulum. ``lin_x`` is a learning rate that ends at 0; others
are constant. ``normalize`` is ``normalize_obs`` and ``normalize_returns`` with ``reward_clip`` 10. Clip ranges stay
constant. ``ortho_init`` is ``orthogonal_init``. State-dependent exploration (``use_sde``) has no counterpart.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from fastrl.tasks.gym import dqn_presets, sac_presets
from fastrl.training.settings import PPO_ON_ALL_CORES
from fastrl.utils.config import Preset

T = TypeVar("T")
Kind = Literal["discrete", "continuous", "images"]
"""Kinds of environments: with images in observations; else by actions, of a Box or others."""


def _ppo(**values: Any) -> dict[str, Any]:
    """Tables of PPO and asynchronous PPO, which have the same hyper-parameters."""
    return {"ppo": values, "async_ppo": values}


def _constant(learning_rate: float, entropy_coef: float = 0.0) -> dict[str, Any]:
    """A learning rate and a weight of entropy that do not change."""
    return {
        "learning_rate": learning_rate,
        "final_learning_rate": None,
        "entropy_coef": entropy_coef,
        "final_entropy_coef": None,
    }


_NO_ENTROPY: dict[str, Any] = {"entropy_coef": 0.0, "final_entropy_coef": 0.0}
# As `VecNormalize` does it, which clips normalised rewards.
_NORMALIZED: dict[str, Any] = {"normalize_obs": True, "normalize_returns": True, "reward_clip": 10.0}

# Stable-Baselines3's own values, for settings that RL-Zoo does not name.
_SB3: dict[str, Any] = {
    "num_steps": 2048,
    "minibatch_size": 64,
    "num_epochs": 10,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "value_coef": 1.0,
    "max_grad_norm": 0.5,
    "hidden": [64, 64],
    "activation": "tanh",
    "normalize_obs": False,
    "normalize_returns": False,
    "normalize_advantages": "minibatch",
    **_constant(3e-4),
}
# Networks of RL-Zoo's tuned MuJoCo tasks.
_WIDE: dict[str, Any] = {
    "hidden": [256, 256],
    "activation": "relu",
    "initial_log_std": -2.0,
    "orthogonal_init": False,
}


def _zoo(
    description: str,
    total_timesteps: int,
    num_envs: int,
    with_table: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
    **values: Any,
) -> Preset:
    """A preset of RL-Zoo: `_SB3` with other values, and settings of other algorithms."""
    return Preset(
        f"{description}, as RL-Zoo",
        {
            "run": {"total_timesteps": total_timesteps},
            "env": {"num_envs": num_envs},
            **_ppo(**{**_SB3, **values}),
        },
        with_table or {},
    )


def _road(total_timesteps: int, num_envs: int = 64) -> dict[str, Any]:
    """Tables of a run on a road with PPO."""
    return {"run": {"total_timesteps": total_timesteps}, "env": {"num_envs": num_envs}}


def _mujoco(name: str, *, total_timesteps: int = 1_000_000, num_envs: int = 1, **values: Any) -> Preset:
    own = {"num_steps": 512, **_NORMALIZED, **values}
    return _zoo(f"MuJoCo's {name}", total_timesteps, num_envs, sac_presets.CONTINUOUS, **own)


def _grid(description: str, total_timesteps: int, *, num_envs: int = 16, **values: Any) -> Preset:
    """A preset of small worlds: large steps that end at 0, and an entropy bonus until the goal is found."""
    own = {**_SB3, **_GRID, **values}
    return Preset(
        description,
        {"run": {"total_timesteps": total_timesteps}, "env": {"num_envs": num_envs}, **_ppo(**own)},
    )


_GRID: dict[str, Any] = {
    "num_steps": 128,
    "minibatch_size": 256,
    "num_epochs": 4,
    "learning_rate": 2e-3,
    "final_learning_rate": 0.0,
    "entropy_coef": 0.01,
    "final_entropy_coef": 0.0,
    "normalize_advantages": "rollout",
    "normalize_returns": True,
    "reward_clip": 10.0,
}
# The numbers of an image are classes from 0 to 10, which 255 would make small.
_MINIGRID: dict[str, Any] = {
    "learning_rate": 1e-3,
    "encoder": "mlp",
    "normalize_obs": True,
    "normalize_returns": False,
}

_CLASSIC_PPO = {
    "num_steps": 128,
    "minibatch_size": 256,
    "num_epochs": 8,
    "learning_rate": 2e-3,
    "final_learning_rate": 0.0,
    "gamma": 0.99,
}
_SMOKE_PPO = {"num_steps": 64, "minibatch_size": 256, "hidden": [32, 32]}

# highway-env's roads, whose simulators are fast: large minibatches of many environments.
_ROADS: dict[str, Any] = {
    "num_steps": 32,
    "minibatch_size": 512,
    "num_epochs": 6,
    "learning_rate": 1e-3,
    "final_learning_rate": 0.0,
    "activation": "relu",
    "final_entropy_coef": 0.0,
}

# To wait pays only if the agent goes on to wait. With minibatches of 512, a lambda of 0.9 or more and gradients clipped
# at 0.5 no run learned more than to drive on as if nobody were there.
_INTERSECTION: dict[str, Any] = {
    **_ROADS,
    "minibatch_size": 128,
    "num_epochs": 4,
    "gamma": 0.95,
    "gae_lambda": 0.7,
    "max_grad_norm": 5.0,
    "entropy_coef": 0.3,
    "encoder": "rows",
    "shared_trunk": True,
    "hidden": [128],
    "activation": "tanh",
    "normalize_obs": False,
}
# Crashes are rare: an update has 16,384 steps, and small ones, so that it learns from several.
_RACETRACK: dict[str, Any] = {
    **_ROADS,
    "num_steps": 64,
    "minibatch_size": 2048,
    "learning_rate": 7e-4,
    "gamma": 0.99,
    "entropy_coef": 0.005,
}

_DISCRETE_PPO = {
    **_SB3,
    **_NORMALIZED,
    "num_steps": 256,
    "final_learning_rate": 0.0,
    "entropy_coef": 0.01,
    "final_entropy_coef": 0.0,
}
_CONTINUOUS_PPO = {
    **_SB3,
    **_NORMALIZED,
    "num_steps": 512,
    "value_coef": 0.5,
    "final_learning_rate": 0.0,
}
_IMAGES_PPO = {
    "num_steps": 128,
    "minibatch_size": 256,
    "num_epochs": 4,
    "learning_rate": 2.5e-4,
    "final_learning_rate": 0.0,
    "entropy_coef": 0.01,
    "final_entropy_coef": 0.01,
    "clip_range": 0.1,
    "hidden": [512],
}

PRESETS: dict[str, Preset] = {
    "discrete": Preset(
        "the default of environments with discrete actions that have no other",
        {
            "env": {"num_envs": 8},
            **_ppo(**_DISCRETE_PPO),
            "impala": {"num_steps": 32, "normalize_obs": True},
        },
    ),
    "continuous": Preset(
        "the default of environments with continuous actions that have no other, after CleanRL, no value clipping",
        {
            "env": {"num_envs": 4},
            **_ppo(**_CONTINUOUS_PPO),
            "impala": {"num_steps": 32, "normalize_obs": True, **_NO_ENTROPY, "initial_log_std": -0.5},
        },
        sac_presets.CONTINUOUS,
    ),
    "images": Preset(
        "the default of environments with images that have no other, after CleanRL, no value clipping",
        {
            "env": {"num_envs": 8},
            **_ppo(**_IMAGES_PPO),
            "impala": {"num_steps": 32, "hidden": [256], "learning_rate": 6e-4, "final_learning_rate": 0.0},
        },
        PPO_ON_ALL_CORES,
    ),
    "classic": Preset(
        "small networks, short rollouts; the default of CartPole and Pendulum",
        {
            "env": {"num_envs": 16},
            **_ppo(**_CLASSIC_PPO),
            "impala": {"num_steps": 32},
        },
        {**dqn_presets.CLASSIC, **sac_presets.CLASSIC},
    ),
    "pendulum": Preset(
        "a short horizon and no entropy bonus; the default of Pendulum, on top of classic",
        {
            **_ppo(gamma=0.9, learning_rate=1e-3, final_learning_rate=0.0, **_NO_ENTROPY),
            "impala": {
                "num_steps": 16,
                "gamma": 0.9,
                "learning_rate": 5e-4,
                "final_learning_rate": 0.0,
                **_NO_ENTROPY,
                "initial_log_std": -0.5,
            },
        },
        sac_presets.PENDULUM,
    ),
    "acrobot": _zoo(
        "Acrobot",
        1_000_000,
        16,
        dqn_presets.ACROBOT,
        **_NORMALIZED,
        num_steps=256,
        num_epochs=4,
        gae_lambda=0.94,
    ),
    "mountain-car": _zoo(
        "MountainCar, but for an entropy bonus",
        1_000_000,
        16,
        dqn_presets.MOUNTAIN_CAR,
        **_NORMALIZED,
        num_steps=16,
        num_epochs=4,
        gae_lambda=0.98,
        # RL-Zoo has none; without it the policy is almost deterministic after a tenth of the run.
        entropy_coef=0.01,
        final_entropy_coef=0.001,
    ),
    # Most random actions must be full ones, or no episode reaches the goal; whole episodes, because it is far.
    "mountain-car-continuous": Preset(
        "MountainCarContinuous, with wide exploration in place of RL-Zoo's state-dependent one",
        {
            "run": {"total_timesteps": 300_000},
            "env": {"num_envs": 16},
            **_ppo(
                **{
                    **_CONTINUOUS_PPO,
                    "num_steps": 999,
                    "minibatch_size": 512,
                    "gamma": 0.999,
                    "gae_lambda": 0.98,
                    "initial_log_std": 1.0,
                    "learning_rate": 5e-4,
                }
            ),
        },
    ),
    "lunar-lander": _zoo(
        "LunarLander, discrete and continuous",
        1_000_000,
        16,
        dqn_presets.LUNAR_LANDER,
        num_steps=1024,
        num_epochs=4,
        gamma=0.999,
        gae_lambda=0.98,
        **_constant(3e-4, entropy_coef=0.01),
    ),
    "bipedal-walker": _zoo("BipedalWalker", 5_000_000, 32, **_NORMALIZED, gamma=0.999, clip_range=0.18),
    "bipedal-walker-hardcore": _zoo(
        "BipedalWalkerHardcore",
        100_000_000,
        16,
        **_NORMALIZED,
        **{**_constant(2.5e-4, entropy_coef=0.001), "final_learning_rate": 0.0},
    ),
    "half-cheetah": _mujoco(
        "HalfCheetah",
        **_WIDE,
        num_epochs=20,
        gamma=0.98,
        gae_lambda=0.92,
        clip_range=0.1,
        max_grad_norm=0.8,
        value_coef=1.162,
        **_constant(2.0633e-5, entropy_coef=4.01762e-4),
    ),
    # RL-Zoo's numbers for Hopper end here in a hopper that stands still.
    "hopper": Preset(
        "MuJoCo's Hopper, as Stable-Baselines3's defaults; the learning rate ends at 0",
        {
            "run": {"total_timesteps": 1_000_000},
            "env": {"num_envs": 1},
            **_ppo(**{**_SB3, "final_learning_rate": 0.0}),
        },
        sac_presets.CONTINUOUS,
    ),
    "walker": _mujoco(
        "Walker2d",
        minibatch_size=32,
        num_epochs=20,
        clip_range=0.1,
        max_grad_norm=1.0,
        value_coef=1.744,
        **_constant(5.05041e-5, entropy_coef=5.85045e-4),
    ),
    "humanoid": _mujoco(
        "Humanoid",
        total_timesteps=10_000_000,
        **{**_WIDE, "initial_log_std": -1.08},
        minibatch_size=256,
        num_epochs=5,
        gamma=0.95,
        gae_lambda=0.9,
        clip_range=0.3,
        max_grad_norm=2.0,
        value_coef=0.864,
        **_constant(3.56987e-5, entropy_coef=2.38306e-3),
    ),
    "humanoid-standup": _mujoco(
        "HumanoidStandup",
        total_timesteps=10_000_000,
        **{**_WIDE, "initial_log_std": -1.08},
        minibatch_size=32,
        num_epochs=20,
        gae_lambda=0.9,
        clip_range=0.3,
        max_grad_norm=0.7,
        value_coef=0.862,
        **_constant(2.55673e-5, entropy_coef=3.62109e-6),
    ),
    "swimmer": _mujoco(
        "Swimmer",
        num_envs=4,
        num_steps=1024,
        minibatch_size=256,
        gamma=0.9999,
        gae_lambda=0.98,
        **_constant(6e-4),
    ),
    "reacher": _mujoco(
        "Reacher",
        minibatch_size=32,
        num_epochs=5,
        gamma=0.9,
        gae_lambda=1.0,
        clip_range=0.3,
        max_grad_norm=0.9,
        value_coef=1.901,
        **_constant(1.04019e-4, entropy_coef=7.52585e-8),
    ),
    "inverted-pendulum": _mujoco(
        "InvertedPendulum",
        num_steps=32,
        num_epochs=5,
        gamma=0.999,
        gae_lambda=0.9,
        clip_range=0.4,
        max_grad_norm=0.3,
        value_coef=0.396,
        initial_log_std=-1.1,
        **_constant(2.22425e-4, entropy_coef=1.37976e-7),
    ),
    "inverted-double-pendulum": _mujoco(
        "InvertedDoublePendulum",
        num_steps=128,
        minibatch_size=128,
        gamma=0.98,
        gae_lambda=0.8,
        clip_range=0.4,
        value_coef=1.392,
        **_constant(1.55454e-4, entropy_coef=1.05057e-6),
    ),
    "frozen-lake": _grid("FrozenLake on the map of 4x4", 300_000),
    "frozen-lake-8x8": _grid(
        "FrozenLake on the map of 8x8",
        1_000_000,
        num_envs=32,
        minibatch_size=512,
        learning_rate=1e-3,
        gamma=0.999,
        entropy_coef=0.05,
    ),
    "taxi": _grid("Taxi, with its action masks", 300_000, entropy_coef=0.02, action_masks=True),
    "cliff-walking": _grid(
        "CliffWalking", 300_000, num_steps=512, minibatch_size=512, learning_rate=3e-3, entropy_coef=0.05
    ),
    "minigrid": _grid("MiniGrid, whose images are small enough for an MLP", 1_000_000, **_MINIGRID),
    "minigrid-small": _grid("MiniGrid's Empty and DoorKey-5x5", 150_000, **_MINIGRID),
    "sac": Preset(
        "SAC and TD3 in one environment with a replay of a million transitions", {}, sac_presets.CONTINUOUS
    ),
    "parking": Preset("SAC with hindsight for highway-env's car parks", {}, sac_presets.PARKING),
    "merge": Preset(
        "highway-env's merges, on top of discrete",
        {**_road(300_000), **_ppo(**_ROADS, gamma=0.99, entropy_coef=0.05)},
        dqn_presets.MERGE,
    ),
    "roundabout": Preset(
        "highway-env's roundabouts, on top of discrete",
        {**_road(600_000), **_ppo(**_ROADS, gamma=0.9, entropy_coef=0.3)},
        dqn_presets.ROUNDABOUT,
    ),
    "intersection": Preset(
        "an encoder of vehicles for highway-env's intersections, on top of discrete",
        {**_road(1_000_000, num_envs=128), **_ppo(**_INTERSECTION)},
        dqn_presets.INTERSECTION,
    ),
    "racetrack": Preset(
        "highway-env's racetracks, on top of continuous; with DQN five angles of steering",
        {**_road(5_000_000, num_envs=256), **_ppo(**_RACETRACK)},
        dqn_presets.RACETRACK,
    ),
    "rlpd": Preset(
        "SAC with 10 critics, layer normalisation and 20 gradient steps for each step, as Ball et al. (2023)",
        sac_presets.RLPD,
    ),
    "rainbow": Preset(
        "DQN with all six parts of Rainbow, quantiles in place of C51; on top of the default of the environment",
        dqn_presets.RAINBOW,
    ),
    "dqfd": Preset(
        "DQN from --demos: pre-training, margin, priority bonus, as Hester et al. (2017); on top of the default of the"
        " environment",
        dqn_presets.DQFD,
    ),
    "smoke": Preset(
        "a few seconds, to see that everything works",
        {
            "run": {"total_timesteps": 20_000, "eval_episodes": 5},
            "env": {"num_envs": 4},
            **_ppo(**_SMOKE_PPO),
        },
        for_any_algorithm=True,
    ),
}

# Presets by patterns of ids; the first that fits.
_BY_ID: tuple[tuple[str, tuple[str, ...]], ...] = (
    # The defaults of the settings are CAGE 2's.
    ("fastrl/Cage2*", ()),
    ("CartPole-*", ("classic",)),
    ("Pendulum-*", ("classic", "pendulum")),
    ("Acrobot-*", ("acrobot",)),
    ("MountainCar-*", ("mountain-car",)),
    ("MountainCarContinuous-*", ("mountain-car-continuous",)),
    ("LunarLander*", ("lunar-lander",)),
    ("BipedalWalkerHardcore-*", ("bipedal-walker-hardcore",)),
    ("BipedalWalker-*", ("bipedal-walker",)),
    ("HalfCheetah-*", ("half-cheetah",)),
    ("Hopper-*", ("hopper",)),
    ("Walker2d-*", ("walker",)),
    ("HumanoidStandup-*", ("humanoid-standup",)),
    ("Humanoid-*", ("humanoid",)),
    ("Swimmer-*", ("swimmer",)),
    ("Reacher-*", ("reacher",)),
    ("InvertedPendulum-*", ("inverted-pendulum",)),
    ("InvertedDoublePendulum-*", ("inverted-double-pendulum",)),
    ("FrozenLake8x8-*", ("frozen-lake-8x8",)),
    ("FrozenLake-*", ("frozen-lake",)),
    ("Taxi-*", ("taxi",)),
    ("CliffWalking-*", ("cliff-walking",)),
    ("MiniGrid-Empty-*", ("minigrid-small",)),
    ("MiniGrid-DoorKey-5x5-*", ("minigrid-small",)),
    ("MiniGrid-*", ("minigrid",)),
    ("fastrl/parking-*", ("continuous", "parking")),
    ("fastrl/merge-*", ("discrete", "merge")),
    ("fastrl/roundabout-*", ("discrete", "roundabout")),
    ("fastrl/intersection-v[02]", ("discrete", "intersection")),
    ("fastrl/racetrack-*", ("continuous", "racetrack")),
)

# Algorithms by patterns of ids, where the usual one does not learn.
_ALGORITHMS = (("fastrl/parking-*", "sac"),)


def presets_for(env_id: str) -> tuple[str, ...] | None:
    """The presets of an environment by its id, also with the module that registers it in front (``module:id``), a later
    one on top of the one before; None: it has none, and its spaces decide."""
    return _by_id(_BY_ID, env_id)


def algorithm_for(env_id: str) -> str | None:
    """The algorithm that learns in an environment, by its id as in `presets_for`; None: the usual one."""
    return _by_id(_ALGORITHMS, env_id)


def _by_id(table: Iterable[tuple[str, T]], env_id: str) -> T | None:
    name = env_id.rpartition(":")[2]
    return next((value for pattern, value in table if fnmatch.fnmatchcase(name, pattern)), None)
