"""Picture of a game of CAGE Challenge 2 over time: in whose hands each host is, what blue does, and its regret."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fastrl.envs.cage2.network_picture import COLOURS
from fastrl.tasks.cage2.explain import Explanation
from fastrl.utils.output import figure_text

# Of blue's actions by the first word of their names; a decoy's is any other.
_MARKERS = {"Analyse": ("o", "Analyse"), "Remove": ("X", "Remove"), "Restore": ("s", "Restore")}
_DECOY = ("^", "decoy")
_BLUE, _RED = "#2274a5", "#7a1020"
_OWNERS = ("free", "attacker: user", "root")


def draw(explanation: Explanation) -> Figure:
    """A figure with a row for each host and a column for each step, in the colour of red's access after it, with marks
    for the actions on hosts; below, costs and regrets."""
    num = len(explanation.steps)
    # Of the hosts; that of the costs below stays the same. Beyond the challenge's 13 hosts rows are narrower.
    count = max(len(explanation.network.hosts), 6)
    height = 5.25 * min(count, 13) / 13 + 0.25 * max(count - 13, 0)
    size = min(max(4 + 0.25 * num, 10), 40), height + 1.75
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    hosts, returns = figure.subplots(2, 1, sharex=True, height_ratios=[height, 1.75])
    _draw_hosts(explanation, hosts)
    _draw_rewards(explanation, returns)
    hosts.set_title(
        f"attacker {explanation.red_agent}, seed {explanation.seed}: return {explanation.total:.1f}",
        fontsize=11,
    )
    returns.set_xlim(0.5, num + 0.5)
    returns.set_xlabel("step")
    return figure


def _draw_hosts(explanation: Explanation, axes: Axes) -> None:
    subnets = explanation.network.layout()
    # From top to bottom.
    rows = [host for _, hosts in subnets for host in hosts]
    access = np.array([step.red_access for step in explanation.steps]).T
    order = [explanation.network.hosts.index(host) for host in rows]
    extent = (0.5, len(explanation.steps) + 0.5, len(rows) - 0.5, -0.5)
    axes.imshow(access[order], ListedColormap(COLOURS), vmin=0, vmax=2, aspect="auto", extent=extent)
    axes.set_yticks(range(len(rows)), [figure_text(host) for host in rows])
    axes.set_yticks(np.arange(len(rows) - 1) + 0.5, minor=True)
    axes.grid(which="minor", axis="y", color="white", linewidth=2)
    axes.tick_params(which="both", length=0)
    for end in np.cumsum([len(names) for _, names in subnets])[:-1]:
        axes.axhline(end - 0.5, color="black", linewidth=1)
    style: dict[str, Any] = {"markersize": 7, "markeredgecolor": "white", "linestyle": "none"}
    for step in explanation.steps:
        kind, _, host = step.action.partition(" ")
        if host:
            marker, _ = _MARKERS.get(kind, _DECOY)
            axes.plot(step.number, rows.index(host), marker, color=_BLUE, **style)
        kind, _, target = step.red.removesuffix(" failed").partition(" ")
        if target in rows and kind != "DiscoverRemoteSystems":
            axes.plot(
                step.number, rows.index(target) + 0.36, "_", color=_RED, markersize=8, markeredgewidth=2
            )
    owners = zip(COLOURS, _OWNERS, strict=True)
    shown: list[Any] = [Patch(facecolor=colour, edgecolor="0.6", label=name) for colour, name in owners]
    marks = (*_MARKERS.values(), _DECOY)
    shown += [Line2D([], [], marker=marker, color=_BLUE, label=name, **style) for marker, name in marks]
    shown.append(Line2D([], [], color=_RED, linewidth=2, label="attacker acts"))
    axes.legend(handles=shown, ncols=len(shown), loc="upper center", bbox_to_anchor=(0.5, -0.02), fontsize=8)


def _draw_rewards(explanation: Explanation, axes: Axes) -> None:
    numbers = [step.number for step in explanation.steps]
    axes.bar(numbers, [-step.reward for step in explanation.steps], color="0.75", label="cost of the step")
    compared = [step for step in explanation.steps if step.best is not None]
    for is_clear, colour, label in ((True, _RED, "clear regret"), (False, "0.5", "regret within errors")):
        chosen = [step for step in compared if step.is_clear == is_clear and step.regret]
        if chosen:
            axes.errorbar(
                [step.number for step in chosen],
                [step.regret for step in chosen],
                [step.best.gain_error for step in chosen if step.best],
                fmt="o",
                markersize=5,
                color=colour,
                label=label,
            )
    axes.set_ylim(bottom=0)
    axes.set_ylabel("cost, regret")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=8)
