"""Runs that are missing, damaged, read-only, or on a full disk: one line, and nothing of before is lost."""

import errno
import json
import os
import random
import shutil
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from mutations import damaged, mutated, refuses
from rich.console import Console

import fastrl
from fastrl.cli.main import main
from fastrl.runs.checkpoint import CheckpointError, load_newest, save_checkpoint
from fastrl.runs.directory import is_run
from fastrl.runs.listing import list_runs, read_curve
from fastrl.tasks import find
from fastrl.training.run import resume_run
from fastrl.tuning.trial import read_result
from fastrl.utils.config import ConfigError
from fastrl.utils.errors import UserError

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


def resume(run: Path, change: Callable[[dict[str, Any]], object] = lambda state: None) -> None:
    """Resumes a run for 16 steps from its newest checkpoint with a change."""
    file, state = load_newest(run)
    change(state)
    save_checkpoint(file, state)
    goal = {"run.total_timesteps": state["steps"] + 16}
    resume_run(find("gym"), run, goal, None, Console(quiet=True))


def adam(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = state["learner"]["optimizer"]["adam"]
    return found


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda state: state["learner"].update(steps=None),
            "learner/steps should be a whole number, got None",
        ),
        (lambda state: state["learner"].update(steps=2**70), "learner/steps should be a whole number"),
        (lambda state: state["source"]["staleness"].update(total="x"), "source/staleness/total should be"),
        (
            lambda state: adam(state).pop("exp_avg"),
            "the optimizer should have step, exp_avg, exp_avg_sq, got",
        ),
        (
            lambda state: adam(state).update(exp_avg=torch.zeros(())),
            "learner/optimizer/adam/exp_avg should be 1 axes",
        ),
        (
            lambda state: adam(state).update(step=torch.zeros(3)),
            "learner/optimizer/adam/step should be 0 axes",
        ),
    ],
)
def test_a_checkpoint_with_values_of_other_kinds_is_refused(
    change: Callable[[dict[str, Any]], object], why: str, run: Path
) -> None:
    with pytest.raises(
        CheckpointError, match=f"is no checkpoint of a run that this fastrl can resume: .*{why}"
    ):
        resume(run, change)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2


def test_priorities_of_another_length_are_refused(tmp_path: Path) -> None:
    """They are those of a replay of another size."""
    run = tmp_path / "run"
    small = ["--algo=dqn", "--prioritized", "--learning-starts=8", "--batch-size=4", "--replay.save"]
    small += ["--replay.capacity=64", "--total-timesteps=16", "--collector=sequential", "--eval-episodes=0"]
    assert main(["train", "CartPole-v1", *small, f"--run-dir={run}"]) == 0

    def cut(state: dict[str, Any]) -> None:
        sampler = state["source"]["minibatches"]["sampler"]
        sampler["priorities"] = sampler["priorities"][:-1]

    with pytest.raises(UserError, match="the checkpoint's minibatches are not those of this run"):
        resume(run, cut)


@pytest.mark.slow
def test_mutated_checkpoints_are_refused_or_resumed(run: Path) -> None:
    chance = random.Random(1)
    file, good = load_newest(run)
    refused = 0
    for i in range(16):
        state, what = mutated({name: good[name] for name in good if name != "config"}, chance)
        save_checkpoint(file, {**state, "config": good["config"]})
        work = Path(shutil.copytree(run, run.with_name(str(i))))
        refused += refuses(partial(resume, work), what, UserError, FloatingPointError)
    assert 8 <= refused < 16


def test_damaged_files_of_a_run_are_refused_or_read(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No change to settings, facts, summary or metrics ends in a traceback, or keeps other runs from the list."""
    chance = random.Random(1)
    good = {
        name: (run / name).read_bytes()
        for name in ("run.json", "summary.json", "config.toml", "metrics.jsonl")
    }
    mark = good["config.toml"].partition(b"\n")[0] + b"\n"
    other = shutil.copytree(run, run.with_name("zz"))
    states = set()
    for i in range(100):
        name = sorted(good)[i % len(good)]
        if chance.random() < 0.5:
            data, what = damaged(good[name], chance)
        elif name == "config.toml":
            tree, what = mutated(tomllib.loads(good[name].decode()), chance)
            try:
                data = mark + tomli_w.dumps(tree).encode()
            except (TypeError, UnicodeEncodeError):  # TOML has no null
                continue
        else:
            lines, what = mutated(
                [json.loads(line) for line in [good[name]]]
                if name != "metrics.jsonl"
                else [json.loads(line) for line in good[name].splitlines()],
                chance,
            )
            data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        (run / name).write_bytes(data)
        found = {info.path: info.state for info in list_runs(run.parent)}
        assert found.pop(other) == "complete" and len(found) <= 1, what
        states |= set(found.values())
        for call in (partial(read_curve, run), partial(read_result, run)):
            refuses(call, what, ConfigError)
        if i % 30 == 0:
            assert main(["runs", str(run.parent)]) == 0
            assert "\x1b" not in capsys.readouterr().out
        (run / name).write_bytes(good[name])
    assert "damaged" in states and "complete" in states


@pytest.mark.parametrize("name", ["run.json", "summary.json", "config.toml", "metrics.jsonl"])
def test_deep_documents_and_pipes_end_no_command(
    name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(run, run.with_name("zz"))
    mark = b"# The settings of this run of fastrl.\n" if name == "config.toml" else b""
    (run / name).write_bytes(mark + (b"a = " if mark else b"") + b"[" * 100_000 + b"\n")
    for _ in range(2):
        assert main(["runs", str(run.parent)]) == 0
        assert other.name in capsys.readouterr().out
        assert main(["plot", str(other), f"--out={run.parent / 'a.png'}"]) == 0
        (run / name).unlink()
        os.mkfifo(run / name)
    if name in ("config.toml", "metrics.jsonl"):
        assert f"{run} is no run" in failed(capsys, "train", "--resume", run, "--total-timesteps=80")
        assert is_run(run) == (name == "metrics.jsonl")


def test_control_characters_of_settings_do_not_reach_the_terminal(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace('"CartPole-v1"', '"a\\u001b[31mb\\u009b1m\\u202e$x$^"'))
    assert main(["runs", str(run)]) == 0
    assert r"a\x1b[31mb\x9b1m\u202e" in capsys.readouterr().out
    assert main(["plot", str(run), f"--out={run.parent / 'a.png'}"]) == 0
    assert "\x1b" not in "".join(capsys.readouterr())


VICTIMS = (
    "learning_curve.png",
    "profile.png",
    "profile.json",
    "run.json",
    "summary.json",
    "metrics.csv",
    "episodes.csv",
)


def test_a_resumed_run_writes_through_no_link(run: Path) -> None:
    victim = run.parent / "victim"
    victim.write_text("mine")
    for name in VICTIMS:
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(victim)
    code = main(["train", "--resume", str(run), "--total-timesteps=64", "--profile", "--run.loggers=csv"])
    assert code == 0 and victim.read_text() == "mine"
    assert not any((run / name).is_symlink() for name in VICTIMS)
