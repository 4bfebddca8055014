"""When a learner was elsewhere than at its collector, so that it is known how much was played meanwhile."""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Visits that are remembered: at least so many, at most twice as many. Earlier ones count as if they had never ended.
_VISITS = 4096


class Absence:
    """The time that a learner has spent elsewhere, up to any moment of late.

    ::

        with absence.visit():
            ...  # the learner waits here
        absence.between(began, ended)  # of this time, the seconds in which it did not

    Before its first visit it is not absent: it has not begun.

    Args:
        clock: tells the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Beginnings and ends of visits in turns, and the absence up to each.
        self._at: list[float] = []
        self._total: list[float] = []

    @contextmanager
    def visit(self) -> Iterator[None]:
        """The learner is here meanwhile."""
        now = self._clock()
        self._note(now, self._until(now))
        try:
            yield
        finally:
            now = self._clock()
            self._note(now, self._until(now))

    def between(self, began: float, ended: float) -> float:
        """Seconds of absence between two moments of the clock."""
        return self._until(ended) - self._until(began)

    def _until(self, moment: float) -> float:
        """Seconds of absence up to a moment."""
        index = bisect_right(self._at, moment)
        if not index:
            return self._total[0] if self._total else 0.0
        # After the end of a visit, which is every second entry.
        gone = moment - self._at[index - 1] if index % 2 == 0 else 0.0
        return self._total[index - 1] + gone

    def _note(self, moment: float, total: float) -> None:
        self._at.append(moment)
        self._total.append(total)
        if len(self._at) % 2 == 0 and len(self._at) > 4 * _VISITS:
            del self._at[: 2 * _VISITS], self._total[: 2 * _VISITS]
