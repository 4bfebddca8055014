"""Draws docs/images/seconds-to-score.svg from the rows of its benchmark: python docs/draw_seconds_to_score.py

`python benches/seconds_to_score.py` measures them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from draw_speed import ROOT, save
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

sys.path.insert(0, str(ROOT / "benches"))
from seconds_to_score import Entry, board

CHART = ROOT / "docs" / "images" / "seconds-to-score.svg"
COLOURS = {"fastrl": "#2274a5", "Stable-Baselines3": "#7a7a7a", "sbx": "#e0b03a", "RLtools": "#5b8e55"}


def draw(found: Sequence[Entry]) -> Figure:
    """A line a task and contender on a logarithmic axis: a dot a seed, hollow where the score was not reached, and the
    median."""
    figure = Figure(figsize=(8.2, 0.24 * len(found) + 1.1), layout="constrained")
    axes = figure.subplots()
    for place, entry in enumerate(found):
        colour = COLOURS[entry.run.contender]
        for row in entry.rows:
            axes.plot(row.seconds, place, "o", ms=4.5, c=colour, mfc=colour if row.reached else "white")
        axes.plot(entry.least, place, "|", ms=13, mew=2, c=colour)
    before = None
    names = []
    for place, entry in enumerate(found):
        is_first, before = entry.run.task != before, entry.run.task
        names.append(f"{entry.run.task}, {entry.run.contender}" if is_first else entry.run.contender)
        if is_first and place:
            axes.axhline(place - 0.5, c="#dddddd", lw=0.8)
    axes.set_yticks(range(len(found)), names, fontsize=8)
    axes.set(xscale="log", ylim=(len(found) - 0.5, -0.5))
    axes.set_xlabel("seconds of training on two cores (logarithmic); hollow: the score was not reached")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


if __name__ == "__main__":
    save(draw(board()), CHART)
    print(CHART)
