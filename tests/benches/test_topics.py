"""The topics of benches/suite.py: every contender does what is counted."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable

import numpy as np
import pytest

import collecting
import queues
import replays
import vector_envs
from suite import TOPICS


def test_every_topic_has_a_measurement() -> None:
    for module in TOPICS.values():
        assert callable(importlib.import_module(module).measure)


@pytest.mark.skipif(sys.platform != "linux", reason="memory shared between processes needs Linux")
@pytest.mark.parametrize("way", [*queues.OURS["processes"], *queues.PEERS["processes"]], ids=lambda w: w.name)
def test_a_way_between_processes_brings_every_record(way: type[queues.Way]) -> None:
    made = way(64, 2)
    assert queues.seconds_of(made, 4 * made.batch) > 0
    made.close()


@pytest.mark.skipif(sys.platform != "linux", reason="memory shared between processes needs Linux")
@pytest.mark.parametrize("producers", [1, 2])
def test_ways_between_threads_are_measured_in_rounds(producers: int) -> None:
    kinds = [*queues.OURS["threads"], *queues.PEERS["threads"]]
    rates = queues.measure_case("64 B", producers, kinds, rounds=2, seconds=0.001)
    assert [len(each) for each in rates.values()] == [2, 2] and min(map(min, rates.values())) > 0


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(replays.sampling, 2000),
        functools.partial(replays.prioritized, 2000),
        functools.partial(replays.stacked, 2000),
        functools.partial(replays.adding_one, replays.CARTPOLE, 1000),
        functools.partial(replays.adding_many, replays.CAGE2, 1000),
    ],
    ids=["sampling", "prioritized", "stacked", "one", "many"],
)
def test_contenders_of_replay(make: Callable[[], dict[str, replays.Contender]]) -> None:
    contenders = make()
    assert next(iter(contenders)) == "fastrl"
    for call, units in contenders.values():
        call()
        assert units >= 1
    rates = replays.measure_case(contenders, rounds=2, seconds=0.001)
    assert list(rates) == list(contenders) and min(map(min, rates.values())) > 0


def test_contenders_of_environments_count_steps() -> None:
    contenders, missing = vector_envs.cage2_contenders()
    assert set(missing) == (set() if importlib.util.find_spec("CybORG") else {"CybORG"})
    one, many = (contenders[f"fastrl, {n} at a time"](0.02) for n in ("1", "4,096"))
    assert many > one > 1000
    contenders, missing = vector_envs.highway_contenders("highway-fast-v0")
    assert (not missing) == (importlib.util.find_spec("highway_env") is not None)
    assert all(measure(0.001) > 0 for measure in contenders.values())


def test_an_episode_that_ends_is_reset() -> None:
    class Short:
        def __init__(self) -> None:
            self.action_space = type("Space", (), {"seed": lambda *_: None, "sample": lambda _: 0})()
            self.left = self.resets = 0

        def reset(self, *, seed: int | None = None) -> None:
            self.resets += 1
            self.left = 2

        def step(self, action: int) -> tuple[object, float, bool, bool, dict[str, object]]:
            assert self.left > 0, "stepped after the end"
            self.left -= 1
            return np.zeros(1), 0.0, self.left == 0, False, {}

    env = Short()
    assert vector_envs.played(env, 10)(0.0001) > 0
    assert env.resets > 5


def test_collectors_are_measured_on_compiled_environments() -> None:
    rates = collecting.measure_case("fastrl/Cage2-v0", 8, 4, ("sequential", "native"), rounds=1, seconds=0.01)
    assert set(rates) == {"sequential", "native"} and min(map(min, rates.values())) > 0
