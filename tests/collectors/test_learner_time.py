"""The time that a learner spends outside its collector."""

import contextlib
import itertools
import random

import pytest

from fastrl.collectors import learner_time
from fastrl.collectors.learner_time import LearnerTime


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def after_waits(*waits: tuple[float, float]) -> LearnerTime:
    """Learner time after waits from one moment to another."""
    clock = Clock()
    made = LearnerTime(clock)
    for clock.now, end in waits:
        with made.waiting():
            clock.now = end
    return made


def test_own_time_lies_between_waits() -> None:
    made = after_waits((2.0, 3.0), (7.0, 8.0))
    for began, ended, seconds in (
        (0.0, 2.5, 0.0),  # the learner has not started before its first wait
        (2.0, 3.0, 0.0),
        (2.5, 7.5, 4.0),
        (4.0, 6.0, 2.0),
        (6.0, 10.0, 3.0),
        (9.0, 10.0, 1.0),
    ):
        assert made.between(began, ended) == seconds, (began, ended)
    assert LearnerTime().between(1.0, 5.0) == 0.0


def test_it_ends_with_a_visit_that_fails() -> None:
    clock = Clock()
    made = LearnerTime(clock)
    with contextlib.suppress(KeyError), made.waiting():
        clock.now = 3.0
        raise KeyError
    assert made.between(2.0, 5.0) == 2.0


def test_old_visits_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_time, "WAITS", 4)
    drawn = random.Random(0)
    moments = list(itertools.accumulate(drawn.random() for _ in range(200)))
    visits = list(zip(moments[::2], moments[1::2], strict=True))
    made = after_waits(*visits)
    assert len(made.moments) <= 16
    gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(visits[-4:])]
    assert made.between(visits[-4][0], visits[-1][1]) == pytest.approx(sum(gaps))
    assert made.between(0.0, visits[-1][1]) >= sum(gaps)
