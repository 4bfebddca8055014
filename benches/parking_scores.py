"""Episodes of the car park on fixed seeds, which score a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import fastrl  # noqa: F401 (registers the environments)

FIRST_SEED, MOST_STEPS = 10_000, 100

Predict = Callable[[dict[str, NDArray[Any]]], NDArray[Any]]


class Judge:
    """Plays episodes of ``fastrl/parking-v0``, always the same ones, of 100 steps at most.

    Args:
        episodes: how many.
    """

    def __init__(self, episodes: int) -> None:
        self._envs = [gymnasium.make("fastrl/parking-v0") for _ in range(episodes)]

    def score(self, predict: Predict) -> dict[str, float]:
        """Shares of episodes that succeed and that end in a crash, mean return, mean number of steps.

        Args:
            predict: gives actions [B, 2] of observations, a dict of arrays [B, 6].
        """
        obs = [env.reset(seed=FIRST_SEED + k)[0] for k, env in enumerate(self._envs)]
        results = np.zeros((len(obs), 4))
        active = list(range(len(obs)))
        for _ in range(MOST_STEPS):
            actions = predict({key: np.stack([obs[k][key] for k in active]) for key in obs[0]})
            ended = set()
            for k, action in zip(active, actions, strict=True):
                obs[k], reward, terminated, truncated, info = self._envs[k].step(action)
                results[k, :2] = info["is_success"], info["crashed"]
                results[k, 2:] += float(reward), 1
                if terminated or truncated:
                    ended.add(k)
            active = [k for k in active if k not in ended]
            if not active:
                break
        success, crashed, total, steps = np.round(results.mean(axis=0), 4).tolist()
        return {"success": success, "crashed": crashed, "return": total, "episode_steps": steps}
