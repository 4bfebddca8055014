"""A slow model of radio links between vehicles: every link by scalar formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.traffic.links import LinkOptions, path_loss

Place = NDArray[np.float64]


def blocked(cars: dict[str, Any], a: Place, b: Place) -> bool:
    """Returns whether the rectangle of a car lies across the path, its middle between the ends."""
    length = np.hypot(*(b - a))
    for x, y, heading in zip(cars["x"], cars["y"], cars["heading"], strict=True):
        middle = np.array([x, y])
        if np.hypot(*(middle - a)) < 1e-6 or np.hypot(*(middle - b)) < 1e-6:
            continue
        way = (middle - a) @ (b - a) / length
        corners = [
            middle
            + sx * 2.5 * np.array([np.cos(heading), np.sin(heading)])
            + sy * np.array([-np.sin(heading), np.cos(heading)])
            for sx in (-1, 1)
            for sy in (-1, 1)
        ]
        sides = [np.cross(np.append(b - a, 0), np.append(corner - a, 0))[2] for corner in corners]
        if 0 < way < length and min(sides) <= 0 <= max(sides):
            return True
    return False


def around_a_corner(a: Place, b: Place, edge: float = 7.0) -> bool:
    """Returns whether a building stands between two places: one fills each corner of a crossing of two roads, from
    `edge` metres beside their middles on. The path meets it if it begins or ends in it, or crosses one of its walls."""
    for sides in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        p, q = a * sides, b * sides
        if min(p) > edge or min(q) > edge:
            return True
        for wall in (0, 1):
            if (p[wall] > edge) != (q[wall] > edge):
                share = (edge - p[wall]) / (q[wall] - p[wall])
                if (p + share * (q - p))[1 - wall] > edge:
                    return True
    return False


def no_building(a: Place, b: Place) -> bool:
    return False


def slow_model(
    links: dict[str, NDArray[Any]],
    cars: dict[str, Any],
    here: NDArray[np.bool_],
    options: LinkOptions,
    behind_building: Callable[[Place, Place], bool] = no_building,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """SINR and probability of arrival of every link, [A, S].

    Args:
        links: of `CoopVectorEnv.links`. cars: all vehicles on the road.
        here: of each station, whether it is on the road.
    """
    urban = options.surroundings == "urban"
    agents, stations = links["sinr"].shape
    slot = links["resources"] % options.slots
    noise = 10 ** ((-174 + 10 * np.log10(options.bandwidth) + options.noise_figure) / 10)

    def received(sender: int, receiver: int) -> float:
        a, b = links["places"][sender], links["places"][receiver]
        distance = max(np.hypot(*(a - b)), 1.0)
        shadowing, more = links["shadowing"][sender, receiver], 0.0
        if urban and behind_building(a, b):
            loss = path_loss("nlos", distance, options.frequency) + 4 * shadowing
        else:
            loss = path_loss("los-urban" if urban else "los-highway", distance, options.frequency)
            loss += 3 * shadowing
            if options.blockage == "vehicles" and blocked(cars, a, b):
                far = max(0.0, 15 * np.log10(distance) - 41)
                low = options.antenna_height < options.vehicle_height
                mean, spread = (9 + far, 4.5) if low else (5 + far, 4.0)
                if options.antenna_height <= options.vehicle_height:
                    more = max(0.0, mean + spread * links["blockage"][sender, receiver])
        return float(10 ** ((links["powers"][sender] + 2 * options.antenna_gain - loss - more) / 10))

    sinr, success = np.full((agents, stations), np.nan), np.full((agents, stations), np.nan)
    for receiver in range(agents):
        for sender in range(stations):
            if receiver == sender or not here[sender] or np.isnan(links["success"][receiver, sender]):
                continue
            if slot[receiver] == slot[sender] and here[receiver]:
                success[receiver, sender] = 0.0
                continue
            same = [
                k
                for k in range(stations)
                if k not in (sender, receiver)
                and here[k]
                and links["resources"][k] == links["resources"][sender]
            ]
            disturbance = noise + sum(received(k, receiver) for k in same)
            sinr[receiver, sender] = 10 * np.log10(received(sender, receiver) / disturbance)
            x = (sinr[receiver, sender] - options.sinr_threshold) / options.sinr_slope
            success[receiver, sender] = 1 - 1 / (1 + np.exp(x))
    return sinr, success
