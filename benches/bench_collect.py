"""Collectors on slow environments whose steps take uneven times: the costs of a barrier and of weights.

Run: ``pytest benches/bench_collect.py -s`` on an otherwise idle machine. `compare_collectors` compares collectors on
any environment. Here the work is known: each episode's durations are a function of its seed, so what was collected is
counted in seconds of the environments' own time, of which W workers that nothing holds up get W a second. Steps sleep,
as those of a simulator do that waits for another machine: eight of them fit on two cores. Steps that compute cannot be
faster together than the cores are.
"""

import time
from collections.abc import Callable, Iterable

import pytest

from fastrl.collectors.factory import make_collector
from fastrl.collectors.protocol import Plan
from fastrl.envs.spec import EnvSpec
from fastrl.envs.toys.uneven import UnevenEnv
from fastrl.utils.seeding import env_seed
from plans import make_plan, random_weights
from results import Benchmark, Case
from rounds import measure_in_turns

WORKERS = 8
SECONDS = 6.0
ROUNDS = 3

# tanh networks of 8 inputs and 2 actions: 1.1 and 2.1 MB.
NETWORKS = {"1.1 MB": (512, 512), "2.1 MB": (720, 720)}


def plan_of(hidden: tuple[int, ...] | None = None, **options: str) -> Plan:
    spec = EnvSpec("fastrl/Uneven-v0", options)
    return make_plan(spec, WORKERS, 1000, hidden, unit="episodes", episodes=10 * WORKERS)


def work_of(env: UnevenEnv, seed: int, episodes: Iterable[tuple[int, int]]) -> float:
    """Seconds that episodes, each an environment index and a number, were made to take."""
    total = 0.0
    for env_index, number in episodes:
        env.reset(seed=env_seed(seed, env_index, number))
        total += float(env.durations.sum())
    return total


def work_rate(method: str, plan: Plan, seconds: float = SECONDS) -> tuple[float, dict[str, float]]:
    """Seconds of environments' own time collected a second, and the shares of the workers' time."""
    env = plan.env.make().unwrapped
    assert isinstance(env, UnevenEnv)
    with make_collector(method, plan, n_workers=WORKERS) as collector:
        weights = random_weights(plan)
        collector.publish(weights)
        start = time.perf_counter()
        assert collector.take(120.0) is not None
        # Until the slowest has started too, and what ended at once is taken.
        warm_up_end = time.perf_counter() + max(2.0, time.perf_counter() - start)
        while time.perf_counter() < warm_up_end or collector.take(0.005) is not None:
            collector.take(0.05)
        before = dict(collector.report().seconds)
        start = time.perf_counter()
        work, unpublished = 0.0, 0
        while True:
            late = time.perf_counter() - start > seconds
            fragment = collector.take(0.005 if late else 0.5)
            if fragment is None:
                if late:
                    break
                continue
            work += work_of(env, plan.seed, fragment.episodes.tolist())
            unpublished += 1
            if unpublished == plan.episodes:
                unpublished = 0
                collector.publish(weights)
        passed = time.perf_counter() - start
        added = {name: part - before.get(name, 0.0) for name, part in collector.report().seconds.items()}
    return work / passed, {name: part / (WORKERS * passed) for name, part in added.items()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lognormal, 2 ms on average", {}),
        ("bimodal: a twentieth takes 20 times as long", {"distribution": "bimodal"}),
    ],
)
def test_executor_beside_sync(name: str, options: dict[str, str], record: Callable[..., Benchmark]) -> None:
    plan = plan_of(**options)
    rates = measure_in_turns(
        {method: lambda method=method: work_rate(method, plan)[0] for method in ("executor", "sync")}, ROUNDS
    )
    about = f"Steps that sleep; {WORKERS} workers, of which as many seconds a second are the ideal."
    case = Case(name, {f"fastrl, {method}": of for method, of in rates.items()})
    record("Executor beside sync", "seconds of environments/s", [case], ["fastrl, executor"], about=about)
    assert case.ratio("fastrl, executor", "fastrl, sync").median > 1


@pytest.mark.parametrize("name", list(NETWORKS))
def test_what_weights_cost(name: str, record: Callable[..., Benchmark]) -> None:
    plan = plan_of(NETWORKS[name])
    nbytes = plan.make_actor().weights_nbytes
    _, shares = work_rate("executor", plan, 2 * SECONDS)
    case = Case(f"{nbytes / 1e6:.1f} MB", {"fastrl": [100 * shares["weights"]]})
    about = f"New weights after every {plan.episodes} episodes; {WORKERS} workers, whose environments take"
    about += f" {shares['environment']:.1%} of the time."
    title, unit = "Reading weights", "% of the workers' time"
    record(title, unit, [case], ["fastrl"], about=about, lower_is_better=True)
    assert shares["weights"] < 0.05
