"""Schedules: how a number, such as the learning rate, changes over a run."""

from dataclasses import dataclass
from typing import Literal, cast, get_args

from fastrl.utils.curve import Curve, CurveName

ScheduleName = Literal["constant", "step"] | CurveName


def first_value(start: float | str) -> float:
    """The first value of a number or a curve."""
    return Curve.parse(start).ends[0] if isinstance(start, str) else start


@dataclass(frozen=True)
class TimestepSchedule:
    """A number as a function of the environment steps done, which stays at its last value after ``until``.

    Attributes:
        start: at first; or a curve (`fastrl.utils.curve`), which has an end of its own.
        end: where the number goes in a straight line; None: it does not move.
        until, first: environment steps between which it moves.
    """

    start: float | str
    end: float | None
    until: int
    first: int = 0

    def __call__(self, steps: int) -> float:
        """The number after ``steps``."""
        if isinstance(self.start, str):
            return Curve.parse(self.start)(self._progress(steps))
        return (
            self.start if self.end is None else self.start + (self.end - self.start) * self._progress(steps)
        )

    def _progress(self, steps: int) -> float:
        length = self.until - self.first
        return min(max(steps - self.first, 0) / length, 1.0) if length > 0 else 1.0


class Schedule:
    """A number as a function of the updates done.

    With p the progress from 0 (after the warm-up) to 1 (the last update, and beyond)::

        constant      start
        linear, cosine, exponential    the curve from start to end of that name
        step          start * factor ** (updates // every), not below end

    A warm-up of w updates comes first: update i < w has ``start * (i + 1) / (w + 1)``. The step schedule counts from
    the first update on, warm-up included.

    Args:
        name: which of them.
        start: before the first update; not negative; or a curve (`fastrl.utils.curve`) in place of ``name`` and end.
        end: at the last update; for ``constant`` of no meaning; above 0 for ``exponential`` unless start is 0.
        total: updates in all.
        every, factor: of the step schedule, 1 at least and above 0.
        warmup: updates of the warm-up.

    Raises:
        ValueError: values that make no sense together.
    """

    def __init__(
        self,
        name: ScheduleName,
        start: float | str,
        *,
        end: float = 0.0,
        total: int = 1,
        every: int = 100,
        factor: float = 0.95,
        warmup: int = 0,
    ) -> None:
        if total < 1 or every < 1 or warmup < 0:
            raise ValueError(
                f"a schedule needs total and every of at least 1 and a warmup of at least 0,"
                f" got {total}, {every} and {warmup}"
            )
        self.name: str = name
        self.start, self.end = first_value(start), end
        self.total = total
        self.every, self.factor = every, factor
        self.warmup = warmup
        self._curve = Curve.parse(start) if isinstance(start, str) else None
        start = self.start
        if start < 0 or end < 0 or factor <= 0:
            raise ValueError(
                f"a schedule needs start and end of at least 0 and a factor above 0,"
                f" got {start}, {end} and {factor}"
            )
        if name not in ("constant", "step", *get_args(CurveName)):
            raise ValueError(f"unknown schedule {name!r}: constant, linear, cosine, exponential or step")
        # An exponential one stays at 0.
        if self._curve is None and name not in ("constant", "step") and (start > 0 or name != "exponential"):
            self._curve = Curve.between(cast("CurveName", name), start, end)

    def __call__(self, updates: int) -> float:
        """The number for the update before which ``updates`` were done."""
        if updates < self.warmup:
            return self.start * (updates + 1) / (self.warmup + 1)
        if self._curve is not None:
            return self._curve(min((updates - self.warmup) / max(self.total - 1 - self.warmup, 1), 1.0))
        if self.name == "step":
            return max(self.start * self.factor ** (updates // self.every), min(self.start, self.end))
        return self.start
