"""The time that a learner spends outside its collector, to tell how much of it workers used for collecting."""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Waits that are remembered: at least so many, at most twice as many. Earlier ones count as if they had never ended.
WAITS = 4096


class LearnerTime:
    """Seconds that a learner has spent outside its collector, up to any recent moment.

    ::

        with learner_time.waiting():
            ...  # the learner waits for its collector
        learner_time.between(start, end)  # the seconds of this span in which it did not

    Time before the first wait does not count: the learner has not started.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Starts and ends of waits in turns, and the learner's own time up to each.
        self.moments: list[float] = []
        self._total: list[float] = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Marks the time inside the context as spent waiting for the collector."""
        now = self._clock()
        self._note(now, self._until(now))
        try:
            yield
        finally:
            now = self._clock()
            self._note(now, self._until(now))

    def between(self, start: float, end: float) -> float:
        """Seconds of the learner's own time between two moments of the clock."""
        return self._until(end) - self._until(start)

    def _until(self, moment: float) -> float:
        """Seconds of the learner's own time up to a moment."""
        index = bisect_right(self.moments, moment)
        if not index:
            return self._total[0] if self._total else 0.0
        # After the end of a wait, which is every second entry.
        passed = moment - self.moments[index - 1] if index % 2 == 0 else 0.0
        return self._total[index - 1] + passed

    def _note(self, moment: float, total: float) -> None:
        self.moments.append(moment)
        self._total.append(total)
        if len(self.moments) % 2 == 0 and len(self.moments) > 4 * WAITS:
            del self.moments[: 2 * WAITS], self._total[: 2 * WAITS]
