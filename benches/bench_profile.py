"""Cost of measuring where the time of a run goes: runs with and without the stopwatch.

Run: ``pytest benches/bench_profile.py -s`` on an otherwise idle machine. The price of a block times the number of
blocks is exact; the runs in turns show that nothing else costs more.
"""

import statistics
import time
import timeit
from typing import Any

import numpy as np
import pytest

from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.protocol import Plan
from fastrl.collectors.sequential import SequentialCollector
from fastrl.collectors.synchronous import native_collector
from fastrl.envs.cage2.env import Cage2VectorEnv
from fastrl.envs.spec import EnvSpec
from fastrl.training.profiler import Profile
from fastrl.utils.timer import Stopwatch
from plans import make_plan
from recording import Record
from results import Case
from rounds import measure_in_turns

ROUNDS = 6


class Nothing:
    """A block that does nothing."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


class NoWatch:
    """As little as a stopwatch can be."""

    seconds: dict[str, float] = {}  # noqa: RUF012
    _block = Nothing()

    def __call__(self, name: str) -> Nothing:
        return self._block


class Counting(Stopwatch):
    blocks = 0

    def __call__(self, name: str) -> Any:
        self.blocks += 1
        return super().__call__(name)


def price(watch: Any) -> float:
    """Seconds of an empty block."""

    def block() -> None:
        with watch("a"):
            pass

    def nothing() -> None:
        pass

    times = [min(timeit.repeat(each, number=20_000, repeat=10)) for each in (block, nothing)]
    return (times[0] - times[1]) / 20_000


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("num_envs", [256, 64, 8])
def test_overhead(num_envs: int, record: Record) -> None:
    env = Cage2VectorEnv(1)
    spaces = env.single_observation_space, env.single_action_space
    config = PPOConfig(minibatch_size=min(num_envs * PPOConfig().num_steps, 4096))
    ppo = PPO(config, Problem(*spaces, num_envs, total_timesteps=10**9))
    spec = EnvSpec("fastrl/Cage2-v0", {"red_agent": "mix"})
    collector = native_collector(Plan(spec, ppo.actor_spec(), *spaces, num_envs, config.num_steps))
    weights = np.zeros(ppo.weights_nbytes, np.uint8)
    profile = Profile()

    def iterations(watch: Any) -> float:
        """Seconds of three."""
        start = time.perf_counter()
        for _ in range(3):
            clock = time.perf_counter()
            with watch("publishing"):
                ppo.write_weights(weights)
                collector.publish(weights)
            with watch("waiting"):
                fragments = collector.collect()
            ppo.update(fragments, watch)
            if isinstance(watch, Stopwatch):
                episodes = sum(len(fragment.episodes) for fragment in fragments)
                profile.lap(
                    time.perf_counter() - clock, watch.seconds, len(ppo.rollout), episodes, collector.report()
                )
        return time.perf_counter() - start

    iterations(Stopwatch())
    measured = {kind: lambda kind=kind: iterations(kind()) for kind in (Stopwatch, NoWatch)}
    seconds, without = measure_in_turns(measured, ROUNDS).values()
    watch = Counting()
    iterations(watch)
    blocks = watch.blocks
    share = price(Stopwatch()) * blocks / statistics.median(seconds)
    times = {"fastrl, measured": seconds, "not measured": without}
    case = Case(f"{num_envs} environments", {name: [s / 3 * 1e3 for s in of] for name, of in times.items()})
    record(
        "Cost of measuring where the time goes",
        "ms an iteration",
        [case],
        ["fastrl, measured"],
        about=f"PPO on CAGE 2. {blocks / 3:.0f} blocks an iteration, {price(Stopwatch()) * 1e9:.0f} ns each, are"
        f" {share:.3%} of the time.",
        lower_is_better=True,
    )
    assert share < 0.01


def test_a_lap_costs_little(record: Record) -> None:
    profile = Profile()
    parts = dict.fromkeys(("environment", "inference", "buffer", "returns", "update"), 0.1)
    times = timeit.repeat(lambda: profile.lap(1.0, parts, 100, 1), number=1000, repeat=5)
    case = Case("a lap", {"fastrl": [seconds / 1000 * 1e6 for seconds in times]})
    record("Cost of a lap of the profile", "µs", [case], ["fastrl"], lower_is_better=True)
    assert min(times) / 1000 < 1e-3


def test_a_step_of_a_worker(record: Record) -> None:
    """A worker reads the clock three times a step; few Python environments step faster than CartPole."""
    plan = make_plan(EnvSpec("CartPole-v1"), num_envs=1, num_steps=20_000)

    def read() -> None:
        total, clock = 0.0, 0.0
        for _ in range(3000):
            now = time.perf_counter()
            total += now - clock
            clock = now

    with SequentialCollector(plan) as collector:
        collector.collect()
        steps = timeit.repeat(collector.collect, number=1, repeat=5)
    readings = timeit.repeat(read, number=1, repeat=20)
    times = {
        "a step, measured": [seconds / plan.num_steps * 1e6 for seconds in steps],
        "reading the clock three times": [seconds / 1000 * 1e6 for seconds in readings],
    }
    record("A worker's step of CartPole", "µs", [Case("CartPole-v1", times)], [], lower_is_better=True)
    step, reading = map(min, times.values())
    assert reading / step < 0.05
