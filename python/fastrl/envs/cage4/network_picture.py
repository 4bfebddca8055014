"""Pictures of the network of CAGE Challenge 4: zones, hosts in the colour of red's access, alerts, actions, blocks."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.cage4.game_state import PHASES, SERVERS, SLOTS, GameState
from fastrl.utils.pen import Pen

# Left and upper edges of the subnets' boxes in the order of `CAGE4_SUBNETS`, and the size of a box.
_LEFT = (18, 18, 276, 276, 534, 792, 534, 792)
_TOP = (112, 296, 112, 296, 112, 112, 296, 296)
_BOX_WIDTH, _BOX_HEIGHT = 240, 164
_WIDTH, _HEIGHT = 1050, 496
# A link from the internet to each of these, and from these to others.
_FROM_INTERNET = (0, 2, 4, 5)
_LINKS = ((0, 1), (2, 3), (5, 6), (5, 7))
_INTERNET_Y, _BUS_Y = 76, 97
# Size of a host, distance between two; of the lines of text in a box the first, the distance and the number.
_HOST, _PITCH = 20, 22.4
_LINES_Y, _LINE, _MOST_LINES = 103, 16, 4

_COLOURS = ("#e8edf2", "#f4b942", "#d1495b")
_BLUE, _RED, _GREY, _FRAME, _INK = "#2274a5", "#b2182b", "#5b6770", "#9aa5b1", "#22303c"
_CONNECTION, _PROCESS = "#7b5ea7", "#111111"
_TITLES = (
    "Restricted zone A",
    "Operational zone A",
    "Restricted zone B",
    "Operational zone B",
    "Contractors",
    "Public access zone",
    "Admin network",
    "Office network",
)
_SHORT = ("RA", "OA", "RB", "OB", "CON", "PUB", "ADM", "OFF", "NET")
_DEFENDERS = (0, 1, 2, 3, None, 4, 4, 4)


def network_picture(state: GameState, title: str = "CAGE Challenge 4", dpi: int = 100) -> NDArray[np.uint8]:
    """A picture of a game, uint8 [H, W, 3], 10.5 inches wide and 4.9 high.

    Args:
        title: above the network.
        dpi: pixels an inch.
    """
    pen = Pen(_WIDTH, _HEIGHT, dpi)
    pen.text(18, 28, title, 15, "black", bold=True)
    pen.text(_WIDTH - 18, 28, state.summary, 13, "black", "rs")
    _draw_time(pen, state)
    _draw_links(pen)
    for subnet in range(len(_TITLES)):
        _draw_subnet(pen, state, subnet)
    _draw_legend(pen)
    return pen.picture()


def _draw_time(pen: Pen, state: GameState) -> None:
    """A bar with the three phases, filled as far as the episode has come."""
    left, width, steps = 18, _WIDTH - 36, state.episode_length
    lengths = (steps // 3 + (phase < steps % 3) for phase in range(3))
    for phase, (start, end) in enumerate(itertools.pairwise(itertools.accumulate(lengths, initial=0))):
        x, stop = (left + width * at / steps for at in (start, end))
        pen.box(x + 1, 40, stop - 1, 47, _COLOURS[0], radius=2)
        if state.step > start:
            pen.box(x + 1, 40, left + width * min(state.step, end) / steps - 1, 47, _FRAME, radius=2)
        is_now = phase == state.phase
        pen.text(x + 2, 61, f"phase {phase}: {PHASES[phase]}", 10.5, _INK if is_now else _GREY, bold=is_now)


def _draw_links(pen: Pen) -> None:
    middle = _BOX_WIDTH / 2
    centres = [left + middle for left in _LEFT]
    xs = [centres[subnet] for subnet in _FROM_INTERNET]
    pen.line([(xs[0], _BUS_Y), (xs[-1], _BUS_Y)], _FRAME, 1.5)
    for x in xs:
        pen.line([(x, _BUS_Y), (x, _TOP[0])], _FRAME, 1.5)
    net = _WIDTH / 2
    pen.line([(net, _INTERNET_Y), (net, _BUS_Y)], _FRAME, 1.5)
    pen.box(net - 45, _INTERNET_Y - 11, net + 45, _INTERNET_Y + 11, "white", _FRAME, 1)
    pen.text(net, _INTERNET_Y, "Internet", 11, _GREY, "mm")
    for above, below in _LINKS:
        start = _TOP[above] + _BOX_HEIGHT
        # Between the rows, and then down.
        turn = (start + _TOP[below]) / 2
        pen.line(
            [
                (centres[above], start),
                (centres[above], turn),
                (centres[below], turn),
                (centres[below], _TOP[below]),
            ],
            _FRAME,
            1.5,
        )


def _draw_subnet(pen: Pen, state: GameState, subnet: int) -> None:
    left, top, defender = _LEFT[subnet], _TOP[subnet], _DEFENDERS[subnet]
    pen.box(left, top, left + _BOX_WIDTH, top + _BOX_HEIGHT, "white", _FRAME, 1)
    pen.text(left + 9, top + 19, _TITLES[subnet], 11.5, _INK, bold=True)
    if defender is not None:
        pen.text(left + _BOX_WIDTH - 9, top + 19, f"blue_agent_{defender}", 10, _BLUE, "rs")
    lines = []
    if blocked := [_SHORT[_rust.CAGE4_SUBNETS.index(name)] for name in state.blocked(subnet)]:
        lines.append((f"blocks {', '.join(blocked)}", _INK))
    # Slots of this subnet that actions in progress are for, in the colour of who acts.
    edges: dict[int, str] = {}
    own = _rust.CAGE4_SUBNETS[subnet]
    for agent in range(len(state.truth["red_action"])):
        kind, name, steps = state.red_action(agent)
        if name.startswith(f"{own}_subnet"):
            edges[_rust.CAGE4_HOSTS.index(name)] = _RED
            lines.append((f"{kind} {_short(name)} · {steps}", _RED))
        elif name == own:
            lines.append((f"{kind} · {steps}", _RED))
    if defender is not None:
        action, steps = state.blue_action(defender)
        verb, _, name = action.partition(" ")
        if name.startswith(f"{own}_subnet"):
            edges[_rust.CAGE4_HOSTS.index(name)] = _BLUE
            lines.insert(bool(blocked), (f"{verb} {_short(name)} · {steps}", _BLUE))
    for row, (line, colour) in enumerate(lines[:_MOST_LINES]):
        pen.text(left + 9, top + _LINES_Y + _LINE * row, line, 10.5, colour)

    for place in range(SLOTS):
        slot = SLOTS * subnet + place
        if state.truth["hosts"][slot]:
            label, column, row = _place(place)
            x, y = left + 9 + _PITCH * column, top + 31 + 28 * row
            _draw_host(pen, x, y, state, slot, label, edges.get(slot, _FRAME))


def _place(place: int) -> tuple[str, float, int]:
    """The label, column and row of a slot: servers stand beside the router, users below."""
    if place == 0:
        return "R", 0, 0
    return (f"U{place - 1}", place - 1, 1) if place < SERVERS.start else (f"S{place - 11}", place - 9.5, 0)


def _draw_host(pen: Pen, x: float, y: float, state: GameState, slot: int, label: str, edge: str) -> None:
    access, alerts = int(state.truth["red_access"][slot]), int(state.truth["alerts"][slot])
    pen.box(x, y, x + _HOST, y + _HOST, _COLOURS[access], edge, 1 if edge == _FRAME else 2.5, 3)
    pen.text(x + _HOST / 2, y + _HOST / 2, label, 9, "white" if access == 2 else _INK, "mm")
    for bit, colour, at in ((1, _PROCESS, x + _HOST - 5), (2, _CONNECTION, x - 3)):
        if alerts & bit:
            pen.box(at, y - 4, at + 8, y + 4, colour, "white", 1, 4)


def _draw_legend(pen: Pen) -> None:
    y, x = _HEIGHT - 14, 18.0
    for text, colour, width in (
        ("■ free", _FRAME, 62),
        ("■ attacker: user", _COLOURS[1], 122),
        ("■ root", _COLOURS[2], 62),
        ("● process alert", _PROCESS, 116),
        ("● connection alert", _CONNECTION, 140),
        ("defender's action · steps left", _BLUE, 188),
        ("attacker's action · steps left", _RED, 186),
    ):
        pen.text(x, y, text, 11, colour)
        x += width


def _short(host: str) -> str:
    """A host's name within its subnet: "user 3" of "office_network_subnet_user_host_3"."""
    return host.partition("_subnet_")[2].replace("_host_", " ")
