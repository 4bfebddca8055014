"""Prints the tables of teams in traffic and draws docs/images/traffic-teams.svg: python docs/draw_traffic_teams.py

`python benches/learning_curves.py --jobs 2 traffic-teams` trains the runs whose rows these are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from draw_speed import ROOT, save
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fastrl.runs.statistics import bootstrap, interquartile_mean

sys.path.insert(0, str(ROOT / "benches"))
from learning_curves import Row
from traffic_teams import CHANNELS, MEASURES, RADIO, SIGHT, SILENT, WORLDS, Cells, board, cells_of, tables

CHART = ROOT / "docs" / "images" / "traffic-teams.svg"
COLOURS = {SILENT: "#7a7a7a", RADIO: "#2274a5", SIGHT: "#e0b03a"}
LABELS = {SILENT: "no radio", RADIO: "radio (3GPP TR 37.885)", SIGHT: "sight: all as they are"}


def draw(rows: Sequence[Row]) -> Figure:
    """A column a world, a row a measure: the interquartile means with their intervals, and a dot a seed."""
    worlds, algorithms = list(WORLDS.values()), list(dict.fromkeys(row.run.algo for row in rows))
    figure = Figure(figsize=(9.6, 2.1 * len(MEASURES) + 0.4), layout="constrained")
    grid = figure.subplots(len(MEASURES), len(worlds), squeeze=False)
    for measure, line in zip(MEASURES, grid, strict=True):
        cells = cells_of(rows, measure)
        for world, axes in zip(worlds, line, strict=True):
            own = {key: values for key, values in cells.items() if key[0] == world}
            if own:
                _draw_cells(axes, own, algorithms)
            else:
                axes.text(0.5, 0.5, "none", ha="center", va="center", c="#7a7a7a")
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
            if measure is MEASURES[0]:
                axes.set_title(world, loc="left")
        line[0].set_ylabel(measure.heading)
    handles = [
        Line2D([], [], marker="o", ls="", c=COLOURS[name], label=label) for name, label in LABELS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(LABELS), frameon=False)
    return figure


def _draw_cells(axes: Any, cells: Cells, algorithms: Sequence[str]) -> None:
    for (_, algorithm, channel), values in cells.items():
        place, colour = algorithms.index(algorithm) + 0.25 * (CHANNELS.index(channel) - 1), COLOURS[channel]
        estimate = bootstrap(interquartile_mean, values)
        axes.plot([place] * len(values), values, ".", c=colour, alpha=0.35, ms=5)
        axes.plot([place] * 2, estimate[1:], c=colour, lw=2)
        axes.plot(place, estimate.value, "o", c=colour, ms=6)
    axes.set_xticks(range(len(algorithms)), [name.upper() for name in algorithms], fontsize=8)
    axes.set_xlim(-0.5, len(algorithms) - 0.5)
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)


if __name__ == "__main__":
    rows = board()
    print(tables(rows))
    if rows:
        save(draw(rows), CHART)
        print(f"\n{CHART}")
