"""The model of speed beside a simulation of every worker and core, event by event."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fastrl.collectors.protocol import even_ranges
from fastrl.training.speed_model import Kind, Load, predict_seconds

DISTRIBUTIONS = ("constant", "exponential", "lognormal", "bimodal")


def durations(kind: str, mean: float, count: int = 4000) -> np.ndarray:
    random = np.random.default_rng(5)
    drawn = {
        "constant": np.ones(count),
        "exponential": random.exponential(1.0, count),
        "lognormal": random.lognormal(-0.5, 1.0, count),
        "bimodal": np.where(random.random(count) < 0.05, 20.0, 1.0) / 1.95,
    }
    return drawn[kind] * mean


def load(kind: str = "constant", mean: float = 0.01, **changes: object) -> Load:
    own = Load(
        num_envs=8,
        num_steps=40,
        durations=durations(kind, mean),
        busy=0.0,
        act_call=1e-5,
        act_row=1e-6,
        learn={1: 0.02},
        cores=2,
    )
    return replace(own, **changes)  # type: ignore[arg-type]


def run_jobs(jobs: list[list[tuple[float, bool]]], cores: int) -> float:
    """Seconds until all jobs are done that start together: each a list of parts, (seconds, computes). Parts that
    compute share the cores evenly; the others only pass."""
    queues = [list(job) for job in jobs if job]
    now = 0.0
    while queues:
        computing = sum(queue[0][1] for queue in queues)
        speed = min(1.0, cores / computing) if computing else 1.0
        passed = min(left / (speed if busy else 1.0) for queue in queues for left, busy in queue[:1])
        now += passed
        for queue in queues:
            left, busy = queue[0]
            left -= passed * (speed if busy else 1.0)
            queue[0] = (left, busy)
            if left <= 1e-12:
                queue.pop(0)
        queues = [queue for queue in queues if queue]
    return now


def parts_of(seconds: float, busy: float) -> list[tuple[float, bool]]:
    return [
        (part, computes)
        for part, computes in ((seconds * busy, True), (seconds * (1 - busy), False))
        if part > 0
    ]


def simulated(load: Load, kind: Kind, workers: int, seed: int) -> float:
    """Seconds of an update, by simulation."""
    random = np.random.default_rng(seed)
    steps = random.choice(load.durations, (load.num_steps, load.num_envs))
    learn = load.learn[1]
    if kind == "sequential":
        return float(steps.sum()) + load.num_steps * load.act(load.num_envs) + learn
    ranges = even_ranges(load.num_envs, workers)
    if kind == "executor":
        jobs = [
            [
                part
                for row in steps
                for part in (
                    (load.act(len(envs)), True),
                    *(each for env in envs for each in parts_of(row[env], load.busy)),
                )
            ]
            for envs in ranges
        ]
        return run_jobs(jobs, load.cores) + learn
    total = load.num_steps * load.act(load.num_envs)
    for row in steps:
        total += run_jobs(
            [[each for env in envs for each in parts_of(row[env], load.busy)] for envs in ranges], load.cores
        )
    return total + learn


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("busy", [0.0, 1.0])
@pytest.mark.parametrize(
    ("kind", "workers"),
    [("sequential", 1), ("executor", 1), ("executor", 2), ("executor", 8), ("sync", 2), ("sync", 8)],
)
def test_the_prediction_is_near_a_simulation_of_all_workers(
    kind: Kind, workers: int, busy: float, distribution: str
) -> None:
    given = load(distribution, busy=busy)
    slow = float(np.mean([simulated(given, kind, workers, seed) for seed in range(6)]))
    assert predict_seconds(given, kind, workers, 1) == pytest.approx(slow, rel=0.1)


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_workers_that_compute_are_no_faster_than_the_cores(cores: int) -> None:
    given = load(busy=1.0, cores=cores, learn={1: 0.0})
    least = given.steps * given.step_seconds / cores
    for workers in (1, 2, 4, 8):
        assert predict_seconds(given, "executor", workers, 1) >= least
    # Those that sleep are.
    assert predict_seconds(replace(given, busy=0.0), "executor", 8, 1) < 1.1 * least * cores / 8


def test_long_rollouts_are_extrapolated() -> None:
    given = load("lognormal", num_steps=2000)
    slow = float(np.mean([simulated(given, "executor", 8, seed) for seed in range(3)]))
    assert predict_seconds(given, "executor", 8, 1) == pytest.approx(slow, rel=0.1)


def test_the_slowest_of_many_costs_sync_more_than_the_executor() -> None:
    even, uneven = load("constant"), load("lognormal")
    for given, more in ((even, 1.0), (uneven, 1.5)):
        sync, executor = (predict_seconds(given, kind, 8, 1) for kind in ("sync", "executor"))
        assert sync > more * executor


def test_learning_beside_collection_takes_the_longer_of_both() -> None:
    given = load(overlaps=True, learn={1: 0.5, 2: 0.3}, cores=8)
    assert predict_seconds(given, "executor", 8, 1) == pytest.approx(0.5)
    # 8 environments of 40 steps on one worker take 3.2 s.
    assert predict_seconds(given, "executor", 1, 1) == pytest.approx(3.2, rel=0.02)
    assert predict_seconds(given, "sequential", 1, 2) == pytest.approx(3.5, rel=0.02)
    # Both compute: two cores do the work of both.
    busy = replace(given, busy=1.0, cores=2, learn={1: 1.6})
    assert predict_seconds(busy, "executor", 2, 1) == pytest.approx((3.2 + 1.6) / 2, rel=0.02)


def test_whole_episodes_go_to_the_worker_that_is_free() -> None:
    given = load(whole=True, num_envs=5, num_steps=100, learn={1: 0.0})
    # Two workers play three and two of them.
    assert predict_seconds(given, "executor", 2, 1) == pytest.approx(3.0, rel=0.02)
    assert predict_seconds(given, "executor", 5, 1) == pytest.approx(1.0, rel=0.02)
    assert predict_seconds(given, "sequential", 1, 1) == pytest.approx(5.0, rel=0.02)


def test_threads_of_the_learner_count() -> None:
    given = load(learn={1: 1.0, 2: 0.6})
    one, two = (predict_seconds(given, "executor", 8, threads) for threads in (1, 2))
    assert math.isclose(one - two, 0.4, rel_tol=1e-6)


def test_compiled_environments_use_no_more_threads_than_cores() -> None:
    given = load(busy=1.0, learn={1: 0.0})
    one, two, four = (predict_seconds(given, "native", workers, 1) for workers in (1, 2, 4))
    assert one == pytest.approx(2 * two, rel=0.02) and two == four
