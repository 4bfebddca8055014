"""Numbers for people: means with their standard errors, shares, counts and times as text."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


def mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard error, NaN of a single value."""
    spread = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return float(values.mean()), spread / math.sqrt(len(values))


def ratio_and_error(parts: NDArray[Any], counts: NDArray[Any]) -> tuple[float, float]:
    """A mean over all that is counted in E episodes, such as seconds over arrivals, and its standard error, that of a
    ratio of means; NaN where nothing is counted, and the error of a single episode.

    Args:
        parts, counts: [E].
    """
    if not counts.any():
        return math.nan, math.nan
    ratio = float(parts.sum() / counts.sum())
    return ratio, mean_and_error(parts - ratio * counts)[1] / float(counts.mean())


def moments(values: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation and error, least and largest of the finite values; NaN where there are too few."""
    known = [value for value in values if math.isfinite(value)]
    deviation = statistics.stdev(known) if len(known) > 1 else math.nan
    return {
        "mean": statistics.fmean(known) if known else math.nan,
        "deviation": deviation,
        "standard_error": deviation / math.sqrt(len(known)) if known else math.nan,
        "min": min(known, default=math.nan),
        "max": max(known, default=math.nan),
    }


def fixed(value: float, digits: int = 2) -> str:
    """``12.34``; ``-`` for NaN."""
    # Adding 0.0 turns -0.0 into 0.0.
    return "-" if math.isnan(value) else f"{round(value, digits) + 0.0:.{digits}f}"


def plus_minus(mean: float, error: float, digits: int = 2) -> str:
    """``12.34 ± 0.56``; without an error that is NaN."""
    number = fixed(mean, digits)
    return number if math.isnan(error) else f"{number} ± {error:.{digits}f}"


def percent(value: float) -> str:
    """``12%``; ``-`` for NaN."""
    return "-" if math.isnan(value) else f"{value:.0%}"


def brief(value: float) -> str:
    """Three significant digits or so; ``-`` for NaN."""
    if math.isnan(value):
        return "-"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def spread(values: Sequence[float], error: Literal["standard_error", "deviation"] = "standard_error") -> str:
    """Mean of the finite values and its standard error, or their standard deviation, as `brief`: ``12.3 ± 0.56``."""
    found = moments(values)
    mean = brief(found["mean"])
    return mean if math.isnan(found[error]) else f"{mean} ± {brief(found[error])}"


def count(value: float) -> str:
    """``1.2M``, ``45.3k``, ``678``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{letter}"
    return f"{value:.0f}"


def rate(value: float) -> str:
    """Text of a rate: as `count` writes it, below 10 with two decimals: ``0.23``."""
    return brief(value) if 0 < value < 10 else count(value)


def counted(number: int, noun: str) -> str:
    """``1 vehicle``, ``2,000 vehicles``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shares(amounts: Mapping[str, float]) -> str:
    """``environment 61.2%, waiting 38.8%``."""
    total = sum(amounts.values()) or 1.0
    return ", ".join(f"{name} {amount / total:.1%}" for name, amount in amounts.items())


def duration(seconds: float) -> str:
    """``1:02:03`` or ``2:03``; ``-:--`` for NaN."""
    if not math.isfinite(seconds):
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
