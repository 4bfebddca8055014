"""Episodes of CAGE 2 with a scripted defender."""

from typing import Any

import numpy as np

from fastrl.envs.cage2.baselines import make_baseline
from fastrl.envs.cage2.env import Cage2VectorEnv


def run_baseline(blue: str, *, episodes: int, seed: int, length: int = 100, **options: Any) -> np.ndarray:
    """Returns of the episodes, [episodes]."""
    env = Cage2VectorEnv(episodes, autoreset_mode="disabled", episode_length=length, **options)
    env.reset(seed=np.random.SeedSequence(seed).generate_state(episodes, np.uint64).tolist())
    policy = make_baseline(blue, episodes, seed)
    alerts, total = np.zeros((episodes, 13), np.bool_), np.zeros(episodes)
    for _ in range(length):
        total += env.step(policy.act(alerts))[1]
        alerts = env.alerts()
    return total
