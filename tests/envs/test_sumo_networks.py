"""`fastrl.envs.roads`: networks and demand of SUMO, compared with sumolib where it is installed; bad files."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from fastrl._native import _rust
from fastrl.envs.roads import RoadNetwork, from_sumo, read_demand
from fastrl.envs.traffic.sumo_config import TOWN
from fastrl.envs.traffic.sumo_env import SumoRoadVectorEnv

GOLDEN = Path(__file__).parents[1] / "support" / "golden" / "sumo"
NETWORKS = [TOWN, GOLDEN / "spider.net.xml", GOLDEN / "rand.net.xml"]
DEMAND = GOLDEN / "town.rou.xml"


def shipped() -> list[Path]:
    """The networks that sumolib ships with."""
    sumolib = pytest.importorskip("sumolib", reason="sumolib is not installed: pip install sumolib")
    return sorted(Path(sumolib.__file__).parent.rglob("*.net.xml"))


def agrees_with_sumolib(path: Path) -> None:
    sumolib = pytest.importorskip("sumolib", reason="sumolib is not installed: pip install sumolib")
    network = from_sumo(path, turnarounds=True)
    theirs = sumolib.net.readNet(str(path), withInternal=True)
    lanes = [lane for edge in theirs.getEdges(withInternal=True) for lane in edge.getLanes()]
    cars = {lane.getID(): lane for lane in lanes if lane.allows("passenger")}
    inside = ("crossing", "walkingarea")
    cars = {key: lane for key, lane in cars.items() if lane.getEdge().getFunction() not in inside}
    assert set(network.lanes) == set(cars)
    for key, lane in network.lanes.items():
        np.testing.assert_allclose(lane.shape, np.array(cars[key].getShape())[:, :2], atol=1e-9)
        assert (lane.width, lane.speed) == (cars[key].getWidth(), cars[key].getSpeed())
    for edge in network.edges.values():
        other = theirs.getEdge(edge.id)
        assert edge.priority == other.getPriority()
        assert (edge.start, edge.end) == (other.getFromNode().getID(), other.getToNode().getID())
    found = {(one.start, one.end): one for one in network.connections}
    expected = {}
    for edge in theirs.getEdges(withInternal=False):
        for some in edge.getOutgoing().values():
            for one in some:
                ends = [
                    (lane.getEdge().getID(), lane.getIndex()) for lane in (one.getFromLane(), one.getToLane())
                ]
                if {one.getFromLane().getID(), one.getToLane().getID()} <= set(cars):
                    expected[tuple(ends)] = one
    assert set(found) == set(expected)
    for ends, one in found.items():
        assert one.junction == expected[ends].getJunction().getID()
        assert one.via[:1] == tuple(filter(None, [expected[ends].getViaLaneID()]))
        assert (one.light is None) == (expected[ends].getTLSID() == "")
        if one.light is not None:
            assert one.light == (expected[ends].getTLSID(), expected[ends].getTLLinkIndex())
    # Which go first.
    for a in network.connections:
        for b in network.connections:
            if (
                a.junction == b.junction
                and a.request is not None
                and b.request is not None
                and a.start != b.start
            ):
                node = theirs.getNode(a.junction)
                bits = network.rules[a.junction][a.request]
                told = node.forbids(expected[b.start, b.end], expected[a.start, a.end])
                assert (bits[1][-1 - b.request] == "1") == told


@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.name)
def test_networks_agree_with_sumolib(path: Path) -> None:
    agrees_with_sumolib(path)


def test_networks_that_sumolib_ships_are_read_alike() -> None:
    assert len(shipped()) >= 10
    for path in shipped():
        agrees_with_sumolib(path)


@pytest.mark.parametrize("path", NETWORKS, ids=lambda path: path.name)
def test_the_compiled_lanes_have_the_shapes_of_the_file(path: Path) -> None:
    """All points of a shape lie on the lane at their distance from its start; y is turned over."""
    network = from_sumo(path)
    env = SumoRoadVectorEnv(1, net=network, config={"vehicles_count": 0})
    native = env.roads
    assert env.lane_indices() == network.lane_indices
    across = {}
    for one in network.connections:
        across.setdefault((one.start[0], one.end[0]), []).append(one.shape)
    for number, (start, end, index) in enumerate(env.lane_indices()):
        shapes = across.get((start, end), []) if start != end else [network.edges[start].lanes[index].shape]
        x, y = native.place_on(number, 0.0, 0.0)
        shape = next(
            shape
            for shape in shapes
            if np.hypot(shape[0][0] - x, -shape[0][1] - y) < 1e-9 and on(native, number, shape)
        )
        length = native.lanes_at(0.0, 0.0)[number][0]
        assert length == pytest.approx(np.hypot(*np.diff(shape, axis=0).T).sum())


def on(native: _rust.RoadVec, number: int, shape: np.ndarray) -> bool:
    """True for a lane that runs through all points of a shape."""
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(shape, axis=0).T))])
    places = np.array([native.place_on(number, float(s), 0.0) for s in along])
    return np.allclose(places, shape * (1.0, -1.0), atol=1e-9)


def test_ways_are_as_quick_as_those_of_sumolib() -> None:
    sumolib = pytest.importorskip("sumolib", reason="sumolib is not installed: pip install sumolib")
    network = from_sumo(TOWN)
    theirs = sumolib.net.readNet(str(TOWN))
    edges = list(network.edges)
    found = 0
    for start in edges:
        for end in edges:
            way = network.way(start, end)
            best, _ = theirs.getFastestPath(theirs.getEdge(start), theirs.getEdge(end))
            assert (way is None) == (best is None)
            if way is not None and best is not None:
                found += 1
                assert (way[0], way[-1]) == (start, end)
                assert all(b in network.follows[a] for a, b in itertools.pairwise(way))
                assert len(way) == len(best)
    assert found > 100


def test_a_packed_network_is_the_same(tmp_path: Path) -> None:
    packed = tmp_path / "town.net.xml.gz"
    packed.write_bytes(gzip.compress(TOWN.read_bytes()))
    network = from_sumo(packed)
    assert network == from_sumo(TOWN) and hash(network) == hash(from_sumo(TOWN))
    assert network != from_sumo(TOWN, turnarounds=True) or len(network.connections) == 64


def small(lane: str = "", connection: str = "", more: str = "", net: str = "") -> str:
    """Two edges in a row without lanes inside the junction; arguments are added or replace what is there."""
    return f"""<net version="1.20"{net}>
 <edge id="in" from="a" to="b"><lane id="in_0" index="0" speed="10" {lane or 'shape="0,0 50,0"'}/></edge>
 <edge id="out" from="b" to="c"><lane id="out_0" index="0" speed="10" shape="60,0 100,0"/></edge>
 <edge id="path" from="b" to="c"><lane id="path_0" index="0" speed="1" allow="pedestrian" shape="60,5 99,5"/></edge>
 {more}
 {connection or '<connection from="in" to="out" fromLane="0" toLane="0"/>'}
</net>"""


LIGHT = '<connection from="in" to="out" fromLane="0" toLane="0" tl="t" linkIndex="{}"/>'
BOMB = '<!DOCTYPE net [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><net>&b;</net>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.net.xml is no XML: no element found"),
        ("<net><edge></net>", "is no XML: mismatched tag: line 1"),
        ("<routes/>", "expected the root element <net>, got <routes>"),
        (BOMB, "line 1: document types are not read"),
        ("<net/>", "expected an edge with a lane that cars may use"),
        (small(lane='shape="0,0"'), "line 2, <lane id='in_0'>: shape: expected at least two points"),
        (small(lane='shap="0,0 50,0"'), "expected the attribute 'shape'; did you mean shap?"),
        (small(lane='shape="0,0 50,0" width="x"'), "width: expected a number, got 'x'"),
        (small(lane='shape="0,0 50,0" width="-1"'), "a width and a speed above 0"),
        (small(lane='shape="1,1 1,1"'), "the same point twice"),
        (small(lane='shape="0,0 nan,0"'), "at least two points"),
        (small(lane='shape="0,0 1e300,0"'), "line 2, <lane id='in_0'>: shape: expected coordinates within"),
        (small('shape="0,0 -500,0"'), "<connection from='in'>: the lanes 'in_0' and 'out_0' do not connect"),
        (
            small(connection='<connection from="in" to="ou" fromLane="0" toLane="0"/>'),
            "no edge 'ou'; did you mean out?",
        ),
        (
            small(connection='<connection from="in" to="out" fromLane="2" toLane="0"/>'),
            "the lanes 0 to 0, got 2",
        ),
        (
            small(connection='<connection from="out" to="in" fromLane="0" toLane="0"/>'),
            "'out' ends at junction 'c'",
        ),
        (
            small(connection='<connection from="in" to="out" fromLane="0" toLane="0" via=":b_0_0"/>'),
            "via: there is no lane ':b_0_0'",
        ),
        (
            small(more='<tlLogic id="t" type="actuated"/>'),
            "line 5, <tlLogic id='t'>: type 'actuated' is not supported",
        ),
        (small(more='<tlLogic id="t"/>'), "expected a phase"),
        (small(more='<tlLogic id="t"><phase duration="9" state="q"/></tlLogic>'), "expected the letters"),
        (small(more='<tlLogic id="t"><phase duration="0" state="G"/></tlLogic>'), "above 0, got 0"),
        (small(connection=LIGHT.format(0)), "no program of the traffic light 't'"),
        (
            small(
                connection=LIGHT.format(1), more='<tlLogic id="t"><phase duration="9" state="G"/></tlLogic>'
            ),
            "0 to 0, got 1",
        ),
    ],
)
def test_bad_networks_are_answered_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.net.xml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.net\.xml") as error:
        gymnasium.make("fastrl/road-v0", net=str(path))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_missing_files_are_answered_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "town.net.xml").write_text(small())
    with pytest.raises(ValueError, match=r"cannot read .*twon.net.xml.*did you mean town.net.xml"):
        from_sumo(tmp_path / "twon.net.xml")
    with pytest.raises(ValueError, match="demand: cannot read"):
        gymnasium.make("fastrl/road-v0", demand="nowhere.rou.xml")
    with pytest.raises(
        TypeError, match=r"net: expected the path of a \.net\.xml file or a RoadNetwork, got int"
    ):
        gymnasium.make("fastrl/road-v0", net=3)  # type: ignore[call-arg]


def test_what_cars_do_not_use_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.net.xml"
    path.write_text(small())
    network = from_sumo(path)
    assert list(network.edges) == ["in", "out"] and len(network.connections) == 1
    assert network.connections[0].shape.tolist() == [[50, 0], [60, 0]]
    path.write_text(small(more='<connection from="in" to="path" fromLane="0" toLane="0"/>'))
    assert len(from_sumo(path).connections) == 1


def test_demand_is_read() -> None:
    network = from_sumo(TOWN)
    demand = read_demand(DEMAND, network)
    assert demand.routes[0] == ("left0A0", "A0B0", "B0right0")
    assert demand.routes[2][0] == "right1B1" and demand.routes[2][-1] == "A1left1"
    times = [time for time, _ in demand.departures]
    assert times == [0, 2.5, 3, 0, 5, 10, 15, 20, 25]
    assert demand.flows == [(0, 60, 0.2, 0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<routes/>", "expected a vehicle, trip or flow, got none"),
        ('<routes><person id="p" depart="0"/></routes>', "<person id='p'>: pedestrians are not supported"),
        ('<routes><vehicl id="p"/></routes>', "did you mean vehicle?"),
        ('<routes><vType id="t" vClass="tram"/></routes>', "vClass 'tram' is not supported"),
        (
            '<routes><trip id="t" from="left0A0" to="A0A2" depart="0"/></routes>',
            "no edge 'A0A2' that cars may use in",
        ),
        (
            '<routes><trip id="t" from="A0left0" to="A0A1" depart="0"/></routes>',
            "no way from 'A0left0' to 'A0A1'",
        ),
        (
            '<routes><vehicle id="v" route="r" depart="0"/><route id="rr" edges="A0A1"/></routes>',
            "did you mean rr?",
        ),
        (
            '<routes><vehicle id="v" depart="0"><route edges="left0A0 A1B1"/></vehicle></routes>',
            "'left0A0' does not lead to 'A1B1'",
        ),
        (
            '<routes><trip id="t" from="left0A0" to="A0A1" depart="triggered"/></routes>',
            "depart='triggered' is not",
        ),
        ('<routes><trip id="t" from="left0A0" to="A0A1" depart="-1"/></routes>', "at least 0, got '-1'"),
        ('<routes><trip id="t" type="bus" from="left0A0" to="A0A1" depart="0"/></routes>', "no vType 'bus'"),
        (
            '<routes><trip id="t" from="left0A0" to="A0A1" depart="0"><stop lane="A0A1_0"/></trip></routes>',
            "stops and other children",
        ),
        (
            '<routes><flow id="f" from="left0A0" to="A0A1" period="0"/></routes>',
            "period: expected a number above 0",
        ),
        ('<routes><flow id="f" from="left0A0" to="A0A1" probability="2"/></routes>', "at most 1, got 2"),
        (
            '<routes><flow id="f" from="left0A0" to="A0A1" period="0.001"/></routes>',
            "more than 1000000 vehicles",
        ),
    ],
)
def test_bad_demand_is_answered_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.rou.xml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.rou\.xml") as error:
        gymnasium.make("fastrl/road-v0", demand=path)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_public_module_has_the_reader() -> None:
    assert isinstance(from_sumo(str(TOWN)), RoadNetwork)
