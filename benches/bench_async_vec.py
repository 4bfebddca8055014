"""Compiled environments in lockstep and each at its own pace: where does it pay not to wait?

Steps per second of the collector "native", acting included, with a barrier at each step and without. Rings begin their
episodes with 750 steps that nobody sees, so that a step which ends one takes a thousand times as long as the others.
In lockstep they all do that in the same step, which suits it; highways end when they crash, each at its own time.

Run: ``pytest benches/bench_async_vec.py -s`` on an otherwise idle machine.
"""

import time
from functools import partial

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete
from rich.console import Console
from rich.table import Table

from fastrl.collectors.protocol import Plan
from fastrl.collectors.synchronous import native_collector
from fastrl.envs.spec import as_spec
from fastrl.networks.compiled_actor import MlpActor

CASES = {
    "CAGE 2": ("fastrl/Cage2-v0", {}),
    "highway, 20 vehicles": ("fastrl/highway-fast-v0", {}),
    "highway, 50 vehicles": ("fastrl/highway-v0", {}),
    "ring, long resets": ("fastrl/ring-v0", {"horizon": 100, "warmup_steps": 750}),
}
ROWS = (8, 32, 128)
SECONDS = 1.5


def plan_of(env_id, options, num_envs):
    env = gymnasium.make(env_id, **options)
    actions = env.action_space
    architecture = {
        "kind": "discrete" if isinstance(actions, Discrete) else "gaussian",
        "obs_dim": int(np.prod(env.observation_space.shape)),
        "outputs": int(actions.n) if isinstance(actions, Discrete) else actions.shape[0],
        "hidden": [64, 64],
        "activation": "relu",
        "obs_clip": None,
    }
    actor = partial(MlpActor, architecture)
    plan = Plan(as_spec(env_id, **options), actor, env.observation_space, actions, num_envs, num_steps=64)
    env.close()
    return plan


def rate(collector):
    """Steps a second."""
    plan = collector.plan
    size = plan.make_actor().weights_nbytes // 4
    with collector:
        collector.publish(np.random.default_rng(0).normal(0, 0.05, size).astype(np.float32))
        collector.collect()
        steps, start = 0, time.perf_counter()
        while time.perf_counter() < start + SECONDS:
            steps += sum(len(fragment) for fragment in collector.collect())
        return steps / (time.perf_counter() - start)


def test_lockstep_and_not():
    shares = (1, 4, 2)
    table = Table("environment", "rows", "lockstep", "one ready", "a quarter", "half", "best / lockstep")
    for name, (env_id, options) in CASES.items():
        for rows in ROWS:
            plan = plan_of(env_id, options, rows)
            lockstep = rate(native_collector(plan))
            counts = [1 if share == 1 else rows // share for share in shares]
            rates = [rate(native_collector(plan, asynchronous=count)) for count in counts]
            numbers = [f"{each:,.0f}" for each in (lockstep, *rates)]
            table.add_row(name, str(rows), *numbers, f"{max(rates) / lockstep:.2f}")
    Console(width=110).print(table)
