"""The choice of ``fastrl autotune`` beside an exhaustive grid of collectors and workers.

Run: ``pytest benches/bench_autotune.py -s`` on an otherwise idle machine; ``-k CartPole`` chooses a case.
The choice is made first. Then every cell of the grid, the choice's too, trains in turns beside the others, with the
rollouts of the run. The bars: the choice reaches 90% of the best cell, and is no slower than the formula, a worker for
each core but one.
"""

import statistics
from contextlib import ExitStack, closing

import pytest

from fastrl.autotune.candidates import collector_way
from fastrl.autotune.race import Way
from fastrl.autotune.trial import Trial
from fastrl.autotune.tuner import Tuner
from fastrl.cli.run_arguments import Command
from fastrl.collectors.resources import cores
from fastrl.tasks import find
from fastrl.utils.config import replaced
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show
from recording import Record
from results import Case
from rounds import number_table, turns

ROUNDS = 5
SLOW = ["--num-envs", "8", "--num-steps", "64", "--minibatch-size", "64", "--num-epochs", "4"]
CASES = {
    "CartPole": ["CartPole-v1"],
    "HalfCheetah": ["HalfCheetah-v5", "--num-envs", "8", "--num-steps", "128", "--num-epochs", "4"],
    "sleep 10 ms": [
        "fastrl/Uneven-v0",
        "--env-options",
        "step_seconds=0.01",
        "distribution=constant",
        *SLOW,
    ],
    "lognormal, sleeping": ["fastrl/Uneven-v0", "--env-options", "step_seconds=0.002", *SLOW],
    "lognormal, busy": ["fastrl/Uneven-v0", "--env-options", "step_seconds=0.002", "busy=true", *SLOW],
}


def grid_of(num_envs: int) -> list[Way]:
    """Every collector with 1, 2, 4 ... workers up to one for each environment."""
    counts = sorted({1, cores() - 1, *(2**i for i in range(6)), num_envs} - {0})
    return [
        collector_way("sequential", 1),
        *(collector_way(kind, n) for kind in ("sync", "executor") for n in counts if n <= num_envs),
    ]


@pytest.mark.parametrize("name", CASES)
def test_the_choice_beside_the_grid(name: str, record: Record) -> None:
    task, console = find("gym"), plain_console()
    settings = Command(task, "fastrl train", CASES[name]).settings()
    tuning = Tuner(task, settings).tune()
    cells = {way.label: way.values for way in grid_of(settings.env.num_envs)}
    chosen = tuning.chosen[-1].way.label
    formula = collector_way("executor", max(1, min(cores() - 1, settings.env.num_envs))).label
    values = {key: value for each in tuning.chosen for key, value in each.way.values.items()}
    if values.pop("run.torch_threads", settings.run.torch_threads) != settings.run.torch_threads:
        # A cell of its own.
        chosen = tuning.label
    cells.setdefault(chosen, values | {"run.torch_threads": tuning.settings.run.torch_threads})
    rates: dict[str, list[float]] = {cell: [] for cell in cells}
    with ExitStack() as stack:
        trials = {
            cell: stack.enter_context(closing(Trial(task, replaced(settings, own))))
            for cell, own in cells.items()
        }
        for trial in trials.values():
            trial.turn()
        for cell in turns(list(cells), ROUNDS):
            rates[cell].append(trials[cell].turn().rate)
    medians = {
        cell: statistics.median(own[i] / statistics.mean(rates[c][i] for c in cells) for i in range(ROUNDS))
        for cell, own in rates.items()
    }
    best = max(medians.values())
    share, above = medians[chosen] / best, medians[chosen] / medians[formula]
    table = number_table(
        f"{name}: the choice reaches {share:.0%} of the best, {above:.2f} times the formula;"
        f" chosen in {tuning.seconds:.1f} s",
        "",
        "steps/s",
        "of the best",
    )
    for cell in sorted(cells, key=lambda cell: -medians[cell]):
        note = " (chosen)" if cell == chosen else ""
        note += " (formula)" if cell == formula else ""
        table.add_row(
            cell + note,
            f"{statistics.median(rates[cell]):,.0f}",
            f"{medians[cell] / best:.0%}",
        )
    console.print()
    show(console, table)
    record(
        "The choice of autotune beside the grid",
        "steps/s",
        [Case(name, rates)],
        [chosen],
        about=f"The choice took {tuning.seconds:.1f} s; it reaches {share:.0%} of the best cell, and {above:.2f} times"
        f" the formula, {formula}.",
    )
    assert share >= 0.9
    assert above >= 1.0
