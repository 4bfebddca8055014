"""Picture of a league of CAGE Challenge 2: the returns of defenders against attackers."""

import numpy as np
from matplotlib.figure import Figure

from fastrl.tasks.cage2_game.league import League


def draw(league: League) -> Figure:
    """A table in colours: a row for each defender, a column for each attacker, ratings at the ends."""
    rows, columns = league.returns.shape
    figure = Figure(figsize=(3.5 + 1.2 * columns, 1.8 + 0.6 * rows), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.imshow(
        league.returns, cmap="RdYlGn", vmax=0, vmin=min(float(league.returns.min()), -1.0), aspect="auto"
    )
    for (row, column), value in np.ndenumerate(league.returns):
        axes.text(column, row, f"{value:.1f}", ha="center", va="center")
    blue, red = league.ratings()
    axes.set_yticks(
        range(rows),
        [f"{name}\nrating {rating:.1f}" for name, rating in zip(league.defenders, blue, strict=True)],
    )
    axes.set_xticks(
        range(columns),
        [f"{name}\n{rating:.1f}" for name, rating in zip(league.attackers, red, strict=True)],
        rotation=30,
        ha="right",
    )
    axes.set_title("return of defenders (rows) against attackers (columns)", fontsize=11)
    return figure
