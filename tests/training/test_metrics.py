import math

import pytest

from fastrl.training.metrics import TrafficRow, TrainRow, brief, count, duration, rate


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


def traffic_row(episodes: int, latest: dict[str, float], simulated: int) -> TrafficRow:
    return TrafficRow(
        steps=320,
        iteration=1,
        episodes=episodes,
        ended=0,
        played={"mean_return": math.nan, "success_rate": math.nan, "collision_rate": math.nan},
        latest=latest,
        vehicles=4,
        density=0.5,
        level=0,
        rises=0,
        falls=0,
        losses={},
        evaluation={},
        online={"policy_age_seconds": 2.5, "missed": 1, "simulated": simulated, "dropped": 0},
        seconds=1.0,
        episodes_per_minute=0.0,
        steps_per_second=0.0,
        memory_mib=1.0,
        parts={},
    )


def test_a_line_of_an_online_run_shows_what_is_known() -> None:
    latest = {"mean_return": 0.372, "success_rate": 0.25, "collision_rate": math.nan}
    known = ["return 0.37", "success 25%", "collisions -", "4 vehicles"]
    assert traffic_row(6, latest, 32).highlights() == [
        *known,
        "policy age 2.50 s",
        "late 1 of 32",
        "dropped 0",
    ]
    waiting = "waiting for the first rollout"
    assert traffic_row(0, {}, 0).highlights() == ["no episode has ended yet", "4 vehicles", waiting]
    # A run that goes on knows of episodes of before.
    assert traffic_row(6, {}, 0).highlights() == ["4 vehicles", waiting]
