"""The learning curve of a run: returns over environment steps, as a picture."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fastrl.training.row import STEPS

RETURN = "rollout/ep_rew_mean"
SCORE = "eval/mean_reward"


def read_curve(metrics: Path, name: str = RETURN) -> tuple[list[int], list[float]]:
    """Environment steps and values of a metric, of the rows of a ``metrics.jsonl`` that have it. A damaged or
    half-written line ends it."""
    steps: list[int] = []
    values: list[float] = []
    with metrics.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
                step, value = int(row[STEPS]), row.get(name)
            except (ValueError, KeyError, TypeError, AttributeError):
                break
            if isinstance(value, int | float) and math.isfinite(value):
                steps.append(step)
                values.append(float(value))
    return steps, values


def draw_curve(metrics: Path, path: Path, title: str) -> None:
    """Writes a PNG of the mean return of training, and of evaluations where there are any. Without episodes that have
    ended there is none."""
    curves = {
        "training": read_curve(metrics, RETURN),
        "evaluation": read_curve(metrics, SCORE),
    }
    if any(steps for steps, _ in curves.values()):
        _draw(curves, path, title)


def _draw(curves: Mapping[str, tuple[Sequence[int], Sequence[float]]], path: Path, title: str) -> None:
    # Takes half a second to load.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    (steps, returns), (eval_steps, scores) = curves["training"], curves["evaluation"]
    if steps:
        axes.plot(steps, returns, color="#2a7fb8", alpha=0.3, linewidth=0.8)
        axes.plot(steps, smoothed(returns), color="#2a7fb8", label="training")
    if eval_steps:
        axes.plot(eval_steps, scores, "o-", color="#cb181d", markersize=3, label="evaluation")
        axes.legend(frameon=False)
    axes.set(xlabel="environment steps", ylabel="mean return of episodes", title=title)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def smoothed(values: Sequence[float]) -> list[float]:
    """Means over the values before and at each, a twentieth of all or so."""
    weight = 1 - 1 / max(len(values) / 20, 1.0)
    mean, result = values[0], []
    for value in values:
        mean = weight * mean + (1 - weight) * value
        result.append(mean)
    return result
