"""Settings of runs with SAC and TD3 on environments of Gymnasium, where they are others than PPO's."""

from collections.abc import Mapping
from typing import Any

_Tables = Mapping[str, Mapping[str, Mapping[str, Any]]]

_LARGE: Mapping[str, Mapping[str, Any]] = {
    "env": {"num_envs": 1},
    "replay": {"capacity": 1_000_000, "learning_starts": 5_000},
}

# By table; sizes as of CleanRL's SAC for continuous control.
CONTINUOUS: _Tables = {"sac": _LARGE, "td3": _LARGE}

# Classic control. Returns of one step, because the random actions of older steps are not what the policy does now; a
# fast target, because values of about 100 must be reached within 50,000 gradient steps.
CLASSIC: _Tables = {
    "sac": {
        "run": {"total_timesteps": 50_000},
        "env": {"num_envs": 4},
        "replay": {"updates_per_step": 1.0},
        "sac": {
            "hidden": [64, 64],
            "batch_size": 128,
            "learning_rate": 1e-3,
            "final_learning_rate": 0.0,
            "tau": 0.05,
            "n_step": 1,
        },
    }
}

_PENDULUM: Mapping[str, Mapping[str, Any]] = {
    "run": {"total_timesteps": 20_000},
    "env": {"num_envs": 1},
    "replay": {"updates_per_step": 1.0},
}
_OF_PENDULUM = {"hidden": [256, 256], "batch_size": 256, "learning_rate": 1e-3, "tau": 0.005, "n_step": 1}
PENDULUM: _Tables = {
    "sac": {**_PENDULUM, "sac": {**_OF_PENDULUM, "final_learning_rate": 0.0}},
    "td3": {**_PENDULUM, "td3": _OF_PENDULUM},
}

# As highway-env's own script trains Stable-Baselines3's SAC with hindsight (4 of 5 goals are replaced), with two layers
# of 128 in place of three of 512 units, minibatches of 256 in place of 1,024, a replay of 100,000 transitions in place
# of a million, and four environments.
PARKING: _Tables = {
    "sac": {
        "run": {"total_timesteps": 50_000},
        "env": {"num_envs": 4},
        "replay": {
            "capacity": 100_000,
            "learning_starts": 1000,
            "updates_per_step": 1.0,
            "hindsight": 0.8,
        },
        "sac": {
            "hidden": [128, 128],
            "batch_size": 256,
            "learning_rate": 1e-3,
            "gamma": 0.95,
            "tau": 0.05,
            "n_step": 1,
        },
    }
}

# Changes of SAC by Ball et al., "Efficient Online Reinforcement Learning with Offline Data", 2023, apart from the half
# of each minibatch that comes from demonstrations, which is a setting of the run.
RLPD: Mapping[str, Mapping[str, Any]] = {
    "env": {"num_envs": 1},
    "replay": {"capacity": 1_000_000, "learning_starts": 5_000, "updates_per_step": 20.0},
    "sac": {
        "critics": 10,
        "target_critics": 2,
        "layer_norm": True,
        "policy_every": 20,
        "policy_value": "mean",
    },
}
