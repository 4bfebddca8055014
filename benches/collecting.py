"""Collectors: steps of environments a second, a network of random weights acting."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from fastrl.collectors.factory import make_collector
from fastrl.collectors.protocol import Plan
from fastrl.envs.spec import EnvSpec
from fastrl.utils.progress import Progress
from plans import make_plan, random_weights
from results import Benchmark, Case
from rounds import measure_in_turns, rate

# Environments, steps of a fragment and collectors by environment. "sequential" is the reference of the ratios.
SEQUENTIAL = "sequential"
ENVS = {
    "CartPole-v1, 8 environments": ("CartPole-v1", 8, 128, (SEQUENTIAL, "sync", "executor")),
    "CAGE 2, 256 environments": ("fastrl/Cage2-v0", 256, 32, (SEQUENTIAL, "native")),
}
HIDDEN = (64, 64)
WORKERS = 2
# A measurement has several updates, each of which waits for all workers.
LONGER = 5


def collected_per_second(method: str, plan: Plan, n_workers: int, seconds: float) -> float:
    """Steps per second after the collector has started and collected once."""
    options: dict[str, Any] = {} if method == SEQUENTIAL else {"n_workers": n_workers}
    with make_collector(method, plan, **options) as collector:
        collector.publish(random_weights(plan))
        collector.collect()
        return rate(lambda: sum(map(len, collector.collect())), seconds)


def measure_case(
    env: str, num_envs: int, num_steps: int, methods: Sequence[str], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Steps per second in each round, by collector, each time in a new one."""
    plan = make_plan(EnvSpec(env), num_envs, num_steps, HIDDEN)
    calls = {
        method: functools.partial(collected_per_second, method, plan, WORKERS, LONGER * seconds)
        for method in methods
    }
    return measure_in_turns(calls, rounds)


def measure(rounds: int, seconds: float, progress: Progress) -> list[Benchmark]:
    """Steps a second of the collectors on environments in Python and on compiled ones."""
    cases = []
    for title, (env, num_envs, num_steps, methods) in ENVS.items():
        progress.describe(f"collectors, {title}")
        cases.append(Case(title, measure_case(env, num_envs, num_steps, methods, rounds, seconds)))
        progress.advance()
    names = list(dict.fromkeys(name for case in cases for name in case.rates))
    return [
        Benchmark(
            topic="collectors",
            name="steps",
            title=f"Collection with {WORKERS} workers or threads",
            unit="steps/s",
            about=f"A network of {' x '.join(map(str, HIDDEN))} with random weights acts. The ratios compare with the"
            " sequential collector, which uses one core.",
            cases=tuple(cases),
            ours=tuple(name for name in names if name != SEQUENTIAL),
        )
    ]
