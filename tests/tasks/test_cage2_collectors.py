"""Runs on CAGE 2 with any collector: the same episodes, the same learning, exact resume."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from small_runs import (
    ITERATION,
    OPTIONS,
    differences,
    learnt,
    rows_of,
    train_small,
    trainer_of,
    untimed_state,
)

from fastrl.cli.main import main
from fastrl.collectors.running import unpacked
from fastrl.training.trainer import Trainer


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [("--no-ppo.action-masks",), ("--env.actions=none",)], ids=["no masks", "masks"]
)
def test_any_collector_teaches_the_same(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("native", "sequential", "sync", "executor", "asynchronous")
    for name in names:
        method = "native" if name == "asynchronous" else name
        workers = () if name == "sequential" else ("--n-workers=2",)
        ready = ("--collect.asynchronous=3",) if name == "asynchronous" else ()
        train_small(tmp_path / name, f"--collector={method}", *workers, *ready, *options)
    out = capsys.readouterr().out
    assert (
        "collecting with 'executor'; fastrl/Cage2-v0 is compiled: --collector native steps it in threads"
        in out
    )
    assert "2 workers, ready after" in out
    expected, rows = learnt(tmp_path / "native"), rows_of(tmp_path / "native")
    for name in names[1:]:
        assert differences(learnt(tmp_path / name), expected) == []
        assert rows_of(tmp_path / name) == rows
    # Episodes of 15 steps in rollouts of 10.
    assert [row["time/episodes"] for row in rows] == [0, 8, 16]
    assert not {"rollout/ep_rew_mean_bline", "rollout/ep_rew_mean_meander"}.isdisjoint(rows[-1])
    summary = json.loads((tmp_path / "executor" / "summary.json").read_text())
    assert summary["steps"] == 3 * ITERATION


def test_whole_episodes(tmp_path: Path) -> None:
    train_small(tmp_path / "run", "--collector=sequential", "--episodes-per-update=6")
    rows = rows_of(tmp_path / "run")
    assert [row["time/total_timesteps"] for row in rows] == [90, 180, 270]
    assert [row["time/episodes"] for row in rows] == [6, 12, 18]
    assert list(unpacked(learnt(tmp_path / "run")["source"]["collector"])["numbers"].values()) == [18]


@pytest.mark.slow
def test_it_goes_on_with_the_next_episodes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_small(run, "--collector=sequential", iterations=2)
    assert main(["train", "--resume", str(run), "--total-timesteps", str(4 * ITERATION)]) == 0
    state = learnt(run)
    assert state["iteration"] == 4
    assert state["source"]["collector"]["version"] == 4
    assert list(unpacked(state["source"]["collector"])["numbers"].values()) == [2] * 8


@pytest.mark.parametrize("method", ["sequential", "native"])
def test_stopped_in_the_middle_of_episodes_it_ends_as_if_never_stopped(method: str) -> None:
    def training(stopped: dict[str, Any] | None) -> Trainer:
        options = [f"--collector={method}", "--ppo.action-masks", "--total-timesteps", str(5 * ITERATION)]
        made = trainer_of("cage2", *OPTIONS, *options)
        if stopped is not None:
            made.load_state_dict(stopped)
        return made

    straight = training(None)
    list(straight.rows())
    stopped = training(None)
    for more in (1, 2, 2):
        list(islice(stopped.rows(), more))
        stopped = training(stopped.state_dict())
    assert stopped.iteration == 5
    found, expected = (untimed_state(each.state_dict()) for each in (stopped, straight))
    assert expected["source"]["collector"]["running"]["actions"]
    assert differences(found, expected) == []
