"""Each algorithm learns CartPole, and PPO Pendulum, clearly better than a random policy, from two processes;
benches/bench_gym.py solves CartPole."""

import pytest
from fastrl.tasks.gym.run import Training
from rich.console import Console

from fastrl.tasks.gym.settings import PRESETS, GymConfig, presets_for
from fastrl.utils.config import build, check


@pytest.mark.parametrize("algorithm", ["ppo", "async-ppo"])
def test_it_learns_continuous_actions(algorithm: str) -> None:
    layers = [check(GymConfig, PRESETS[name].values, name) for name in presets_for("Pendulum-v1")]
    own = {
        "env.id": "Pendulum-v1",
        "run.algorithm": algorithm,
        "run.total_steps": 40_000,
        "run.eval_episodes": 10,
        "collect.method": "executor",
        "collect.n_workers": 2,
    }
    training = Training(build(GymConfig, *layers, own), Console(quiet=True))
    assert list(training.rows())[-1].failures == 0
    returns = training.evaluate()
    assert returns is not None
    # A random policy returns about -1200; the best about -150.
    assert sum(returns) / len(returns) > -400


@pytest.mark.parametrize(
    ("algorithm", "total_steps"), [("ppo", 15_000), ("async-ppo", 25_000), ("impala", 80_000)]
)
def test_it_learns_to_balance(algorithm: str, total_steps: int) -> None:
    layers = [check(GymConfig, PRESETS[name].values, name) for name in presets_for("CartPole-v1")]
    own = {
        "run.algorithm": algorithm,
        "run.total_steps": total_steps,
        "run.eval_episodes": 10,
        "collect.method": "executor",
        "collect.n_workers": 2,
    }
    training = Training(build(GymConfig, *layers, own), Console(quiet=True))
    rows = list(training.rows())
    returns = training.evaluate()
    assert returns is not None
    # A random policy returns about 22; the maximum is 500.
    assert sum(returns) / len(returns) > 100
    assert rows[-1].failures == 0
    assert training.report.workers == len(training.report.memory_mib) == 2
    assert (training.lag.highest > 0) == (algorithm != "ppo")
    assert training.lag.highest <= 2
