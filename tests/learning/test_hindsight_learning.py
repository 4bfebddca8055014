"""DQN flips ten bits to a goal with hindsight, and does not without; SAC parks a car.

The car as the preset parks it, with several seeds: FASTRL_LEARNING_SEEDS=3 pytest -m learning
tests/learning/test_hindsight_learning.py
"""

import os
from typing import Any

import gymnasium
import numpy as np
import pytest
from small_runs import trainer_of

import fastrl

pytestmark = pytest.mark.learning

BITS = 10
SEEDS = int(os.environ.get("FASTRL_LEARNING_SEEDS", "0"))


def late_return(*options: str) -> float:
    """Mean return of the last episodes of a run; an episode that fails has -10."""
    trainer = trainer_of(
        "gym",
        "--env=fastrl/BitFlip-v0",
        "--env.options",
        f"bits={BITS}",
        "--algo=dqn",
        "--dqn.n-step=1",
        "--dqn.hidden=128",
        "--total-timesteps=15000",
        "--run.row-seconds=0",
        "--run.eval-episodes=0",
        "--run.torch-threads=1",
        "--device=cpu",
        "--collector=sequential",
        *options,
    )
    returns = [row.record()["rollout/ep_rew_mean"] for row in trainer.rows()]
    return float(np.nanmean(returns[-200:]))


def test_hindsight_solves_what_dqn_alone_does_not() -> None:
    assert late_return() < -9
    assert late_return("--replay.hindsight=0.8") > -6


def parked_share(model: fastrl.Model, config: dict[str, Any], most_steps: int = 100) -> float:
    """Share of 100 episodes on fixed seeds that end in the right place."""
    env = gymnasium.make("fastrl/parking-v0", config=config)
    parked = 0
    for seed in range(10_000, 10_100):
        obs, info = env.reset(seed=seed)
        for _ in range(most_steps):
            obs, _, terminated, _, info = env.step(model.predict(obs)[0])
            if terminated:
                break
        parked += info["is_success"]
    return parked / 100


@pytest.mark.parametrize("seed", range(max(SEEDS, 1)))
def test_a_car_parks(seed: int) -> None:
    """Roughly, with a network that is smaller than the preset's: in at least 66% of the episodes for three seeds, and
    untrained in at most 32%. On request exactly, within three fifths of the preset's steps; untrained nearly never."""
    config = {} if SEEDS else {"success_goal_reward": 0.3}
    small: dict[str, Any] = {} if SEEDS else {"hidden": [64, 64], "batch_size": 128}
    model = fastrl.SAC(
        "fastrl/parking-v0",
        seed=seed,
        env_options={"config": config},
        device="cpu",
        collector="sequential",
        **small,
    )
    model.learn(30_000 if SEEDS else 6_000)
    assert parked_share(model, config) >= (0.6 if SEEDS else 0.5)
