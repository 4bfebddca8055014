"""Races with made-up speeds, on a clock of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from fastrl.autotune.race import Result, best_of, race
from fastrl.autotune.way import Way
from fastrl.collectors.protocol import CollectError
from fastrl.runs.errors import TrainError


def result(name: str, *rates: float, effort: int = 1) -> Result:
    return Result(Way(name, {}, effort), list(rates))


class Machine:
    """Runs ways to run at given speeds; each turn takes a second.

    Attributes:
        now: seconds of its clock.
        turns: labels of the ways that had a turn, in order.
        kept: labels of those that stayed, each time that others were ended.
    """

    def __init__(self, speeds: dict[str, float], drift: Callable[[float], float] = lambda now: 1.0) -> None:
        self.speeds, self.drift = speeds, drift
        self.now = 0.0
        self.turns: list[str] = []
        self.kept: list[list[str]] = []

    def turn(self, way: Way) -> float:
        if (speed := self.speeds[way.label]) == 0:
            raise CollectError("not enough memory\nfor them")
        self.now += 1
        self.turns.append(way.label)
        return speed * self.drift(self.now)

    def keep(self, ways: Sequence[Way]) -> None:
        self.kept.append([way.label for way in ways])

    def race(self, seconds: float, as_good: float = 0.98) -> tuple[Result, list[Result]]:
        results = [result(name, effort=i) for i, name in enumerate(self.speeds)]
        best = race(
            results, self.turn, keep=self.keep, seconds=seconds, as_good=as_good, clock=lambda: self.now
        )
        return best, results


def test_the_slower_half_leaves_after_each_round_down_to_three() -> None:
    machine = Machine({name: 100 + 10 * i for i, name in enumerate("abcdefgh")})
    best, results = machine.race(seconds=1000)
    assert best.way.label == "h"
    # A start each, then rounds, of which there are nine.
    assert [len(each.rates) for each in results] == [1, 1, 1, 1, 2, 9, 9, 9]
    assert [len(kept) for kept in machine.kept] == [4, *[3] * 8]
    # Every second round is in the reversed order.
    assert machine.turns[16:23] == ["h", "g", "f", "e", "f", "g", "h"]
    assert not any(each.notes for each in results)


def test_finalists_have_three_turns_however_short_the_time_is() -> None:
    machine = Machine({name: 100 + 10 * i for i, name in enumerate("abcde")})
    best, results = machine.race(seconds=0.1)
    assert best.way.label == "c" and machine.now == 12
    assert [len(each.rates) for each in results] == [3, 3, 3, 0, 0]
    assert [each.notes for each in results] == [[]] * 3 + [["not tried: no time left"]] * 2


def test_what_is_as_good_as_the_best_stays_and_the_simplest_wins() -> None:
    names = "abcdefgh"
    machine = Machine({name: 100 if name == "b" else 101 for name in names} | {"a": 90})
    assert machine.race(seconds=1000)[0].way.label == "b"
    assert machine.race(seconds=1000, as_good=0.85)[0].way.label == "a"


def test_ways_that_cannot_run_are_left_out() -> None:
    best, results = Machine({"a": 0, "b": 100}).race(seconds=1)
    assert best.way.label == "b" and best.rates == [100]
    assert results[0].notes == ["cannot run: not enough memory"] and results[0].measured == 0
    with pytest.raises(TrainError, match=r"^no way to run was found: cannot run: not enough memory$"):
        Machine({"a": 0, "b": 0}).race(seconds=1)


def test_a_machine_that_becomes_slower_decides_nothing() -> None:
    machine = Machine({"a": 100, "b": 104, "c": 50}, drift=lambda now: 0.9 ** (now // 3))
    best, results = machine.race(seconds=1000)
    assert best.way.label == "b"
    assert max(results[0].rates) > 2 * min(results[1].rates)


def test_rounds_are_compared_not_their_rates() -> None:
    # The machine is ten times as slow in the second round.
    first, second = result("first", 100, 12, 110, effort=4), result("second", 90, 9, 100)
    assert best_of([first, second]) is first
    # A single outlier decides nothing.
    lucky = result("lucky", 300, 10, 95, effort=8)
    assert best_of([first, second, lucky]) is first


def test_of_those_that_are_as_good_the_simplest_is_chosen() -> None:
    two, eight = result("two", 100, 100, effort=2), result("eight", 101, 101, effort=8)
    assert best_of([eight, two]) is two
    assert best_of([result("eight", 110.0, effort=8), result("two", 100.0, effort=2)]).way.label == "eight"
    # Of two that are as simple the faster one.
    assert best_of([result("slower", 100.0), result("faster", 101.0)]).way.label == "faster"
