"""How long it takes to learn CartPole-v1 and Pendulum-v1 from processes: PPO in turns with them, and learners that do
not wait.

Run: ``pytest benches/bench_gym.py -s`` on an otherwise idle machine. Each algorithm trains with the environment's
presets and two workers, on three seeds, until episodes of a second or more of training have a mean return of 475, the
reward at which CartPole-v1 counts as solved (or of -200 in Pendulum-v1, of continuous actions, for which there is no
such number), or until its budget of steps is used up; then its policy is scored without exploration.
"""

import contextlib
import statistics

import pytest
from fastrl.tasks.gym.run import Training
from rich.console import Console
from rich.table import Table

from fastrl.tasks.gym.settings import PRESETS, GymConfig, presets_for
from fastrl.utils.config import build, check

SEEDS = (0, 1, 2)


def config_of(env, algorithm, seed, budget):
    layers = [check(GymConfig, PRESETS[name].values, name) for name in presets_for(env)]
    own = {
        "env.id": env,
        "run.algorithm": algorithm,
        "run.seed": seed,
        "run.total_steps": budget,
        "collect.method": "executor",
        "collect.n_workers": 2,
    }
    return build(GymConfig, *layers, own)


def learn(config, solved):
    """Trains until it is solved: the training, and its last row."""
    training = Training(config, Console(quiet=True))
    with contextlib.closing(training.rows()) as rows:
        for row in rows:
            if row.mean_return >= solved:
                break
    return training, row


@pytest.mark.parametrize(
    ("env", "solved", "budgets"),
    [
        ("CartPole-v1", 475, {"ppo": 200_000, "async-ppo": 300_000, "impala": 600_000}),
        ("Pendulum-v1", -200, {"ppo": 200_000, "async-ppo": 200_000, "impala": 1_000_000}),
    ],
)
def test_it_is_solved(env, solved, budgets):
    table = Table(title=f"{env} to a mean return of {solved}, 2 workers", title_justify="left")
    for name in ("algorithm", "seed", "steps", "seconds", "steps/s", "lag", "most", "dropped", "evaluation"):
        table.add_column(name, justify="left" if name == "algorithm" else "right")
    unsolved = []
    for algorithm, budget in budgets.items():
        for seed in SEEDS:
            training, last = learn(config_of(env, algorithm, seed, budget), solved)
            score = statistics.fmean(training.evaluate())
            table.add_row(
                algorithm,
                str(seed),
                f"{last.steps:,}",
                f"{last.seconds:.1f}",
                f"{last.steps / last.seconds:,.0f}",
                f"{training.lag.mean:.2f}",
                str(training.lag.highest),
                str(last.dropped),
                f"{score:.0f}",
                end_section=seed == SEEDS[-1],
            )
            if not last.mean_return >= solved:
                unsolved.append((algorithm, seed, last.mean_return))
    print()
    Console(width=110).print(table)
    assert not unsolved
