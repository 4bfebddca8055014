"""Environments stepped together: the barrier of `ProcessVectorEnv` beside other vector environments, and native
collection of CAGE 2. Run: ``pytest benches/bench_sync.py -s`` on an otherwise idle machine; under two minutes.

Rounds of all contenders alternate, and medians count. Actions are drawn beforehand; every contender gets the same.
"""

import contextlib
import functools
import itertools
import statistics
from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from fastrl.collectors.synchronous import native_collector, sync_collector
from fastrl.envs import ProcessVectorEnv
from fastrl.envs.spec import EnvSpec
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show
from plans import make_plan, random_weights
from rounds import measure_in_turns, number_table, rate, spread

ENVS = 8
ROUNDS = 7
SECONDS = 1.0  # of a round
NATIVE_ENVS, STEPS = 2048, 50  # of native collection


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
    rows = itertools.cycle(actions)

    def hundred():
        for row in itertools.islice(rows, 100):
            env.step(row)
        return 100 * ENVS

    return rate(hundred, seconds)


def collected_per_second(collector, seconds):
    return rate(lambda: sum(map(len, collector.collect())), seconds)


def test_vector_environments():
    actions = np.random.default_rng(0).integers(0, 2, (1000, ENVS))
    with contextlib.ExitStack() as stack:
        measured = {}
        for name, make in contenders().items():
            env = stack.enter_context(closing(make()))
            env.reset()
            steps_per_second(env, actions, 0.2)
            measured[name] = functools.partial(steps_per_second, env, actions, SECONDS)
        rates = measure_in_turns(measured, ROUNDS)
    medians = {name: statistics.median(of) for name, of in rates.items()}
    asynchronous = medians["gymnasium AsyncVectorEnv(shared_memory=True)"]
    subproc = medians.get("stable_baselines3 SubprocVecEnv")
    columns = ("steps/s", "lowest", "highest", "of AsyncVectorEnv", "of SubprocVecEnv")
    table = number_table("CartPole-v1, 8 environments", "", *columns)
    for name, median in medians.items():
        shares = (f"{median / other:.2f}" if other else "not installed" for other in (asynchronous, subproc))
        table.add_row(name, *spread(rates[name]), *shares)
    show(plain_console(), table)
    assert all(median > 0 for median in medians.values())


@pytest.mark.parametrize("actions", ["effective", None])
def test_native_collection_of_cage2(actions):
    spec = EnvSpec("fastrl/Cage2-v0", {"actions": actions})
    plans = {
        "2x64 network": make_plan(spec, NATIVE_ENVS, STEPS, (64, 64)),
        "random actions": make_plan(spec, NATIVE_ENVS, STEPS),
    }
    cases = [(name, threads) for name in plans for threads in (1, 2)]
    with contextlib.ExitStack() as stack:
        collectors = {}
        for name, threads in cases:
            collector = stack.enter_context(native_collector(plans[name], n_workers=threads))
            collector.publish(random_weights(plans[name]))
            collector.collect()
            collectors[name, threads] = collector
        rates = measure_in_turns(
            {
                case: functools.partial(collected_per_second, each, SECONDS)
                for case, each in collectors.items()
            },
            ROUNDS,
        )
        seconds = {case: each.report().seconds for case, each in collectors.items()}
    parts = ("inference", "environment", "buffer")
    title = f"CAGE 2, {145 if actions is None else 54} actions"
    table = number_table(title, "", "threads", "steps/s", "lowest", "highest", *parts)
    for (name, threads), of in rates.items():
        own = seconds[name, threads]
        shares = [f"{own[part] / sum(own.values()):.0%}" for part in parts]
        table.add_row(name, str(threads), *spread(of), *shares)
    show(plain_console(), table)


def test_collecting_in_lockstep():
    """All of "sync": acting, stepping in processes, storing."""
    plan = make_plan(EnvSpec("CartPole-v1"), ENVS, 128)
    columns = ("steps/s", "lowest", "highest", "MiB a worker")
    table = number_table("sync, CartPole-v1, 8 environments, random actions", "workers", *columns)
    for workers in (1, 2, 4):
        with sync_collector(plan, n_workers=workers) as collector:
            collector.collect()
            rates = [collected_per_second(collector, SECONDS / 2) for _ in range(ROUNDS)]
            memory = max(collector.report().memory_mib)
        table.add_row(str(workers), *spread(rates), f"{memory:.0f}")
    show(plain_console(), table)
