"""Curves: numbers that change over a run, as settings.

A curve is text, so that files of settings and command lines can hold it. Progress p goes from 0 to 1::

    linear:3e-4         3e-4 (1 - p)
    linear:3e-4:1e-5    from the first number to the second
    cosine:3e-4:1e-5    1e-5 + (3e-4 - 1e-5) (1 + cos(pi p)) / 2    (Loshchilov and Hutter, 2017, without restarts)
    exponential:1e-3:1e-6    1e-3 ** (1 - p) * 1e-6 ** p
    points:0=1e-3,0.5=1e-3,1=0    linear between values at increasing p from 0 to 1
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self, cast, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import GetCoreSchemaHandler, PlainValidator, ValidationInfo

CurveName = Literal["linear", "cosine", "exponential"]

# A function is read at so many points. Those that lines between the others give, to this share of the largest value,
# are left out.
_NUM_POINTS = 1_001
_TOLERANCE = 1e-5

_EXPECTED = (
    "should be a valid number, or a schedule such as linear:3e-4, cosine:3e-4:1e-5, exponential:3e-4:1e-6 or"
    " points:0=1e-3,0.5=1e-3,1=0"
)


@dataclasses.dataclass(frozen=True)
class Curve:
    """A number as a function of progress.

    Attributes:
        name: of the rule between two points; of more, lines connect them.
        points: progress and value, at least at 0 and at 1.
    """

    name: Literal["points"] | CurveName
    points: tuple[tuple[float, float], ...]

    @property
    def ends(self) -> tuple[float, float]:
        """The first and the last number."""
        return self.points[0][1], self.points[-1][1]

    def __call__(self, p: float) -> float:
        """The number at a progress from 0 to 1."""
        start, end = self.ends
        if self.name == "cosine":
            return end + (start - end) * (1 + math.cos(math.pi * p)) / 2
        if self.name == "exponential":
            return float(start ** (1 - p) * end**p)
        if len(self.points) == 2:
            return start + (end - start) * p
        progress, values = zip(*self.points, strict=True)
        return float(np.interp(p, progress, values))

    def __str__(self) -> str:
        if self.name != "points":
            return ":".join([self.name, *(repr(value) for _, value in self.points)])
        return "points:" + ",".join(f"{p:.6g}={value:.6g}" for p, value in self.points)

    @staticmethod
    @functools.cache
    def parse(text: str) -> "Curve":
        """The curve that a text describes.

        Raises:
            ValueError: it describes none.
        """
        name, _, rest = text.strip().partition(":")
        try:
            if name == "points":
                pairs = [pair.split("=") for pair in rest.split(",")]
                points = tuple((float(p), float(value)) for p, value in pairs)
                progress = [p for p, _ in points]
                if len(points) < 2 or (progress[0], progress[-1]) != (0, 1) or np.diff(progress).min() <= 0:
                    raise ValueError(
                        "should be a schedule whose points are at increasing progress from 0 to 1"
                    )
                curve = Curve("points", points)
            elif name in get_args(CurveName):
                start, end = (float(part) for part in (rest.split(":") if ":" in rest else (rest, 0)))
                curve = Curve.between(cast("CurveName", name), start, end)
            else:
                raise ValueError(_EXPECTED)
        except ValueError as error:
            # Other errors are of words that are no numbers, or too many.
            raise ValueError(str(error) if "schedule" in str(error) else _EXPECTED) from None
        if not np.isfinite([value for _, value in curve.points]).all():
            raise ValueError("should be a schedule of finite numbers")
        return curve

    @classmethod
    def between(cls, name: CurveName, start: float, end: float) -> Self:
        """A curve by its first and last value.

        Raises:
            ValueError: an exponential one that never arrives.
        """
        if name == "exponential" and min(start, end) <= 0:
            raise ValueError("should be a schedule above 0 at both ends: an exponential one never reaches 0")
        return cls(name, ((0.0, start), (1.0, end)))

    @classmethod
    def of(cls, function: Callable[[float], Any]) -> Self:
        """The curve of a function of what remains of the run, from 1 to 0.

        Raises:
            ValueError: it raises, or gives something else than finite numbers.
        """
        values = np.array([_value(function, remaining) for remaining in np.linspace(1, 0, _NUM_POINTS)])
        kept = [
            *_needed(values, 0, len(values) - 1, _TOLERANCE * float(np.abs(values).max())),
            len(values) - 1,
        ]
        points = tuple((place / (len(values) - 1), float(values[place])) for place in kept)
        return cls("linear" if len(points) == 2 else "points", points)


def _value(function: Callable[[float], Any], remaining: float) -> float:
    try:
        value = float(function(float(remaining)))
    except Exception as error:
        line = " ".join(str(error).split())
        raise ValueError(
            "should be a function of one number, what remains of the run from 1 to 0, that returns a number; at"
            f" {remaining:.3g} it raised {type(error).__name__}: {line}"
        ) from None
    if not math.isfinite(value):
        raise ValueError(
            f"should be a function that returns finite numbers; at {remaining:.3g} it gave {value}"
        )
    return value


def _needed(values: NDArray[np.float64], first: int, last: int, tolerance: float) -> list[int]:
    """The places from ``first`` on, before ``last``, between which lines give all values (Douglas and Peucker,
    1973)."""
    line = np.linspace(values[first], values[last], last - first + 1)
    errors = np.abs(values[first : last + 1] - line)
    worst = first + int(errors.argmax())
    if errors.max() <= tolerance:
        return [first]
    return _needed(values, first, worst, tolerance) + _needed(values, worst, last, tolerance)


@dataclasses.dataclass(frozen=True)
class MayBeCurve:
    """Marks a setting of the type ``float | str`` that is a number or a curve, and checks it. From Python it may be a
    function, too::

        learning_rate: Annotated[float | str, Field(description="..."), MayBeCurve()] = 3e-4

    Attributes:
        ge, le: bounds of all of its values; None: no upper one.
        optional: it may be None.
    """

    ge: float = 0.0
    le: float | None = None
    optional: bool = False

    @property
    def metadata(self) -> tuple["MayBeCurve", ...]:
        """Bounds, where Pydantic's fields have theirs."""
        return (self,)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler.generate_schema(Annotated[Any, PlainValidator(self._checked)])

    def _checked(self, value: Any, info: ValidationInfo) -> float | str | None:
        if value is None and self.optional:
            return None
        if isinstance(value, str) and info.mode == "python":
            # A word of a command line.
            with contextlib.suppress(ValueError):
                value = float(value)
        if isinstance(value, bool) or not isinstance(value, float | int | str):
            raise ValueError(_EXPECTED)
        values = [value] if not isinstance(value, str) else [each for _, each in Curve.parse(value).points]
        for each in values:
            if not math.isfinite(each):
                raise ValueError("should be a finite number")
            if each < self.ge:
                raise ValueError(f"should be greater than or equal to {self.ge:g}")
            if self.le is not None and each > self.le:
                raise ValueError(f"should be less than or equal to {self.le:g}")
        return str(Curve.parse(value)) if isinstance(value, str) else float(value)
