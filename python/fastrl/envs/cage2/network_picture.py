"""Pictures of the network of CAGE Challenge 2: its hosts in the colour of red's access, and what blue does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.utils.pen import Pen

SUBNETS = (
    ("User", ("User0", "User1", "User2", "User3", "User4")),
    ("Enterprise", ("Enterprise0", "Enterprise1", "Enterprise2", "Defender")),
    ("Operational", ("Op_Host0", "Op_Host1", "Op_Host2", "Op_Server0")),
)
# Of a host by red's access: none, user, root; and in the legend, where the first one would be too faint.
COLOURS = ("#e8edf2", "#f4b942", "#d1495b")
_LEGEND = (("free", "#9aa5b1"), ("attacker: user", COLOURS[1]), ("root", COLOURS[2]))
_BLUE, _GREY, _FRAME, _INK = "#2274a5", "#5b6770", "#9aa5b1", "#22303c"
# Width of one network and height, in units of which the picture has 100 an inch.
_WIDTH, _HEIGHT = 360, 320


class NetworkState(NamedTuple):
    """A game at one step.

    Attributes:
        title: above its network.
        red_access: uint8 [13], of each host: 0 none, 1 user, 2 root.
        blue_action: name of blue's last action; "" before the first one.
        total: sum of the rewards so far.
    """

    title: str
    red_access: NDArray[np.uint8]
    blue_action: str
    total: float


def network_picture(*states: NetworkState, note: str, dpi: int = 100) -> NDArray[np.uint8]:
    """A picture of games beside each other, uint8 [H, W, 3]; one is 3.6 inches wide and 3.2 high.

    Args:
        note: in the lower left corner.
        dpi: pixels an inch.
    """
    width = _WIDTH * len(states)
    pen = Pen(width, _HEIGHT, dpi)
    for place, state in enumerate(states):
        _draw_network(pen, state, _WIDTH * place)
    pen.text(20, 307, note, 11.8, _GREY)
    for right, (text, colour) in zip((259, 187, 72), _LEGEND, strict=True):
        pen.text(width - right, 307, f"■ {text}", 11.8, colour)
    return pen.picture()


def _draw_network(pen: Pen, state: NetworkState, left: float) -> None:
    pen.text(left + 18, 25, state.title, 13.9, "black", bold=True)
    pen.text(left + 338, 25, f"return {round(state.total)}", 13.9, "black", "rs", bold=True)
    target = state.blue_action.partition(" ")[2]
    for column, (subnet, hosts) in enumerate(SUBNETS):
        x = left + 66 + 112.6 * column
        pen.text(x, 51, subnet, 11.1, _GREY, "ms")
        for row, host in enumerate(hosts):
            y = 76.5 + 43.7 * row
            access = int(state.red_access[_rust.CAGE2_HOSTS.index(host)])
            edge, line = (_BLUE, 3.5) if host == target else (_FRAME, 1.0)
            pen.box(x - 48.5, y - 12, x + 48.5, y + 12, COLOURS[access], edge, line)
            pen.text(x, y, host, 10.4, "white" if access == 2 else _INK, "mm")
    if state.blue_action:
        pen.text(left + 18, 287, f"defender: {state.blue_action}", 12.5, _BLUE)
