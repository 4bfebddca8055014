"""Pictures of learning curves: the mean and the spread over runs that belong together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastrl.utils.files import save_figure
from fastrl.utils.output import figure_text

SUFFIXES = (".png", ".svg")
# Points of the line of a group.
POINTS = 200
# Labels of axes, by metric.
_WORDS = {
    "rollout/ep_rew_mean": "mean return of training episodes",
    "rollout/ep_len_mean": "mean length of training episodes, steps",
    "rollout/ep_success_rate": "share of training episodes with success",
    "eval/mean_reward": "mean return of evaluation episodes",
    "time/fps": "environment steps per second",
}


@dataclass(frozen=True)
class Curve:
    """A metric of one run.

    Attributes:
        env: what the run trains on; each environment has axes of its own.
        label: of the group of runs that share a line.
        steps: environment steps, float64 [rows], rising.
        values: of the metric, float64 [rows].
    """

    env: str
    label: str
    steps: NDArray[np.float64]
    values: NDArray[np.float64]


def mean_and_spread(
    curves: Sequence[Curve],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Steps, mean and standard deviation over runs, float64 [points] each.

    Values between two rows are interpolated. Where some runs have not begun or are over, those that are left count; the
    deviation is 0 where one is.
    """
    low, high = min(curve.steps[0] for curve in curves), max(curve.steps[-1] for curve in curves)
    steps = np.linspace(low, high, POINTS) if high > low else np.array([low])
    # Between the last row of one run and the first of another there is nothing.
    steps = steps[
        np.any([(curve.steps[0] <= steps) & (steps <= curve.steps[-1]) for curve in curves], axis=0)
    ]
    values = np.stack(
        [np.interp(steps, curve.steps, curve.values, left=np.nan, right=np.nan) for curve in curves]
    )
    mean = np.nanmean(values, axis=0)
    counts = np.isfinite(values).sum(axis=0)
    deviation = np.sqrt(np.nansum((values - mean) ** 2, axis=0) / np.maximum(counts - 1, 1))
    return steps, mean, deviation


def draw_curves(curves: Sequence[Curve], metric: str, path: Path) -> None:
    """Draws one line for each label, on axes for each environment, into a PNG or SVG file. The band of several runs is
    a standard deviation wide to either side, and the legend says so."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    envs = list(dict.fromkeys(curve.env for curve in curves))
    figure = Figure(figsize=(6.4 * min(len(envs), 3), 4.2 * -(-len(envs) // 3)), layout="constrained")
    grid = figure.subplots(-(-len(envs) // 3), min(len(envs), 3), squeeze=False)
    for axes in grid.flat[len(envs) :]:
        axes.remove()
    labels = list(dict.fromkeys(curve.label for curve in curves))
    for env, axes in zip(envs, grid.flat, strict=False):
        for number, label in enumerate(labels):
            group = [curve for curve in curves if (curve.env, curve.label) == (env, label)]
            if not group:
                continue
            steps, mean, spread = mean_and_spread(group)
            name = f"{label}, {len(group)} runs: mean ± standard deviation" if len(group) > 1 else label
            axes.plot(
                steps, mean, color=f"C{number}", label=figure_text(name), marker="" if len(steps) > 1 else "o"
            )
            axes.fill_between(steps, mean - spread, mean + spread, color=f"C{number}", alpha=0.2, linewidth=0)
        axes.set_title(figure_text(env))
        axes.set_xlabel("environment steps")
        axes.set_ylabel(figure_text(_WORDS.get(metric, metric)))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    save_figure(path, figure, dpi=150)
