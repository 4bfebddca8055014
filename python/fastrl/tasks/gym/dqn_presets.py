"""Settings of runs with DQN on small environments of Gymnasium, where they are others than PPO's.

They started from rl-baselines3-zoo's ``hyperparams/dqn.yml`` (commit 22e3ff2), which has networks of 256 units and
one-step returns. Networks of 64 units take half the time. Returns over several steps carry the reward of a distant goal
back sooner. Gradient steps take most of the time, so there is little to gain from more environments.
"""

from collections.abc import Mapping
from typing import Any

from fastrl.algorithms import dqn_settings

_Tables = Mapping[str, Mapping[str, Mapping[str, Any]]]


def _dqn(
    total_timesteps: int,
    num_envs: int,
    *,
    capacity: int,
    train_freq: int,
    hidden: tuple[int, ...] = (64, 64),
    **values: Any,
) -> _Tables:
    """A gradient step for every second environment step; by default uniform draws from the replay."""
    return {
        "dqn": {
            "run": {"total_timesteps": total_timesteps},
            "env": {"num_envs": num_envs},
            "replay": {
                "capacity": capacity,
                "learning_starts": 1_000,
                "train_freq": train_freq,
                "updates_per_step": 0.5,
            },
            "dqn": {"hidden": list(hidden), "dueling": False, "prioritized": False, "huber": 1.0, **values},
        }
    }


CLASSIC = _dqn(
    30_000,
    16,
    capacity=100_000,
    train_freq=1,
    hidden=(128, 128),
    n_step=10,
    dueling=True,
    prioritized=True,
    alpha=0.5,
    beta_steps=30_000,
    huber=10.0,
    learning_rate=5e-4,
    final_learning_rate=0.0,
    batch_size=64,
    target_every=250,
    epsilon_steps=8_000,
    final_epsilon=0.04,
)

MOUNTAIN_CAR = _dqn(
    120_000,
    1,
    capacity=50_000,
    train_freq=16,
    gamma=0.98,
    n_step=10,
    learning_rate=1e-3,
    batch_size=128,
    target_every=300,
    epsilon_steps=24_000,
    final_epsilon=0.07,
)

ACROBOT = _dqn(
    50_000,
    1,
    capacity=50_000,
    train_freq=4,
    n_step=10,
    learning_rate=6.3e-4,
    batch_size=128,
    target_every=250,
    epsilon_steps=20_000,
    final_epsilon=0.05,
)

LUNAR_LANDER = _dqn(
    100_000,
    1,
    capacity=50_000,
    train_freq=4,
    n_step=3,
    learning_rate=6.3e-4,
    batch_size=128,
    target_every=250,
    epsilon_steps=20_000,
    final_epsilon=0.05,
)

# With the settings of the environments themselves some seeds of CartPole-v1 ended at half of its return.
RAINBOW: Mapping[str, Mapping[str, Any]] = {
    "env": {"num_envs": 1},
    "replay": {"train_freq": 32, "updates_per_step": 0.5},
    "dqn": {
        **dqn_settings.PRESETS["rainbow"],
        "quantiles": 10,
        "n_step": 3,
        "hidden": [256, 256],
        "huber": 1.0,
        "learning_rate": 1e-3,
        "final_learning_rate": 0.0,
        "batch_size": 128,
        "target_every": 100,
    },
}

DQFD: Mapping[str, Mapping[str, Any]] = {
    "dqn": dqn_settings.PRESETS["dqfd"],
    "demos": {"offline_ratio": 0.25, "pretrain_steps": 2_000, "priority_bonus": 1.0},
}
