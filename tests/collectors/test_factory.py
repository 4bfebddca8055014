"""Collectors by name, what "auto" chooses, and what is refused before anything starts."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from collect_cases import ACTIONS, Chooser, Noise, chooser, plan

import fastrl  # noqa: F401 - registers the ids
from fastrl.collectors import factory as module
from fastrl.collectors import resources
from fastrl.collectors.factory import COLLECTORS, Choice, choose, is_native, make_collector
from fastrl.collectors.probe import Probe
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.envs.spec import EnvSpec, as_spec

MIB = 2**20

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install '.[test-all]'")
# Those that have workers.
WORKING = ("sync", "executor", pytest.param("ray", marks=needs_ray))


def never() -> Probe:
    raise AssertionError("there is nothing to measure")


def choice(step_seconds: float, unevenness: float = 1.0, unit: Any = "steps", **changes: Any) -> Choice:
    """For 8 rows and 4 workers."""
    found = Probe(step_seconds, unevenness, 60 * MIB)
    settings: dict[str, Any] = {"n_workers": 4, "measure": lambda: found}
    return choose(plan(unit, num_envs=8, num_steps=100), **(settings | changes))


def cage2(env: str = "fastrl/Cage2-v0") -> Plan:
    made = gymnasium.make(env)
    return Plan(
        EnvSpec(env),
        functools.partial(Chooser),
        made.observation_space,
        made.action_space,
        num_envs=4,
        num_steps=10,
    )


def test_the_environment_decides() -> None:
    assert choice(0.002, 1.1) == (
        "executor",
        "a step takes 2.0 ms, the slowest of 8 1.1 times as long, and each of 4 workers runs at its own pace",
    )
    assert choice(3.0, 4.4).reason.startswith("a step takes 3.0 s, the slowest of 8 4.4 times as long")
    # 800 steps of 5 µs are over in 4 ms.
    assert choice(5e-6, 3.0) == (
        "sequential",
        "a step takes 5 µs, so the 800 of an update are over before processes could share them",
    )
    assert choice(50e-6).name == "executor"
    # 17 episodes of at most 100 steps: how long they are is not known better.
    assert [choice(each, unit="episodes").name for each in (5e-6, 7e-6)] == ["sequential", "executor"]


def test_some_need_no_measurement() -> None:
    assert choice(0, measure=never, n_workers=1).name == "sequential"
    assert choice(0, measure=never, ray_address="host:1") == ("ray", "an address of Ray was given, host:1")
    assert choose(cage2(), measure=never) == (
        "native",
        "fastrl/Cage2-v0 is compiled, threads step it without any processes",
    )


def test_short_runs_start_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [100e-6]
    monkeypatch.setattr(module, "quick_step_seconds", lambda plan: seconds[0])
    assert choice(0, measure=never, total_steps=1000) == (
        "sequential",
        "1,000 steps are over before other processes have started",
    )
    assert choice(0, measure=never, total_steps=19_999).name == "sequential"
    # Slow steps, and long runs whose first steps are not timed here.
    seconds[0] = 1.0
    assert choice(1.0, total_steps=1000).name == "executor"
    seconds.clear()
    assert choice(100e-6, total_steps=20_001).name == "executor"
    # Errors of the quick look are left to the process that steps it next.
    assert choice(100e-6, total_steps=1000).name == "executor"
    monkeypatch.setattr(module, "quick_step_seconds", lambda plan: sys.exit(2))
    assert choice(100e-6, total_steps=1000).name == "executor"


def test_which_environments_are_compiled() -> None:
    for name in ("fastrl/Cage2-v0", "fastrl/highway-v0", "fastrl/highway-fast-v0", "fastrl/ring-v0"):
        assert is_native(EnvSpec(name)), name
    for name in ("CartPole-v1", "fastrl/Catch-v0", "fastrl/Uneven-v0", "no/such-v0", "fastrl.envs:Cage2Env"):
        assert not is_native(EnvSpec(name)), name
    assert not is_native(as_spec(Noise))


def test_compiled_environments_of_images_are_for_other_collectors() -> None:
    image = gymnasium.spaces.Box(0, 255, (4, 4), np.uint8)
    images = dataclasses.replace(cage2(), obs_space=image)
    assert choose(images, measure=lambda: Probe(1.0, 1.0, MIB), n_workers=2).name == "executor"
    with pytest.raises(
        CollectError, match="compiled environments write float32, its observations are images"
    ):
        make_collector("native", images)


def test_auto_logs_its_choice_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(module, "probe", lambda plan, start_method: Probe(1e-6, 1.0, 60 * MIB))
    with make_collector("auto", plan(), n_workers=2, task_timeout=5.0, log=lines.append) as collector:
        assert collector.name == "sequential"
    [line] = lines
    assert line == (
        "collecting with 'sequential': a step takes 1 µs, so the 60 of an update are over before processes could"
        " share them"
    )
    with pytest.raises(ValueError, match="the collector 'sequential' has no option asynchronous"):
        make_collector("auto", plan(), n_workers=2, asynchronous=2)
    monkeypatch.setattr(module, "probe", lambda plan, start_method: Probe(1e-2, 2.0, 60 * MIB))
    with make_collector("auto", plan(), n_workers=2) as collector:
        assert collector.name == "executor" and collector.report().workers == 2


def test_options_reach_the_collector(tmp_path: Path) -> None:
    with make_collector("executor", plan("episodes"), n_workers=2, max_pending=1, rebuild=True) as collector:
        collector.publish(chooser(0.0))
        assert len(collector.collect()) == 17
        assert collector.report().workers == 2
    with make_collector("sequential", plan(), max_failures=1) as collector:
        assert collector.name == "sequential"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "exekutor",
            {},
            "should be 'sequential', 'sync', 'executor', 'native', 'ray', 'vector', 'live' or 'auto', got 'exekutor'",
        ),
        (
            "sequential",
            {"n_workers": 2},
            "'sequential' has no option n_workers, its options are: max_failures",
        ),
        ("sequential", {"max_pending": 2}, "'sequential' has no option max_pending"),
        ("executor", {"ray_address": "host:1"}, "'executor' has no option ray_address"),
        ("executor", {"rebild": True}, "'executor' has no option rebild, its options are: .*rebuild"),
        ("ray", {"start_method": "spawn"}, "'ray' has no option start_method"),
        ("executor", {"start_method": "fork"}, "start_method should be 'spawn' or 'forkserver', got 'fork'"),
        ("auto", {"start_method": "fork"}, "start_method should be"),
        ("auto", {"n_workers": 0}, "n_workers should be at least 1"),
        ("sequential", {"n_workers": -1}, "n_workers should be at least 1"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_collector(name, plan(), **options)


@pytest.mark.parametrize("name", WORKING)
def test_numbers_of_workers_that_make_no_sense_are_refused(name: str) -> None:
    for asked in (0, -3):
        with pytest.raises(ValueError, match=f"n_workers should be at least 1, or 'auto', got {asked}"):
            make_collector(name, plan(), n_workers=asked)
    with pytest.raises(ValueError, match=r"n_workers should be at most 5.*got 6; collect from more"):
        make_collector(name, plan(), n_workers=6)
    with pytest.raises(TypeError, match="n_workers should be a number"):
        make_collector(name, plan(), n_workers="many")


@pytest.mark.parametrize("name", WORKING)
def test_more_workers_than_memory_allows_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of one is measured: it is a process with numpy, Gymnasium and the environment."""
    monkeypatch.setattr(resources, "available_memory", lambda: 300 * MIB)
    with pytest.raises(
        ValueError,
        match=r"50 workers do not fit into memory: one takes \d+ MiB.*300 MiB.*n_workers=\d+ or less",
    ):
        make_collector(name, plan(num_envs=50), n_workers=50)
    monkeypatch.setattr(resources, "available_memory", lambda: 10 * MIB)
    with pytest.raises(ValueError, match="not even one worker fits into memory"):
        make_collector(name, plan())


def test_environments_that_do_not_pickle_are_refused() -> None:
    with pytest.raises(TypeError, match=r"does not pickle.*give an id.*'my_module:make_env'.*lambdas"):
        as_spec(lambda: Noise())
    env = Noise()
    with pytest.raises(TypeError, match=r"got an environment.*import path"):
        as_spec(env)  # type: ignore[arg-type]
    bad = Plan(EnvSpec("CartPole-v1", {"f": lambda: 1}), Chooser, env.observation_space, ACTIONS, 2, 3)
    with pytest.raises(TypeError, match=r"does not pickle.*'my_module:make_env'"):
        make_collector("executor", bad, n_workers=1)


@pytest.mark.parametrize("name", ["sequential", "sync", "executor"])
def test_other_spaces_than_the_learner_expects_are_refused(name: str) -> None:
    other = gymnasium.spaces.Box(-1, 1, (2, 2), np.float64)
    wrong = Plan(plan().env, Chooser, other, ACTIONS, num_envs=2, num_steps=3)

    def play() -> None:
        with make_collector(name, wrong) as collector:
            collector.publish(chooser(0.0))
            collector.collect()

    with pytest.raises(CollectError, match=r"observation space of .* is .*, but the learner expects"):
        play()


@needs_ray
def test_a_ray_cluster_that_does_not_answer_is_named() -> None:
    with pytest.raises(CollectError, match=r"no Ray cluster answers at 127\.0\.0\.1:1: ") as caught:
        make_collector("auto", plan(), ray_address="127.0.0.1:1")
    assert "\n" not in str(caught.value)


def test_ray_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CollectError, match=r"pip install 'fastrl\[ray\]'$"):
        make_collector("ray", plan(), n_workers=2)


def test_collectors_are_named_in_order() -> None:
    assert COLLECTORS == ("sequential", "sync", "executor", "native", "ray", "vector", "live")
