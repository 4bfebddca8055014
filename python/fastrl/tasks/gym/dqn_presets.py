"""Settings of DQN for classic control, where several environments are stepped together."""

from typing import Any

# CartPole-v1, as benches/bench_dqn.py solves it with one environment.
CLASSIC: dict[str, dict[str, Any]] = {
    "replay": {"capacity": 100_000, "learning_starts": 1_000, "train_freq": 1, "updates_per_step": 0.5},
    "dqn": {
        "hidden": [256, 256],
        "n_step": 10,
        "prioritized": True,
        "alpha": 0.5,
        "beta_steps": 50_000,
        "huber": 10.0,
        "learning_rate": 3e-4,
        "batch_size": 64,
        "target_every": 250,
        "epsilon_steps": 8_000,
        "final_epsilon": 0.04,
    },
}

# Those of RL Baselines3 Zoo, which has no n-step returns, no dueling networks and draws uniformly.
_ZOO = {"hidden": [256, 256], "n_step": 1, "dueling": False, "prioritized": False, "huber": 1.0}

# MountainCar-v0, where 16 environments take a step between 8 minibatches.
MOUNTAIN_CAR: dict[str, dict[str, Any]] = {
    "replay": {"capacity": 10_000, "learning_starts": 1_000, "train_freq": 1, "updates_per_step": 0.5},
    "dqn": {
        **_ZOO,
        "gamma": 0.98,
        "learning_rate": 4e-3,
        "batch_size": 128,
        "target_every": 300,
        "epsilon_steps": 24_000,
        "final_epsilon": 0.07,
    },
}

# Acrobot-v1 and LunarLander-v3.
ACROBOT: dict[str, dict[str, Any]] = {
    "replay": {"capacity": 50_000, "learning_starts": 1_000, "train_freq": 1, "updates_per_step": 1.0},
    "dqn": {
        **_ZOO,
        "learning_rate": 6.3e-4,
        "batch_size": 128,
        "target_every": 250,
        "epsilon_steps": 12_000,
        "final_epsilon": 0.1,
    },
}
