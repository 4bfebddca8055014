"""Draws docs/images/hard-defender.svg, the score of defenders against scripts and against best responses:
python docs/draw_hard_defender.py

`python benches/hard_defender.py` writes the rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from draw_speed import ROOT, save
from matplotlib.figure import Figure

sys.path.insert(0, str(ROOT / "benches"))
from hard_defender import ROWS

# Total that a defender should reach.
PAR = -60
CHART = ROOT / "docs" / "images" / "hard-defender.svg"


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A dot for each best response to a defender, beside its total in the challenge; lines are bounds of all."""
    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        if "bound" in row:
            best = max(value for values in row["bound"].values() for value in values)
            axes.axhline(best, c="#888888", lw=1)
            axes.annotate(
                f"the most against {row['attacker']} alone",
                (0.01, best),
                (0, 3),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                fontsize=8,
            )
            continue
        total, responses = row["total"], row["responses"]
        colour = "#2274a5" if row["name"].startswith("round") else "#e0643a"
        axes.plot([total] * len(responses), responses, ".", c=colour, alpha=0.4, ms=7)
        axes.plot(total, np.mean(responses), "o", c=colour, ms=7)
        axes.annotate(
            row["name"],
            (total, np.mean(responses)),
            (7, 0) if total > PAR else (-7, 0),
            textcoords="offset points",
            ha="left" if total > PAR else "right",
            va="center",
            fontsize=8,
        )
    axes.axvline(PAR, c="#bbbbbb", lw=1, ls="--")
    axes.margins(x=0.25, y=0.1)
    axes.set_xlabel("total against the challenge's scripts")
    axes.set_ylabel("return of 100 steps against a best response")
    axes.grid(alpha=0.3)
    return figure


def main() -> None:
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    save(draw(rows), CHART)


if __name__ == "__main__":
    main()
