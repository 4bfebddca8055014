"""Results of teams in traffic with and without radio: tables from the rows of their plan.

`python benches/learning_curves.py traffic-teams` trains what has no row yet, `python docs/draw_traffic_teams.py` prints
the tables and draws the figure. Means are interquartile means over seeds, with bootstrap intervals
(`fastrl.runs.statistics`).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastrl.runs.metrics import fixed
from fastrl.runs.report import table_lines
from fastrl.runs.statistics import (
    CAVEAT,
    INTERVAL,
    RESAMPLES,
    Estimate,
    bootstrap,
    improvement,
    interquartile_mean,
)
from learning_curves import PLANS, ROWS, Planned, Row, planned, read_rows

PLAN = "traffic-teams"
FILE = ROWS / f"{PLAN}.jsonl"
WORLDS = {
    "fastrl/coop-highway-v0": "highway",
    "fastrl/coop-merge-v0": "merge",
    "fastrl/intersection-multi-agent-v2": "crossing",
}
# Variants of the plan. The question is what the second has over the first; the third is a bound.
SILENT, RADIO, SIGHT = CHANNELS = ("no radio", "radio", "sight")


@dataclass(frozen=True)
class Measure:
    """A number of `fastrl.tasks.traffic.scores.Scores` as tables show it: times a factor, with so many digits."""

    name: str
    heading: str
    digits: int = 1
    factor: float = 1.0
    lower_is_better: bool = False


MEASURES = (
    Measure("success_rate", "success, %", factor=100.0),
    Measure("collisions_per_vehicle_hour", "crashes per vehicle-hour", lower_is_better=True),
    Measure("throughput", "vehicles/h", digits=0),
    Measure("arrival_time", "s to arrival", lower_is_better=True),
)
# Values over seeds, float64 [n], by world, algorithm and channel.
Cells = Mapping[tuple[str, str, str], NDArray[np.float64]]


def cells_of(rows: Iterable[Row], measure: Measure) -> Cells:
    """The values of a measure, of the cells in which it is known."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        value = row.scores.get(measure.name, math.nan)
        if math.isfinite(value):
            key = (WORLDS[row.run.env], row.run.algo, row.run.variant)
            found.setdefault(key, []).append(measure.factor * value)
    return {key: np.array(values) for key, values in found.items()}


def difference(*scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The interquartile mean of each group less that of its baseline, the mean over the groups.

    Args:
        scores: float64 [..., n] of each group, then of the baselines.
    """
    half = len(scores) // 2
    pairs = zip(scores[:half], scores[half:], strict=True)
    return np.asarray(np.mean([interquartile_mean(a) - interquartile_mean(b) for a, b in pairs], axis=0))


@dataclass(frozen=True)
class Effect:
    """The radio's effect on a measure in a world: the difference to no radio, and the probability that it is better.

    Attributes:
        algorithm: empty: the mean over all.
    """

    world: str
    algorithm: str
    measure: Measure
    difference: Estimate
    improvement: Estimate

    @property
    def is_known(self) -> bool:
        """True if the interval of the difference leaves 0 out."""
        return self.difference.low > 0 or self.difference.high < 0


def effects(rows: Sequence[Row], measure: Measure) -> Iterator[Effect]:
    """Effects in each world: of each algorithm that has both channels, then of all."""
    cells = cells_of(rows, measure)
    for world in WORLDS.values():
        algorithms = [
            algorithm
            for algorithm in dict.fromkeys(row.run.algo for row in rows)
            if {(world, algorithm, SILENT), (world, algorithm, RADIO)} <= cells.keys()
        ]
        groups = [[algorithm] for algorithm in algorithms]
        for group in [*groups, algorithms] if len(algorithms) > 1 else groups:
            samples = [cells[world, algorithm, channel] for channel in (RADIO, SILENT) for algorithm in group]
            sign = -1.0 if measure.lower_is_better else 1.0
            yield Effect(
                world,
                "" if len(group) > 1 else group[0],
                measure,
                bootstrap(difference, *samples),
                bootstrap(improvement, *(sign * sample for sample in samples)),
            )


def tables(rows: Sequence[Row]) -> str:
    """The radio's effects in sentences, then all cells and the effects as tables, in Markdown."""
    if not rows:
        return f"There are no rows yet: `python benches/learning_curves.py {PLAN}` makes them."
    found = {measure: list(effects(rows, measure)) for measure in MEASURES}
    about = (
        f"Interquartile means over seeds with their {INTERVAL} ({RESAMPLES:,} resamples of the seeds, percentiles)."
        f" {CAVEAT} All: the mean over the algorithms, resampled within each."
    )
    return "\n".join([*verdicts(found), "", *_means(rows), "", *_effects(found), "", about])


def verdicts(found: Mapping[Measure, Sequence[Effect]]) -> list[str]:
    """A line for each world: where the interval of the radio's effect, over all algorithms, leaves 0 out."""
    lines = []
    for world in WORLDS.values():
        parts = []
        for measure, of_measure in found.items():
            # The last one is that of all algorithms.
            last = [effect for effect in of_measure if effect.world == world][-1:]
            for effect in last:
                sign = "better" if (effect.difference.value < 0) == measure.lower_is_better else "worse"
                unknown = "no interval" if math.isnan(effect.difference.low) else "no difference shown"
                verdict = sign if effect.is_known else unknown
                parts.append(f"{measure.heading} {_text(effect.difference, measure.digits)}, {verdict}")
        if parts:
            lines.append(f"- {world}, radio less no radio: {'; '.join(parts)}.")
    return lines


def _means(rows: Sequence[Row]) -> list[str]:
    lines = []
    cells = {measure: cells_of(rows, measure) for measure in MEASURES}
    for world, algorithm, channel in _keys(rows):
        key = (world, algorithm, channel)
        values = [
            _text(bootstrap(interquartile_mean, cells[measure][key]), measure.digits)
            if key in cells[measure]
            else "-"
            for measure in MEASURES
        ]
        seeds = max((len(of[key]) for of in cells.values() if key in of), default=0)
        lines.append([world, algorithm, channel, str(seeds), *values])
    names = ["world", "algorithm", "agents know each other by", "seeds", *_headings()]
    return table_lines(names, lines, left=len(names))


def _effects(found: Mapping[Measure, Sequence[Effect]]) -> list[str]:
    both = [cell for heading in _headings() for cell in (f"{heading}: radio less none", "P(better)")]
    lines = []
    keys = dict.fromkeys((effect.world, effect.algorithm) for each in found.values() for effect in each)
    for world, algorithm in keys:
        cells = []
        for measure, each in found.items():
            own = [effect for effect in each if (effect.world, effect.algorithm) == (world, algorithm)]
            cells += [_text(effect.difference, measure.digits) for effect in own] or ["-"]
            cells += [_text(effect.improvement, 2) for effect in own] or ["-"]
        lines.append([world, algorithm or "all", *cells])
    names = ["world", "algorithm", *both]
    return table_lines(names, lines, left=len(names))


def _keys(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """World, algorithm and channel of all cells, in the order of the plan."""
    there = {(WORLDS[row.run.env], row.run.algo, row.run.variant) for row in rows}
    algorithms = dict.fromkeys(row.run.algo for row in rows)
    return [
        key
        for world in WORLDS.values()
        for algorithm in algorithms
        for channel in CHANNELS
        if (key := (world, algorithm, channel)) in there
    ]


def _headings() -> list[str]:
    return [measure.heading for measure in MEASURES]


def _text(estimate: Estimate, digits: int) -> str:
    value, low, high = (fixed(each, digits) for each in estimate)
    return value if low == "-" else f"{value} ({low} to {high})"


def plan() -> list[Planned]:
    """The runs of the plan of today."""
    return list(planned(tomllib.loads((PLANS / f"{PLAN}.toml").read_text(encoding="utf-8"))))


def board(path: Path = FILE, runs: Sequence[Planned] | None = None) -> list[Row]:
    """The rows of a file that are of these runs, of the plan by default, in their order."""
    rows = read_rows(path)
    return [row for run in (plan() if runs is None else runs) for row in rows if row.run == run]
