"""Online training: the pace of the simulation, its rollouts, and the death of processes."""

import contextlib
import dataclasses
import errno
import functools
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from shared_memory import shared_memory_of
from team_env import TeamEnv
from traffic_runs import LineSpec, line_envs, small, small_trainer
from waiting import TIMEOUT, wait_until

import fastrl.tasks.traffic.task
from fastrl.algorithms.mappo import MAPPO, MAPPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.cli.main import main
from fastrl.collectors.protocol import CollectError
from fastrl.collectors.team_backend import Difficulty
from fastrl.collectors.team_spec import TeamSpec
from fastrl.rollout.fragment import Fragment
from fastrl.training.experience import Episodes
from fastrl.training.online import OnlineSource, Pace
from fastrl.utils.timer import Stopwatch

ROOT = Path(__file__).resolve().parents[2]
ENVS, AGENTS, STEPS = 2, 3, 8


class Clock:
    """Time that passes when somebody says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 20), st.lists(st.integers(0, 60), max_size=40))
def test_a_step_is_taken_when_it_is_due_or_counted_as_late(period: int, busy: list[int]) -> None:
    clock = Clock()
    pace = Pace(float(period), clock.wait, clock)
    pace.next_step()
    missed, late, latest = 0, 0, 0
    due = clock.now
    for seconds in busy:
        clock.now += seconds
        due += period
        if clock.now > due:
            by = clock.now - due
            missed, late, latest = missed + 1, late + by, max(latest, by)
            due = clock.now
        pace.next_step()
        assert clock.now == pytest.approx(due)
    assert (pace.steps, pace.missed) == (len(busy) + 1, missed)
    assert pace.late == pytest.approx(late)
    assert pace.latest == pytest.approx(latest)


def test_as_fast_as_it_can_nothing_is_late() -> None:
    clock = Clock()
    pace = Pace(0.0, clock.wait, clock)
    for _ in range(5):
        pace.next_step()
        clock.now += 7
    assert (pace.steps, pace.missed, pace.late) == (5, 0, 0.0)


def test_a_wait_can_be_cut_short() -> None:
    clock = Clock()
    pace = Pace(1e9, clock.wait, clock)
    pace.next_step()
    pace.next_step(lambda: clock.now > 101)
    assert clock.now < 102


def make_learner(seed: int = 0, **settings: Any) -> MAPPO:
    env = TeamEnv(ENVS, AGENTS)
    return MAPPO(
        MAPPOConfig(num_steps=STEPS, hidden=(8,), **settings),
        Problem(
            env.single_observation_space,
            env.single_action_space,
            ENVS,
            total_timesteps=100 * ENVS * STEPS,
            num_agents=AGENTS,
            seed=seed,
        ),
    )


@dataclasses.dataclass(frozen=True)
class Lines(TeamSpec):
    """Makes environments in which agents walk on a line.

    Attributes:
        by: id of the process that can make them; 0: any.
    """

    by: int = 0

    def make_team(self, num_envs: int, *, workers: int | None = None, action_masks: bool = False) -> Any:
        if self.by not in (0, os.getpid()):
            raise ValueError("this simulation is broken")
        env = TeamEnv(num_envs, AGENTS)
        env.autoreset_mode = AutoresetMode.DISABLED
        return env


Start = Callable[..., tuple[MAPPO, OnlineSource]]


@pytest.fixture
def start() -> Iterator[Start]:
    before = shared_memory_of(os.getpid())
    with contextlib.ExitStack() as running:

        def begin(spec: TeamSpec = Lines("lines"), **options: Any) -> Any:
            arguments: dict[str, Any] = {
                "episode_steps": 8,
                "period": 0.0,
                "queue": 2,
                "timeout": TIMEOUT,
                "seed": 0,
                "console": Console(quiet=True),
            }
            source = OnlineSource(spec, ENVS, **arguments | options)
            learner = make_learner()
            source.attach(learner)
            running.enter_context(source)
            return learner, source

        yield begin
    assert shared_memory_of(os.getpid()) <= before


def take(source: OnlineSource) -> Episodes:
    """Waits for a rollout; returns the episodes that ended in it."""
    taken(source)
    return source.take_episodes()


def taken(source: OnlineSource) -> Fragment:
    """Waits for a rollout."""
    fragments = source.next(Stopwatch())
    assert fragments is not None and len(fragments) == 1
    return fragments[0]


def test_rollouts_arrive_whole_and_are_learnt_from(start: Start) -> None:
    learner, source = start()
    episodes = 0
    for i in range(6):
        fragment = taken(source)
        episodes += len(source.take_episodes())
        assert fragment.alive is not None and fragment.alive[:-1].any(2).all()
        assert np.isfinite(fragment.log_probs).all()
        assert (fragment.log_probs[fragment.alive[:-1]] < 0).all()
        # All observations of the living have a bias of 1.
        assert (fragment.obs[..., 2][fragment.alive] == 1).all()
        source.feedback(learner.update([fragment], Stopwatch()))
        assert learner.steps == source.steps == (i + 1) * STEPS * ENVS
        assert learner.metrics()["gradient_steps"] > 0
    assert episodes > 0
    assert not len(source.take_episodes())
    numbers = source.numbers()
    assert numbers["collect/simulated"] >= 6 * STEPS
    assert numbers["collect/policy_age_updates"] >= 0
    assert numbers["collect/policy_age_seconds"] > 0
    assert numbers["collect/missed"] == numbers["collect/restarts"] == 0


@pytest.mark.slow
def test_a_slow_learner_does_not_block_the_simulation(start: Start) -> None:
    _, source = start(queue=1)
    take(source)
    before = source.numbers()["collect/dropped"]
    wait_until(lambda: source.numbers()["collect/dropped"] >= before + 20)
    take(source)
    take(source)
    assert source.numbers()["collect/simulated"] > 20 * STEPS


def test_the_newest_policy_acts(start: Start) -> None:
    """Once published, a policy that always moves in one direction is what the rollouts show."""
    learner, source = start(queue=1)
    take(source)
    actor: Any = learner.policy.policies[learner.policy.names[0]]
    for layer in [actor.body[-1]]:
        layer.weight.data.zero_()
        layer.bias.data.copy_(layer.bias.data.new_tensor([0.0, 0.0, 50.0]))
    source.feedback(None)
    for _ in range(6):
        fragment = taken(source)
    assert fragment.alive is not None
    assert (fragment.actions[fragment.alive[:-1]] == 2).all()
    assert source.numbers()["collect/policy_age_updates"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 1])
def test_the_difficulty_reaches_the_simulation(start: Start, level: int) -> None:
    _, source = start()
    source.set_difficulty(level, Difficulty(1, 0.0))
    for _ in range(50):
        fragment, ended = taken(source), source.take_episodes()
        if len(ended) and (ended.info["num_agents"] == 1).all():
            break
    assert (ended.info["level"] == level).all()
    assert fragment.alive is not None and fragment.alive.sum(2).max() == 1


@pytest.mark.slow
def test_the_difficulty_may_be_set_before_it_runs() -> None:
    options: dict[str, Any] = {"timeout": TIMEOUT, "seed": 0, "console": Console(quiet=True)}
    source = OnlineSource(Lines("lines"), ENVS, episode_steps=8, period=0.0, queue=2, **options)
    source.set_difficulty(0, Difficulty(1, 0.0))
    source.attach(make_learner())
    with source:
        fragment = taken(source)
    assert fragment.alive is not None and fragment.alive.sum(2).max() == 1


@pytest.mark.slow
def test_in_real_time_steps_come_one_by_one(start: Start) -> None:
    began = time.monotonic()
    _, source = start(period=0.05)
    take(source)

    def dropped() -> float:
        before = source.numbers()["collect/dropped"]
        take(source)
        take(source)
        return source.numbers()["collect/dropped"] - before

    # A learner that the machine leaves waiting may miss some.
    wait_until(lambda: dropped() == 0)
    numbers = source.numbers()
    assert 3 * STEPS <= numbers["collect/simulated"] <= (time.monotonic() - began) / 0.05 + 1
    assert 0 <= numbers["collect/missed"] <= numbers["collect/simulated"]


@pytest.mark.slow
def test_a_killed_simulation_is_restarted(start: Start) -> None:
    text = io.StringIO()
    _, source = start(console=Console(file=text), timeout=0.2)
    wait_until(lambda: source.next(Stopwatch()) is not None)
    assert source.pool is not None
    (pid,) = source.pool.pids
    os.kill(pid, signal.SIGKILL)
    while source.restarts == 0:
        source.next(Stopwatch())
    wait_until(lambda: source.next(Stopwatch()) is not None)
    assert "the simulation died (killed by SIGKILL): restarted" in text.getvalue()
    assert source.pool.pids != [pid]
    assert source.numbers()["collect/restarts"] == 1


@pytest.mark.slow
def test_a_simulation_that_cannot_run_ends_with_its_reason(start: Start) -> None:
    _, source = start(Lines("lines", by=os.getpid()))
    with pytest.raises(CollectError, match="this simulation is broken"):
        source.next(Stopwatch())


@pytest.mark.slow
def test_a_run_trains_online(monkeypatch: pytest.MonkeyPatch) -> None:
    before = shared_memory_of(os.getpid())
    monkeypatch.setattr(fastrl.tasks.traffic.task, "make_multi", line_envs)
    monkeypatch.setattr(fastrl.tasks.traffic.task, "CompiledTeamSpec", LineSpec)
    trainer = small_trainer(
        "--total-episodes=120",
        "--online",
        "--online.speed=0",
        "--curriculum.mode=schedule",
        "--curriculum.levels=1",
        "--density=0.1",
    )
    rows = [row.record() for row in trainer.rows()]
    assert rows[-1]["time/episodes"] >= 120
    assert sum(row["rollout/episodes"] for row in rows) == trainer.episodes
    assert trainer.algorithm.updates == rows[-1]["time/iterations"] > 3  # type: ignore[attr-defined]
    names = ("policy_age_updates", "policy_age_seconds", "missed", "dropped")
    assert {f"collect/{name}" for name in names} <= rows[-1].keys()
    assert {row["curriculum/vehicles"] for row in rows} == {2, 3}
    assert any("eval/mean_reward" in row for row in rows)
    # Resumed, it continues with new episodes.
    second = small_trainer("--total-episodes=200", "--online", "--online.speed=0")
    second.load_state_dict(trainer.state_dict())
    assert next(iter(second.rows())).record()["time/episodes"] >= 120
    assert shared_memory_of(os.getpid()) <= before


@pytest.mark.slow
def test_rows_come_while_there_is_nothing_to_learn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastrl.tasks.traffic.task, "make_multi", line_envs)
    monkeypatch.setattr(fastrl.tasks.traffic.task, "CompiledTeamSpec", LineSpec)
    trainer = small_trainer("--online", "--online.speed=1e-3", "--online.row-seconds=0.01")
    rows = trainer.rows()
    row = next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert (trainer.iteration, trainer.steps) == (0, 0)
    assert "waiting for the first rollout" in row.highlights


def command(*arguments: object) -> list[str]:
    code = "import traffic_runs; traffic_runs.command_line()"
    return [sys.executable, "-c", code, *map(str, arguments)]


@functools.cache
def environment() -> dict[str, str]:
    paths = [
        str(ROOT / "tests" / "support"),
        str(Path(fastrl.__file__).parent.parent),
        os.environ.get("PYTHONPATH", ""),
    ]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def running(group: int) -> list[str]:
    """Processes of a group that have not ended."""
    there = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, pgid = stat.read_text().rpartition(")")[2].split()[:3]
            if int(pgid) == group and state != "Z":
                there.append(stat.parent.name)
    return there


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_leaves_no_process_and_no_memory(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    options = ["traffic", *small("--total-episodes=1000000", "--online", "--online.speed=1000")]
    process = subprocess.Popen(
        command(*options, f"--run-dir={run}", "--online.row-seconds=0.2"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    # As a terminal does it: to all its processes.
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + number
    assert err == ""
    assert f"--resume {run}" in out.replace("\n", " ")
    assert not shared_memory_of(process.pid)
    wait_until(lambda: not running(process.pid))
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "interrupted"


@pytest.mark.parametrize("what", ["Weights", "Queue", "SharedCounters"])
def test_without_room_for_shared_memory_it_ends_in_a_line(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"fastrl.training.online.{what}", full)
    before = shared_memory_of(os.getpid())
    assert main(["train", "traffic", *small("--online"), f"--run-dir={tmp_path / 'run'}"]) == 1
    line = "No space left on device: on a disk, or in /dev/shm, which processes share"
    assert capsys.readouterr().err == f"fastrl train: error: {line}\n"
    assert not (tmp_path / "run").exists()
    assert shared_memory_of(os.getpid()) <= before
