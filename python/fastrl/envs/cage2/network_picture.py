"""Pictures of networks of CAGE Challenge 2: its hosts in the colour of red's access, and what blue does."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.cage2.scenario import Cage2Scenario, challenge
from fastrl.utils.pen import Pen

# Of a host by red's access: none, user, root; and in the legend, where the first one would be too faint.
COLOURS = ("#e8edf2", "#f4b942", "#d1495b")
_LEGEND = (("free", "#9aa5b1"), ("attacker: user", COLOURS[1]), ("root", COLOURS[2]))
_BLUE, _GREY, _FRAME, _INK = "#2274a5", "#5b6770", "#9aa5b1", "#22303c"
# Sizes of the picture of a network of three columns of five hosts, in units of which it has 100 an inch.
_WIDTH, _HEIGHT = 360, 320
_COLUMN, _ROW = 112.6, 43.7
# Width of a name in a box.
_ROOM = 88.0


class NetworkState(NamedTuple):
    """A game at one step.

    Attributes:
        title: above its network.
        red_access: uint8 [hosts], of each host: 0 none, 1 user, 2 root.
        blue_action: name of blue's last action; "" before the first one.
        total: sum of the rewards so far.
    """

    title: str
    red_access: NDArray[np.uint8]
    blue_action: str
    total: float


def network_picture(
    *states: NetworkState, note: str, dpi: int = 100, network: Cage2Scenario | None = None
) -> NDArray[np.uint8]:
    """A picture of games beside each other, uint8 [H, W, 3]; one is 3.6 inches wide and 3.2 high, or larger where there
    are more hosts or subnets.

    Args:
        note: in the lower left corner.
        dpi: pixels an inch.
        network: in which they are played; None for the challenge's.
    """
    network = network or challenge()
    columns = _columns(network)
    # Whole pixels, even ones of films, at 100 and 160 an inch.
    one = max(_WIDTH, 10 * math.ceil((22 + _COLUMN * len(columns)) / 10))
    more = 10 * math.ceil(max(0, max(len(hosts) for _, hosts in columns) - 5) * _ROW / 10)
    width, height = one * len(states), _HEIGHT + more
    pen = Pen(width, height, dpi)
    for place, state in enumerate(states):
        _draw_network(pen, state, network, one * place, one, more)
    pen.text(20, height - 13, note, 11.8, _GREY)
    for right, (text, colour) in zip((259, 187, 72), _LEGEND, strict=True):
        pen.text(width - right, height - 13, f"■ {text}", 11.8, colour)
    return pen.picture()


# Films draw one network frame after frame.
@functools.lru_cache(16)
def _columns(network: Cage2Scenario) -> list[tuple[str, tuple[str, ...]]]:
    """Names above the columns, and the hosts of each; a large subnet has several. There are at least five rows, and as
    many as the picture needs to be no wider than high by half."""
    subnets = network.layout()
    for rows in range(5, len(network.hosts) + 6):
        columns = [
            (name if first == 0 else "", hosts[first : first + rows])
            for name, hosts in subnets
            for first in range(0, len(hosts), rows)
        ]
        if len(columns) == len(subnets) or len(columns) * _COLUMN <= 1.6 * rows * _ROW:
            break
    return columns


def _draw_network(
    pen: Pen, state: NetworkState, network: Cage2Scenario, left: float, width: float, more: float
) -> None:
    pen.text(left + 18, 25, state.title, 13.9, "black", bold=True)
    pen.text(left + width - 22, 25, f"return {round(state.total)}", 13.9, "black", "rs", bold=True)
    target = state.blue_action.partition(" ")[2]
    for column, (subnet, hosts) in enumerate(_columns(network)):
        x = left + 66 + _COLUMN * column
        pen.text(x, 51, *_fitted(pen, subnet, 11.1), _GREY, "ms")
        for row, host in enumerate(hosts):
            y = 76.5 + _ROW * row
            access = int(state.red_access[network.hosts.index(host)])
            edge, line = (_BLUE, 3.5) if host == target else (_FRAME, 1.0)
            pen.box(x - 48.5, y - 12, x + 48.5, y + 12, COLOURS[access], edge, line)
            pen.text(x, y, *_fitted(pen, host, 10.4), "white" if access == 2 else _INK, "mm")
    if state.blue_action:
        action = _fitted(pen, f"defender: {state.blue_action}", 12.5, width - 40)
        pen.text(left + 18, 287 + more, *action, _BLUE)


def _fitted(pen: Pen, text: str, size: float, room: float = _ROOM) -> tuple[str, float]:
    """A text that is no wider than `room`, and its size: a long one is smaller, one that is too small then is cut."""
    while (width := pen.text_width(text, size)) > 1.6 * room:
        text = f"{text[:-2]}…"
    return text, size * room / max(width, room)
