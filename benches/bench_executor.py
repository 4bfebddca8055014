"""The executor beside the ideal: independent processes that only step environments.

Run: ``pytest benches/bench_executor.py -s`` on an otherwise idle machine. The ideal steps the same environment in as
many plain processes, with random actions: no actor, nothing stored, nothing sent. What is compared is the work done in
the same time: the durations that the steps of uneven episodes were made to take. Both run in turns, a few rounds each.
"""

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

import gymnasium
import numpy as np
import pytest

from bench_collect import work_of
from fastrl.collectors.executor import ExecutorCollector
from fastrl.collectors.protocol import Plan
from fastrl.envs.spec import as_spec
from fastrl.envs.toys.uneven import UnevenEnv
from fastrl.utils.seeding import NO_ENV, env_seed
from plans import make_plan
from results import Benchmark, Case
from rounds import measure_in_turns

ROUNDS, SECONDS = 3, 6.0
LENGTH = 100
SEED = 1


def uneven(busy: bool) -> dict[str, Any]:
    """Episodes of 100 steps of 2 ms on average, whose slowest are fifty times as long as the quickest."""
    return {"step_seconds": 0.002, "sigma": 1.5, "busy": busy, "length": LENGTH}


def plan_of(env: Any, episodes: int, **options: Any) -> Plan:
    return make_plan(as_spec(env, **options), 1, LENGTH, unit="episodes", episodes=episodes, seed=SEED)


def plain(
    options: dict[str, Any], first: int, stride: int, begin: Event, seconds: float, sender: Connection
) -> None:
    """A process of the ideal: runs episodes for ``seconds``, and sends their number and the time that they took."""
    env = UnevenEnv(**options)
    env.action_space.seed(first)
    sender.send(None)
    begin.wait()
    start = time.perf_counter()
    count = 0
    while time.perf_counter() - start < seconds:
        env.reset(seed=env_seed(SEED, NO_ENV, first + count * stride))
        over = False
        while not over:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            over = terminated or truncated
        count += 1
    sender.send((count, time.perf_counter() - start))


def ideal(options: dict[str, Any], workers: int) -> float:
    """Work a second of all processes together."""
    context = multiprocessing.get_context("forkserver")
    begin, pipes, processes = context.Event(), [], []
    for index in range(workers):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=plain, args=(options, index, workers, begin, SECONDS, sender))
        process.start()
        pipes.append(receiver)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    begin.set()
    rate, env = 0.0, UnevenEnv(**options)
    for index, pipe in enumerate(pipes):
        count, seconds = pipe.recv()
        rate += work_of(env, SEED, [(NO_ENV, index + i * workers) for i in range(count)]) / seconds
    for process in processes:
        process.join()
    return rate


def executor(options: dict[str, Any], workers: int, synchronous: bool) -> float:
    """Work a second, after every worker has started."""
    plan = plan_of(UnevenEnv, 10 * workers, **options)
    env = UnevenEnv(**options)
    with ExecutorCollector(plan, n_workers=workers) as collector:

        def some() -> list[tuple[int, int]]:
            fragments = collector.collect() if synchronous else [collector.take()]
            return [fragment.episodes[0].tolist() for fragment in fragments if fragment is not None]

        for _ in range(1 if synchronous else 2 * workers):
            some()
        episodes: list[tuple[int, int]] = []
        start = time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            episodes += some()
        seconds = time.perf_counter() - start
    return work_of(env, SEED, episodes) / seconds


@pytest.mark.parametrize(("workers", "busy"), [(8, False), (2, True)])
def test_share_of_the_ideal(workers: int, busy: bool, record: Callable[..., Benchmark]) -> None:
    options = uneven(busy)
    contenders = {
        "ideal": lambda: ideal(options, workers),
        "fastrl, take": lambda: executor(options, workers, synchronous=False),
        "fastrl, collect": lambda: executor(options, workers, synchronous=True),
    }
    rates = measure_in_turns(contenders, ROUNDS)
    case = Case(f"{workers} workers, {'busy' if busy else 'sleeping'} steps", rates)
    about = "Uneven environments. The ideal is plain processes that run episodes and send nothing."
    record(
        "Executor beside the ideal",
        "seconds of work/s",
        [case],
        ["fastrl, take", "fastrl, collect"],
        about=about,
    )


class Quick(gymnasium.Env[Any, Any]):
    """Episodes of so many steps that take no time."""

    def __init__(self, length: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.length = length
        self.obs = np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = self.length
        return self.obs, {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return self.obs, 1.0, self.left == 0, False, {}


@pytest.mark.parametrize("length", [1, 10, 100])
def test_what_a_task_costs(length: int, record: Callable[..., Benchmark]) -> None:
    """An environment that takes no time leaves what collecting costs: playing, storing, and handing over."""
    workers, updates = 2, 10
    with ExecutorCollector(plan_of(Quick, 1000, length=length), n_workers=workers) as collector:
        collector.collect()
        rates, own = [], time.process_time()
        for _ in range(updates):
            start = time.perf_counter()
            collector.collect()
            rates.append(1000 / (time.perf_counter() - start))
        own = time.process_time() - own
        report = collector.report()
    played = sum(report.seconds[part] for part in ("environment", "inference", "buffer")) / report.steps
    about = f"{workers} workers. A step is played in {played * 1e6:.2f} µs; the learner's process spends"
    about += f" {own / (updates * 1000) * 1e6:.0f} µs an episode."
    case = Case(f"episodes of {length} free steps", {"fastrl": rates})
    record("Episodes that take no time", "episodes/s", [case], ["fastrl"], about=about)
