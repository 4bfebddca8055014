"""Statistics of groups of runs beside each other: a table, and a figure."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastrl.runs.curves import Curve, draw_env, read_curves
from fastrl.runs.listing import EVALUATION, RETURN, runs_in
from fastrl.runs.metrics import brief, counted, fixed
from fastrl.runs.report import FinishedRun, differences, read_runs, table_lines
from fastrl.runs.statistics import (
    CAVEAT,
    INTERVAL,
    RESAMPLES,
    Estimate,
    bootstrap,
    improvement,
    interquartile_mean,
    mean,
    performance_profile,
)
from fastrl.utils.config import ConfigError
from fastrl.utils.files import save_figure
from fastrl.utils.names import suggestion
from fastrl.utils.output import figure_text

# A score, or scores float64 [n].
S = TypeVar("S", float, NDArray[np.float64])
# Returns that are 0 and 1 after normalisation, by environment.
References = Mapping[str, tuple[float, float]]
# The key of all environments.
ALL = "all environments"


@dataclass(frozen=True)
class Group:
    """Runs that belong together.

    Attributes:
        name: as tables show it.
        scores: of the evaluations at the end, by environment, float64 [runs].
    """

    name: str
    scores: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Row:
    """Statistics of a group on an environment, or on all.

    Attributes:
        env: its id; `ALL`.
        group: its name.
        runs: their number.
        iqm: interquartile mean of the scores.
        mean, median: of the scores.
        improvement: probability that a run has a higher score than one of the first group; None of that itself, and
            where it has no runs.
    """

    env: str
    group: str
    runs: int
    iqm: Estimate
    mean: float
    median: float
    improvement: Estimate | None

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        better = None if self.improvement is None else self.improvement._asdict()
        return {**self.__dict__, "iqm": self.iqm._asdict(), "improvement": better}


@dataclass(frozen=True)
class Comparison:
    """Groups of runs beside each other; `compare` makes it.

    Attributes:
        groups: the first one is the baseline.
        envs: in the order of the table.
        references: scores are 0 and 1 at these returns; empty: scores are returns.
        metric: of the curves.
        curves: of the runs that have one, labelled by their groups.
        left_out: a line for each run that is not among them.
    """

    groups: Sequence[Group]
    envs: Sequence[str]
    references: References
    metric: str
    curves: Sequence[Curve]
    left_out: Sequence[str]

    @property
    def is_normalised(self) -> bool:
        return bool(self.references)

    def rows(self) -> list[Row]:
        """A row for each group on each environment; those of all environments first, if scores are normalised."""
        return list(self._table)

    @functools.cached_property
    def _table(self) -> list[Row]:
        # The bootstraps take seconds: the table and the figure share them.
        return [row for env in self._parts() for row in self._rows(env)]

    def _parts(self) -> list[str]:
        has_all = len(self.envs) > 1 and any(self._scores(group, ALL) for group in self.groups)
        return [*([ALL] if self.is_normalised and has_all else []), *self.envs]

    def _scores(self, group: Group, env: str) -> list[NDArray[np.float64]]:
        """Scores by environment; empty if the group has no runs on one."""
        envs = self.envs if env == ALL else [env]
        found = [group.scores[each] for each in envs if each in group.scores]
        return found if len(found) == len(envs) else []

    def _rows(self, env: str) -> Iterator[Row]:
        first = self._scores(self.groups[0], env)
        for group in self.groups:
            scores = self._scores(group, env)
            if scores:
                is_compared = bool(first) and group is not self.groups[0]
                yield Row(
                    env=env,
                    group=group.name,
                    runs=sum(map(len, scores)),
                    iqm=bootstrap(interquartile_mean, *scores),
                    mean=float(mean(*scores)),
                    median=float(np.median(np.concatenate(scores))),
                    improvement=bootstrap(improvement, *scores, *first) if is_compared else None,
                )

    def to_tree(self) -> dict[str, Any]:
        """The rows, and what was left out, for JSON."""
        tree = [row.to_tree() for row in self.rows()]
        return {"rows": tree, "is_normalised": self.is_normalised, "left_out": list(self.left_out)}

    def to_markdown(self) -> str:
        """A table for each environment, and what its columns mean."""
        first = self.groups[0].name
        rows, lines = self.rows(), []
        for env in self._parts():
            cells = [
                (
                    row.group,
                    str(row.runs),
                    _text(row.iqm),
                    brief(row.mean),
                    brief(row.median),
                    "-" if row.improvement is None else _text(row.improvement, 2),
                )
                for row in rows
                if row.env == env
            ]
            names = ["group", "runs", "IQM", "mean", "median"]
            if len(self.groups) > 1:
                names.append(f"P(better than {first})")
            lines += [f"{env}:", "", *table_lines(names, [each[: len(names)] for each in cells], left=1), ""]
        scores = "scores, 0 and 1 at the references," if self.is_normalised else "returns"
        lines.append(
            f"IQM: interquartile mean of the {scores} of evaluations at the end. In brackets: {INTERVAL}, stratified by"
            f" environment ({RESAMPLES:,} resamples of the runs, percentiles). {CAVEAT} One run has none."
        )
        if len(self.groups) > 1:
            lines.append(f"P(better than {first}): probability that a run scores higher than one of {first}.")
        return "\n".join(lines) + "\n"

    def draw(self, path: str | PathLike[str]) -> None:
        """Draws interquartile means, performance profiles and learning curves, into a PNG or SVG file."""
        from matplotlib.figure import Figure

        parts, rows = self._parts(), self.rows()
        columns = 3 if self.curves else 2
        figure = Figure(figsize=(4.6 * columns, 3.4 * len(parts)), layout="constrained")
        grid = figure.subplots(len(parts), columns, squeeze=False)
        labels = [group.name for group in self.groups]
        score = "normalised score" if self.is_normalised else "return"
        for env, (left, middle, *right) in zip(parts, grid, strict=True):
            left.set_title(figure_text(env), loc="left")
            _draw_means(left, [row for row in rows if row.env == env], labels, score)
            self._draw_profiles(middle, env, score)
            curves = self._curves(env)
            for axes in right:
                if curves:
                    draw_env(axes, curves, self.metric, labels, is_joined=env == ALL)
                else:
                    axes.remove()
        save_figure(Path(path), figure, dpi=150)

    def _curves(self, env: str) -> list[Curve]:
        """Curves of an environment; of all environments normalised returns, of groups that have curves on each."""
        if env != ALL:
            return [curve for curve in self.curves if curve.env == env]
        if self.metric not in (EVALUATION, RETURN):
            return []
        longest: dict[str, float] = {}
        on_env = {curve.label: set[str]() for curve in self.curves}
        for curve in self.curves:
            longest[curve.env] = max(longest.get(curve.env, 1.0), float(curve.steps[-1]))
            on_env[curve.label].add(curve.env)
        return [
            Curve(
                curve.env,
                curve.label,
                curve.steps / longest[curve.env],
                _normalised(curve.values, curve.env, self.references),
            )
            for curve in self.curves
            if on_env[curve.label] >= set(self.envs)
        ]

    def _draw_profiles(self, axes: Any, env: str, score: str) -> None:
        scores = [self._scores(group, env) for group in self.groups]
        every = np.concatenate([each for found in scores for each in found])
        # The shares change at scores; the first is 1.
        thresholds = np.unique([every.min() - 0.03 * (np.ptp(every) or 1.0), *every])
        for number, found in enumerate(scores):
            if found:
                shares = performance_profile(thresholds, *found)
                axes.plot(thresholds, shares[:, 0], color=f"C{number}", drawstyle="steps-post")
                axes.fill_between(
                    thresholds, *shares[:, 1:].T, step="post", color=f"C{number}", alpha=0.2, linewidth=0
                )
        axes.set_xlabel(f"{score},\nband: {INTERVAL}")
        axes.set_ylabel("share of runs above it")
        axes.set_ylim(-0.03, 1.03)
        axes.grid(alpha=0.3)


def _draw_means(axes: Any, rows: Sequence[Row], labels: Sequence[str], score: str) -> None:
    for at, row in enumerate(reversed(rows)):
        color = f"C{labels.index(row.group)}"
        axes.plot(
            [row.iqm.low, row.iqm.high], [at, at], color=color, linewidth=8, alpha=0.35, solid_capstyle="butt"
        )
        axes.plot([row.iqm.value], [at], "|", color=color, markersize=14, markeredgewidth=2.5)
    names = [f"{row.group}\n{counted(row.runs, 'run')}" for row in reversed(rows)]
    axes.set_yticks(range(len(rows)), [figure_text(name) for name in names])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel(f"interquartile mean of {score}s,\n{INTERVAL}")
    axes.locator_params("x", nbins=6)
    axes.grid(alpha=0.3, axis="x")


def _text(estimate: Estimate, digits: int | None = None) -> str:
    values = [brief(each) if digits is None else fixed(each, digits) for each in estimate]
    return f"{values[0]} (no interval)" if values[1] == "-" else f"{values[0]} ({values[1]} to {values[2]})"


def compare(
    runs: str | PathLike[str] | Sequence[str | PathLike[str]],
    by: str | Sequence[str] = (),
    *,
    references: References | None = None,
    metric: str | None = None,
) -> Comparison:
    """Compares groups of runs by the scores of their evaluations at the end.

    Args:
        runs: run directories, or directories of them. The first run's group is the baseline.
        by: settings by which runs are grouped, such as ``algo`` or ``ppo.gamma``; empty: runs on one environment that
            differ in their seed alone are a group.
        references: by environment the returns that become 0 and 1, such as those of random actions and of an expert;
            then scores are normalised, and joined over the environments.
        metric: of the learning curves; None: evaluations on the way, or, if fewer runs have these, the return in
            training.

    Raises:
        ConfigError: there are no such runs, settings or references, or no run has ended with an evaluation.
    """
    folders = [runs] if isinstance(runs, str | PathLike) else runs
    keys = [by] if isinstance(by, str) else by
    paths = list(dict.fromkeys(path for folder in folders for path in runs_in(Path(folder))))
    finished, left_out = read_runs(paths)
    ended: list[FinishedRun] = []
    for run in finished:
        if run.info.state != "complete":
            left_out.append(f"{run.info.path}: it is {run.info.state}")
        elif not np.isfinite(run.score):
            left_out.append(f"{run.info.path}: it has no evaluation at its end")
        else:
            ended.append(run)
    if not ended:
        raise ConfigError(left_out[0])
    names = {run.info.path: _name(run, ended, keys) for run in ended}
    envs = list(dict.fromkeys(run.info.env for run in ended))
    grouped: dict[str, dict[str, list[float]]] = {}
    for run in ended:
        score = _normalised(run.score, run.info.env, references) if references else run.score
        grouped.setdefault(names[run.info.path], {}).setdefault(run.info.env, []).append(score)
    groups = [
        Group(name, {env: np.array(scores) for env, scores in of.items()}) for name, of in grouped.items()
    ]
    if references:
        left_out += [
            f"{ALL}: {group.name} has no run on {env}"
            for group in groups
            for env in envs
            if env not in group.scores
        ]
    curve_metric, curves, errors = read_curves(names, metric)
    if metric is not None and not curves:
        raise errors[0]
    return Comparison(groups, envs, references or {}, curve_metric, curves, left_out)


def _normalised(score: S, env: str, references: References) -> S:
    if env not in references:
        raise ConfigError(f"references: expected one for each environment, got none for {env}")
    low, high = references[env]
    if low == high:
        raise ConfigError(f"references: expected two different returns for {env}, got {low:g} twice")
    normalised: S = (score - low) / (high - low)
    return normalised


def _name(run: FinishedRun, runs: Sequence[FinishedRun], by: Sequence[str]) -> str:
    """The name of a run's group: its algorithm and the settings that other runs on its environment have otherwise, or
    the settings in ``by``."""
    if by:
        values = {key: _setting(run, runs, key) for key in by}
        return ", ".join(str(value) if key == "algo" else f"{key} {value}" for key, value in values.items())
    alike = [each for each in runs if (each.info.env, each.info.algo) == (run.info.env, run.info.algo)]
    return ", ".join([run.info.algo, *(f"{key} {value}" for key, value in differences(run, alike).items())])


def _setting(run: FinishedRun, runs: Sequence[FinishedRun], name: str) -> Any:
    """The value of a setting, whose name may lack the table; "-" where other runs alone have it."""
    key = name.replace("-", "_")
    found = [each for each in run.settings if each == key or each.endswith(f".{key}")]
    if len(found) > 1 and key not in found:
        raise ConfigError(f"by {name}: expected the name of one setting, got that of {' and '.join(found)}")
    if not found and not any(f".{each}".endswith(f".{key}") for other in runs for each in other.settings):
        known = {
            word for other in runs for each in other.settings for word in (each, each.rpartition(".")[2])
        }
        raise ConfigError(f"by {name}: no run has such a setting; {suggestion(key, sorted(known))}")
    return run.settings[key if key in found else found[0]] if found else "-"
