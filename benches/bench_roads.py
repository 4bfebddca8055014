"""highway-env's environments on road networks beside highway-env and EnvPool, on one core: environment steps a second.

Run: ``pytest benches/bench_roads.py -s``, eight minutes. How it measures, and where EnvPool comes from,
is what ``bench_traffic.py`` says. Actions are random.
"""

import importlib.util
import sys
from collections.abc import Callable

import pytest

from bench_traffic import NUM_ENVS, compare, envpool_python  # noqa: F401 (a fixture)
from fastrl.envs.traffic import ROAD_IDS
from results import Benchmark

# EnvPool has no ids of connected lanes.
ENVPOOL_IDS = (
    "merge-v0",
    "roundabout-v0",
    "intersection-v0",
    "intersection-v1",
    "exit-v0",
    "two-way-v0",
    "parking-v0",
    "parking-ActionRepeat-v0",
    "parking-parked-v0",
    "u-turn-v0",
    "racetrack-v0",
    "racetrack-large-v0",
    "racetrack-oval-v0",
)


ROUNDS, SECONDS = 3, 0.5


@pytest.mark.parametrize("env_id", ROAD_IDS)
def test_one_environment(env_id: str, record: Callable[..., Benchmark]) -> None:
    there = sys.executable if importlib.util.find_spec("highway_env") else None
    compare(
        record,
        env_id,
        "environment steps",
        {"fastrl": f"{env_id}, here, gymnasium.make"},
        {"highway-env": (f"{env_id}, highway-env", there)},
        heading="Roads on one core, gymnasium.make",
        rounds=ROUNDS,
        seconds=SECONDS,
    )


@pytest.mark.parametrize("env_id", ENVPOOL_IDS)
def test_environments(
    env_id: str,
    envpool_python: str | None,  # noqa: F811
    record: Callable[..., Benchmark],
) -> None:
    compare(
        record,
        env_id,
        "environment steps",
        {"fastrl": f"{env_id}, here, make_vec"},
        {"EnvPool": (f"{env_id}, EnvPool", envpool_python)},
        heading=f"Roads on one core, gymnasium.make_vec, {NUM_ENVS} environments",
        rounds=ROUNDS,
        seconds=SECONDS,
    )
