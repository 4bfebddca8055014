"""The search of plans in traffic."""

import numpy as np
import pytest

from traffic_bounds import CASES, Bed, Node, search

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
