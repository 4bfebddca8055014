"""The choice of ``fastrl autotune`` beside an exhaustive grid of collectors, workers and threads.

Run: ``python benches/bench_autotune.py`` on an otherwise idle machine; words as arguments choose cases by their names.
The choice is made first. Then every cell of the grid, the choice's too, trains in turns beside the others, with the
rollouts of the run. The bars: the choice reaches 90% of the best cell, and is no slower than the formula, a worker for
each core but one.
"""

import argparse
import statistics
from contextlib import ExitStack

from fastrl.cli.arguments import at_least
from fastrl.cli.train import Command
from fastrl.collectors.resources import cores
from fastrl.tasks import find
from fastrl.training.autotune import autotune
from fastrl.training.trials import TURN_S, Trial
from fastrl.training.tuning import Candidate
from fastrl.utils.output import plain_console
from fastrl.utils.processes import require_main_guard
from fastrl.utils.tables import show
from rounds import number_table, turns

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


def run(name: str, rounds: int) -> bool:
    """Prints the grid of a case; returns whether the bars are met."""
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
        for cell in turns(cells, rounds):
            rates[cell].append(trials[cell].turn().rate)
    medians = {
        cell: statistics.median(own[i] / statistics.mean(rates[c][i] for c in cells) for i in range(rounds))
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
    return share >= 0.9 and above >= 1.0


def main() -> None:
    """Runs the cases."""
    require_main_guard()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="WORD", help="cases whose names have it [all]")
    parser.add_argument(
        "--rounds",
        type=at_least(1),
        default=5,
        metavar="INT",
        help=f"turns of {TURN_S} s of each cell [5]",
    )
    options = parser.parse_args()
    names = [name for name in CASES if not options.cases or any(word in name for word in options.cases)]
    missed = [name for name in names if not run(name, options.rounds)]
    print(f"\nbars missed: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
