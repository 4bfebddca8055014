"""Picture of a search for the best workflow: returns, regret and compliance against episodes."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fastrl.envs.cage2.workflow import workflow_name
from fastrl.tasks.workflow.outcome import Outcome
from fastrl.tasks.workflow.report import Report
from fastrl.utils.files import save_figure


def save_picture(report: Report, path: Path, plain: Outcome | None = None) -> None:
    """Writes the picture of `draw` as a PNG file."""
    save_figure(path, draw(report, plain))


def draw(report: Report, plain: Outcome | None = None) -> Figure:
    """A figure with panels for returns, regret and compliance against episodes.

    Without a search there is no panel for regret, nor if it never changed or is unknown.

    Args:
        plain: of PPO without workflows, after as many episodes.
    """
    bests = [step.best for step in report.steps if not math.isnan(step.best)]
    panels = (
        ["returns", "regret", "compliance"]
        if report.method and len(set(bests)) > 1
        else ["returns", "compliance"]
    )
    ratios = {"returns": 3, "regret": 2, "compliance": 2}
    figure = Figure(figsize=(9, 3 * len(panels)), dpi=120, layout="constrained")
    axes = dict(
        zip(
            panels,
            figure.subplots(len(panels), 1, sharex=True, height_ratios=[ratios[name] for name in panels]),
            strict=True,
        )
    )
    returns, compliance = axes["returns"], axes["compliance"]
    _scatter(report, returns, compliance)
    used = np.array([step.used for step in report.steps])
    errors = [step.outcome.return_stderr for step in report.steps]
    means = [step.outcome.mean_return for step in report.steps]
    returns.errorbar(used, means, errors, fmt="none", ecolor="0.7", zorder=1)
    # A line needs two points.
    if len(bests) > 1:
        best = [step.best for step in report.steps]
        returns.step(used, best, where="post", color="black", label="best so far")
    if "regret" in axes:
        axes["regret"].step(used, report.regrets(), where="post", color="black")
        axes["regret"].set_ylabel("regret: below the best\nthat was found in the end")
        axes["regret"].set_ylim(bottom=0)
    if plain is not None:
        style = {"color": "tab:green", "linestyle": "--", "linewidth": 1}
        label = "PPO without workflows, after as many episodes"
        returns.axhline(plain.mean_return, label=label, **style)
        compliance.axhline(plain.compliance, **style)
    compliance.axhline(
        report.threshold, color="tab:red", linewidth=1, label=f"threshold {report.threshold:g}"
    )
    returns.set_ylabel("return of an episode")
    compliance.set_ylabel("compliance")
    compliance.set_xlabel("episodes")
    for panel in (returns, compliance):
        panel.legend(fontsize=8)
    for panel in axes.values():
        panel.grid(alpha=0.3)
    returns.set_title(_title(report), fontsize=10)
    return figure


def _scatter(report: Report, returns: Axes, compliance: Axes) -> None:
    """Draws a point for each outcome: its return, and its compliance."""
    kinds: Sequence[tuple[bool | None, str, str, str]] = [
        (False, "trial", "o", "tab:blue"),
        (True, "trained to the end", "s", "tab:orange"),
    ]
    if not report.method:
        kinds = [(None, "measured", "o", "tab:blue")]
    for final, what, marker, colour in kinds:
        for counts in (True, False):
            chosen = [step for step in report.steps if step.counts == counts and final in (None, step.final)]
            if not chosen:
                continue
            label = f"{what}, {'counts' if counts else 'does not count'}"
            faces = colour if counts else "none"
            style: dict[str, Any] = {"marker": marker, "facecolors": faces, "edgecolors": colour}
            style |= {"s": 28, "zorder": 3}
            x = [step.used for step in chosen]
            returns.scatter(x, [step.outcome.mean_return for step in chosen], label=label, **style)
            compliance.scatter(x, [step.outcome.compliance for step in chosen], **style)


def _title(report: Report) -> str:
    """The title: the method, and the order that was chosen."""
    title = f"search for the best workflow: {report.method}" if report.method else "training of one workflow"
    shown = report.chosen or (None if report.method else report.most_compliant)
    return title if shown is None else f"{title}\n{workflow_name(shown.workflow).replace(',', ' > ')}"
