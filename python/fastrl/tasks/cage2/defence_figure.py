"""Picture of the measures of defenders of CAGE Challenge 2: how long red has each host, and bars of the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fastrl.tasks.cage2.defence import Defence
from fastrl.tasks.cage2.scores import RED_TITLES, Evaluation, contested_hosts, longest
from fastrl.training.comparison import Estimate
from fastrl.utils.output import figure_text

# Panels beside the map: a title, and the measure in the title's unit.
_PANELS: tuple[tuple[str, Callable[[Defence], Estimate], float], ...] = (
    ("steps to removal", lambda it: it.steps_to_removal, 1),
    ("removed, %", lambda it: it.removed, 100),
    ("needless restores", lambda it: it.needless_restores, 1),
    ("server reached, %", lambda it: it.server_reached, 100),
    ("first at server, step", lambda it: it.first_step_at_server, 1),
)
_RED = "#d1495b"


def draw(evaluations: Iterable[Evaluation]) -> Figure:
    """A figure with a row for each contender, ruleset and red agent that attacks, over the longest horizon."""
    rows = [
        (f"{figure_text(each.contender)}\n{each.mode}, {each.ruleset}, {RED_TITLES[score.red_agent]}", found)
        for each in evaluations
        for score, found in longest(each)
        if score.red_agent != "sleep"
    ]
    measures = [found for _, found in rows]
    hosts = contested_hosts(measures)
    # Of the map of hosts, in widths of the other panels. Beyond the challenge's 11 hosts columns are narrower.
    count = max(len(hosts), 5)
    width = 6 * (min(count, 11) + 0.75 * max(count - 11, 0)) / 11
    size = 17 * (width + len(_PANELS)) / (6 + len(_PANELS)), 1.6 + 0.55 * len(rows)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    first, *others = figure.subplots(
        1, 1 + len(_PANELS), sharey=True, width_ratios=[width, *(1 for _ in _PANELS)]
    )
    _draw_hosts(measures, hosts, first)
    first.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=8)
    for axes, (title, measure, scale) in zip(others, _PANELS, strict=True):
        estimates = [measure(found) for found in measures]
        means, errors = (
            scale * np.array([getattr(it, name) for it in estimates]) for name in ("mean", "standard_error")
        )
        # A bar that is missing has no length, an error that is missing no whiskers.
        bars: dict[str, Any] = {"color": _RED, "error_kw": {"elinewidth": 1}, "capsize": 3}
        axes.barh(range(len(rows)), np.nan_to_num(means), xerr=np.nan_to_num(errors), height=0.6, **bars)
        axes.set_title(title, fontsize=9)
        axes.tick_params(left=False, labelsize=8)
        axes.set_xlim(left=0)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_hosts(measures: Sequence[Defence], hosts: Sequence[str], axes: Axes) -> None:
    shares = 100 * np.array([[found.held[host].mean for host in hosts] for found in measures])
    axes.imshow(shares, "Reds", vmin=0, vmax=100, aspect="auto")
    for (row, column), share in np.ndenumerate(shares):
        error = 100 * measures[row].held[hosts[column]].standard_error
        text = f"{share:.1f}" if np.isnan(error) or not share else f"{share:.1f}\n±{error:.1f}"
        colour = "white" if share > 60 else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    names = [figure_text(host) for host in hosts]
    axes.set_xticks(range(len(hosts)), names, rotation=30, ha="right", fontsize=8)
    axes.tick_params(length=0)
    axes.set_title("% of the steps that red has a host", fontsize=9)
