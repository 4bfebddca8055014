"""SAC learns CartPole, whose actions are discrete.

As long as the preset, with several seeds: FASTRL_LEARNING_SEEDS=3 pytest -m learning
tests/learning/test_discrete_sac_learning.py
"""

import os

import pytest

import fastrl

pytestmark = pytest.mark.learning

SEEDS = int(os.environ.get("FASTRL_LEARNING_SEEDS", "0"))


@pytest.mark.parametrize("seed", range(max(SEEDS, 1)))
def test_cartpole(seed: int) -> None:
    """A random policy returns 22."""
    model = fastrl.Model("CartPole-v1", algo="sac", seed=seed, device="cpu", collector="sequential")
    assert model.settings["run"]["total_timesteps"] == 50_000
    model.learn(50_000 if SEEDS else 18_000)
    assert model.evaluate(100)[0] >= (475 if SEEDS else 200)
