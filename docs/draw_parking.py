"""Draws docs/images/parking.svg, how the share of episodes that park grows, from docs/benchmarks/parking.json:
python docs/draw_parking.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draw_speed import save
from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS / "benchmarks" / "parking.json"
CHART = DOCS / "images" / "parking.svg"
STYLES: dict[str, dict[str, Any]] = {
    "the preset": {"color": "#2274a5"},
    "the preset without compute_terminated": {"color": "#e08e45", "linestyle": "--"},
    "Stable-Baselines3": {"color": "#7a7a7a", "linestyle": ":"},
}


def draw(results: list[dict[str, Any]]) -> Figure:
    """A line for each seed of each learner."""
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = figure.subplots()
    for learner, style in STYLES.items():
        rows = [each for each in results if each["learner"] == learner]
        seeds = sorted({each["seed"] for each in rows})
        for seed in seeds:
            curve = sorted((each["steps"], each["success"]) for each in rows if each["seed"] == seed)
            steps, success = zip((0, 0.0), *curve, strict=True)
            label = f"{learner}, {len(seeds)} seed{'s' * (len(seeds) > 1)}" if seed == seeds[0] else None
            axes.plot(steps, success, label=label, linewidth=1.4, **style)
    axes.axhline(0.9, color="black", linewidth=0.6)
    axes.set(xlabel="environment steps", ylabel="episodes that park", ylim=(0, 1), xlim=(0, None))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside upper left", ncols=3, fontsize=8)
    return figure


if __name__ == "__main__":
    save(draw(json.loads(RESULTS.read_text(encoding="utf-8"))["results"]), CHART)
    print(CHART)
