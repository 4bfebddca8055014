"""Time to learn CartPole-v1 and Pendulum-v1 from processes: by PPO, which waits for them, and by learners that do not.

Run: ``pytest benches/bench_gym.py -s`` on an otherwise idle machine. Each algorithm trains with the environment's
presets and two workers, on three seeds, until episodes of a second or more of training have a mean return of 475, the
reward at which CartPole-v1 counts as solved (or of -200 in Pendulum-v1, of continuous actions, for which there is no
such number), or until its budget of steps is used up; then its policy is scored without exploration.
"""

import contextlib

import pytest
from rich.console import Console

from fastrl.tasks import find
from fastrl.training.evaluation import Evaluation
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show
from results import Case
from rounds import number_table

SEEDS = (0, 1, 2)
PROBLEMS = {
    "CartPole-v1": (475, {"ppo": 200_000, "async-ppo": 300_000, "impala": 600_000}),
    "Pendulum-v1": (-200, {"ppo": 200_000, "async-ppo": 200_000, "impala": 1_000_000}),
}


def trainer_of(env, algorithm, seed, budget):
    changes = {
        "env.id": env,
        "run.algo": algorithm,
        "run.seed": seed,
        "run.total_timesteps": budget,
        "collect.collector": "executor",
        "collect.n_workers": 2,
    }
    task = find("gym")
    return task.make_trainer(task.make_settings(changes))


def learn(trainer, solved):
    """Trains until the environment is solved; returns the record of the last row."""
    with contextlib.closing(trainer.rows()) as rows:
        for row in rows:
            record = row.record()
            if record["rollout/ep_rew_mean"] >= solved:
                break
    return record


def score_of(trainer):
    evaluation = trainer.callback(Evaluation)
    evaluation.at_end(trainer, Console(quiet=True))
    return evaluation.scores.mean_return


@pytest.mark.parametrize("env", PROBLEMS)
def test_it_is_solved(env, record):
    solved, budgets = PROBLEMS[env]
    table = number_table(
        f"{env} to a mean return of {solved}, 2 workers",
        "algorithm",
        *("seed", "steps", "seconds", "steps/s", "staleness", "most", "dropped", "evaluation"),
    )
    seconds, steps, unsolved = {}, {}, {}
    for algorithm, budget in budgets.items():
        for seed in SEEDS:
            trainer = trainer_of(env, algorithm, seed, budget)
            last = learn(trainer, solved)
            staleness = trainer.source.summary()
            table.add_row(
                algorithm,
                str(seed),
                f"{last['time/total_timesteps']:,}",
                f"{last['time/time_elapsed']:.1f}",
                f"{last['time/total_timesteps'] / last['time/time_elapsed']:,.0f}",
                f"{staleness['staleness']:.2f}",
                str(staleness["max_staleness"]),
                str(last["collect/dropped"]),
                f"{score_of(trainer):.0f}",
                end_section=seed == SEEDS[-1],
            )
            seconds.setdefault(algorithm, []).append(last["time/time_elapsed"])
            steps.setdefault(algorithm, []).append(last["time/total_timesteps"])
            if not last["rollout/ep_rew_mean"] >= solved:
                unsolved[algorithm] = (
                    f"seed {seed} has a mean return of {last['rollout/ep_rew_mean']:.0f} after {budget:,} steps"
                )
    print()
    show(plain_console(), table)
    for of, unit in ((seconds, "seconds"), (steps, "steps")):
        solving = {algorithm: each for algorithm, each in of.items() if algorithm not in unsolved}
        record(
            f"Training until it is solved, {unit}",
            unit,
            [Case(f"{env} to {solved}", solving)],
            [],
            about=f"A number a seed, {len(SEEDS)} seeds; two workers.",
            lower_is_better=True,
            left_out=unsolved,
            part=unit,
        )
    assert not unsolved
