"""SAC and TD3 learn Pendulum and CartPole.

More seeds on request: FASTRL_LEARNING_SEEDS=5 pytest -m learning tests/learning/test_sac_learning.py
"""

import os

import pytest

import fastrl

pytestmark = pytest.mark.learning

OPTIONS = {"device": "cpu", "collector": "sequential"}
SEEDS = range(int(os.environ.get("FASTRL_LEARNING_SEEDS", "1")))


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
@pytest.mark.parametrize("seed", SEEDS)
def test_pendulum_within_20_000_steps(algorithm: str, seed: int) -> None:
    model = fastrl.Model(
        "Pendulum-v1",
        algo=algorithm,
        seed=seed,
        hidden=[64, 64],
        batch_size=128,
        learning_rate=1e-3,
        **OPTIONS,
    )
    assert model.settings["run"]["total_timesteps"] == 20_000
    model.learn()
    assert model.evaluate(100)[0] >= -170


@pytest.mark.parametrize("seed", SEEDS)
def test_discrete_actions_within_50_000_steps(seed: int) -> None:
    model = fastrl.Model("CartPole-v1", algo="sac", seed=seed, **OPTIONS)
    assert model.settings["run"]["total_timesteps"] == 50_000
    model.learn()
    assert model.evaluate(100)[0] >= 475
