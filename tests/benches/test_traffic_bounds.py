"""The bounds of traffic: the search of plans at crossings, and drives of racetracks."""

import numpy as np
import pytest

import traffic_bounds
from traffic_bounds import CASES, Bed, Node, bound, idle, play, search, steer

NOBODY = np.zeros(1, np.bool_)


@pytest.fixture(scope="module")
def bed() -> Bed:
    return Bed(CASES["crossing"], 24)


def best_from(bed: Bed, node: Node) -> Node:
    return search(bed, node, bed.case.steps, 8, 3, np.random.default_rng(0))


def test_a_plan_arrives(bed: Bed) -> None:
    best = best_from(bed, bed.start(1))
    assert (best.worth, best.is_over) == ((1, 0), True)


def test_where_nobody_can_arrive_any_more_a_plan_is_whole_until_the_time_is_up(bed: Bed) -> None:
    for seed in range(4):
        node = bed.start(seed)
        for _ in range(9):
            (node,) = bed.step([(node, np.array([bed.case.slower]))])
        best = best_from(bed, Node(node.state, node.arrived, node.crashed))
        assert best.is_late
        assert best.worth == (0, 0)


def test_what_is_whole_at_the_end_comes_before_what_was_rewarded_more_so_far() -> None:
    late = Node(b"", NOBODY, NOBODY, is_late=True, reward=1.0)
    driving = Node(b"", NOBODY, NOBODY, reward=5.0)  # perhaps into a crash
    assert max(driving, late, key=lambda each: each.rank) is late
    crashed = Node(b"", NOBODY, ~NOBODY, reward=6.0)
    assert max(crashed, driving, key=lambda each: each.rank) is driving
    arrived = Node(b"", ~NOBODY, NOBODY)
    assert max(arrived, late, key=lambda each: each.rank) is arrived


def test_a_racetrack_is_driven_to_its_end_or_left_without_a_crash() -> None:
    bed = Bed(CASES["racetrack"], 1)
    whole = play(bed, 3, steer(22.0))
    assert (whole.worth, whole.is_late) == ((1, 0), True)
    # Straight on leads off the road in the first curve.
    left = play(bed, 3, idle)
    assert (left.worth, left.is_over) == ((0, 0), True)


def test_the_bound_of_a_racetrack_is_its_best_drive(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(CASES["racetrack"], 1)
    # One who changes lanes at a metre's distance has crashed before.
    assert play(bed, 3, steer(1.0)).worth == (0, -1)
    monkeypatch.setattr(traffic_bounds, "CHANGES", (1.0, 22.0))
    assert bound(bed, 3).worth == (1, 0)
