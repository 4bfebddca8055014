import math

import pytest

from fastrl.runs.metrics import brief, count, duration, moments, plus_minus, rate
from fastrl.runs.row import Row


def test_a_record_has_all_numbers_once() -> None:
    numbers = {"rollout/ep_rew_mean": -12.5, "time/time_elapsed": 1.5}
    record = Row(steps=10, done=10, metrics=numbers).record()
    assert list(record.items()) == [("time/total_timesteps", 10), *numbers.items()]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "-"),
        (-1134.94, "-1134.9"),
        (3.14159, "3.14"),
        (0.00123, "0.0012"),
        (0.0, "0"),
        (-0.5, "-0.50"),
    ],
)
def test_brief(value: float, text: str) -> None:
    assert brief(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (45_312, "45.3k"), (2e6, "2.0M"), (3e9, "3.0G")]
)
def test_count(value: float, text: str) -> None:
    assert count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3723, "1:02:03"), (math.nan, "-:--")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.234, "0.23"), (9.87, "9.87"), (12.3, "12"), (45_300, "45.3k")]
)
def test_slow_rates_have_digits(value: float, text: str) -> None:
    assert rate(value) == text


def test_numbers_for_people_have_no_negative_zero() -> None:
    assert plus_minus(-0.003, 0.001) == "0.00 ± 0.00"
    assert plus_minus(-0.006, math.nan) == "-0.01"


def test_moments_of_few_or_unknown_values() -> None:
    assert moments([1.0, math.nan, 3.0]) == pytest.approx(
        {"mean": 2.0, "deviation": 2**0.5, "standard_error": 1.0, "min": 1.0, "max": 3.0}
    )
    one = moments([5.0])
    assert (one["mean"], one["min"]) == (5.0, 5.0) and math.isnan(one["deviation"])
    assert all(math.isnan(value) for value in moments([]).values())
