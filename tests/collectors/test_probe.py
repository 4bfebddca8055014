from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np
import pytest
from collect_cases import ACTIONS, Broken, Chooser, Noise, plan

from fastrl.collectors import probe as module
from fastrl.collectors.probe import TOGETHER, probe, summary
from fastrl.collectors.protocol import CollectError, Plan

MIB = 2**20


def test_steps_are_timed_and_memory_is_measured() -> None:
    found = probe(plan(sleep=0.004))
    assert found.step_seconds >= 0.004
    assert found.unevenness >= 1
    assert 20 * MIB < found.memory < 500 * MIB


class Timed(Noise):
    """Its steps and resets take their time on a clock of its own."""

    now = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        Timed.now += 0.002
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        Timed.now += 0.004
        return super().step(action)


def test_times_are_those_of_steps_and_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "perf_counter", lambda: Timed.now)
    found = module.measure(plan(env=Timed))
    # Episodes have 1 to 9 steps.
    assert 0.004 + 0.002 / 9 < found.step_seconds < 0.004 + 0.002
    assert found.unevenness == pytest.approx(1)


def test_a_quick_look_times_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "perf_counter", lambda: Timed.now)
    start = Timed.now
    assert 0.004 + 0.002 / 9 < module.quick_step_seconds(plan(env=Timed)) <= 0.004 + 0.002
    assert Timed.now - start < module.QUICK_S + 0.006


@pytest.mark.parametrize("options", [{"sleep": 0.004}, {}])
def test_steps_that_sleep_are_told_from_those_that_compute(options: dict[str, float]) -> None:
    assert module.measure(plan(**options)).sleeps == bool(options)


def test_other_programs_do_not_make_a_step_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its process has a core for a tenth of the time.
    monkeypatch.setattr(module, "perf_counter", lambda: Timed.now)
    monkeypatch.setattr(module, "process_time", lambda: Timed.now / 10)
    assert not module.measure(plan(env=Timed)).sleeps


class Deadly(Noise):
    def step(self, action: Any) -> Any:
        os.kill(os.getpid(), 9)


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        (Broken, {"share": 1.0, "what": "raise"}, "cannot be stepped: ValueError: this game is broken"),
        (Broken, {"share": 1.0, "what": "exit"}, "cannot be stepped: SystemExit: this game is over"),
        (
            Broken,
            {"share": 1.0, "what": "build"},
            "cannot be stepped: RuntimeError: this one cannot be built",
        ),
        (Deadly, {}, "cannot be stepped: killed by SIGKILL"),
    ],
)
def test_environments_that_cannot_be_stepped_are_refused(
    env: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(CollectError, match=message) as caught:
        probe(plan(env=env, **options))
    if env is Broken:
        assert "collect_cases.py" in caught.value.traceback


def test_other_spaces_and_what_does_not_pickle_are_refused() -> None:
    other = gymnasium.spaces.Box(-1, 1, (2, 2), np.float64)
    with pytest.raises(CollectError, match="learner expects"):
        probe(Plan(plan().env, Chooser, other, ACTIONS, num_envs=2, num_steps=3))
    with pytest.raises(TypeError, match="the plan does not pickle, so other processes cannot run it"):
        probe(Plan(plan().env, lambda: Chooser(), other, ACTIONS, num_envs=2, num_steps=3))


def test_unevenness_is_that_of_the_slowest_of_some() -> None:
    even = summary(np.full(400, 0.01), 0.0, 5)
    assert even.step_seconds == pytest.approx(0.01) and even.unevenness == pytest.approx(1.0)
    assert even.memory == 5
    # One in eight takes ten times as long: each round waits for one.
    times = np.full(800, 1.0)
    times[::TOGETHER] = 10.0
    uneven = summary(times, 80.0, 5)
    assert uneven.step_seconds == pytest.approx(17 / 8 + 0.1)
    assert uneven.unevenness == pytest.approx(10 * 8 / 17)
    # Once in a thousand steps another program is to blame.
    times = np.full(4000, 1.0)
    times[::1000] = 500.0
    assert summary(times, 0.0, 5).unevenness == pytest.approx(1.0)
    assert summary(np.ones(2), 0.0, 5).unevenness == pytest.approx(1.0)
