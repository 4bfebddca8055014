"""A staleness-bounded stream of fragments: those of one update after another, none of them too old."""

import math
from dataclasses import dataclass

from fastrl.collectors.protocol import Collector, Plan
from fastrl.rollout.fragment import Fragment
from fastrl.utils.timer import Stopwatch


def ahead_for(plan: Plan, fragments: int, max_lag: int) -> int | None:
    """How many fragments a collector may have running or waiting so that few get older than ``max_lag`` versions; None
    if as many as it chooses itself, twice ``fragments``, will do.

    Args:
        fragments: that it plays at the same time, in all its workers.
        max_lag: at least 1.
    """
    an_update = plan.episodes if plan.unit == "episodes" else fragments
    return None if max_lag * an_update >= 2 * fragments else max(fragments, max_lag * an_update)


@dataclass(frozen=True)
class Lag:
    """How many versions behind the newest one the policies were that chose actions.

    Attributes:
        steps: that were learnt from.
        total: versions behind, summed over them.
        highest: of any of them.
        dropped: fragments that were older than allowed, and were not learnt from.
    """

    steps: int = 0
    total: int = 0
    highest: int = 0
    dropped: int = 0

    @property
    def mean(self) -> float:
        """NaN without any steps."""
        return self.total / self.steps if self.steps else math.nan

    def plus(self, other: "Lag") -> "Lag":
        return Lag(
            self.steps + other.steps,
            self.total + other.total,
            max(self.highest, other.highest),
            self.dropped + other.dropped,
        )


class FragmentStream:
    """Returns an update's worth of fragments at a time.

    Args:
        collector: has, or needs, no weights published before; whoever learns publishes.
        max_lag: most versions that a fragment may be behind the newest one; older ones are dropped. 0: synchronous,
            the collector plays with the newest version, and nothing while the learner learns.

    """

    def __init__(self, collector: Collector, max_lag: int = 0) -> None:
        if max_lag < 0:
            raise ValueError(f"max_lag should be at least 0, got {max_lag}")
        self._lag = Lag()
        self._collector = collector
        self._max_lag = max_lag

    def next(self, watch: Stopwatch) -> list[Fragment]:
        """Fragments of ``num_envs`` rows or ``episodes`` episodes, as the plan says. With lag allowed they are those
        that are there first, of any rows; without, they are valid until the next call."""
        with watch("waiting"):
            fragments = self._take() if self._max_lag else self._collector.collect()
        newest = self._collector.version
        for fragment in fragments:
            behind, steps = newest - fragment.version, len(fragment)
            self._lag = self._lag.plus(Lag(steps, behind * steps, behind))
        return fragments

    def take_lag(self) -> Lag:
        """Of all that was taken since the last call."""
        lag, self._lag = self._lag, Lag()
        return lag

    def _take(self) -> list[Fragment]:
        plan = self._collector.plan
        wanted = plan.episodes if plan.unit == "episodes" else plan.num_envs
        fragments: list[Fragment] = []
        rows = 0
        while rows < wanted:
            fragment = self._collector.take()
            assert fragment is not None, "without a timeout there is always one"
            if self._collector.version - fragment.version > self._max_lag:
                self._lag = self._lag.plus(Lag(dropped=1))
                continue
            fragments.append(fragment)
            rows += fragment.num_rows
        return fragments
