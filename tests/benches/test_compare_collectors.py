import io
import json
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from waiting import TIMEOUT

import compare_collectors
from collector_report import draw, figure_of, long_time, price_table, speed_table
from compare_collectors import (
    BenchError,
    Case,
    Result,
    Setting,
    Speed,
    cases_for,
    command,
    compare,
    measure_apart,
    plan_for,
    price_cases,
)
from fastrl.cli.main import run_command
from fastrl.collectors.protocol import Report
from fastrl.envs.spec import EnvSpec
from fastrl.rollout.fragment import Fragment, allocate
from fastrl.utils.progress import Progress
from plans import random_weights

QUICK = EnvSpec("fastrl/Uneven-v0", {"step_seconds": 0.0005, "length": 10})


def speed(steps_per_second: float = 100.0, **changes: Any) -> Speed:
    values = {
        "seconds": 2.0,
        "episodes": int(steps_per_second / 5),
        "steps": int(2 * steps_per_second),
        "cores": 1.5,
        "memory_mib": 80.0,
        "cold_start": 3.0,
        "parts": {"environment": 0.9, "weights": 0.1},
        "failures": 0,
    }
    return Speed(**values | changes)


def text_of(table: Any) -> str:
    file = io.StringIO()
    Console(width=110, file=file).print(table)
    return file.getvalue()


def test_every_method_is_measured_at_every_size_once() -> None:
    cases = cases_for(["sequential", "sync", "ray"], [4, 1, 4])
    assert [(case.method, case.workers) for case in cases] == [
        ("sequential", 1),
        ("sync", 1),
        ("sync", 4),
        ("ray", 1),
        ("ray", 4),
    ]


def test_medians_of_rounds_in_turns_and_speed_up_against_sequential() -> None:
    measured_methods: list[str] = []
    rates = {"sequential": iter([50.0, 90.0, 100.0]), "executor": iter([400.0, 300.0, 200.0])}

    def fake(setting: Setting, case: Case) -> Speed:
        measured_methods.append(case.method)
        return speed(next(rates[case.method]), memory_mib=float(len(measured_methods)), failures=1)

    shown = io.StringIO()
    progress = Progress("", 6, Console(file=shown), interval=0)
    cases = cases_for(["sequential", "executor"], [4])
    results, missing = compare(Setting(QUICK), cases, 3, progress, measure=fake)
    assert missing == {}
    assert shown.getvalue().splitlines()[-1] == "measuring executor, 4 workers: 100%"
    assert measured_methods == ["sequential", "executor", "executor", "sequential", "sequential", "executor"]
    sequential, executor = results
    assert sequential.speed.steps_per_second == 90
    assert executor.speed.steps_per_second == 300
    assert executor.speed_up == pytest.approx(300 / 90)
    assert executor.efficiency == pytest.approx(300 / 90 / 4)
    assert executor.speed.memory_mib == 6 and executor.speed.failures == 3
    assert executor.many_seconds == pytest.approx(3 + 100_000 / 30)


def test_what_cannot_be_measured_is_left_out_and_not_asked_again() -> None:
    measured_methods: list[str] = []

    def fake(setting: Setting, case: Case) -> Speed:
        measured_methods.append(case.method)
        if case.method == "ray":
            raise BenchError("Ray is not installed")
        return speed()

    quiet = Progress("", None, Console(quiet=True))
    results, missing = compare(Setting(QUICK), cases_for(["ray", "sync"], [1, 2]), 2, quiet, measure=fake)
    assert missing == {"ray": "Ray is not installed"}
    assert measured_methods.count("ray") == 1 and measured_methods.count("sync") == 4
    assert [result.case.method for result in results] == ["sync", "sync"]
    assert results[0].speed_up is None and results[0].efficiency is None


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Bursts:
    """A collector whose four rows end together, every tenth of a second."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.waiting: list[Fragment] = []
        self.due = clock.now + 0.1
        self.published = 0
        arrays = allocate(10, 1, 8, ())
        self.fragment = Fragment(
            **arrays,
            version=1,
            env_indices=np.zeros(1, np.int64),
            returns=np.zeros(1),
            lengths=np.full(1, 10),
            episodes=np.zeros((1, 2), np.int64),
        )

    def take(self, timeout: float) -> Fragment | None:
        if not self.waiting and (left := self.due - self.clock.now) <= timeout:
            self.clock.sleep(max(left, 0.0))
            self.due += 0.1
            self.waiting = [self.fragment] * 4
        elif not self.waiting:
            self.clock.sleep(timeout)
        return self.waiting.pop() if self.waiting else None

    def publish(self, weights: Any) -> int:
        self.published += 1
        return self.published

    def report(self) -> Report:
        return Report()


def test_bursts_are_counted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(compare_collectors, "time", clock)
    plan, collector = plan_for(Setting(QUICK), 4), Bursts(clock)
    weights = np.zeros(0, np.float32)
    for _ in range(5):
        episodes, steps = compare_collectors.drain(collector, plan, weights, 0.13)  # type: ignore[arg-type]
        assert episodes > 0 and episodes % 4 == 0 and steps == 10 * episodes
        assert collector.waiting == []
    collector = Bursts(clock)
    compare_collectors.drain(collector, plan, weights, 1.25)  # type: ignore[arg-type]
    assert collector.published >= 1, "after each update's worth, 40 episodes"


def test_a_plan_fits_the_environment() -> None:
    plan = plan_for(Setting(EnvSpec("Pendulum-v1"), hidden=(8,)), 3)
    assert plan.num_envs == 3 and plan.episodes == 30 and plan.unit == "episodes"
    # Three inputs, a mean and a spread.
    assert plan.make_actor().weights_nbytes == 4 * (3 * 8 + 8 + 8 + 1 + 1)
    assert plan_for(Setting(QUICK), 1).make_actor().weights_nbytes == 0
    assert len(random_weights(plan)) * 4 == plan.make_actor().weights_nbytes


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (EnvSpec("CartPole-v9"), "--env CartPole-v9: .*did you mean CartPole-v1"),
        (EnvSpec("fastrl/Uneven-v0", {"length": 0}), "length and obs_size should be at least 1"),
        (EnvSpec("space_cases:Talk"), "observations should be a Box"),
    ],
)
def test_environments_that_cannot_be_measured(env: EnvSpec, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        plan_for(Setting(env), 1)


@pytest.mark.slow
def test_a_measurement_in_a_process_of_its_own() -> None:
    measured = measure_apart(Setting(QUICK, seconds=0.3), Case("sequential", 1))
    assert measured.seconds >= 0.3
    assert measured.steps == 10 * measured.episodes > 0
    assert measured.cold_start > 0 and measured.memory_mib > 10 and measured.cores > 0
    assert sum(measured.parts.values()) == pytest.approx(1)
    assert measured.parts["environment"] > 0.2
    with pytest.raises(BenchError, match="should be at least 1"):
        measure_apart(Setting(QUICK), Case("executor", 0))


@pytest.mark.slow
def test_an_interrupt_ends_a_measurement() -> None:
    interrupt = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))

    def measure_until_interrupted() -> None:
        interrupt.start()
        measure_apart(Setting(QUICK, seconds=10 * TIMEOUT), Case("sequential", 1))

    with pytest.raises(KeyboardInterrupt):
        measure_until_interrupted()
    assert multiprocessing.active_children() == []


def results() -> list[Result]:
    sizes = {"sequential": {1: 100.0}, "sync": {1: 90.0, 8: 300.0}, "executor": {1: 95.0, 8: 740.0}}
    return [
        Result(Case(method, workers, method), speed(rate), rate / 100)
        for method, several in sizes.items()
        for workers, rate in several.items()
    ]


def test_tables_tell_what_was_measured() -> None:
    text = text_of(speed_table(results(), Setting(QUICK)))
    assert "fastrl/Uneven-v0(step_seconds=0.0005, length=10), random actions" in text
    (line,) = [line for line in text.splitlines() if "executor" in line and "740" in line]
    assert line.split() == ["executor", "8", "74.0", "740", "7.40", "92%", "1.50", "80", "3.0", "22.6", "min"]
    assert "extrapolated" in text
    rates = [740.0, 185.0, 700.0, 370.0]
    priced = [Result(case, speed(rate)) for case, rate in zip(price_cases(8), rates, strict=True)]
    lines = text_of(price_table(priced, Setting(QUICK, (512, 512)))).splitlines()
    (barrier,) = [line for line in lines if "barrier" in line]
    assert barrier.split()[-3:] == ["4.00", "1.50", "10.00%"]


@pytest.mark.slow
def test_the_picture_is_one(tmp_path: Path) -> None:
    draw(results(), Setting(QUICK), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n")
    draw(results()[:1], Setting(QUICK), tmp_path / "b.png")
    assert (tmp_path / "b.png").stat().st_size > 5000


def test_every_axis_has_ticks_to_read_it_by() -> None:
    # Powers of ten alone would be one tick.
    rates = {"sequential": 110.0, "sync": 700.0, "executor": 3_000.0}
    figure = figure_of(
        [Result(Case(name, 1, name), speed(rate)) for name, rate in rates.items()], Setting(QUICK)
    )
    axes = figure.axes[0]
    assert axes.get_yscale() == "log"
    low, high = axes.get_ylim()
    assert len([tick for tick in axes.get_yticks() if low <= tick <= high]) >= 3


def test_long_times() -> None:
    assert [long_time(seconds) for seconds in (12.3, 200, 7200, math.inf)] == [
        "12 s",
        "3.3 min",
        "2.0 h",
        "-",
    ]


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--env-options", "step_seconds=0.0005", "length=10", "--workers=1", "--seconds=0.2"]
    options += ["--methods=sequential,executor", "--no-prices", "--json", f"--out={tmp_path}"]
    assert run_command(command, "compare_collectors.py", options) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree == json.loads((tmp_path / "compare-collectors.json").read_text())
    assert [(each["method"], each["workers"]) for each in tree["results"]] == [
        ("sequential", 1),
        ("executor", 1),
    ]
    for each in tree["results"]:
        assert each["steps_per_second"] == pytest.approx(10 * each["episodes_per_second"])
        assert each["seconds_for_100000_episodes_extrapolated"] > each["cold_start"]
        assert each["efficiency"] == each["speed_up"] > 0
    assert tree["options"] == {"step_seconds": 0.0005, "length": 10}
    assert (tmp_path / "compare-collectors.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def refusals(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    def refuse(*arguments: str) -> str:
        assert run_command(command, "compare_collectors.py", list(arguments)) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return refuse


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers=0"], "--workers: should be an integer of at least 1, got '0'"),
        (["--workers=1,x"], "got 'x'"),
        (["--methods=executer"], "did you mean executor?"),
        (["--network=64,"], "--network: should be an integer"),
        (["--env-options=busy"], "--env-options should be KEY=VALUE such as lanes=3, got ['busy']"),
        (["--env-options=colour=red"], "unexpected keyword argument 'colour'"),
        (["--env=NoGame"], "--env NoGame: Gymnasium knows no 'NoGame'"),
    ],
)
def test_a_users_mistake_is_one_line(refusals: Any, arguments: list[str], message: str) -> None:
    assert message in refusals(*arguments)
