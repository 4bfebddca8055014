"""A town of SUMO on a grid: the junction with lights of the built-in town, many times, and trips across it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from fastrl.envs.traffic.sumo_config import TOWN

SPACING = 120.0
# The junction of the built-in town that is taken, and where its neighbours lie.
_OWN = "A0"
_ARMS = {"A1": (0, 1), "B0": (1, 0), "bottom0": (0, -1), "left0": (-1, 0)}
# Its edges, each with where it leads.
_EDGES = {"A0A1": (0, 1), "A1A0": (0, 1), "A0B0": (1, 0), "B0A0": (1, 0)}


def _node(x: int, y: int) -> str:
    return f"n{x + 1}x{y + 1}"


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    return f"{_node(*start)}to{_node(*end)}"


def _moved(text: str, x: int, y: int) -> str:
    """The elements of the junction with their names and places as they are at (x, y) of the grid."""

    def shape(found: re.Match[str]) -> str:
        points = (point.split(",") for point in found[1].split())
        places = (f"{float(a) + SPACING * x:.2f},{float(b) + SPACING * y:.2f}" for a, b in points)
        return f'shape="{" ".join(places)}"'

    def place(found: re.Match[str]) -> str:
        return f'{found[1]}="{float(found[2]) + SPACING * (x if found[1] == "x" else y):.2f}"'

    own = (x, y)
    for name, (dx, dy) in _ARMS.items():
        other = (x + dx, y + dy)
        text = re.sub(rf"(?<=[ \"]){name}{_OWN}(?=[_\"])", _edge(other, own), text)
        text = re.sub(rf"(?<=[ \"]){_OWN}{name}(?=[_\"])", _edge(own, other), text)
        text = text.replace(f'"{name}"', f'"{_node(*other)}"')
    text = text.replace(f":{_OWN}_", f":{_node(*own)}_").replace(f'"{_OWN}"', f'"{_node(*own)}"')
    return re.sub(r'(?<= )([xy])="([^"]*)"', place, re.sub(r'shape="([^"]*)"', shape, text))


def write_network(path: Path, size: int) -> None:
    """Writes a `.net.xml` of `size` x `size` junctions, 120 m apart, with two lanes in each direction."""
    elements = [ElementTree.tostring(one, "unicode").strip() for one in ElementTree.parse(TOWN).getroot()]
    kinds = ("<edge", "<tlLogic", "<junction", "<connection")
    lines: dict[str, list[str]] = {kind: [] for kind in kinds}
    own = [
        one for one in elements if re.match(rf'<[^>]*(?:id=":?{_OWN}[_"]|via=":{_OWN}_|from=":{_OWN}_)', one)
    ]
    shared = {name: next(one for one in elements if f'<edge id="{name}"' in one) for name in _EDGES}
    grid = [(x, y) for x in range(size) for y in range(size)]
    for x, y in grid:
        for one in own:
            lines[one.split()[0]].append(_moved(one, x, y))
    for x in range(-1, size):
        for y in range(-1, size):
            for name, (dx, dy) in _EDGES.items():
                if {(x, y), (x + dx, y + dy)} & set(grid):
                    lines["<edge"].append(_moved(shared[name], x, y))
    for start, end in _ends(size):
        coming = _edge(end, start)
        lines["<junction"].append(
            f'<junction id="{_node(*start)}" type="dead_end" x="{100 + SPACING * start[0]}"'
            f' y="{100 + SPACING * start[1]}" incLanes="{coming}_0 {coming}_1" intLanes="" shape=""/>'
        )
    path.write_text(
        "\n".join(['<net version="1.20">', *(line for kind in kinds for line in lines[kind]), "</net>\n"])
    )


def _ends(size: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The places where roads lead out of the grid, each with the junction beside it."""
    sides = [((-1, k), (0, k)) for k in range(size)] + [((size, k), (size - 1, k)) for k in range(size)]
    return sides + [((y, x), (b, a)) for (x, y), (a, b) in sides]


def write_demand(path: Path, size: int, rate: float, seconds: float) -> None:
    """Writes a `.rou.xml` of trips between the ends of the grid, `rate` of them a second, evenly."""
    ends, rng = _ends(size), np.random.default_rng(0)
    trips = []
    for k in range(int(rate * seconds)):
        (start, first), (end, last) = (ends[i] for i in rng.choice(len(ends), 2, replace=False))
        edges = f'from="{_edge(start, first)}" to="{_edge(last, end)}"'
        trips.append(f'<trip id="t{k}" depart="{k / rate:.2f}" {edges}/>')
    path.write_text("\n".join(["<routes>", *trips, "</routes>\n"]))
