"""Runs that learn from a live simulation of traffic, and the death of their processes."""

import contextlib
import errno
import functools
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paths import import_path
from rich.console import Console
from shared_memory import shared_memory_of
from traffic_runs import lines, small, small_settings, small_trainer
from train_process import wait_for_rows
from waiting import TIMEOUT, wait_until

from fastrl.algorithms import IPPO
from fastrl.cli.main import main
from fastrl.runs.console_logger import Highlights
from fastrl.runs.errors import TrainError
from fastrl.tasks.traffic.task import TASK
from fastrl.utils.ranks import Ranks

__all__ = ["lines"]

LIVE = ("--collector=live", "--collect.speed=0")


def simulation() -> int:
    """Process id of the simulation of this process."""
    [pid] = [process.pid for process in multiprocessing.active_children() if process.name == "simulation"]
    assert pid is not None
    return pid


@pytest.mark.slow
@pytest.mark.usefixtures("lines")
def test_a_run_trains_while_the_simulation_runs_on() -> None:
    before = shared_memory_of(os.getpid())
    curriculum = ("--curriculum.mode=schedule", "--curriculum.levels=1", "--density=0.1")
    trainer = small_trainer("--total-episodes=120", *LIVE, *curriculum)
    rows = [row.record() for row in trainer.rows()]
    assert rows[-1]["time/episodes"] >= 120
    assert sum(row["rollout/episodes"] for row in rows) == trainer.episodes
    assert trainer.steps == rows[-1]["time/iterations"] * 16 * 4
    names = ("policy_age_updates", "policy_age_seconds", "simulated", "missed", "late_mean", "late_max")
    assert {f"collect/{name}" for name in (*names, "dropped", "waiting", "restarts")} <= rows[-1].keys()
    assert rows[-1]["collect/simulated"] >= rows[-1]["time/iterations"] * 16
    assert {row["curriculum/vehicles"] for row in rows} == {2, 3}
    assert any("eval/mean_reward" in row for row in rows)
    assert trainer.source.report().seconds["environment"] > 0
    # Resumed, it continues with new episodes, by another collector too.
    for options in (LIVE, ("--collector=native",)):
        second = small_trainer("--total-episodes=200", *options)
        second.load_state_dict(trainer.state_dict())
        row = next(each for each in second.rows() if second.steps > trainer.steps).record()
        assert row["time/episodes"] >= 120
        assert row["collect/dropped"] >= rows[-1]["collect/dropped"]
    assert shared_memory_of(os.getpid()) <= before


@pytest.mark.usefixtures("lines")
def test_a_simulation_that_dies_is_replaced_and_the_console_says_so() -> None:
    text = io.StringIO()
    trainer = small_trainer("--total-episodes=1000000", *LIVE, console=Console(file=text, width=200))
    rows = trainer.rows()
    next(rows)
    os.kill(simulation(), signal.SIGKILL)
    wait_until(lambda: next(rows).record()["collect/restarts"])
    row = next(rows).record()
    assert row["collect/restarts"] == row["collect/failures"] == 1
    rows.close()  # type: ignore[attr-defined]
    assert (
        "worker 0 failed at a fragment of rows 0 to 3: killed by SIGKILL; training continues"
        in text.getvalue()
    )


@pytest.mark.usefixtures("lines")
def test_rows_come_while_there_is_nothing_to_learn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastrl.sources.rollouts.LIVE_WAIT_S", 0.01)
    trainer = small_trainer("--collector=live", "--collect.speed=1e-3")
    rows = trainer.rows()
    for _ in range(3):
        row = next(rows)
    assert (trainer.iteration, trainer.steps) == (0, 0)
    assert "waiting for the first fragment" in Highlights().of(row.metrics)
    rows.close()  # type: ignore[attr-defined]


def test_the_pace_is_that_of_the_environment_unless_told_otherwise() -> None:
    def period(*options: str) -> float | None:
        settings = TASK.resolve_defaults(small_settings("--collector=live", *options))
        source: Any = TASK.make_source(settings, IPPO, Console(quiet=True))
        return source.collect.period  # type: ignore[no-any-return]

    assert period() == 1.0
    assert period("--env.action-type=continuous") == 0.2
    assert period("--collect.period=0.5") == 0.5


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(TrainError, match="collect steps, not whole episodes"):
        small_trainer(*LIVE, "--episodes-per-update=2")
    with pytest.raises(TrainError, match="--ranks 2: there is one live simulation"):
        TASK.with_ranks(Ranks(0, 2)).make_trainer(small_settings(*LIVE))
    with pytest.raises(TrainError, match="'native' has no option period"):
        next(iter(small_trainer("--collector=native", "--collect.period=1").rows()))


def command(*arguments: object) -> list[str]:
    code = "import traffic_runs; traffic_runs.command_line()"
    return [sys.executable, "-c", code, *map(str, arguments)]


@functools.cache
def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": import_path()}


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
    options = ["traffic", *small("--total-episodes=1000000", "--collector=live", "--collect.speed=1000")]
    process = subprocess.Popen(
        command(*options, f"--run-dir={run}"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for_rows(run, 3, process)
    # As a terminal does it: to all its processes.
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + number
    assert err == ""
    assert f"--resume {run}" in out.replace("\n", " ")
    assert not shared_memory_of(process.pid)
    wait_until(lambda: not running(process.pid))
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["collector"]) == ("interrupted", "live")


@pytest.mark.parametrize("what", ["Weights", "Queue"])
def test_without_room_for_shared_memory_it_ends_in_a_line(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"fastrl.collectors.live.{what}", full)
    before = shared_memory_of(os.getpid())
    assert main(["train", "traffic", *small("--collector=live"), f"--run-dir={tmp_path / 'run'}"]) == 1
    line = "No space left on device: on a disk, or in /dev/shm, which processes share"
    assert capsys.readouterr().err == f"fastrl train: error: {line}\n"
    assert not (tmp_path / "run").exists()
    assert shared_memory_of(os.getpid()) <= before
