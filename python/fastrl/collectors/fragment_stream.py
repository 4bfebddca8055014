"""A staleness-bounded stream of fragments: those of one update after another, none of them too old."""

import math
from typing import NamedTuple

from fastrl.collectors.protocol import Collector, Plan
from fastrl.rollout.fragment import Fragment
from fastrl.utils.interrupts import Interruptible
from fastrl.utils.timer import Stopwatch


def pending_for(plan: Plan, concurrent: int, max_staleness: int) -> int | None:
    """A collector's ``max_pending`` with which few fragments are older than ``max_staleness`` versions; None if the
    collector's default, twice ``concurrent``, is small enough.

    Args:
        concurrent: fragments that all its workers together collect at the same time.
        max_staleness: at least 1.
    """
    an_update = plan.episodes if plan.unit == "episodes" else concurrent
    return None if max_staleness * an_update >= 2 * concurrent else max(concurrent, max_staleness * an_update)


class Staleness(NamedTuple):
    """Counts of versions between the policies that chose actions and the newest one.

    Attributes:
        steps: environment steps in fragments that were not dropped.
        total: versions behind, summed over them.
        highest: most versions behind.
        dropped: fragments that were staler than allowed.
    """

    steps: int = 0
    total: int = 0
    highest: int = 0
    dropped: int = 0

    @property
    def mean(self) -> float:
        """NaN without any steps."""
        return self.total / self.steps if self.steps else math.nan

    def plus(self, other: "Staleness") -> "Staleness":
        return Staleness(
            self.steps + other.steps,
            self.total + other.total,
            max(self.highest, other.highest),
            self.dropped + other.dropped,
        )


class FragmentStream:
    """Returns an update's worth of fragments at a time.

    Args:
        collector: collects; the caller publishes weights.
        max_staleness: versions that a fragment may be behind the newest one; staler ones are dropped. 0: the collector
            collects with the newest version alone, and only while `next` waits for it.
        timeout: seconds that `next` waits for a fragment, with staleness allowed; None: as long as it takes.

    Raises:
        ValueError: ``max_staleness`` is negative.
    """

    def __init__(self, collector: Collector, max_staleness: int = 0, timeout: float | None = None) -> None:
        if max_staleness < 0:
            raise ValueError(f"max_staleness should be at least 0, got {max_staleness}")
        # Of `Staleness`.
        self._steps = self._total = self._highest = self._dropped = 0
        self._collector = collector
        self._max_staleness, self._timeout = max_staleness, timeout

    def next(self, watch: Stopwatch) -> list[Fragment]:
        """Returns fragments of ``num_envs`` environments or ``episodes`` episodes, by the plan's unit. With staleness
        allowed, they are the first that are finished, of any environments, and fewer where a timeout is over; without,
        they are valid until the next call.

        Raises:
            Interrupted: a second Ctrl-C ends the wait; fragments that were finished for this call are dropped.
        """
        with watch("waiting"), Interruptible():
            fragments = self._take() if self._max_staleness else self._collector.collect()
        newest = self._collector.version
        for fragment in fragments:
            behind, steps = newest - fragment.version, len(fragment)
            self._steps += steps
            if behind:
                self._total += behind * steps
                self._highest = max(self._highest, behind)
        return fragments

    def take_staleness(self) -> Staleness:
        """Staleness since the last call."""
        taken = Staleness(self._steps, self._total, self._highest, self._dropped)
        self._steps = self._total = self._highest = self._dropped = 0
        return taken

    def _take(self) -> list[Fragment]:
        plan = self._collector.plan
        wanted = plan.episodes if plan.unit == "episodes" else plan.num_envs
        fragments: list[Fragment] = []
        rows = 0
        while rows < wanted:
            fragment = self._collector.take(self._timeout)
            if fragment is None:
                assert self._timeout is not None, "without a timeout there is always one"
                break
            if self._collector.version - fragment.version > self._max_staleness:
                self._dropped += 1
                continue
            fragments.append(fragment)
            rows += fragment.num_rows
        return fragments
