"""Draws docs/images/speed.svg, the README's chart of speed beside peers, from docs/benchmarks/peers.json:
python docs/draw_speed.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS / "benchmarks" / "peers.json"
CHART = DOCS / "images" / "speed.svg"


def draw(results: list[dict[str, Any]]) -> Figure:
    """Ratios of speed on a logarithmic axis, the largest at the top."""
    ordered = sorted(results, key=lambda each: each["ratio"])
    figure = Figure(figsize=(8.2, 0.42 * len(ordered) + 0.9), layout="constrained")
    axes = figure.subplots()
    places = range(len(ordered))
    axes.barh(places, [each["ratio"] for each in ordered], height=0.62, color="#2274a5")
    axes.set_yticks(places, [f"{each['what']}\nbeside {each['peer']}" for each in ordered], fontsize=8)
    for place, each in zip(places, ordered, strict=True):
        axes.text(each["ratio"] * 1.12, place, f"{each['ratio']:,} ×", va="center")
    axes.set(xscale="log", xlim=(1, 4e5), xlabel="times as fast as the peer, same machine (logarithmic)")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def save(figure: Figure, path: Path) -> None:
    """An SVG that is the same in each run."""
    with mpl.rc_context({"svg.hashsalt": "fastrl", "svg.fonttype": "path"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None}, facecolor="white")


if __name__ == "__main__":
    save(draw(json.loads(RESULTS.read_text(encoding="utf-8"))["results"]), CHART)
    print(CHART)
