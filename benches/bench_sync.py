"""Environments stepped together: the barrier of `ProcessVectorEnv` beside other vector environments, and native
collection of CAGE 2. Run: ``pytest benches/bench_sync.py -s`` on an otherwise idle machine; under two minutes.

Rounds of all contenders alternate, and medians count. Actions are drawn beforehand; every contender gets the same.
"""

import contextlib
import functools

import pytest

from fastrl.collectors.synchronous import native_collector, sync_collector
from fastrl.envs.spec import EnvSpec
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show
from plans import make_plan, random_weights
from results import Case
from rounds import measure_in_turns, number_table, rate
from vector_envs import CARTS, cart_contenders, measure_case

ROUNDS = 7
SECONDS = 1.0  # of a round
NATIVE_ENVS, STEPS = 2048, 50  # of native collection
PARTS = ("inference", "environment", "buffer")


def collected_per_second(collector, seconds):
    return rate(lambda: sum(map(len, collector.collect())), seconds)


def test_vector_environments(record):
    with cart_contenders() as (contenders, missing):
        rates = measure_case(contenders, ROUNDS, SECONDS)
    ours = [name for name in rates if name.startswith("fastrl")]
    case = Case(f"{CARTS} environments", rates)
    record("CartPole-v1 in processes", "steps/s", [case], ours, left_out=missing)


@pytest.mark.parametrize("actions", ["effective", None])
def test_native_collection_of_cage2(actions, record):
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
    title = f"CAGE 2, {145 if actions is None else 54} actions"
    names = {case: f"fastrl, {case[0]}, {case[1]} thread(s)" for case in rates}
    named = {names[case]: each for case, each in rates.items()}
    record("Native collection", "steps/s", [Case(title, named)], list(named))
    table = number_table(f"{title}: shares of the threads' time", "", *PARTS)
    for case, own in seconds.items():
        table.add_row(names[case], *(f"{own[part] / sum(own.values()):.0%}" for part in PARTS))
    show(plain_console(), table)


def test_collecting_in_lockstep(record):
    """All of "sync": acting, stepping in processes, storing."""
    plan = make_plan(EnvSpec("CartPole-v1"), CARTS, 128)
    rates, memory = {}, []
    for workers in (1, 2, 4):
        with sync_collector(plan, n_workers=workers) as collector:
            collector.collect()
            name = f"fastrl, {workers} worker{'s' * (workers > 1)}"
            rates[name] = [collected_per_second(collector, SECONDS / 2) for _ in range(ROUNDS)]
            memory.append(max(collector.report().memory_mib))
    case = Case(f"CartPole-v1, {CARTS} environments, random actions", rates)
    about = f"A worker has {min(memory):.0f} to {max(memory):.0f} MiB."
    record("Collection in lockstep", "steps/s", [case], list(rates), about=about)
