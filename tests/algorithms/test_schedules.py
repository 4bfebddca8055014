"""Schedules: their values where one can work them out, their borders, their refusals."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrl.algorithms.schedules import Schedule


def test_step_of_the_multi_agent_trainers():
    """Every 100 updates x 0.95."""
    rate = Schedule("step", 1e-3, every=100, factor=0.95, total=500)
    assert [rate(i) for i in (0, 99)] == [1e-3, 1e-3]
    assert [rate(i) for i in (100, 199)] == [1e-3 * 0.95] * 2
    assert rate(1000) == pytest.approx(1e-3 * 0.95**10)


def test_step_stops_at_its_end():
    rate = Schedule("step", 1.0, every=1, factor=0.5, end=0.2)
    assert [rate(i) for i in range(4)] == [1, 0.5, 0.25, 0.2]


def test_constant():
    assert [Schedule("constant", 0.3, end=7.0, total=2)(i) for i in (0, 1, 99)] == [0.3] * 3


def test_linear():
    rate = Schedule("linear", 1.0, end=0.5, total=6)
    assert [rate(i) for i in range(6)] == pytest.approx([1, 0.9, 0.8, 0.7, 0.6, 0.5])


def test_cosine():
    rate = Schedule("cosine", 1.0, total=5)
    assert [rate(i) for i in range(5)] == pytest.approx([1, (1 + math.sqrt(0.5)) / 2, 0.5, 0.1464466094, 0])


def test_exponential():
    rate = Schedule("exponential", 8.0, end=1.0, total=4)
    assert [rate(i) for i in range(4)] == pytest.approx([8, 4, 2, 1])


def test_warmup_comes_before():
    rate = Schedule("linear", 1.0, total=7, warmup=3)
    assert [rate(i) for i in range(7)] == pytest.approx([0.25, 0.5, 0.75, 1, 2 / 3, 1 / 3, 0])


names = st.sampled_from(["constant", "linear", "cosine", "exponential", "step"])


@given(names, st.floats(0, 1), st.floats(1e-6, 1), st.integers(1, 50), st.integers(0, 5), st.integers(0, 200))
def test_stays_between_zero_and_the_larger_of_start_and_end(name, start, end, total, warmup, updates):
    rate = Schedule(name, start, end=end, total=total, warmup=warmup)
    assert 0 <= rate(updates) <= max(start, end) + 1e-12


@given(names, st.integers(1, 50), st.integers(0, 5))
def test_holds_its_last_value_afterwards(name, total, warmup):
    rate = Schedule(name, 1.0, end=0.1, total=total, warmup=warmup, every=1000)
    last = max(total - 1, warmup + 1)
    assert rate(last) == rate(last + 1) == rate(last + 500)


def test_a_start_of_zero_stays_zero():
    assert Schedule("exponential", 0.0)(5) == 0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("stair", {}, "unknown schedule 'stair'"),
        ("linear", {"total": 0}, "total and every of at least 1"),
        ("step", {"every": 0}, "total and every of at least 1"),
        ("linear", {"warmup": -1}, "warmup of at least 0"),
        ("linear", {"end": -0.1}, "end of at least 0"),
        ("step", {"factor": 0.0}, "factor above 0"),
        ("exponential", {}, "never reaches 0"),
    ],
)
def test_refuses(name, options, message):
    with pytest.raises(ValueError, match=message):
        Schedule(name, 1.0, **options)
