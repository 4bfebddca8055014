"""Traffic demand from SUMO's `.rou.xml` files: vehicles, trips and flows along edges.

Source: https://sumo.dlr.de/docs/Definition_of_Vehicles,_Vehicle_Types,_and_Routes.html.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

from fastrl.envs.traffic.sumo_network import RoadNetwork
from fastrl.envs.traffic.sumo_xml import Element, read_xml
from fastrl.utils.names import did_you_mean

MOST_VEHICLES = 1_000_000
"""The most departures of a file."""
# One day, the end of a flow that has none, as in SUMO, s.
_END = 86400.0
_SUPPORTED = ("vehicle", "trip", "flow", "route", "vType")
_REFUSED = {
    "person": "pedestrians",
    "personFlow": "pedestrians",
    "container": "containers",
    "containerFlow": "containers",
    "vTypeDistribution": "distributions of types",
    "routeDistribution": "distributions of routes",
    "include": "other files",
    "interval": "intervals",
}
# Vehicles of these classes drive as cars do.
_CARS = (
    "passenger",
    "private",
    "taxi",
    "truck",
    "delivery",
    "motorcycle",
    "evehicle",
    "hov",
    "custom1",
    "custom2",
)


@dataclass(frozen=True)
class Demand:
    """Vehicles that depart by a timetable or by chance.

    Attributes:
        name: of the file.
        routes: edges of each route.
        departures: times (s) and routes (by their numbers).
        flows: begin (s), end (s), probability a second, and route.
    """

    name: str
    routes: list[tuple[str, ...]] = field(default_factory=list)
    departures: list[tuple[float, int]] = field(default_factory=list)
    flows: list[tuple[float, float, float, int]] = field(default_factory=list)

    def native(self, network: RoadNetwork) -> dict[str, list[float]]:
        """The demand for the compiled side: see `trips.rs`."""
        routes = [
            n for route in self.routes for n in (len(route), *(network.sections[edge] for edge in route))
        ]
        return {
            "routes": [float(number) for number in routes],
            "departures": [float(number) for row in self.departures for number in row],
            "flows": [float(number) for row in self.flows for number in row],
        }


def read_demand(path: str | Path, network: RoadNetwork) -> Demand:
    """Reads a `.rou.xml` file.

    Raises:
        ValueError: a file that cannot be read or is no demand, routes that do not exist on the network, and what is not
            supported. One line that names file and element.
    """
    root = read_xml(path, "routes", "demand")
    return _Reader(root, network).demand()


class _Reader:
    def __init__(self, root: Element, network: RoadNetwork) -> None:
        self.root, self.network = root, network
        self.found = Demand(root.file)
        self.named: dict[str, Element] = {}
        self.types: set[str] = {"DEFAULT_VEHTYPE"}
        self.numbers: dict[tuple[str, ...], int] = {}

    def demand(self) -> Demand:
        for element in self.root.children:
            if element.tag in _REFUSED:
                raise element.error(f"{_REFUSED[element.tag]} are not supported")
            if element.tag == "vType":
                self.add_type(element)
            elif element.tag == "route":
                self.named[element.text("id")] = element
            elif element.tag not in _SUPPORTED:
                hint = did_you_mean(element.tag, _SUPPORTED)
                raise element.error(f"expected one of {', '.join(_SUPPORTED)}{hint}")
        for element in self.root.children:
            if element.tag in ("vehicle", "trip"):
                self.found.departures.append((self.time(element, "depart"), self.route(element)))
            elif element.tag == "flow":
                self.add_flow(element)
            if len(self.found.departures) > MOST_VEHICLES:
                raise element.error(f"more than {MOST_VEHICLES} vehicles are not supported")
        if not self.found.departures and not self.found.flows:
            raise self.root.error("expected a vehicle, trip or flow, got none")
        return self.found

    def add_type(self, element: Element) -> None:
        kind = element.attributes.get("vClass", "passenger")
        if kind not in _CARS:
            raise element.error(f"vClass {kind!r} is not supported, only cars: {', '.join(_CARS)}")
        self.types.add(element.text("id"))

    def time(self, element: Element, key: str, default: float | None = None) -> float:
        given = element.attributes.get(key)
        if given in ("triggered", "containerTriggered", "split"):
            raise element.error(f"{key}={given!r} is not supported, only a time in seconds")
        return element.number(key, default, least=0)

    def route(self, element: Element) -> int:
        """The number of the route of a vehicle, trip or flow."""
        for child in element.children:
            if child.tag not in ("route", "param"):
                raise child.error("stops and other children of vehicles are not supported, only <route>")
        for key in (end + place for end in ("from", "to") for place in ("Taz", "Junction", "LonLat", "XY")):
            if key in element.attributes:
                raise element.error(f"{key} is not supported, only edges: from and to")
        kind = element.attributes.get("type")
        if kind is not None:
            element.check_known(kind, self.types, "there is no vType")
        if "route" in element.attributes:
            name = element.check_known(element.text("route"), self.named, "there is no route")
            edges = self.edges(self.named[name])
        elif (own := next(iter(element.all("route")), None)) is not None:
            edges = self.edges(own)
        else:
            edges = self.shortest(element)
        if edges not in self.numbers:
            self.numbers[edges] = len(self.found.routes)
            self.found.routes.append(edges)
        return self.numbers[edges]

    def edges(self, element: Element) -> tuple[str, ...]:
        """The edges of a <route>, which must lead from one to the next."""
        edges = tuple(element.text("edges").split())
        if not edges:
            raise element.error("edges: expected at least one, got none")
        for edge in edges:
            self.network.known_edge(edge, element.error)
        for a, b in itertools.pairwise(edges):
            if b not in self.network.follows[a]:
                hint = did_you_mean(b, self.network.follows[a])
                raise element.error(f"edges: {a!r} does not lead to {b!r}{hint}")
        return edges

    def shortest(self, element: Element) -> tuple[str, ...]:
        """The quickest way of a <trip> over its edges."""
        stops = [element.text("from"), *element.attributes.get("via", "").split(), element.text("to")]
        way = [self.network.known_edge(stops[0], element.error)]
        for start, end in itertools.pairwise(stops):
            piece = self.network.way(start, self.network.known_edge(end, element.error))
            if piece is None:
                raise element.error(f"there is no way from {start!r} to {end!r}")
            way += piece[1:]
        return tuple(way)

    def add_flow(self, element: Element) -> None:
        route = self.route(element)
        begin, end = self.time(element, "begin", 0.0), self.time(element, "end", _END)
        if "probability" in element.attributes:
            probability = element.number("probability", least=0)
            if probability > 1:
                raise element.error(f"probability: expected at most 1, got {probability:g}")
            self.found.flows.append((begin, end, probability, route))
            return
        number = element.index("number") if "number" in element.attributes else None
        period = self.period(element, (end - begin) / number if number else None)
        most = min(number or MOST_VEHICLES + 1, MOST_VEHICLES + 1)
        k = 0
        while k < most and begin + k * period < end:
            self.found.departures.append((begin + k * period, route))
            k += 1

    @staticmethod
    def period(element: Element, default: float | None) -> float:
        """Seconds between two vehicles of a flow."""
        for key in ("perHour", "vehsPerHour"):
            if key in element.attributes:
                rate = element.number(key, least=0)
                if rate == 0:
                    raise element.error(f"{key}: expected a number above 0, got 0")
                return 3600 / rate
        if "exp" in element.attributes.get("period", ""):
            raise element.error("period: random ones are not supported, use probability")
        period = element.number("period", default if "period" not in element.attributes else None)
        if period <= 0:
            raise element.error(f"period: expected a number above 0, got {period:g}")
        return period
