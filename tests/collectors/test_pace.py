"""The pace of a live simulation, by a clock of the test's."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.collectors.pace import Pace


class Clock:
    """Time that passes when somebody says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 20), st.lists(st.integers(0, 60), max_size=40))
def test_a_step_is_taken_when_it_is_due_or_counted_as_late(period: int, busy: list[int]) -> None:
    clock = Clock()
    pace = Pace(float(period), clock.wait, clock)
    pace.next_step()
    missed, late, latest = 0, 0, 0
    due = clock.now
    for seconds in busy:
        clock.now += seconds
        due += period
        if clock.now > due:
            by = clock.now - due
            missed, late, latest = missed + 1, late + by, max(latest, by)
            due = clock.now
        pace.next_step()
        assert clock.now == pytest.approx(due)
    assert (pace.steps, pace.missed) == (len(busy) + 1, missed)
    assert pace.late == pytest.approx(late)
    assert pace.latest == pytest.approx(latest)


def test_as_fast_as_it_can_nothing_is_late() -> None:
    clock = Clock()
    pace = Pace(0.0, clock.wait, clock)
    for _ in range(5):
        pace.next_step()
        clock.now += 7
    assert (pace.steps, pace.missed, pace.late) == (5, 0, 0.0)


def test_a_wait_can_be_cut_short() -> None:
    clock = Clock()
    pace = Pace(1e9, clock.wait, clock)
    pace.next_step()
    pace.next_step(lambda: clock.now > 101)
    assert clock.now < 102
