"""Environments stepped together: the barrier of `ProcessVectorEnv` beside other vector environments, and native
collection of CAGE 2. Run: ``pytest benches/bench_sync.py -s`` on an otherwise idle machine; under two minutes.

Rounds of all contenders alternate, and medians count. Actions are drawn beforehand; every contender gets the same.
"""

import functools
import statistics
import time
from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from rich.console import Console
from rich.table import Table

from fastrl.collectors.protocol import Plan
from fastrl.collectors.synchronous import native_collector, sync_collector
from fastrl.envs import ProcessVectorEnv
from fastrl.envs.spec import EnvSpec
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.compiled_actor import MlpActor, RandomActor

ENVS = 8
ROUNDS = 7
SECONDS = 1.0  # of a round
ROWS, STEPS = 2048, 50  # of native collection


def cart_pole():
    return gymnasium.make("CartPole-v1")


def contenders():
    """By name: how to make one, what is called with actions, and whether it is of this package."""
    made = {}
    for workers in (1, 2, 4):
        if workers <= ENVS:
            made[f"ProcessVectorEnv, {workers} workers"] = functools.partial(
                ProcessVectorEnv, "CartPole-v1", ENVS, workers, start_method="forkserver"
            )
    made["gymnasium SyncVectorEnv (no processes)"] = lambda: SyncVectorEnv([cart_pole] * ENVS)
    made["gymnasium AsyncVectorEnv(shared_memory=True)"] = lambda: AsyncVectorEnv(
        [cart_pole] * ENVS, shared_memory=True
    )
    try:
        from stable_baselines3.common.vec_env import SubprocVecEnv
    except ImportError:
        return made
    made["stable_baselines3 SubprocVecEnv"] = lambda: SubprocVecEnv([cart_pole] * ENVS)
    return made


def steps_per_second(env, actions, seconds):
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        for k in range(100):
            env.step(actions[(count + k) % len(actions)])
        count += 100
    return count * ENVS / passed


def test_vector_environments():
    actions = np.random.default_rng(0).integers(0, 2, (1000, ENVS))
    made = {}
    rates = {}
    try:
        for name, make in contenders().items():
            made[name] = make()
            made[name].reset()
            steps_per_second(made[name], actions, 0.2)
            rates[name] = []
        for _ in range(ROUNDS):
            for name, env in made.items():
                rates[name].append(steps_per_second(env, actions, SECONDS))
    finally:
        for env in made.values():
            env.close()
    medians = {name: statistics.median(of) for name, of in rates.items()}
    asynchronous = medians["gymnasium AsyncVectorEnv(shared_memory=True)"]
    subproc = medians.get("stable_baselines3 SubprocVecEnv")
    table = Table(
        "CartPole-v1, 8 environments", "steps/s", "lowest", "highest", "of AsyncVectorEnv", "of SubprocVecEnv"
    )
    for name, rate in medians.items():
        table.add_row(
            name,
            f"{rate:,.0f}",
            f"{min(rates[name]):,.0f}",
            f"{max(rates[name]):,.0f}",
            f"{rate / asynchronous:.2f}",
            f"{rate / subproc:.2f}" if subproc else "not installed",
        )
    Console(width=130).print(table)
    assert all(rate > 0 for rate in medians.values())


def plan_of(env_id, rows, steps, make_actor=None, **options):
    spec = EnvSpec(env_id, options)
    with closing(spec.make()) as one:
        obs_space, action_space = one.observation_space, one.action_space
    return Plan(
        spec, make_actor or functools.partial(RandomActor, action_space), obs_space, action_space, rows, steps
    )


@pytest.mark.parametrize("actions", ["effective", None])
def test_native_collection_of_cage2(actions):
    network = ActorCritic(52, 145 if actions is None else 54, (64, 64), "tanh")
    make_actor = functools.partial(MlpActor, network.actor_architecture())
    plans = {
        "2x64 network": plan_of("fastrl/Cage2-v0", ROWS, STEPS, make_actor, actions=actions),
        "random actions": plan_of("fastrl/Cage2-v0", ROWS, STEPS, actions=actions),
    }
    weights = np.empty(make_actor().weights_nbytes // 4, np.float32)
    network.actor_weights(weights)
    columns = ("threads", "steps/s", "lowest", "highest", "inference", "environment", "buffer")
    table = Table(f"CAGE 2, {145 if actions is None else 54} actions", *columns)
    cases = [(name, threads) for name in plans for threads in (1, 2)]
    collectors = {case: native_collector(plans[case[0]], n_workers=case[1]) for case in cases}
    rates = {case: [] for case in cases}
    for (name, _), collector in collectors.items():
        collector.publish(weights if name.startswith("2x64") else b"")
        collector.collect()
    for _ in range(ROUNDS):
        for case, collector in collectors.items():
            count, start = 0, time.perf_counter()
            while (passed := time.perf_counter() - start) < SECONDS:
                count += sum(map(len, collector.collect()))
            rates[case].append(count / passed)
    for (name, threads), of in rates.items():
        seconds = collectors[name, threads].report().seconds
        total = sum(seconds.values())
        shares = [f"{seconds[part] / total:.0%}" for part in ("inference", "environment", "buffer")]
        rate = statistics.median(of)
        table.add_row(name, str(threads), f"{rate:,.0f}", f"{min(of):,.0f}", f"{max(of):,.0f}", *shares)
        collectors[name, threads].close()
    Console(width=130).print(table)


def test_collecting_in_lockstep():
    """The whole of "sync": acting, stepping in processes, storing."""
    plan = plan_of("CartPole-v1", ENVS, 128)
    table = Table("sync, CartPole-v1, 8 rows, random actions", "steps/s", "lowest", "highest", "MiB a worker")
    for workers in (1, 2, 4):
        with sync_collector(plan, n_workers=workers) as collector:
            rates = []
            collector.collect()
            for _ in range(ROUNDS):
                count, start = 0, time.perf_counter()
                while (passed := time.perf_counter() - start) < SECONDS / 2:
                    count += sum(map(len, collector.collect()))
                rates.append(count / passed)
            memory = max(collector.report().memory_mib)
        rate = statistics.median(rates)
        table.add_row(
            f"{workers} workers", f"{rate:,.0f}", f"{min(rates):,.0f}", f"{max(rates):,.0f}", f"{memory:.0f}"
        )
    Console(width=130).print(table)
