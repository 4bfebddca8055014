import math

import pytest

from fastrl.training.metrics import TrainRow, brief, count, duration, rate


def test_a_record_has_all_numbers_once() -> None:
    row = TrainRow(
        steps=10,
        iteration=1,
        episodes=3,
        mean_return=-12.5,
        mean_length=100.0,
        returns={"bline": -20.0, "meander": -5.0},
        losses={"policy_loss": 0.5, "value_loss": 0.25, "entropy": 4.5},
        seconds=1.5,
        steps_per_second=1000.0,
        parts={"environment": 0.25, "update": 1.0},
        shares={"update": 0.7},
    )
    record = row.record()
    assert next(iter(record)) == "steps"
    assert record == {
        "steps": 10,
        "iteration": 1,
        "episodes": 3,
        "mean_return": -12.5,
        "mean_length": 100.0,
        "mean_return_bline": -20.0,
        "mean_return_meander": -5.0,
        "policy_loss": 0.5,
        "value_loss": 0.25,
        "entropy": 4.5,
        "seconds": 1.5,
        "steps_per_second": 1000.0,
        "seconds_environment": 0.25,
        "seconds_update": 1.0,
        "share_update": 0.7,
    }
    assert row.highlights() == ["return -12.5", "policy 0.50", "value 0.25", "entropy 4.50"]


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
