"""Learning curves over seeds, in pieces: a plan names runs, a file of rows keeps what has ended.

    python benches/learning_curves.py backends --jobs 2
    python benches/learning_curves.py backends --report

A plan is ``benches/curves/NAME.toml``: tables ``runs`` (``env``, ``algo``, ``steps``, ``seeds``, ``variants``), each
with the settings that all of its variants share, with options of the environment, to which variants add theirs, and
with ``random_demos``, a number of episodes of random actions, if it learns from recorded ones. ``algo`` is a name, or a
table of several with settings of their own. A run is a process of one thread, evaluated without exploration at
``points`` equal parts of its steps. Rows are appended to ``docs/benchmarks/results/NAME.jsonl`` as runs end; runs that
have a row with the same settings are left out, so the same command continues after an interruption.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from rich.table import Table

from fastrl.cli.arguments import at_least
from fastrl.runs.metrics import moments, plus_minus
from fastrl.utils.errors import UserError
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show

ROOT = Path(__file__).parent.parent
PLANS = ROOT / "benches" / "curves"
ROWS = ROOT / "docs" / "benchmarks" / "results"


@dataclass(frozen=True)
class Planned:
    """One run: an algorithm with its settings on an environment, from one seed."""

    env: str
    algo: str
    variant: str
    seed: int
    steps: int
    points: int
    settings: dict[str, Any]
    random_demos: int = 0


@dataclass(frozen=True)
class Row:
    """Result of a run: its returns as (steps, mean return) of each evaluation, its processor time, and the measures of
    the evaluation at its end, on other episodes, by name; empty in older rows."""

    run: Planned
    curve: list[tuple[int, float]]
    cpu_seconds: float
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def last(self) -> float:
        """Mean return of the last evaluation."""
        return self.curve[-1][1]

    @property
    def mean(self) -> float:
        """Mean over all evaluations: the area under the curve per step."""
        return statistics.fmean(value for _, value in self.curve)


def planned(plan: dict[str, Any]) -> Iterator[Planned]:
    """The runs of a plan, seed by seed, so that what has ended can be compared at any time.

    Args:
        plan: the parsed TOML file.
    """
    seeds = max(group["seeds"] for group in plan["runs"])
    for seed in range(seeds):
        for group in plan["runs"]:
            algorithms = {group["algo"]: {}} if isinstance(group["algo"], str) else group["algo"]
            points, demos = group.get("points", 10), group.get("random_demos", 0)
            both = itertools.product(algorithms.items(), group["variants"].items())
            for (algo, of_algo), (name, settings) in both:
                if seed < group["seeds"]:
                    own = {**group.get("settings", {}), **of_algo, **settings}
                    if "options" in group:
                        own["env__options"] = [*group["options"], *own.get("env__options", ())]
                    yield Planned(group["env"], algo, name, seed, group["steps"], points, own, demos)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, none if there is no file yet."""
    if not path.exists():
        return []
    return [row_of(line) for line in path.read_text().splitlines()]


def row_of(line: str) -> Row:
    """A row from its line of JSON."""
    tree = json.loads(line)
    curve = [(steps, value) for steps, value in tree["curve"]]
    return Row(**{**tree, "run": Planned(**tree["run"]), "curve": curve})


def trained(run: Planned) -> Row:
    """The row of a run that is trained in this process."""
    import fastrl

    with tempfile.TemporaryDirectory() as folder:
        settings = dict(run.settings)
        if run.random_demos:
            settings["demos"] = str(Path(folder) / "demos")
            fastrl.demos.record(run.env, "random", run.random_demos, settings["demos"], seed=0)
        model = fastrl.Model(
            run.env,
            algo=run.algo,
            seed=run.seed,
            device="cpu",
            eval_points=run.points,
            **{"collector": "sequential", "threads": 1, **settings},
        )
        model.learn(run.steps, run_dir=Path(folder) / "run", progress=False)
        metrics = (Path(folder) / "run" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in metrics.splitlines()]
    curve = [
        (row["time/total_timesteps"], round(row["eval/mean_reward"], 3))
        for row in rows
        if "eval/mean_reward" in row
    ]
    assert model.summary is not None, "`learn` makes one"
    last = model.summary.evaluation
    scores = {} if last is None else {"mean_return": last.mean_return, **last.metrics()}
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_seconds = round(usage.ru_utime + usage.ru_stime, 1)
    return Row(run, curve, cpu_seconds, {name: round(value, 4) for name, value in scores.items()})


def in_a_process(run: Planned) -> Row:
    """The row of a run that is trained in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(asdict(run))]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True
    )
    return row_of(done.stdout.splitlines()[-1])


def train_missing(runs: list[Planned], path: Path, jobs: int) -> None:
    """Trains the runs that have no row in a file, some at once, and appends the row of each as it ends."""
    have = [row.run for row in read_rows(path)]
    writing = Lock()

    def train(run: Planned) -> Row:
        row = in_a_process(run)
        with writing, path.open("a") as rows:
            rows.write(json.dumps(asdict(row)) + "\n")
        return row

    with ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(train, [run for run in runs if run not in have]):
            print(f"{row.run.env} {row.run.algo} {row.run.variant} {row.run.seed}: {row.last}", flush=True)


def report(rows: list[Row]) -> None:
    """Prints last evaluations and means of all evaluations, over seeds: a line for each variant."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        run = row.run
        groups.setdefault((run.env, run.algo, run.variant, f"{run.steps:,}"), []).append(row)
    table = Table(*("environment", "algorithm", "variant", "steps", "seeds", "last", "mean", "CPU s"))
    for group, found in sorted(groups.items()):
        cpu = f"{statistics.fmean(row.cpu_seconds for row in found):.0f}"
        last, mean = (
            mean_and_deviation(values)
            for values in ([row.last for row in found], [row.mean for row in found])
        )
        table.add_row(*group, str(len(found)), last, mean, cpu)
    show(plain_console(), table)


def mean_and_deviation(values: list[float]) -> str:
    """Mean and deviation between seeds as text."""
    found = moments(values)
    return plus_minus(found["mean"], found["deviation"], digits=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("plan", nargs="?", help="name of a file of benches/curves, without its suffix")
    parser.add_argument("--jobs", type=at_least(1), default=1, help="runs at once (default: 1)")
    parser.add_argument("--report", action="store_true", help="print what there is, train nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asdict(trained(Planned(**json.loads(options.one))))))
        return
    plans = sorted(path.stem for path in PLANS.glob("*.toml"))
    if options.plan not in plans:
        raise UserError(
            f"there is no plan {options.plan!r} in benches/curves: choose from {', '.join(plans)}"
        )
    path = ROWS / f"{options.plan}.jsonl"
    if not options.report:
        plan = tomllib.loads((PLANS / f"{options.plan}.toml").read_text())
        train_missing(list(planned(plan)), path, options.jobs)
    report(read_rows(path))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
