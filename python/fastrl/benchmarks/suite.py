"""All topics of ``fastrl bench``, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from fastrl.benchmarks.results import Benchmark
from fastrl.utils.progress import Progress

# Modules are imported when their topic is measured: some need PyTorch. Each has `measure`.
TOPICS = {
    "envs": "fastrl.benchmarks.vector_envs",
    "queue": "fastrl.benchmarks.queues",
    "replay": "fastrl.benchmarks.replays",
    "collectors": "fastrl.benchmarks.collecting",
}


def measure(
    topics: Sequence[str],
    rounds: int,
    seconds: float,
    progress: Progress,
    done: Callable[[Benchmark], object],
) -> None:
    """Measures topics one after the other and hands each result to ``done`` as soon as it is there.

    Args:
        topics: keys of `TOPICS`.
        rounds: measurements of each contender, in turns.
        seconds: of each measurement.
        progress: shows what is measured.
    """
    for topic in topics:
        for result in importlib.import_module(TOPICS[topic]).measure(rounds, seconds, progress):
            done(result)
