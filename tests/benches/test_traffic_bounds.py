"""The search of plans in traffic."""

from collections.abc import Iterator

import numpy as np
import pytest

from traffic_bounds import CASES, Bed, Node, search


@pytest.fixture(scope="module")
def bed() -> Bed:
    return Bed(CASES["crossing"], 24)


def best_from(bed: Bed, node: Node) -> Node:
    return search(bed, node, bed.case.steps, 8, 3, np.random.default_rng(0))


def test_a_plan_arrives(bed: Bed) -> None:
    best = best_from(bed, bed.start(1))
    assert (best.worth, best.is_over) == ((1, 0), True)


def test_where_nobody_can_arrive_any_more_a_plan_is_whole_until_the_time_is_up(bed: Bed) -> None:
    def waiting() -> Iterator[Node]:
        for seed in range(16):
            node = bed.start(seed)
            for _ in range(9):
                (node,) = bed.step([(node, np.array([bed.case.slower]))])
            # The rewards of waiting are no plan's.
            yield Node(node.state, node.arrived, node.crashed)

    # To drive on is rewarded more, until shortly before a crash.
    assert all(best_from(bed, node).is_late for node in waiting())
