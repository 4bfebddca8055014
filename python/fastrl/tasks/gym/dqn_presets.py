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
    updates_per_step: float = 0.5,
    hidden: tuple[int, ...] = (64, 64),
    **values: Any,
) -> _Tables:
    """By default a gradient step for every second environment step, and uniform draws from the replay."""
    return {
        "dqn": {
            "run": {"total_timesteps": total_timesteps},
            "env": {"num_envs": num_envs},
            "replay": {
                "capacity": capacity,
                "learning_starts": 1_000,
                "train_freq": train_freq,
                "updates_per_step": updates_per_step,
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

# highway-env's roads, which are fast: many steps, and a gradient step for eight of them. Returns over three steps bring
# the price of a crash back to the decision that led to it.
_ROADS: Mapping[str, Any] = {
    "train_freq": 1,
    "updates_per_step": 0.125,
    "capacity": 100_000,
    "dueling": True,
    "n_step": 3,
    "batch_size": 128,
    "learning_rate": 1e-3,
    "final_learning_rate": 0.0,
    "epsilon_steps": 30_000,
    "final_epsilon": 0.02,
}

MERGE = _dqn(60_000, 16, **{**_ROADS, "epsilon_steps": 20_000})

# A perceptron crashed in 5 to 16% of the episodes, this in 0 to 8%.
ROUNDABOUT = _dqn(150_000, 16, hidden=(128,), encoder="rows", gamma=0.95, **_ROADS)

# A perceptron learns less than to drive on as if nobody were there.
INTERSECTION = _dqn(
    150_000,
    16,
    **{
        **_ROADS,
        "hidden": (128,),
        "encoder": "rows",
        "gamma": 0.95,
        "epsilon_steps": 40_000,
        "final_epsilon": 0.05,
    },
)

# Five angles in place of any.
_STEERING = '{"type": "DiscreteAction", "longitudinal": false, "lateral": true, "actions_per_axis": 5}'

_RACETRACK = _dqn(150_000, 16, gamma=0.95, **_ROADS)["dqn"]
RACETRACK: _Tables = {
    "dqn": {
        **_RACETRACK,
        "env": {**_RACETRACK["env"], "options": [f'config={{"action": {_STEERING}}}']},
    }
}

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
