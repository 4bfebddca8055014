"""Compiled classic control beside Gymnasium's: steps per second of one environment and of 64, one thread.

Run: ``pytest benches/bench_classic.py -s`` on an otherwise idle machine; half a minute a task.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv

from fastrl.envs.classic import IDS
from results import Benchmark, Case
from vector_envs import Measure, measure_case, played, stepped

ENVS, ROUNDS, SECONDS = 64, 5, 1.0


def contenders(name: str) -> dict[str, Measure]:
    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make(name)

    compiled = gymnasium.make_vec(f"fastrl/{name}", ENVS, num_threads=1)
    return {
        "fastrl, 64": stepped(compiled, ENVS),
        "fastrl, 1": played(gymnasium.make(f"fastrl/{name}"), 100),
        "gymnasium SyncVectorEnv, 64": stepped(SyncVectorEnv([make] * ENVS), ENVS, 10),
        "gymnasium.make, 1": played(make(), 100),
    }


@pytest.mark.parametrize("name", IDS)
def test_steps(name: str, record: Callable[..., Benchmark]) -> None:
    rates = measure_case(contenders(name), ROUNDS, SECONDS)
    ours = [each for each in rates if each.startswith("fastrl")]
    record(f"{name}, compiled", "steps/s", [Case(name, rates)], ours, about="One thread, random actions.")
    assert Case(name, rates).ratio(ours[0], "gymnasium SyncVectorEnv, 64").median >= 15
