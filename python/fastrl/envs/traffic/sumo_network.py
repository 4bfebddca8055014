"""Road networks from SUMO's `.net.xml` files.

Source: https://sumo.dlr.de/docs/Networks/SUMO_Road_Networks.html. `docs/sumo-roads.md` says what is taken over.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.traffic.sumo_xml import Element, read_xml
from fastrl.utils.names import did_you_mean

WIDTH = 3.2
"""Width of a lane that has none, as in SUMO, m."""
# Lanes whose ends are farther apart do not connect: along a lane inside a junction, and without one, m.
_GAP, _OPEN_GAP = 10.0, 100.0
# Shorter lanes across a junction are drawn out to this length, m.
_SHORTEST = 0.1
# Where a junction has no rules, ways that come so near each other cross, m.
_BESIDE = 2.5
# Acceleration to the side in turns, m/s², and the least speed there, m/s.
_SIDEWAYS, _SLOWEST = 2.5, 2.5
# What SUMO's letters say: 0 stop, 1 amber, 2 go after others, 3 go first.
_LIGHTS = {"r": 0, "u": 0, "y": 1, "Y": 1, "g": 2, "s": 2, "o": 2, "O": 3, "G": 3}


@dataclass(frozen=True, eq=False)
class SumoLane:
    """A lane.

    Attributes:
        id: SUMO's.
        shape: points of its middle in SUMO's coordinates (y points up), float64 [P, 2], m.
        width: m.
        speed: limit, m/s.
    """

    id: str
    shape: NDArray[np.float64]
    width: float
    speed: float

    @cached_property
    def length(self) -> float:
        """Length of the shape, m."""
        return float(np.hypot(*np.diff(self.shape, axis=0).T).sum())


@dataclass(frozen=True)
class SumoEdge:
    """A road from one junction to another.

    Attributes:
        id, start, end: ids of the edge and of its junctions.
        priority: SUMO's; which connections go first comes from the junctions.
        lanes: by SUMO's index, from the outer side on; None for those that cars may not use.
    """

    id: str
    start: str
    end: str
    priority: int
    lanes: tuple[SumoLane | None, ...]

    @cached_property
    def open_lanes(self) -> tuple[SumoLane, ...]:
        """The lanes that cars may use."""
        return tuple(lane for lane in self.lanes if lane is not None)


@dataclass(frozen=True, eq=False)
class Connection:
    """A way across a junction, from a lane to a lane.

    Attributes:
        start, end: edges and indices of lanes.
        via: ids of the lanes inside the junction, none where the file has none.
        shape: points of the way, float64 [P, 2], m.
        speed: limit, m/s.
        junction: id.
        request: number in the junction's table of rules, or None.
        light: id of the traffic light and number of the link, or None.
    """

    start: tuple[str, int]
    end: tuple[str, int]
    via: tuple[str, ...]
    shape: NDArray[np.float64]
    speed: float
    junction: str
    request: int | None
    light: tuple[str, int] | None


@dataclass(frozen=True)
class Light:
    """A traffic light with fixed times.

    Attributes:
        offset: seconds by which it is late.
        phases: seconds and SUMO's letters, one a link.
    """

    offset: float
    phases: tuple[tuple[float, str], ...]


@dataclass(frozen=True, eq=False)
class RoadNetwork:
    """A network of roads, as `from_sumo` reads it. Equal if all of it is equal.

    Attributes:
        name: of the file.
        edges: by id; those that cars may not use are left out.
        internal: lanes inside junctions by id.
        connections: ways across junctions.
        lights: by id.
        rules: by junction, for each number in its table: bits of those that cross or join, and of those that go first.
        left_hand: whether one drives on the left.
    """

    name: str
    edges: dict[str, SumoEdge]
    internal: dict[str, SumoLane]
    connections: tuple[Connection, ...]
    lights: dict[str, Light]
    rules: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    left_hand: bool = False

    @cached_property
    def lanes(self) -> dict[str, SumoLane]:
        """All lanes that cars may use by id, those inside junctions too."""
        return {lane.id: lane for edge in self.edges.values() for lane in edge.open_lanes} | self.internal

    @cached_property
    def follows(self) -> dict[str, list[str]]:
        """The edges that each edge leads to, across junctions."""
        found: dict[str, list[str]] = {edge: [] for edge in self.edges}
        for connection in self.connections:
            after = found[connection.start[0]]
            if connection.end[0] not in after:
                after.append(connection.end[0])
        return found

    def known_edge(self, edge: str, error: Callable[[str], ValueError]) -> str:
        """Checks the id of an edge; `error` makes the error from its message."""
        if edge not in self.edges:
            hint = did_you_mean(edge, self.edges)
            raise error(f"there is no edge {edge!r} that cars may use in {self.name}{hint}")
        return edge

    def way(self, start: str, end: str) -> list[str] | None:
        """The edges of a quickest way, both included; None if there is no way."""
        best, queue = {start: 0.0}, [(0.0, start)]
        reached_by: dict[str, str] = {}
        while queue:
            time, edge = heapq.heappop(queue)
            if edge == end:
                way = [edge]
                while way[-1] != start:
                    way.append(reached_by[way[-1]])
                return way[::-1]
            if time > best[edge]:
                continue
            for following in self.follows[edge]:
                lane = self.edges[following].open_lanes[0]
                later = time + lane.length / lane.speed
                if later < best.get(following, math.inf):
                    best[following], reached_by[following] = later, edge
                    heapq.heappush(queue, (later, following))
        return None

    @cached_property
    def _sections(self) -> dict[tuple[str, str], list[Connection]]:
        """The connections between two edges, from left to right."""
        found: dict[tuple[str, str], list[Connection]] = {}
        for connection in self.connections:
            found.setdefault((connection.start[0], connection.end[0]), []).append(connection)
        for some in found.values():
            some.sort(key=lambda c: (c.start[1], c.end[1]), reverse=not self.left_hand)
        return found

    def _rightwards(self, edge: SumoEdge) -> list[int]:
        """Indices of the open lanes from left to right."""
        indices = [i for i, lane in enumerate(edge.lanes) if lane is not None]
        return indices if self.left_hand else indices[::-1]

    @cached_property
    def sections(self) -> dict[str, int]:
        """The number of each edge in the compiled network."""
        return {edge: i for i, edge in enumerate(self.edges)}

    @cached_property
    def lane_indices(self) -> list[tuple[str, str, int]]:
        """The lanes of the compiled network in its order: on an edge its id, twice, and SUMO's index; in a junction the
        edges that it lies between, and a number."""
        of_edges = [(edge.id, edge.id, i) for edge in self.edges.values() for i in self._rightwards(edge)]
        across = [(*ends, i) for ends, some in self._sections.items() for i in range(len(some))]
        return of_edges + across

    @cached_property
    def native(self) -> dict[str, list[float]]:
        """The network for the compiled side, whose y axis points down: see `plan.rs`."""
        points: list[float] = []
        lanes: list[float] = []
        sections: list[float] = []
        links: list[float] = []
        crossings: list[float] = []
        numbers: dict[tuple[str, int], int] = {}

        def add(shape: NDArray[np.float64], section: int, width: float, speed: float, *flags: int) -> int:
            points.extend((shape * (1.0, -1.0)).ravel().tolist())
            lanes.extend((len(shape), section, width, speed, *flags))
            return len(lanes) // 7 - 1

        for section, edge in enumerate(self.edges.values()):
            sections.extend((2 * section, 2 * section + 1))
            order = self._rightwards(edge)
            for place, i in enumerate(order):
                lane = edge.lanes[i]
                assert lane is not None, "open lanes"
                left, right = 2 if place == 0 else 1, 2 if place + 1 == len(order) else 0
                numbers[edge.id, i] = add(lane.shape, section, lane.width, lane.speed, left, right, 0)
        own: dict[int, int] = {}
        for (start, end), some in self._sections.items():
            sections.extend((2 * self.sections[start] + 1, 2 * self.sections[end]))
            for connection in some:
                width = min(self._lane(connection.start).width, self._lane(connection.end).width)
                speed = min(connection.speed, _turn_speed(connection.shape))
                number = add(connection.shape, len(sections) // 2 - 1, width, speed, 0, 0, 1)
                own[id(connection)] = number
                crossings.append(number)
                links.extend((numbers[connection.start], number, number, numbers[connection.end]))
        return {
            "points": points,
            "lanes": lanes,
            "sections": sections,
            "links": links,
            "crossings": crossings,
            "foes": [number for row in self._foes(own) for number in row],
            "signals": self._signals(own),
            "programs": [number for light in self.lights.values() for number in _program(light)],
        }

    def _lane(self, place: tuple[str, int]) -> SumoLane:
        lane = self.edges[place[0]].lanes[place[1]]
        assert lane is not None, "connections lead from open lanes to open lanes"
        return lane

    def _foes(self, own: dict[int, int]) -> Iterable[tuple[int, int, int]]:
        """Pairs of lanes that cross or join, and whether the second one goes first."""
        by_junction: dict[str, list[Connection]] = {}
        for connection in self.connections:
            by_junction.setdefault(connection.junction, []).append(connection)
        for junction, some in by_junction.items():
            rules = self.rules.get(junction, [])
            for a in some:
                for b in some:
                    if a is b or a.start == b.start:
                        continue
                    foe, first = a.end == b.end, False
                    if a.request is not None and b.request is not None:
                        foes, response = rules[a.request]
                        foe, first = foe or _bit(foes, b.request), _bit(response, b.request)
                    else:
                        foe = foe or _nearest(a.shape, b.shape) < _BESIDE
                    if foe or first:
                        yield own[id(a)], own[id(b)], int(first)

    def _signals(self, own: dict[int, int]) -> list[float]:
        order = {light: i for i, light in enumerate(self.lights)}
        found: list[float] = []
        for connection in self.connections:
            if connection.light is not None:
                found.extend((own[id(connection)], order[connection.light[0]], connection.light[1]))
        return found

    @cached_property
    def digest(self) -> str:
        """Digest of everything that a simulation depends on."""
        return hashlib.sha256(json.dumps([self.native, self.lane_indices]).encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RoadNetwork) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __deepcopy__(self, memo: dict[int, Any]) -> RoadNetwork:
        return self

    def __repr__(self) -> str:
        return f"<RoadNetwork {self.name}: {len(self.edges)} edges, {len(self.connections)} connections>"


def _nearest(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The least distance of points of two shapes, one a metre, m."""
    dense = []
    for shape in (a, b):
        along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(shape, axis=0).T))])
        places = np.linspace(0.0, along[-1], int(along[-1]) + 2)
        dense.append(np.stack([np.interp(places, along, shape[:, k]) for k in range(2)], axis=1))
    return float(np.hypot(*(dense[0][:, None] - dense[1]).T).min())


def _turn_speed(shape: NDArray[np.float64]) -> float:
    """The speed at which vehicles keep to a lane across a junction, m/s."""
    steps = np.diff(shape, axis=0)
    headings = np.unwrap(np.arctan2(steps[:, 1], steps[:, 0]))
    turn = float(np.abs(np.diff(headings)).sum())
    length = float(np.hypot(*steps.T).sum())
    return math.inf if turn < 0.1 else max(_SLOWEST, math.sqrt(_SIDEWAYS * length / turn))


def _bit(bits: str, place: int) -> bool:
    """SUMO writes bit 0 last."""
    return place < len(bits) and bits[-1 - place] == "1"


def _program(light: Light) -> list[float]:
    links = min(len(state) for _, state in light.phases)
    table = [
        number
        for duration, state in light.phases
        for number in (duration, *(_LIGHTS[c] for c in state[:links]))
    ]
    return [light.offset, len(light.phases), links, *table]


def from_sumo(path: str | Path, *, turnarounds: bool = False) -> RoadNetwork:
    """Reads a network of SUMO.

    Args:
        path: a `.net.xml` or `.net.xml.gz` file.
        turnarounds: takes over connections on which one turns back, too. Few vehicles find the room for them; without
            them one leaves the network where a road ends.

    Raises:
        ValueError: a file that cannot be read, is no network, has lanes that do not connect, or something that is not
            supported, such as traffic lights that are not of fixed times. One line that names file and element.
    """
    return _Reader(read_xml(path, "net", "net"), turnarounds).network()


class _Reader:
    """The network in the root element of a file."""

    def __init__(self, root: Element, turnarounds: bool) -> None:
        self.root, self.turnarounds = root, turnarounds
        self.closed: set[str] = set()
        self.internal: dict[str, SumoLane] = {}
        self.edges: dict[str, SumoEdge] = {}

    def network(self) -> RoadNetwork:
        for element in self.root.all("edge"):
            self.add_edge(element)
        if not self.edges:
            raise self.root.error("expected an edge with a lane that cars may use, got none")
        lights = self.lights()
        requests, rules = self.junctions()
        connections = tuple(self.connections(requests, lights))
        left_hand = self.root.attributes.get("lefthand", "false") in ("true", "1")
        used = {one.light[0] for one in connections if one.light is not None}
        lights = {key: light for key, light in lights.items() if key in used}
        return RoadNetwork(self.root.file, self.edges, self.internal, connections, lights, rules, left_hand)

    def add_edge(self, element: Element) -> None:
        edge, function = element.text("id"), element.attributes.get("function", "normal")
        lanes = [(child, self.lane(child)) for child in element.all("lane")]
        if function == "internal":
            self.internal |= {lane.id: lane for _, lane in lanes if lane is not None}
            return
        if function in ("crossing", "walkingarea") or not any(lane for _, lane in lanes):
            # Of pedestrians, or without a lane for cars.
            self.closed.add(edge)
            return
        if edge in self.edges:
            raise element.error("there are two edges with this id")
        if [child.index("index") for child, _ in lanes] != list(range(len(lanes))):
            raise element.error(f"expected lanes with the indices 0 to {len(lanes) - 1} in this order")
        start, end, priority = element.text("from"), element.text("to"), int(element.number("priority", -1))
        self.edges[edge] = SumoEdge(edge, start, end, priority, tuple(lane for _, lane in lanes))

    def lane(self, element: Element) -> SumoLane | None:
        """None if cars may not use it."""
        allowed = element.attributes.get("allow", "all").split()
        banned = element.attributes.get("disallow", "").split()
        if not {"all", "passenger"} & set(allowed) or {"all", "passenger"} & set(banned):
            return None
        shape = element.points("shape")
        width, speed = element.number("width", WIDTH), element.number("speed")
        if width <= 0 or speed <= 0:
            raise element.error(f"expected a width and a speed above 0, got {width:g} and {speed:g}")
        lane = SumoLane(element.text("id"), shape, width, speed)
        if lane.length == 0 and not lane.id.startswith(":"):
            raise element.error("shape: expected a lane of some length, got the same point twice")
        return lane

    def lights(self) -> dict[str, Light]:
        found: dict[str, Light] = {}
        for element in self.root.all("tlLogic"):
            light, kind = element.text("id"), element.attributes.get("type", "static")
            if kind != "static":
                raise element.error(
                    f"type {kind!r} is not supported, only traffic lights of fixed times, 'static'"
                )
            if light in found:
                raise element.error("a second program of a traffic light is not supported")
            phases = tuple(self.phase(phase) for phase in element.all("phase"))
            if not phases:
                raise element.error("expected a phase, got none")
            found[light] = Light(element.number("offset", 0.0), phases)
        return found

    @staticmethod
    def phase(element: Element) -> tuple[float, str]:
        state, duration = element.text("state"), element.number("duration", least=0)
        unknown = set(state) - set(_LIGHTS)
        if unknown:
            raise element.error(
                f"state: expected the letters {''.join(_LIGHTS)}, got {''.join(sorted(unknown))!r}"
            )
        if "next" in element.attributes:
            raise element.error("next: phases in another order than that of the file are not supported")
        if duration == 0:
            raise element.error("duration: expected a number above 0, got 0")
        return duration, state

    def junctions(self) -> tuple[dict[str, int], dict[str, list[tuple[str, str]]]]:
        """The numbers of lanes inside junctions in the tables of these, and the tables."""
        numbers: dict[str, int] = {}
        rules: dict[str, list[tuple[str, str]]] = {}
        for element in self.root.all("junction"):
            if element.attributes.get("type") == "internal":
                continue
            junction = element.text("id")
            requests = sorted(element.all("request"), key=lambda request: request.index("index"))
            rules[junction] = [(request.text("foes"), request.text("response")) for request in requests]
            for number, lane in enumerate(element.attributes.get("intLanes", "").split()):
                if number < len(requests):
                    numbers[lane] = number
        return numbers, rules

    def connections(self, requests: dict[str, int], lights: dict[str, Light]) -> Iterable[Connection]:
        onward = {
            f"{element.text('from')}_{element.index('fromLane')}": element.attributes["via"]
            for element in self.root.all("connection")
            if element.text("from").startswith(":") and "via" in element.attributes
        }
        for element in self.root.all("connection"):
            start, end = element.text("from"), element.text("to")
            if start.startswith(":") or {start, end} & self.closed:
                continue
            places = [self.place(element, edge, key) for edge, key in ((start, "fromLane"), (end, "toLane"))]
            lanes = [self.edges[edge].lanes[i] for edge, i in places]
            turns = element.attributes.get("dir") == "t" and not self.turnarounds
            if turns or lanes[0] is None or lanes[1] is None:
                continue
            junction = self.edges[start].end
            if junction != self.edges[end].start:
                raise element.error(
                    f"the lanes do not connect: {start!r} ends at junction {junction!r}, {end!r} starts at"
                    f" {self.edges[end].start!r}"
                )
            via = self.via(element, onward)
            shape = self.shape(element, lanes[0], [self.internal[lane] for lane in via], lanes[1])
            inner = [self.internal[lane].speed for lane in via]
            speed = min(inner or [lanes[0].speed, lanes[1].speed])
            request = next((requests[lane] for lane in via if lane in requests), None)
            light = self.light(element, lights)
            yield Connection(places[0], places[1], via, shape, speed, junction, request, light)

    def place(self, element: Element, edge: str, key: str) -> tuple[str, int]:
        element.check_known(edge, self.edges, "there is no edge")
        i, count = element.index(key), len(self.edges[edge].lanes)
        if i >= count:
            raise element.error(f"{key}: edge {edge!r} has the lanes 0 to {count - 1}, got {i}")
        return edge, i

    def via(self, element: Element, onward: dict[str, str]) -> tuple[str, ...]:
        found: list[str] = []
        lane = element.attributes.get("via")
        while lane is not None:
            if element.check_known(lane, self.internal, "via: there is no lane") in found:
                raise element.error(f"via: the lanes from {lane!r} on lead round in a circle")
            found.append(lane)
            lane = onward.get(lane)
        return tuple(found)

    @staticmethod
    def shape(
        element: Element, start: SumoLane, inner: Sequence[SumoLane], end: SumoLane
    ) -> NDArray[np.float64]:
        """The points of the way across, from the end of a lane to the start of another one."""
        pieces = [lane.shape for lane in inner] or [np.stack([start.shape[-1], end.shape[0]])]
        most = _GAP if inner else _OPEN_GAP
        joints = [start.shape, *(pieces if inner else []), end.shape]
        for a, b in itertools.pairwise(joints):
            gap = float(np.hypot(*(b[0] - a[-1])))
            if gap > most:
                raise element.error(
                    f"the lanes {start.id!r} and {end.id!r} do not connect: there is a gap of {gap:.1f} m"
                )
        points = np.concatenate(pieces)
        apart = np.hypot(*np.diff(points, axis=0).T) > 0
        points = points[np.concatenate([[True], apart])]
        if float(np.hypot(*np.diff(points, axis=0).T).sum()) < _SHORTEST:
            along = end.shape[1] - end.shape[0]
            points = np.stack([points[0], points[0] + along / np.hypot(*along) * _SHORTEST])
        return points

    @staticmethod
    def light(element: Element, lights: dict[str, Light]) -> tuple[str, int] | None:
        if "tl" not in element.attributes:
            return None
        light, link = element.text("tl"), element.index("linkIndex")
        element.check_known(light, lights, "the file has no program of the traffic light")
        least = min(len(state) for _, state in lights[light].phases)
        if link >= least:
            raise element.error(
                f"linkIndex: the traffic light {light!r} has the links 0 to {least - 1}, got {link}"
            )
        return light, link
