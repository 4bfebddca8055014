"""Ways of collecting on slow environments whose steps take uneven times: what a barrier costs, and what weights do.

    pytest benches/bench_collect.py -s

`fastrl bench collect` compares all ways on any environment. Here the work is known: each episode's durations are a
function of its seed, so what was collected is counted in seconds of the environments' own time, of which W workers
that nothing holds up get W a second. Steps sleep, as those of a simulator do that waits for another machine: eight of
them fit on two cores. Steps that compute cannot be faster together than the cores are.
"""

import functools
import statistics
import time

import gymnasium
import pytest

from fastrl.benchmarks.collect import random_weights
from fastrl.collectors.factory import make_collector
from fastrl.collectors.protocol import Plan
from fastrl.envs.spec import EnvSpec
from fastrl.envs.toys.uneven import UnevenEnv
from fastrl.networks.compiled_actor import MlpActor, RandomActor
from fastrl.rollout.fragment import Fragment
from fastrl.utils.seeding import env_seed

WORKERS = 8
SECONDS = 6.0
ROUNDS = 3

# tanh networks of 8 inputs and 2 actions: 1.1 and 2.1 MB.
NETWORKS = {"1.1 MB": [512, 512], "2.1 MB": [720, 720]}


def plan_for(env: EnvSpec, hidden: list[int] | None = None) -> Plan:
    made = env.make()
    architecture = {
        "kind": "discrete",
        "obs_dim": 8,
        "outputs": 2,
        "hidden": hidden,
        "activation": "tanh",
    }
    return Plan(
        env=env,
        make_actor=(
            functools.partial(RandomActor, gymnasium.spaces.Discrete(2))
            if hidden is None
            else functools.partial(MlpActor, architecture)
        ),
        obs_space=made.observation_space,
        action_space=made.action_space,
        num_envs=WORKERS,
        num_steps=1000,
        unit="episodes",
        episodes=10 * WORKERS,
    )


class Work:
    """Counts seconds of environments' own time in fragments."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.env = plan.env.make().unwrapped
        assert isinstance(self.env, UnevenEnv)

    def of(self, fragment: Fragment) -> float:
        total = 0.0
        for env_index, number in fragment.episodes.tolist():
            self.env.reset(seed=env_seed(self.plan.seed, env_index, number))
            total += float(self.env.durations.sum())
        return total


def rate(method: str, plan: Plan, seconds: float = SECONDS) -> tuple[float, dict[str, float]]:
    """Seconds of environments' own time collected a second, and the shares of the workers' time."""
    work = Work(plan)
    with make_collector(method, plan, n_workers=WORKERS) as collector:
        weights = random_weights(plan.make_actor().weights_nbytes)
        collector.publish(weights)
        began = time.perf_counter()
        assert collector.take(120.0) is not None
        # Until the slowest has started as well, and what ended at once is taken.
        settled = time.perf_counter() + max(2.0, time.perf_counter() - began)
        while time.perf_counter() < settled or collector.take(0.005) is not None:
            collector.take(0.05)
        before = dict(collector.report().seconds)
        start = time.perf_counter()
        done, since = 0.0, 0
        while True:
            late = time.perf_counter() - start > seconds
            fragment = collector.take(0.005 if late else 0.5)
            if fragment is None:
                if late:
                    break
                continue
            done += work.of(fragment)
            since += 1
            if since == plan.episodes:
                since = 0
                collector.publish(weights)
        passed = time.perf_counter() - start
        spent = {name: part - before.get(name, 0.0) for name, part in collector.report().seconds.items()}
    return done / passed, {name: part / (WORKERS * passed) for name, part in spent.items()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lognormal, 2 ms on average", {}),
        ("bimodal: a twentieth takes 20 times as long", {"distribution": "bimodal"}),
    ],
)
def test_executor_beside_sync(name: str, options: dict[str, str]) -> None:
    plan = plan_for(EnvSpec("fastrl/Uneven-v0", options))
    rates: dict[str, list[float]] = {"executor": [], "sync": []}
    for i in range(ROUNDS):
        for method in rates if i % 2 == 0 else reversed(rates):
            rates[method].append(rate(method, plan)[0])
    executor, sync = (statistics.median(rates[method]) for method in ("executor", "sync"))
    ratio = statistics.median(a / b for a, b in zip(rates["executor"], rates["sync"], strict=True))
    print(
        f"\nsleeping steps, {name}; {WORKERS} workers: executor {executor / WORKERS:.1%} of the ideal,"
        f" sync {sync / WORKERS:.1%}; executor {ratio:.2f} times sync (medians of {ROUNDS})"
    )
    assert ratio > 1


@pytest.mark.parametrize("name", list(NETWORKS))
def test_what_weights_cost(name: str) -> None:
    plan = plan_for(EnvSpec("fastrl/Uneven-v0"), NETWORKS[name])
    nbytes = plan.make_actor().weights_nbytes
    _, shares = rate("executor", plan, 2 * SECONDS)
    print(
        f"\nweights of {nbytes / 1e6:.1f} MB once an update of {plan.episodes} episodes, {WORKERS} workers: reading"
        f" them takes {shares['weights']:.3%} of the workers' time, the environment {shares['environment']:.1%}"
    )
    assert shares["weights"] < 0.05
