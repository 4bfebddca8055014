"""How much was played while a learner was elsewhere."""

import contextlib
import itertools
import random

import pytest

from fastrl.collectors import absence
from fastrl.collectors.absence import Absence


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def visited(*visits: tuple[float, float]) -> Absence:
    """One that was visited from one moment to another, each time."""
    clock = Clock()
    made = Absence(clock)
    for clock.now, end in visits:
        with made.visit():
            clock.now = end
    return made


def test_absence_is_what_lies_between_visits() -> None:
    made = visited((2.0, 3.0), (7.0, 8.0))
    for began, ended, seconds in (
        (0.0, 2.5, 0.0),  # before the first there was nobody to be absent
        (2.0, 3.0, 0.0),
        (2.5, 7.5, 4.0),
        (4.0, 6.0, 2.0),
        (6.0, 10.0, 3.0),
        (9.0, 10.0, 1.0),
    ):
        assert made.between(began, ended) == seconds, (began, ended)
    assert Absence().between(1.0, 5.0) == 0.0


def test_it_ends_with_a_visit_that_fails() -> None:
    clock = Clock()
    made = Absence(clock)
    with contextlib.suppress(KeyError), made.visit():
        clock.now = 3.0
        raise KeyError
    assert made.between(2.0, 5.0) == 2.0


def test_old_visits_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absence, "_VISITS", 4)
    drawn = random.Random(0)
    moments = list(itertools.accumulate(drawn.random() for _ in range(200)))
    visits = list(zip(moments[::2], moments[1::2], strict=True))
    made = visited(*visits)
    assert len(made._at) <= 16
    gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(visits[-4:])]
    assert made.between(visits[-4][0], visits[-1][1]) == pytest.approx(sum(gaps))
    assert made.between(0.0, visits[-1][1]) >= sum(gaps)
