"""How long it takes to learn CartPole-v1 from processes: PPO in turns with them, and learners that do not wait.

Run: ``pytest benches/bench_gym.py -s`` on an otherwise idle machine. Each algorithm trains with its preset and two
workers, on three seeds, until episodes of a second or more of training have a mean return of 475, the reward at which
CartPole-v1 counts as solved, or until its budget of steps is used up; then its policy is scored without exploration.
"""

import contextlib
import statistics

from rich.console import Console
from rich.table import Table

from fastrl.config import build, check
from fastrl.gym_run import Training
from fastrl.gym_settings import PRESETS, GymConfig, presets_for

SOLVED = 475.0
SEEDS = (0, 1, 2)
BUDGETS = {"ppo": 200_000, "async-ppo": 300_000, "impala": 600_000}


def config_of(algorithm, seed):
    layers = [check(GymConfig, PRESETS[name].values, name) for name in presets_for("CartPole-v1")]
    own = {
        "run.algorithm": algorithm,
        "run.seed": seed,
        "run.total_steps": BUDGETS[algorithm],
        "collect.method": "executor",
        "collect.n_workers": 2,
    }
    return build(GymConfig, *layers, own)


def learn(algorithm, seed):
    """Trains until it is solved: the training, and its last row."""
    training = Training(config_of(algorithm, seed), Console(quiet=True))
    with contextlib.closing(training.rows()) as rows:
        for row in rows:
            if row.mean_return >= SOLVED:
                break
    return training, row


def test_cartpole_is_solved():
    table = Table(title=f"CartPole-v1 to a mean return of {SOLVED:.0f}, 2 workers", title_justify="left")
    for name in ("algorithm", "seed", "steps", "seconds", "steps/s", "lag", "most", "dropped", "evaluation"):
        table.add_column(name, justify="left" if name == "algorithm" else "right")
    unsolved = []
    for algorithm in BUDGETS:
        for seed in SEEDS:
            training, last = learn(algorithm, seed)
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
            if last.mean_return < SOLVED:
                unsolved.append((algorithm, seed, last.mean_return))
    print()
    Console(width=110).print(table)
    assert not unsolved
