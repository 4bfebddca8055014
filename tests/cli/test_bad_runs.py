"""Runs that are missing, damaged, read-only, or on a full disk: one line, and nothing of before is lost."""

import errno
import os
import shutil
from pathlib import Path

import pytest

import fastrl
from fastrl.cli.main import main
from fastrl.training.checkpoint import CheckpointError, load_newest

SMALL = [
    *("--num-envs=2", "--num-steps=8", "--minibatch-size=8", "--hidden=8", "--eval-episodes=0"),
    *("--total-timesteps=32", "--collector=sequential", "--run.checkpoint-seconds=0", "--run.row-seconds=0"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("bad") / "run"
    assert main(["train", "CartPole-v1", *SMALL, f"--run-dir={run}"]) == 0
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a run with checkpoints at 16 and 32 steps."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def failed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a command that fails."""
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = int(str(stop.code))
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("loading")]
    assert code in (1, 2) and len(lines) == 1, lines
    return lines[0]


def commands(run: Path) -> list[list[object]]:
    return [["eval", run], ["render", run, "--out=a.gif"], ["train", "--resume", run], ["plot", run]]


def test_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = tmp_path / "other" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    for command in commands(tmp_path / "nosuch"):
        assert "nosuch: no such run directory" in failed(capsys, *command)
    for command in commands(tmp_path / "other"):
        assert ("no run directory" if command[0] == "plot" else "has no checkpoint") in failed(
            capsys, *command
        )
    for command in commands(notes)[:3]:
        assert "notes.txt is not a checkpoint" in failed(capsys, *command)
    assert "has no checkpoint" in failed(capsys, "train", "CartPole-v1", "--init", notes.parent)
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        fastrl.load(notes.parent)
    assert notes.read_text() == "mine" and len(list(tmp_path.rglob("*"))) == 2


def test_a_cut_checkpoint_names_the_one_before(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, newest = sorted((run / "checkpoints").glob("step-*"))[-2:]
    newest.write_bytes(newest.read_bytes()[:2000])
    for command in commands(run)[:3]:
        line = failed(capsys, *command)
        assert f"{newest} is not a checkpoint, or a damaged one" in line
        assert line.endswith(f"the one before it is {before}")
    with pytest.raises(CheckpointError, match="the one before it is"):
        fastrl.load(run)
    assert newest.stat().st_size == 2000
    assert main(["eval", str(before), "--episodes=1"]) == 0


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("after", [0, 4, 12, 16])
def test_a_disk_that_cannot_be_written_to_costs_nothing_of_before(
    after: int, reason: int, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk fails after so many files."""
    calls, sync = 0, os.fsync

    def failing(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(reason, os.strerror(reason))
        sync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        line = failed(capsys, "train", "--resume", run, "--total-timesteps=80")
    assert os.strerror(reason) in line and calls > after
    steps = load_newest(run)[1]["steps"]
    assert 32 <= steps < 80 and not list(run.rglob("*.tmp"))
    assert main(["train", "--resume", str(run), "--total-timesteps=80"]) == 0
    assert load_newest(run)[1]["steps"] == 80
