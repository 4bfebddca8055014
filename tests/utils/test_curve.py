"""Curves as settings: their values, their text, functions that they are read from, and what is refused."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrl.utils.config import (
    ConfigError,
    EndOf,
    Values,
    build,
    by_keyword,
    check,
    leaves,
    load_toml,
    section,
    to_toml,
)
from fastrl.utils.curve import Curve, MayBeCurve

places = st.floats(0, 1)


def remaining_of(curve: Curve, places: int = 997) -> list[tuple[float, float]]:
    """Remaining progress and the number at many places between the points."""
    return [(1 - place / places, curve(place / places)) for place in range(places + 1)]


@given(st.floats(0, 1), st.floats(0, 1), places)
def test_named_curves_follow_their_formulas(start: float, end: float, p: float) -> None:
    assert Curve.parse(f"linear:{start}:{end}")(p) == pytest.approx((1 - p) * start + p * end)
    cosine = Curve.parse(f"cosine:{start}:{end}")
    assert cosine(p) == pytest.approx(end + (start - end) * math.cos(math.pi * p / 2) ** 2)
    assert (cosine(0), cosine(1)) == (pytest.approx(start), end)
    start, end = start + 0.1, end + 0.1
    expected = math.exp((1 - p) * math.log(start) + p * math.log(end))
    assert Curve.parse(f"exponential:{start}:{end}")(p) == pytest.approx(expected)


def test_an_end_that_is_left_out_is_zero() -> None:
    assert Curve.parse("linear:2") == Curve.parse("linear:2:0")


@given(st.lists(st.floats(0.001, 0.999), max_size=5, unique=True), st.data())
def test_points_are_connected_by_lines(inner: list[float], data: st.DataObject) -> None:
    progress = [0.0, *sorted(inner), 1.0]
    values = [data.draw(st.floats(0, 10)) for _ in progress]
    text = ",".join(f"{p!r}={value!r}" for p, value in zip(progress, values, strict=True))
    curve = Curve.parse(f"points:{text}")
    for first in range(len(progress) - 1):
        (a, b), (low, high) = progress[first : first + 2], values[first : first + 2]
        assert curve(a) == pytest.approx(low)
        assert curve((a + b) / 2) == pytest.approx((low + high) / 2, abs=1e-9)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda remaining: 3e-4 * remaining, "linear:0.0003:0.0"),
        (lambda remaining: 0.25, "linear:0.25:0.25"),
        (lambda remaining: 1 if remaining > 0.5 else 0.5, "points:0=1,0.499=1,0.5=0.5,1=0.5"),
    ],
)
def test_functions_with_few_corners_have_few_points(function: Callable[[float], Any], text: str) -> None:
    assert str(Curve.of(function)) == text


@pytest.mark.parametrize(
    "function",
    [
        lambda remaining: 1e-3 * math.cos(1.5 * (1 - remaining)),
        lambda remaining: 1e-3 * 0.01 ** (1 - remaining),
        lambda remaining: remaining**2,
        lambda remaining: abs(remaining - 0.3),
    ],
)
def test_functions_are_kept_to_a_hundred_thousandth(function: Callable[[float], float]) -> None:
    """From the text, which files hold."""
    curve = Curve.parse(str(Curve.of(function)))
    largest = max(abs(function(place / 100)) for place in range(101))
    for remaining, value in remaining_of(curve):
        assert value == pytest.approx(function(remaining), abs=2e-5 * largest)


@section
class Rates:
    rate: Annotated[float | str, MayBeCurve(le=1.0)] = 0.5
    final_rate: Annotated[float | None, EndOf("rate")] = 0.1
    share: Annotated[float | str, MayBeCurve()] = 1.0
    final_share: Annotated[float, EndOf("share", "falls")] = 0.1
    weight: Annotated[float | str, MayBeCurve()] = 1.0
    final_weight: Annotated[float, EndOf("weight", "stays")] = 2.0
    other: Annotated[float | str | None, MayBeCurve(optional=True)] = None


@section
class Config:
    learn: Rates = Rates()


def layer(**values: Any) -> Values:
    return by_keyword(Config, "learn", values)


def test_a_file_holds_a_function(tmp_path: Path) -> None:
    given = layer(rate=lambda remaining: remaining**2, other="cosine:1")
    config = build(Config, given)
    (tmp_path / "f.toml").write_text(to_toml(config))
    assert build(Config, check(Config, load_toml(tmp_path / "f.toml"), "f.toml")) == config
    assert build(Config, check(Config, {"learn": {"rate": lambda remaining: remaining**2}}, "dict")) == build(
        Config, layer(rate=lambda remaining: remaining**2)
    )


def test_a_word_of_a_command_line_is_a_number_or_a_curve() -> None:
    rate = leaves(Config)["learn.rate"]
    assert rate.parse("3e-1", "--rate") == 0.3
    assert rate.parse("linear:3e-1", "--rate") == "linear:0.3:0.0"
    assert rate.metavar() == "FLOAT|SCHEDULE"
    assert leaves(Config)["learn.other"].parse("none", "--other") is None


def test_a_curve_has_its_end() -> None:
    learn = build(Config, layer(rate="linear:1:0.2", share="linear:1:0.3", weight="linear:1:3")).learn
    assert (learn.final_rate, learn.final_share, learn.final_weight) == (None, 0.3, 3)
    # Numbers have the ends that they had.
    learn = build(Config, layer(rate=1, share=0.05, weight=5)).learn
    assert (learn.final_rate, learn.final_share, learn.final_weight) == (None, 0.05, 2)
    for name in ("rate", "share", "weight"):
        with pytest.raises(ConfigError, match=rf"final_{name}: .* ends at 0.5: leave the other end out, got"):
            build(Config, layer(**{name: "linear:1:0.5"}), layer(**{f"final_{name}": 0.4}))


def fails(remaining: float) -> float:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cosin:1", "rate should be a valid number, or a schedule such as linear:3e-4, .*, got 'cosin:1'"),
        ("linear:x", "or a schedule such as"),
        ("linear:1:2:3", "or a schedule such as"),
        ("linear", "or a schedule such as"),
        ("points:0=1", "increasing progress from 0 to 1"),
        ("points:0=1,0.5=1,0.5=0,1=0", "increasing progress from 0 to 1"),
        ("points:0=1,1", "or a schedule such as"),
        ("exponential:1", "never reaches 0"),
        ("linear:nan", "finite"),
        ("linear:1.5", "less than or equal to 1"),
        ("linear:1:-1", "greater than or equal to 0"),
        (float("inf"), "finite number"),
        (-1, "greater than or equal to 0, got -1"),
        (True, "a valid number"),
        (None, "a valid number"),
        ("0.5", "a valid number"),
        (fails, "at 1 it raised KeyError: 'x'"),
        (lambda remaining: "a", "at 1 it raised ValueError"),
        (lambda remaining: math.nan, "at 1 it gave nan"),
        (lambda: 1, "a function of one number"),
    ],
)
def test_refuses(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        layer(rate=value)
    assert "\n" not in str(caught.value)


def test_functions_are_for_settings_that_change() -> None:
    with pytest.raises(ConfigError, match="final_rate should be a valid number"):
        layer(final_rate=lambda remaining: remaining)
