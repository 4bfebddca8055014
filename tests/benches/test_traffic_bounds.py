"""The drives whose best shows how many can arrive on racetracks."""

import pytest

import traffic_bounds
from traffic_bounds import CASES, Bed, bound, idle, play, steer


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
    monkeypatch.setattr(traffic_bounds, "_CHANGES", (1.0, 22.0))
    assert bound(bed, 3).worth == (1, 0)
