"""Draws docs/images/growth.svg, the cost of a step of training, from docs/benchmarks/data: python docs/draw_growth.py

`pytest benches/bench_growth.py -s --bench-out docs/benchmarks/data` measures it.
"""

from __future__ import annotations

import sys

from draw_speed import BENCHMARKS, ROOT, save
from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path.insert(0, str(ROOT / "benches"))
from results import Benchmark, Spread, read_all

CHART = ROOT / "docs" / "images" / "growth.svg"
COLOURS = {
    "environment": "#5b8e55",
    "inference": "#e0b03a",
    "update": "#2a7fb8",
    "everything else": "#b5b5b5",
}
LEAST = "the machine at least"
PREFIX = "Cost of a step by "


def draw(results: list[Benchmark]) -> Figure:
    """A panel for each result: a bar a case, by activity, and a line where the machine's limit is."""
    figure = Figure(figsize=(9.0, 6.4), layout="constrained")
    for axes, result in zip(figure.subplots(2, 2).flat, results, strict=True):
        draw_panel(axes, result)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside upper left", ncols=5, fontsize=8)
    return figure


def draw_panel(axes: Axes, result: Benchmark) -> None:
    """Stacked bars of medians."""
    names = [case.name.split()[0] for case in result.cases]
    bottom = [0.0] * len(names)
    for activity, colour in COLOURS.items():
        heights = [Spread.of(case.rates[activity]).median for case in result.cases]
        axes.bar(names, heights, 0.6, bottom, color=colour, label=activity)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    for index, case in enumerate(result.cases):
        level = case.rates[LEAST][0]
        axes.plot(
            [index - 0.4, index + 0.4], [level, level], color="black", label=LEAST if index == 0 else None
        )
    axes.set(xlabel=result.title.removeprefix(PREFIX), ylabel=result.unit, ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    growth = [result for result in read_all(BENCHMARKS / "data") if result.topic == "growth"]
    save(draw(growth), CHART)
    print(CHART)
