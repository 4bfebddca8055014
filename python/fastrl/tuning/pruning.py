"""Rules that stop trials early, by their evaluations alone: returns of training count exploration and are noisier."""

import math
import statistics
from collections.abc import Sequence

from fastrl.tuning.settings import TuneConfig
from fastrl.tuning.trial import Evaluated, Trial

# Trials that must have got to a point before others are compared with them there.
_LEAST = 5
# Of the trials at a rung one in so many continues.
_FACTOR = 3


def should_stop(config: TuneConfig, evaluations: Sequence[Evaluated], others: Sequence[Trial]) -> bool:
    """True if a trial is not worth continuing after its last evaluation.

    Args:
        evaluations: of the trial so far.
        others: trials of the same search; those that run do not count.
    """
    last = evaluations[-1]
    if last.point >= config.points or config.stops_early == "none":
        return False
    if math.isnan(last.score):
        return True
    known = [trial.result.evaluations for trial in others if trial.result is not None]
    if config.stops_early == "median":
        best = [_best_until(each, last.point) for each in known if _reached(each, last.point)]
        return len(best) >= _LEAST and _best_until(evaluations, last.point) < statistics.median(best)
    before = evaluations[-2].point if len(evaluations) > 1 else 0
    passed = [rung for rung in rungs(config.points) if before < rung <= last.point]
    if not passed:
        return False
    there = [_first_at(each, passed[0]) for each in known if _reached(each, passed[0])]
    go_on = (len(there) + 1) // _FACTOR
    # Before there are enough to compare with, all continue.
    return go_on > 0 and sum(score > last.score for score in there) >= go_on


def rungs(points: int) -> list[int]:
    """The points at which halving compares, the last one first: a third of the run, a ninth, and so on."""
    found = []
    while points >= _FACTOR:
        points //= _FACTOR
        found.append(points)
    return found


def _reached(evaluations: Sequence[Evaluated], point: int) -> bool:
    return bool(evaluations) and evaluations[-1].point >= point


def _first_at(evaluations: Sequence[Evaluated], point: int) -> float:
    """The score at a point, or at the next one that was evaluated."""
    return _score(next(each for each in evaluations if each.point >= point))


def _best_until(evaluations: Sequence[Evaluated], point: int) -> float:
    """The best score up to a point; without one the first after it."""
    until = [_score(each) for each in evaluations if each.point <= point]
    return max(until) if until else _first_at(evaluations, point)


def _score(evaluated: Evaluated) -> float:
    return -math.inf if math.isnan(evaluated.score) else evaluated.score
