"""Runs on CAGE 2 whose experience comes from a collector's fragments instead of the native path."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from small_runs import ITERATION, differences, learnt, train_small
from test_cage2_run import error_line, rows_of, small_config

from fastrl.cli.main import main
from fastrl.tasks.cage2.run import Training


def test_any_collector_teaches_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_small(tmp_path / "sequential", "--collect=sequential")
    capsys.readouterr()
    train_small(tmp_path / "executor", "--collect=executor", "--n-workers=2")
    out = capsys.readouterr().out
    assert (
        "collecting with 'executor'; fastrl/Cage2-v0 is compiled: --collect native plays it in threads" in out
    )
    assert "2 workers, ready after" in out
    assert differences(learnt(tmp_path / "executor"), learnt(tmp_path / "sequential")) == []
    rows = rows_of(tmp_path / "executor")
    without_shares = [
        [{key: value for key, value in row.items() if "share" not in key} for row in each]
        for each in (rows, rows_of(tmp_path / "sequential"))
    ]
    assert without_shares[0] == without_shares[1]
    # Episodes of 15 steps in rollouts of 10, as on the native path.
    assert [row["episodes"] for row in rows] == [0, 8, 16]
    summary = json.loads((tmp_path / "executor" / "summary.json").read_text())
    assert summary["steps"] == 3 * ITERATION


def test_whole_episodes(tmp_path: Path) -> None:
    train_small(tmp_path / "run", "--collect=sequential", "--episodes-per-update=6")
    rows = rows_of(tmp_path / "run")
    assert [row["steps"] for row in rows] == [90, 180, 270]
    assert [row["episodes"] for row in rows] == [6, 12, 18]
    assert learnt(tmp_path / "run")["collector"]["numbers"].tolist() == [18]


def test_it_goes_on_with_the_next_episodes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_small(run, "--collect=sequential", iterations=2)
    assert main(["train", "--resume", str(run), "--total-steps", str(4 * ITERATION)]) == 0
    state = learnt(run)
    assert state["iteration"] == 4
    assert state["collector"]["version"] == 4
    assert state["collector"]["numbers"].tolist() == [2] * 8


def test_stopped_in_the_middle_of_episodes_it_ends_as_if_never_stopped() -> None:
    def training(stopped: dict[str, Any] | None) -> Training:
        options = ["--collect=sequential", "--total-steps", str(5 * ITERATION)]
        made = Training(small_config(*options), Console(quiet=True))
        if stopped is not None:
            made.restore(stopped)
        return made

    straight = training(None)
    list(straight.rows())
    stopped = training(None)
    for more in (1, 2, 2):
        list(islice(stopped.rows(), more))
        stopped = training(stopped.state())
    assert stopped.iteration == 5
    found, expected = (
        {name: value for name, value in each.state().items() if name not in ("seconds", "parts")}
        for each in (stopped, straight)
    )
    assert expected["collector"]["running"]["actions"]
    assert differences(found, expected) == []


def test_the_native_path_is_what_it_was() -> None:
    training = Training(small_config("--total-steps", str(ITERATION)), Console(quiet=True))
    list(training.rows())
    assert training.config.collect.method == "native"
    assert training.state()["collector"] is None
    assert training.state()["ppo"]["collector"]


def test_what_does_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    line = error_line(capsys, "cage2", "--collect=sequential", "--ppo.action_masks")
    assert "--ppo.action_masks goes with --collect native alone" in line
    assert "--episodes-per-update does not go with --collect native" in error_line(
        capsys, "cage2", "--episodes-per-update=5"
    )
    assert "--n-workers does not go with --collect native" in error_line(capsys, "cage2", "--n-workers=2")
