"""Compares the lanes and routes of highway-env's roads with those here."""

from __future__ import annotations

import itertools

import gymnasium
import numpy as np

import fastrl  # noqa: F401 (registers the environments)

TOLERANCE = 1e-11


def differences(id: str, config: dict[str, object], points: int = 150) -> list[str]:  # noqa: A002
    """Differences on the roads of an id, at random points around them."""
    import highway_env

    gymnasium.logger.min_level = gymnasium.logger.ERROR
    gymnasium.register_envs(highway_env)
    # Some ids take no config when they are made.
    options = {"config": config} if config else {}
    reference = gymnasium.make(id, disable_env_checker=True, **options).unwrapped
    ours = gymnasium.make(f"fastrl/{id}", config=config, disable_env_checker=True).unwrapped
    ours.reset(seed=0)
    native = ours.vector.roads
    network, indices = reference.road.network, native.lane_indices()
    if list(network.lanes_dict()) != indices:
        return [f"lanes {list(network.lanes_dict())}, here {indices}"]
    found: list[str] = []
    lanes = network.lanes_list()
    rng = np.random.default_rng(0)

    def near(what: str, a: object, b: object) -> None:
        if not np.allclose(np.array(a, float), np.array(b, float), rtol=0, atol=TOLERANCE):
            found.append(f"{what}: {a}, here {b}")

    for number in range(points):
        which = int(rng.integers(len(lanes)))
        along, across = rng.uniform(-10, lanes[which].length + 10), rng.uniform(-8, 8)
        place = lanes[which].position(along, across)
        near(f"place on {indices[which]}", place, native.place_on(which, along, across))
        heading = lanes[which].heading_at(along) + rng.normal(0, 0.3)
        closest = network.get_closest_lane_index(place, heading)
        start = int(rng.integers(len(lanes)))
        quick, plain = native.closest_lane(*place, heading, start)
        if not indices[quick] == indices[plain] == closest:
            found.append(f"closest lane of {place}: {closest}, here {indices[quick]} and {indices[plain]}")
        if number % 10:
            continue
        for lane, index, row in zip(lanes, indices, native.lanes_at(*place), strict=True):
            length, width, limit, forbidden, priority, local, heading = row
            near(f"coordinates on {index}", lane.local_coordinates(place), local)
            near(f"heading on {index}", lane.heading_at(lane.local_coordinates(place)[0]), heading)
            near(f"length and width of {index}", [lane.length, lane.width_at(0)], [length, width])
            if (lane.speed_limit, bool(lane.forbidden), lane.priority) != (limit, forbidden, priority):
                found.append(f"limit, forbidden, priority of {index}: not {limit}, {forbidden}, {priority}")
    nodes = {node for index in indices for node in index[:2]}
    for lane, index in enumerate(indices):
        for goal in sorted(nodes):
            path = network.shortest_path(index[1], goal)
            expected = [index[:2], *itertools.pairwise(path)]
            route = [indices[first][:2] for first in native.route(lane, goal)]
            if route != expected:
                found.append(f"route from {index} to {goal}: {expected}, here {route}")
    reference.close()
    ours.close()
    return found
