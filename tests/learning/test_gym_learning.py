"""Each algorithm learns CartPole, and PPO Pendulum, clearly better than a random policy, from two processes;
benches/bench_gym.py solves CartPole."""

import pytest
from rich.console import Console
from small_runs import trainer_of

from fastrl.training.evaluation import Evaluation
from fastrl.training.trainer import Trainer

pytestmark = pytest.mark.learning

OPTIONS = ["--run.eval-episodes=10", "--collector=executor", "--n-workers=2"]


def mean_return(trainer: Trainer) -> float:
    evaluation = trainer.callback(Evaluation)
    assert evaluation is not None
    evaluation.at_end(trainer, Console(quiet=True))
    assert evaluation.scores is not None
    return evaluation.scores.mean_return


@pytest.mark.parametrize("algorithm", ["ppo", "async-ppo"])
def test_it_learns_continuous_actions(algorithm: str) -> None:
    trainer = trainer_of(
        "gym", "--env=Pendulum-v1", f"--algo={algorithm}", "--total-timesteps=40000", *OPTIONS
    )
    assert list(trainer.rows())[-1].record()["collect/failures"] == 0
    # A random policy returns about -1200; the best about -150.
    assert mean_return(trainer) > -400


@pytest.mark.parametrize(
    ("algorithm", "total_timesteps"),
    [("ppo", 15_000), ("async-ppo", 25_000), ("impala", 80_000), ("dqn", 10_000)],
)
def test_it_learns_to_balance(algorithm: str, total_timesteps: int) -> None:
    trainer = trainer_of("gym", f"--algo={algorithm}", f"--total-timesteps={total_timesteps}", *OPTIONS)
    rows = [row.record() for row in trainer.rows()]
    # A random policy returns about 22; the maximum is 500.
    assert mean_return(trainer) > 100
    assert rows[-1]["collect/failures"] == 0
    report = trainer.source.report()
    assert report.workers == len(report.memory_mib) == 2
    highest = max(row["collect/max_staleness"] for row in rows)
    assert (highest > 0) == (algorithm not in ("ppo", "dqn"))
    assert highest <= 2


def test_it_learns_to_balance_in_bf16() -> None:
    trainer = trainer_of("gym", "--algo=ppo", "--total-timesteps=15000", "--ppo.precision=bf16", *OPTIONS)
    list(trainer.rows())
    assert trainer.algorithm.remarks() == []
    assert mean_return(trainer) > 100


def test_pqn_solves_cartpole() -> None:
    trainer = trainer_of("gym", "--algo=pqn", "--collector=sequential", "--run.eval-episodes=20")
    list(trainer.rows())
    assert mean_return(trainer) >= 475
