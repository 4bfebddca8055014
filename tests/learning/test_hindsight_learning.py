"""DQN flips ten bits to a goal with hindsight, and does not without; SAC parks a car.

The car with several seeds: FASTRL_LEARNING_SEEDS=3 pytest -m learning tests/learning/test_hindsight_learning.py
"""

import os

import gymnasium
import numpy as np
import pytest
from small_runs import trainer_of

import fastrl

pytestmark = pytest.mark.learning

BITS = 10
SEEDS = int(os.environ.get("FASTRL_LEARNING_SEEDS", "1"))


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


def parked_share(model: fastrl.Model, episodes: int = 100, most_steps: int = 100) -> float:
    """Share of episodes on fixed seeds that end in the right place."""
    env = gymnasium.make("fastrl/parking-v0")
    parked = 0
    for seed in range(10_000, 10_000 + episodes):
        obs, info = env.reset(seed=seed)
        for _ in range(most_steps):
            obs, _, terminated, _, info = env.step(model.predict(obs)[0])
            if terminated:
                break
        parked += info["is_success"]
    return parked / episodes


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_preset_of_car_parks_parks(seed: int) -> None:
    """Within three fifths of its steps, about two minutes of a core; at random nearly no episode parks."""
    model = fastrl.SAC("fastrl/parking-v0", seed=seed, device="cpu", collector="sequential")
    model.learn(30_000)
    assert parked_share(model) >= 0.6
