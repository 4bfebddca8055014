"""The pace of a live simulation: each step has a deadline, the start of the next one."""

import time
from collections.abc import Callable

# Seconds between checks of the request to stop.
_POLL_INTERVAL_S = 0.1


class Pace:
    """Steps that are due at a fixed rate. After a late step the clock restarts: it slows down and does not catch up.

    Args:
        period: seconds from one step to the next; 0: each is due at once, and none is late.
        wait: sleeps; clock: returns the time in seconds.

    Attributes:
        steps: taken so far; missed: those of them that missed their deadline.
        late: seconds of delay, summed over these; latest: the longest delay.
        waited: seconds of waiting for steps to be due.
    """

    def __init__(
        self,
        period: float,
        wait: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.period = period
        self.steps = self.missed = 0
        self.late = self.latest = self.waited = 0.0
        self._wait, self._clock = wait, clock
        self._due: float | None = None

    def next_step(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Ends the step before and waits until the next one is due, or until ``stop`` returns true."""
        now = self._clock()
        if self._due is not None and self.period:
            # This step is due at the deadline of the step before.
            self._due += self.period
            if now > self._due:
                self.missed += 1
                self.late += now - self._due
                self.latest = max(self.latest, now - self._due)
                self._due = now
            while (left := self._due - self._clock()) > 0 and not stop():
                self._wait(min(left, _POLL_INTERVAL_S))
            self.waited += max(self._clock() - now, 0.0)
        else:
            self._due = now
        self.steps += 1
