"""DQN with demonstrations: a distant goal in a third of the steps, bad demonstrations that do no harm.

MountainCar and Rainbow on CartPole on request, minutes for each seed:
FASTRL_LEARNING_SEEDS=3 pytest -m learning tests/learning/test_demos_learning.py
"""

import os
from typing import Any

import gymnasium
import numpy as np
import pytest
from corridor import Corridor
from demo_sets import DemoSet, played

import fastrl

pytestmark = pytest.mark.learning

OPTIONS: dict[str, Any] = {"algo": "dqn", "device": "cpu", "collector": "sequential"}
SEEDS = range(int(os.environ.get("FASTRL_LEARNING_SEEDS", "0")))


def corridor_return(
    steps: int, length: int, demos: DemoSet | None = None, updates_per_step: float = 0.25, **options: Any
) -> float:
    given: dict[str, Any] = {} if demos is None else {"demos": demos}
    model = fastrl.Model(
        lambda: Corridor(length),
        total_timesteps=steps,
        num_envs=4,
        hidden=[32],
        batch_size=64,
        learning_rate=2e-3,
        epsilon_steps=steps // 2,
        target_every=50,
        learning_starts=200,
        updates_per_step=updates_per_step,
        seed=1,
        **given,
        **OPTIONS,
        **options,
    )
    model.learn()
    return model.evaluate(5)[0]


def test_a_distant_goal_takes_a_third_of_the_steps() -> None:
    demos = played(Corridor(), lambda _: 1, 5)
    assert corridor_return(1_500, 18, demos) == 1
    assert corridor_return(4_500, 18) == 0


def random_demonstrations() -> DemoSet:
    rng = np.random.default_rng(1)
    return played(Corridor(8), lambda _: int(rng.integers(2)), 10)


def test_random_demonstrations_do_no_harm() -> None:
    assert corridor_return(3_000, 8) == 1
    assert corridor_return(3_000, 8, random_demonstrations()) >= 0.9


@pytest.mark.skipif(not SEEDS, reason="on request: half a minute")
def test_the_margin_of_random_demonstrations_is_overcome() -> None:
    """By four times the minibatches: half as many do not suffice."""
    assert corridor_return(3_000, 8, random_demonstrations(), 1.0, preset="dqfd") >= 0.9


def good_driver(obs: Any) -> int:
    """Drives MountainCar-v0 to the top in about 100 steps: to the right between two curves of position and speed."""
    place, speed = obs
    low = min(-0.09 * (place + 0.25) ** 2 + 0.03, 0.3 * (place + 0.9) ** 4 - 0.008)
    return 2 if low < speed < -0.07 * (place + 0.38) ** 2 + 0.07 else 0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_mountain_within_30_000_steps_of_10_demonstrations(seed: int) -> None:
    demos = played(gymnasium.make("MountainCar-v0"), good_driver, 10)
    model = fastrl.Model(
        "MountainCar-v0", demos=demos, preset="dqfd", seed=seed, total_timesteps=30_000, **OPTIONS
    )
    model.learn()
    assert model.evaluate(100)[0] >= -115


@pytest.mark.parametrize("seed", SEEDS)
def test_rainbow_balances_within_50_000_steps(seed: int) -> None:
    model = fastrl.Model("CartPole-v1", preset="rainbow", seed=seed, total_timesteps=50_000, **OPTIONS)
    model.learn()
    assert model.evaluate(100)[0] >= 475
