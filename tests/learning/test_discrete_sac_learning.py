"""SAC learns CartPole, whose actions are discrete.

As long as the preset, with several seeds: FASTRL_LEARNING_SEEDS=3 pytest -m learning
tests/learning/test_discrete_sac_learning.py
"""

import os
from typing import Any

import pytest

import fastrl

pytestmark = pytest.mark.learning

SEEDS = int(os.environ.get("FASTRL_LEARNING_SEEDS", "0"))


@pytest.mark.parametrize("seed", range(max(SEEDS, 1)))
def test_cartpole(seed: int) -> None:
    """A random policy returns 22, this one with three seeds at least 197; the preset takes minutes to its 475."""
    small: dict[str, Any] = {} if SEEDS else {"hidden": [64, 64], "batch_size": 64, "learning_rate": 1e-3}
    model = fastrl.Model("CartPole-v1", algo="sac", seed=seed, device="cpu", collector="sequential", **small)
    assert model.settings["run"]["total_timesteps"] == 50_000
    model.learn(50_000 if SEEDS else 3_000)
    assert model.evaluate(50)[0] >= (475 if SEEDS else 120)
