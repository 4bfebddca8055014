"""Learning curves over seeds, in pieces: a plan names runs, a file of rows keeps what has ended.

    python benches/learning_curves.py backends --jobs 2
    python benches/learning_curves.py backends --report

A plan is ``benches/curves/NAME.toml``: tables ``runs`` (``env``, ``algo``, ``steps``, ``seeds``, ``variants``), each
with the settings that all of its variants share. A run is a process of one thread, evaluated without exploration at
``points`` equal parts of its steps. Rows are appended to ``docs/benchmarks/results/NAME.jsonl`` as runs end; runs that
have a row are left out, so the same command continues after an interruption.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from fastrl.cli.arguments import at_least
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

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """Identification of its row."""
        return self.env, self.algo, self.variant, self.seed, self.steps


@dataclass(frozen=True)
class Row:
    """What came of a run: returns of evaluations by steps, and the processor time of all of it."""

    env: str
    algo: str
    variant: str
    seed: int
    steps: int
    curve: list[tuple[int, float]]
    cpu_seconds: float

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """Identification of the run."""
        return self.env, self.algo, self.variant, self.seed, self.steps

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
            for name, settings in group["variants"].items():
                if seed < group["seeds"]:
                    own = {**group.get("settings", {}), **settings}
                    points = group.get("points", 10)
                    yield Planned(group["env"], group["algo"], name, seed, group["steps"], points, own)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, none if there is no file yet."""
    if not path.exists():
        return []
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()]


def trained(run: Planned) -> Row:
    """The row of a run that is trained in this process."""
    import fastrl

    model = fastrl.Model(
        run.env,
        algo=run.algo,
        seed=run.seed,
        device="cpu",
        collector="sequential",
        threads=1,
        eval_points=run.points,
        **run.settings,
    )
    with tempfile.TemporaryDirectory() as folder:
        model.learn(run.steps, run_dir=Path(folder) / "run", progress=False)
        metrics = (Path(folder) / "run" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in metrics.splitlines()]
    curve = [
        (row["time/total_timesteps"], round(row["eval/mean_reward"], 3))
        for row in rows
        if "eval/mean_reward" in row
    ]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = round(usage.ru_utime + usage.ru_stime, 1)
    return Row(run.env, run.algo, run.variant, run.seed, run.steps, curve, seconds)


def in_a_process(run: Planned) -> Row:
    """The row of a run that is trained in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(asdict(run))]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True
    )
    return Row(**json.loads(done.stdout.splitlines()[-1]))


def report(rows: list[Row]) -> None:
    """Prints a line for each algorithm, environment and variant: means over seeds with deviations."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.env, row.algo, row.variant, f"{row.steps:,}"), []).append(row)
    table = Table(
        *("environment", "algorithm", "variant", "steps", "seeds", "last", "mean of curve", "CPU s")
    )
    for group, found in sorted(groups.items()):
        cpu = f"{statistics.fmean(row.cpu_seconds for row in found):.0f}"
        last, mean = spread([row.last for row in found]), spread([row.mean for row in found])
        table.add_row(*group, str(len(found)), last, mean, cpu)
    show(plain_console(), table)


def spread(values: list[float]) -> str:
    """Mean and deviation between seeds as text."""
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):.1f} ± {deviation:.1f}"


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
        have = {row.key for row in read_rows(path)}
        todo = [run for run in planned(plan) if run.key not in have]
        with ThreadPoolExecutor(options.jobs) as pool, path.open("a") as rows:
            for number, row in enumerate(pool.map(in_a_process, todo), 1):
                rows.write(json.dumps(asdict(row)) + "\n")
                rows.flush()
                print(
                    f"{number} of {len(todo)}: {row.env} {row.algo} {row.variant} {row.seed}: {row.last}",
                    flush=True,
                )
    report(read_rows(path))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
