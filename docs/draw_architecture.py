"""Draws docs/images/architecture.svg, the parts of a run and what passes between them:
python docs/draw_architecture.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from draw_speed import save
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

PICTURE = Path(__file__).resolve().parent / "images" / "architecture.svg"
LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
COMPILED, PYTHON, TORCH = "#f6d5b8", "#d9e8f5", "#dfd3ee"


class Box(NamedTuple):
    """A part: centre and size in tenths of an inch, what it is made of, its name, and what it does."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str
    text: str = ""


BOXES = {
    "call": Box(42, 55, 76, 7, PYTHON, "command line, or fastrl.PPO(...).learn()", "one config: cli/, model.py"),
    "task": Box(13, 44, 18, 9, PYTHON, "task", "presets and scoring\ntasks/"),
    "trainer": Box(42, 44, 30, 9, PYTHON, "trainer", "the one loop, rows of metrics\ntraining/"),
    "hooks": Box(71, 44, 18, 9, PYTHON, "callbacks, loggers", "checkpoints, evaluation\ntraining/, runs/"),
    "collector": Box(20, 29, 32, 9, PYTHON, "collector", "who steps the environments\ncollectors/"),
    "algorithm": Box(64, 29, 32, 9, TORCH, "algorithm", "losses and update\nalgorithms/, networks/"),
    "weights": Box(42, 29, 8.4, 4, COMPILED, "weights"),
    "actor": Box(7.8, 14, 12.5, 9, COMPILED, "actor", "compiled, or\nby PyTorch"),
    "env": Box(26.5, 14, 16.5, 9, COMPILED, "environments", "native, or your Python\nenvs/, rust/core/"),
    "fragments": Box(49, 18, 20, 6, PYTHON, "fragments", "arrays of T steps, collectors/"),
    "queue": Box(49, 10, 20, 6, COMPILED, "queue", "live simulations"),
    "storage": Box(73, 14, 18, 9, COMPILED, "rollouts, replay", "returns in place\nrollout/, replay/, cython/"),
}  # fmt: skip
ARROWS = (
    ("call", "trainer", "config"),
    ("task", "trainer", ""),
    ("trainer", "hooks", "rows"),
    ("trainer", "collector", "collect()"),
    ("trainer", "algorithm", "update()"),
    ("algorithm", "weights", ""),
    ("weights", "collector", ""),
    ("collector", "actor", ""),
    ("collector", "env", ""),
    ("actor", "env", "acts"),
    ("env", "fragments", ""),
    ("env", "queue", ""),
    ("fragments", "storage", ""),
    ("queue", "storage", ""),
    ("storage", "algorithm", "minibatches"),
)


def edge(box: Box, towards: Box) -> tuple[float, float]:
    """The point of a box's outline on the line from its centre to another's."""
    dx, dy = towards.x - box.x, towards.y - box.y
    share = min(
        box.width / 2 / abs(dx) if dx else float("inf"), box.height / 2 / abs(dy) if dy else float("inf")
    )
    return box.x + dx * share, box.y + dy * share


def draw_box(axes: Any, box: Box) -> None:
    place = (box.x - box.width / 2, box.y - box.height / 2)
    style = "round,pad=0,rounding_size=0.9"
    axes.add_patch(
        FancyBboxPatch(
            place,
            box.width,
            box.height,
            boxstyle=style,
            facecolor=box.colour,
            edgecolor="#5b6770",
            linewidth=0.8,
        )
    )
    lines = box.text.count("\n") + 1 if box.text else 0
    axes.text(box.x, box.y + 1.0 * lines, box.title, ha="center", va="center", fontsize=9.5, weight="bold")
    axes.text(box.x, box.y - 1.3, box.text, ha="center", va="center", fontsize=7.5, linespacing=1.3)


def draw() -> Figure:
    figure = Figure(figsize=(8.4, 6.2))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 84), ylim=(0, 62), aspect="equal")
    axes.axis("off")
    for box in BOXES.values():
        draw_box(axes, box)
    for start, end, label in ARROWS:
        a, b = edge(BOXES[start], BOXES[end]), edge(BOXES[end], BOXES[start])
        axes.annotate("", b, a, arrowprops={"arrowstyle": "-|>", "color": "#22303c", "linewidth": 1.1})
        where = (a[0] + b[0]) / 2, (a[1] + b[1]) / 2
        axes.text(
            *where, label, fontsize=7.5, ha="center", va="center", color="#22303c", style="italic", bbox=LABEL
        )
    for place, (colour, said) in enumerate(
        ((PYTHON, "Python"), (TORCH, "PyTorch, some compiled"), (COMPILED, "compiled: Rust, Cython"))
    ):
        x = 6 + 26 * place
        axes.add_patch(
            FancyBboxPatch((x, 3), 3, 2, boxstyle="round,pad=0,rounding_size=0.4", facecolor=colour)
        )
        axes.text(x + 4, 4, said, fontsize=8, va="center")
    return figure


if __name__ == "__main__":
    save(draw(), PICTURE)
    print(PICTURE)
