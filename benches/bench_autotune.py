"""The choice of ``fastrl autotune`` beside an exhaustive grid of collectors, workers and threads.

Run: ``pytest benches/bench_autotune.py -s`` on an otherwise idle machine; ``-k CartPole`` chooses a case.
The choice is made first. Then every cell of the grid, the choice's too, trains in turns beside the others, with the
rollouts of the run. The bars: the choice reaches 90% of the best cell, and is no slower than the formula, a worker for
each core but one.
"""

import statistics
from contextlib import ExitStack

import pytest

from fastrl.benchmarks.results import Case
from fastrl.cli.train import Command
from fastrl.collectors.resources import cores
from fastrl.tasks import find
from fastrl.training.autotune import autotune
from fastrl.training.trials import Trial
from fastrl.training.tuning import Candidate
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show
from recording import Record
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


def grid_of(num_envs: int) -> list[Candidate]:
    """Every collector with 1, 2, 4 ... workers up to one for each environment."""
    counts = sorted({1, cores() - 1, *(2**i for i in range(6)), num_envs} - {0})
    return [
        Candidate("sequential", 1, 1),
        *(Candidate(kind, n, 1) for kind in ("sync", "executor") for n in counts if n <= num_envs),
    ]


@pytest.mark.parametrize("name", CASES)
def test_the_choice_beside_the_grid(name: str, record: Record) -> None:
    task, console = find("gym"), plain_console()
    settings = Command(task, "fastrl train", CASES[name]).settings()
    tuning = autotune(task, settings)
    cells = grid_of(settings.env.num_envs)
    [found] = tuning.chosen
    chosen = found.way
    assert isinstance(chosen, Candidate)
    if chosen not in cells:
        cells.append(chosen)
    formula = Candidate("executor", max(1, min(cores() - 1, settings.env.num_envs)), 1)
    rates: dict[Candidate, list[float]] = {cell: [] for cell in cells}
    with ExitStack() as stack:
        trials = {cell: stack.enter_context(Trial(task, settings, cell.values)) for cell in cells}
        for trial in trials.values():
            trial.turn()
        for cell in turns(cells, ROUNDS):
            rates[cell].append(trials[cell].turn().rate)
    medians = {
        cell: statistics.median(own[i] / statistics.mean(rates[c][i] for c in cells) for i in range(ROUNDS))
        for cell, own in rates.items()
    }
    best = max(medians.values())
    share, above = (
        medians[chosen] / best,
        medians[chosen] / medians[formula],
    )
    predicted = {each.way: each.predicted for each in tuning.results}
    table = number_table(
        f"{name}: the choice reaches {share:.0%} of the best, {above:.2f} times the formula;"
        f" chosen in {tuning.seconds:.1f} s",
        "",
        "predicted",
        "steps/s",
        "of the best",
    )
    for cell in sorted(cells, key=lambda cell: -medians[cell]):
        note = " (chosen)" if cell == chosen else ""
        note += " (formula)" if cell == formula else ""
        table.add_row(
            cell.label + note,
            f"{predicted[cell]:,.0f}" if cell in predicted else "-",
            f"{statistics.median(rates[cell]):,.0f}",
            f"{medians[cell] / best:.0%}",
        )
    console.print()
    show(console, table)
    record(
        "The choice of autotune beside the grid",
        "steps/s",
        [Case(name, {cell.label: of for cell, of in rates.items()})],
        [chosen.label],
        about=f"The choice took {tuning.seconds:.1f} s; it reaches {share:.0%} of the best cell, and {above:.2f} times"
        f" the formula, {formula.label}.",
    )
    assert share >= 0.9
    assert above >= 1.0
