"""Seconds of two cores until evaluations reach a score, beside other libraries, over tasks and seeds, in pieces.

    python benches/seconds_to_score.py --most-minutes 60
    python benches/seconds_to_score.py --tasks Pendulum merge --contenders fastrl --seeds 0 1
    python benches/seconds_to_score.py --report

``seconds_to_score.toml`` has the tasks, the cheapest first, and their contenders with the settings. A run is a process
of its own, on two cores, one after the other (`score_runs`). It ends when the mean of 20 episodes without exploration,
on seeds that nothing else has used, reaches the score, or at the time limit of its task; evaluations do not count.
Rows are appended to ``docs/benchmarks/results/seconds_to_score.jsonl`` as runs end. Runs that have a row with the same
settings are left out, so the same command continues after an interruption; ``python docs/draw_seconds_to_score.py``
draws the chart. `pip install '.[bench]'` installs the other libraries and the environments; what is not there is left
out.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastrl.cli.arguments import positive
from learners import PEERS, missing
from results import machine, shown, versions
from score_runs import CORES, Run

BENCHES = Path(__file__).resolve().parent
PLAN = BENCHES / "seconds_to_score.toml"
ROWS = BENCHES.parent / "docs" / "benchmarks" / "results" / "seconds_to_score.jsonl"
BESIDE = "Stable-Baselines3"
DISTRIBUTIONS = ("fastrl", "numpy", "torch", "gymnasium", "stable-baselines3", "sbx-rl", "jax", "rltools")


@dataclass(frozen=True)
class Row:
    """Result of a run.

    Attributes:
        reached: the last evaluation has the score.
        evaluations: seconds of training, steps and mean score of each.
        about: date, machine, versions of libraries.
    """

    run: Run
    reached: bool
    evaluations: list[list[float]]
    about: dict[str, Any]

    @classmethod
    def from_line(cls, line: str) -> Row:
        tree = json.loads(line)
        return cls(**{**tree, "run": Run(**tree["run"])})

    @property
    def seconds(self) -> float:
        """Seconds of training until its end."""
        return self.evaluations[-1][0]

    @property
    def steps(self) -> float:
        return self.evaluations[-1][1]

    @property
    def best(self) -> float:
        """The best mean of an evaluation."""
        return max(mean for _, _, mean in self.evaluations)


def planned(plan: dict[str, Any]) -> list[Run]:
    """The runs of a plan: task by task, in each seed by seed.

    Args:
        plan: the parsed TOML file.
    """
    return [
        run_of(task, name, seed, plan["episodes"])
        for task in plan["tasks"]
        for seed in range(plan["seeds"])
        for name in task["contenders"]
    ]


def run_of(task: dict[str, Any], name: str, seed: int, episodes: int) -> Run:
    """A run of a task. A contender that is ``like`` another one has its table, with settings of its own on top."""
    own = task["contenders"][name]
    other = task["contenders"].get(own.get("like"), {})
    merged = {**other, **own, "settings": {**other.get("settings", {}), **own.get("settings", {})}}
    return Run(
        task=task["name"],
        env=merged.get("env", task["env"]),
        needs=task.get("needs", ""),
        measure=task.get("measure", "return"),
        score=task["score"],
        episodes=episodes,
        every=task["every"],
        max_seconds=task["max_seconds"],
        contender=name,
        algo=merged["algo"],
        steps=merged["steps"],
        seed=seed,
        settings=merged["settings"],
    )


def read_rows(path: Path = ROWS) -> list[Row]:
    """The rows of a file, none if there is no file yet."""
    return [Row.from_line(line) for line in path.read_text().splitlines()] if path.exists() else []


def installed(runs: Iterable[Run]) -> Iterator[Run]:
    """Those runs whose libraries are there; prints a line about each that is not."""
    runs = list(runs)
    names = {run.contender for run in runs}
    without = missing([name for name in PEERS if name in names])
    without |= {
        run.needs: f"not installed: {run.task} needs it"
        for run in runs
        if run.needs and importlib.util.find_spec(run.needs) is None
    }
    for name, reason in without.items():
        print(f"{name} is left out: {reason}; the extra bench has it: pip install '.[bench]'")
    yield from (run for run in runs if not {run.contender, run.needs} & without.keys())


def in_a_process(run: Run) -> Row:
    """The row of a run.

    Raises:
        subprocess.CalledProcessError: it has failed.
    """
    command = [sys.executable, str(BENCHES / "score_runs.py"), json.dumps(asdict(run))]
    env = os.environ | {"OMP_NUM_THREADS": str(CORES), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env, check=True)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    about = {"date": date, "machine": machine(), "versions": versions(DISTRIBUTIONS)}
    return Row(run, **json.loads(done.stdout.splitlines()[-1]), about=about)


def train_missing(runs: Sequence[Run], path: Path, most_seconds: float = math.inf) -> int:
    """Trains the runs that have no row in a file one after the other, and appends the row of each as it ends.

    Args:
        most_seconds: none starts whose time limit exceeds what is left of these.

    Returns:
        The number of runs that have failed.
    """
    end, have = time.monotonic() + most_seconds, [row.run for row in read_rows(path)]
    failed = waiting = 0
    for run in runs:
        if run in have:
            continue
        if time.monotonic() + run.max_seconds > end:
            waiting += 1
            continue
        try:
            row = in_a_process(run)
        except subprocess.CalledProcessError as error:
            failed += 1
            print(f"{run.task}, {run.contender}, seed {run.seed} has failed: {error}", flush=True)
            continue
        with path.open("a") as rows:
            rows.write(json.dumps(asdict(row)) + "\n")
        result = "reached" if row.reached else f"not reached, {row.best:,.2f} at best,"
        print(
            f"{run.task}, {run.contender}, seed {run.seed}: {result} in {row.seconds:,.1f} s, {row.steps:,} steps",
            flush=True,
        )
    if waiting:
        print(f"{waiting} runs may take longer than the time that is left: not started")
    return failed


@dataclass(frozen=True)
class Entry:
    """The runs of a contender on a task, which differ in their seeds."""

    rows: Sequence[Row]

    @property
    def run(self) -> Run:
        return self.rows[0].run

    @property
    def reached(self) -> list[float]:
        """Seconds of the runs that have reached the score, sorted."""
        return sorted(row.seconds for row in self.rows if row.reached)

    @property
    def median(self) -> float:
        """Median of the seconds; infinite where half of the runs have not reached the score."""
        others = [math.inf] * (len(self.rows) - len(self.reached))
        return statistics.median([*self.reached, *others])

    @property
    def least(self) -> float:
        """The median, or where it is infinite the shortest time that was not enough."""
        if math.isfinite(self.median):
            return self.median
        return min(row.seconds for row in self.rows if not row.reached)

    def cells(self, beside: Entry | None) -> list[str]:
        """Those of its row of the table; the last is the ratio to another contender's seconds."""
        is_known, seconds = math.isfinite(self.median), self.reached
        ratio = ""
        if is_known and beside is not None:
            sign = "" if math.isfinite(beside.median) else "> "
            ratio = f"{sign}{shown(beside.least / self.median)}"
        return [
            f"{self.run.task} {self.run.score:,g}",
            self.run.contender,
            self.run.algo.upper(),
            f"{len(seconds)} of {len(self.rows)}",
            f"{'' if is_known else '> '}{shown(self.least)}",
            f"{shown(seconds[0])} to {shown(seconds[-1])}" if seconds else "",
            f"{statistics.median(row.steps for row in self.rows):,.0f}",
            ratio,
        ]


def entries(rows: Iterable[Row], runs: Sequence[Run]) -> list[Entry]:
    """Entries in the order of a plan, of those rows that it has."""
    found: dict[tuple[str, str], list[Row]] = {(run.task, run.contender): [] for run in runs}
    for row in rows:
        if row.run in runs:
            found[row.run.task, row.run.contender].append(row)
    return [Entry(each) for each in found.values() if each]


def table(found: Sequence[Entry]) -> str:
    """The board in Markdown: a row a task and contender, then when and where it was measured."""
    if not found:
        return "There are no rows yet: `python benches/seconds_to_score.py` makes them."
    beside = {entry.run.task: entry for entry in found if entry.run.contender == BESIDE}
    headings = [
        "task and score",
        "",
        "algorithm",
        "reached",
        "seconds, median",
        "least to most",
        "steps, median",
    ]
    lines = [[*headings, f"times as fast as {BESIDE}"], ["---"] * 8]
    lines += [entry.cells(beside.get(entry.run.task)) for entry in found]
    abouts = [row.about for entry in found for row in entry.rows]
    where = {"{processor}, {cores} cores".format(**about["machine"]) for about in abouts}
    what = {f"{name} {version}" for about in abouts for name, version in about["versions"].items()}
    dates = sorted({about["date"] for about in abouts})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    about = f"{when}; {'; '.join(sorted(where))}; {', '.join(sorted(what))}."
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", about])


def board(path: Path = ROWS) -> list[Entry]:
    """Entries of the rows of a file by the plan of today."""
    return entries(read_rows(path), planned(tomllib.loads(PLAN.read_text(encoding="utf-8"))))


def main() -> int:
    """The command line; returns the exit code."""
    runs = planned(tomllib.loads(PLAN.read_text(encoding="utf-8")))
    tasks, contenders = (
        list(dict.fromkeys(getattr(run, name) for run in runs)) for name in ("task", "contender")
    )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tasks", nargs="+", choices=tasks, default=tasks, metavar="NAME", help=f"of {tasks}"
    )
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=contenders,
        default=contenders,
        metavar="NAME",
        help=f"of {contenders}",
    )
    parser.add_argument("--seeds", nargs="+", type=int, metavar="INT", help="default: all of the plan")
    parser.add_argument(
        "--most-minutes", type=positive, default=math.inf, metavar="FLOAT", help="default: no limit"
    )
    parser.add_argument(
        "--rows", type=Path, default=ROWS, metavar="FILE", help=f"default: {ROWS.name} of the docs"
    )
    parser.add_argument("--report", action="store_true", help="print what there is, train nothing")
    options = parser.parse_args()
    chosen = [
        run
        for run in runs
        if run.task in options.tasks
        and run.contender in options.contenders
        and (options.seeds is None or run.seed in options.seeds)
    ]
    failed = 0
    if not options.report:
        failed = train_missing(list(installed(chosen)), options.rows, 60 * options.most_minutes)
    print(table(board(options.rows)))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
