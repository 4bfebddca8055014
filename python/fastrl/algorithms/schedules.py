"""Schedules: how a number, such as the learning rate, changes from update to update."""

import math
from dataclasses import dataclass
from typing import Literal

ScheduleName = Literal["constant", "linear", "cosine", "exponential", "step"]


@dataclass(frozen=True)
class LinearSchedule:
    """A number that moves from ``start`` to ``end`` in so many environment steps, and stays there; None: it does not
    move."""

    start: float
    end: float | None
    steps: int

    def __call__(self, steps: int) -> float:
        """The number after ``steps``."""
        if self.end is None:
            return self.start
        progress = min(steps / self.steps, 1.0) if self.steps else 1.0
        return self.start + (self.end - self.start) * progress


class Schedule:
    """A number as a function of the updates done.

    With p the progress from 0 (after the warm-up) to 1 (the last update, and beyond)::

        constant      start
        linear        start + (end - start) p
        cosine        end + (start - end) (1 + cos(pi p)) / 2        (Loshchilov and Hutter, 2017, without restarts)
        exponential   start ** (1 - p) * end ** p
        step          start * factor ** (updates // every), not below end

    A warm-up of w updates comes first: update i < w has ``start * (i + 1) / (w + 1)``. The step schedule counts from
    the first update on, warm-up included.

    Args:
        name: which of them.
        start: before the first update; not negative.
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
        start: float,
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
        if start < 0 or end < 0 or factor <= 0:
            raise ValueError(
                f"a schedule needs start and end of at least 0 and a factor above 0,"
                f" got {start}, {end} and {factor}"
            )
        if name == "exponential" and start > 0 and end == 0:
            raise ValueError("an exponential schedule never reaches 0: give an end above 0")
        if name not in ("constant", "linear", "cosine", "exponential", "step"):
            raise ValueError(f"unknown schedule {name!r}: constant, linear, cosine, exponential or step")
        self.name = name
        self.start, self.end = start, end
        self.total = total
        self.every, self.factor = every, factor
        self.warmup = warmup

    def __call__(self, updates: int) -> float:
        """The number for the update before which ``updates`` were done."""
        if updates < self.warmup:
            return self.start * (updates + 1) / (self.warmup + 1)
        if self.name == "constant" or (self.start == 0 and self.name == "exponential"):
            return self.start
        if self.name == "step":
            return max(self.start * self.factor ** (updates // self.every), min(self.start, self.end))
        p = min((updates - self.warmup) / max(self.total - 1 - self.warmup, 1), 1.0)
        if self.name == "linear":
            return self.start + (self.end - self.start) * p
        if self.name == "cosine":
            return self.end + (self.start - self.end) * (1 + math.cos(math.pi * p)) / 2
        return float(self.start ** (1 - p) * self.end**p)
