"""Compiled environments in lockstep and each at its own pace: the cases in which it pays not to wait.

Run: ``pytest benches/bench_async_vec.py -s`` on an otherwise idle machine. Steps per second of the collector "native",
acting included, with a barrier at each step and without. A ring starts its episodes with 750 steps of warm-up, so that
a step which ends an episode takes a thousand times as long as the others. In lockstep all rings do that in the same
step, which suits it; highways end when they crash, each at its own time.
"""

import functools

import pytest

from fastrl.collectors.synchronous import native_collector
from fastrl.envs.spec import EnvSpec
from plans import make_plan, random_weights
from results import Case
from rounds import measure_in_turns, rate

CASES = {
    "CAGE 2": ("fastrl/Cage2-v0", {}),
    "highway, 20 vehicles": ("fastrl/highway-fast-v0", {}),
    "highway, 50 vehicles": ("fastrl/highway-v0", {}),
    "ring, long resets": ("fastrl/ring-v0", {"horizon": 100, "warmup_steps": 750}),
}
NUM_ENVS = (8, 32, 128)
ROUNDS = 3
SECONDS = 0.5
LOCKSTEP = "lockstep"


def steps_per_second(collector):
    with collector:
        collector.publish(random_weights(collector.plan))
        collector.collect()
        return rate(lambda: sum(map(len, collector.collect())), SECONDS)


@pytest.mark.parametrize("name", CASES)
def test_lockstep_and_not(name, record):
    env_id, options = CASES[name]
    cases = []
    for num_envs in NUM_ENVS:
        plan = make_plan(EnvSpec(env_id, options), num_envs, 64, (64, 64), "relu")
        counts = {"one ready": 1, "a quarter": num_envs // 4, "half": num_envs // 2}
        makers = {LOCKSTEP: functools.partial(native_collector, plan)} | {
            f"fastrl, {words}": functools.partial(native_collector, plan, asynchronous=count)
            for words, count in counts.items()
        }
        calls = {each: lambda make=make: steps_per_second(make()) for each, make in makers.items()}
        cases.append(Case(f"{name}, {num_envs} environments", measure_in_turns(calls, ROUNDS)))
    ours = [each for each in cases[0].rates if each != LOCKSTEP]
    record("Native collection without a barrier", "steps/s", cases, ours)
