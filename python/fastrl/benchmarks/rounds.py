"""Measurements in turns, so that a machine that becomes slower or faster meanwhile favours no contender."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def turns(contenders: Iterable[K], rounds: int) -> Iterator[K]:
    """Yields each contender once a round, in reverse order in every second round."""
    order = list(contenders)
    for i in range(rounds):
        yield from order if i % 2 == 0 else reversed(order)


def measure_in_turns(contenders: Mapping[K, Callable[[], V]], rounds: int) -> dict[K, list[V]]:
    """Calls all contenders in turns; returns their results by contender."""
    results: dict[K, list[V]] = {name: [] for name in contenders}
    for name in turns(contenders, rounds):
        results[name].append(contenders[name]())
    return results


def rate(step: Callable[[], int], seconds: float) -> float:
    """Calls ``step``, which returns a number of things done, for ``seconds``; returns things per second."""
    done, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        done += step()
    return done / passed
