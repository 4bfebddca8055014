"""Pictures of learning curves: the interquartile mean over runs that belong together, and its interval."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastrl.runs.listing import EVALUATION, RETURN, read_curve, read_run
from fastrl.runs.metrics import counted
from fastrl.runs.statistics import INTERVAL, bootstrap, interquartile_mean
from fastrl.utils.config import ConfigError
from fastrl.utils.files import save_figure
from fastrl.utils.output import figure_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
# Points of the line of a group.
POINTS = 200
# Labels of axes, by metric.
_WORDS = {
    RETURN: "mean return of training episodes",
    "rollout/ep_len_mean": "mean length of training episodes, steps",
    "rollout/ep_success_rate": "share of training episodes with success",
    EVALUATION: "mean return of evaluation episodes",
    "time/fps": "environment steps per second",
}


@dataclass(frozen=True)
class Curve:
    """A metric of one run.

    Attributes:
        env: what the run trains on.
        label: of the group of runs that share a line.
        steps: environment steps, float64 [rows], rising.
        values: of the metric, float64 [rows].
    """

    env: str
    label: str
    steps: NDArray[np.float64]
    values: NDArray[np.float64]


def read_curves(
    labels: Mapping[Path, str], metric: str | None = None
) -> tuple[str, list[Curve], list[ConfigError]]:
    """Curves of runs, with the metric, and an error for each run that has no values of it.

    Args:
        labels: of the groups that the runs belong to; empty: that of its algorithm.
        metric: None: evaluations on the way, or, if fewer runs have these, the return in training.
    """
    if metric is None:
        return min(
            (read_curves(labels, each) for each in (EVALUATION, RETURN)), key=lambda read: len(read[2])
        )
    curves, errors = [], []
    for path, label in labels.items():
        try:
            info = read_run(path)
            curves.append(Curve(info.env, label or info.algo, *read_curve(path, metric)))
        except ConfigError as error:
            errors.append(error)
    return metric, curves, errors


def interquartile_curve(curves: Sequence[Curve]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps, float64 [points], and of the interquartile mean over runs the value and the ends of its interval, float64
    [points, 3].

    Values between two rows are interpolated. Where some runs have not begun or are over, those that are left count, if
    there is one on each environment; the interval is NaN where one has no other beside it.
    """
    low, high = min(curve.steps[0] for curve in curves), max(curve.steps[-1] for curve in curves)
    steps = np.linspace(low, high, POINTS) if high > low else np.array([low])
    values = np.stack(
        [np.interp(steps, curve.steps, curve.values, left=np.nan, right=np.nan) for curve in curves], axis=1
    )
    envs = np.array([curve.env for curve in curves])
    by_env = [values[:, envs == env] for env in dict.fromkeys(envs.tolist())]
    # Between the last row of one run and the first of another there is nothing.
    has_values = np.all([np.isfinite(each).any(axis=1) for each in by_env], axis=0)
    rows = zip(*(each[has_values] for each in by_env), strict=True)
    estimates = [bootstrap(interquartile_mean, *(each[np.isfinite(each)] for each in row)) for row in rows]
    return steps[has_values], np.array(estimates)


def draw_curves(curves: Sequence[Curve], metric: str, path: Path) -> None:
    """Draws one line for each label, on axes for each environment, into a PNG or SVG file. The band of several runs is
    an interval, and the legend says so."""
    from matplotlib.figure import Figure

    envs = list(dict.fromkeys(curve.env for curve in curves))
    figure = Figure(figsize=(6.4 * min(len(envs), 3), 4.2 * -(-len(envs) // 3)), layout="constrained")
    grid = figure.subplots(-(-len(envs) // 3), min(len(envs), 3), squeeze=False)
    for axes in grid.flat[len(envs) :]:
        axes.remove()
    labels = list(dict.fromkeys(curve.label for curve in curves))
    for env, axes in zip(envs, grid.flat, strict=False):
        draw_env(axes, [curve for curve in curves if curve.env == env], metric, labels)
        axes.set_title(figure_text(env))
    save_figure(path, figure, dpi=150)


def draw_env(
    axes: "Axes", curves: Sequence[Curve], metric: str, labels: Sequence[str], *, is_joined: bool = False
) -> None:
    """Draws the curves of one environment; the order of labels gives their colours.

    Args:
        is_joined: curves are of several environments: normalised returns over the share of the longest run's steps.
    """
    from matplotlib.ticker import EngFormatter

    has_bands = False
    for number, label in enumerate(labels):
        group = [curve for curve in curves if curve.label == label]
        if not group:
            continue
        steps, estimates = interquartile_curve(group)
        name = f"{label}, {counted(len(group), 'run')}" if len(group) > 1 else label
        has_bands |= len(group) > 1
        marker = "" if len(steps) > 1 else "o"
        axes.plot(steps, estimates[:, 0], color=f"C{number}", label=figure_text(name), marker=marker)
        axes.fill_between(steps, *estimates[:, 1:].T, color=f"C{number}", alpha=0.2, linewidth=0)
    words = _WORDS.get(metric, metric)
    if is_joined:
        axes.set_xlabel("share of the environment steps")
        axes.set_ylabel(figure_text(f"{words},\nnormalised"))
    else:
        axes.set_xlabel("environment steps")
        axes.set_ylabel(figure_text(words))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    title = f"interquartile mean, band: {INTERVAL}" if has_bands else None
    axes.legend(framealpha=0.6, edgecolor="none", title=title, title_fontsize="small", alignment="left")
