"""A race: ways to run are measured in turns beside each other, and the slower half leaves after each round."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fastrl.autotune.way import Way
from fastrl.collectors.protocol import CollectError
from fastrl.runs.errors import TrainError
from fastrl.utils.errors import UserError

# A way to run is as good as another one if it reaches this share of its speed: the simpler one is chosen.
AS_GOOD = 0.98
# Ways that stay to the end, and rounds of turns.
_FINALISTS = 3
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 9
# Share of the time after which no more ways are started.
_STARTING = 0.5


@dataclass
class Result:
    """The speed of a way to run, in environment steps per second.

    Attributes:
        way: of which it is the speed.
        rates: measured, one for each round in which it was.
        notes: remarks, such as "default".
        is_chosen: the run will have its settings.
    """

    way: Way
    rates: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_chosen: bool = False

    @property
    def measured(self) -> float:
        """The median of the rounds; 0 without any."""
        return statistics.median(self.rates) if self.rates else 0.0


def race(
    results: Sequence[Result],
    turn: Callable[[Way], float],
    *,
    keep: Callable[[Sequence[Way]], object],
    seconds: float,
    as_good: float = AS_GOOD,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """Fills in the rates of ways to run, of which the most promising come first, and returns the best.

    Args:
        turn: runs a way for a moment and returns its rate; the first of each, its start, does not count: caches and
            queues are filled, or empty.
        keep: called with the ways that are still in the race, to end the others.
        seconds: for all of it; three ways are started, and those that stay have three turns, however long that takes.
        as_good: share of the best rate with which a simpler way is chosen.

    Raises:
        TrainError: none of them runs.
    """
    end, latest_start = clock() + seconds, clock() + _STARTING * seconds
    running: list[Result] = []
    for result in results:
        if len(running) >= _FINALISTS and clock() > latest_start:
            result.notes.append("not tried: no time left")
            continue
        try:
            turn(result.way)
        except (UserError, CollectError) as error:
            result.notes.append(f"cannot run: {str(error).splitlines()[0]}")
        else:
            running.append(result)
    if not running:
        raise TrainError(f"no way to run was found: {results[0].notes[-1]}")
    for i in range(_MOST_ROUNDS):
        # The reversed order in every second round: what changes evenly slows all alike.
        for result in running[:: 1 if i % 2 == 0 else -1]:
            result.rates.append(turn(result.way))
        running = _faster_half(running, as_good)
        keep([each.way for each in running])
        if len(running) == 1 or (i + 1 >= _LEAST_ROUNDS and clock() > end):
            break
    return best_of(running, as_good)


def best_of(results: Sequence[Result], as_good: float = AS_GOOD) -> Result:
    """The fastest one; of those that reach the share ``as_good`` of its speed, the simplest."""
    scores = _scores(results)
    good = [i for i, score in enumerate(scores) if score >= as_good * max(scores)]
    return results[min(good, key=lambda i: (results[i].way.effort, -scores[i]))]


def _faster_half(results: list[Result], as_good: float) -> list[Result]:
    """The faster half, at least the finalists, and all that are as good as the best."""
    scores = _scores(results)
    ranked = sorted(scores, reverse=True)
    least = min(ranked[: max(_FINALISTS, (len(ranked) + 1) // 2)][-1], as_good * ranked[0])
    return [each for each, score in zip(results, scores, strict=True) if score >= least]


def _scores(results: Sequence[Result]) -> list[float]:
    """The medians over rounds of rates relative to the others' in the same round, so that what slows a round decides
    nothing."""
    rounds = list(zip(*(each.rates for each in results), strict=True))
    means = [statistics.mean(rates) for rates in rounds]
    return [
        statistics.median(rate / mean for rate, mean in zip(each.rates, means, strict=True))
        for each in results
    ]
