"""Run directories: which ones a run may write to, and what a run that fails removes."""

import contextlib
import json
import tomllib
from pathlib import Path

import pytest
from small_runs import ITERATION, OPTIONS, learnt, train_small

import fastrl
from fastrl.callbacks import VideoRecorder
from fastrl.cli.main import main
from fastrl.runs.directory import RunDirectory, RunDirectoryError, never_saved, new_directory
from fastrl.runs.errors import HookError


def contents(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder: files with what they hold, folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def fill(directory: RunDirectory) -> None:
    """Writes what a run writes before its first row."""
    directory.write_settings("[run]\n")
    for file in (directory.facts, directory.table, directory.episodes, directory.curve):
        file.touch()
    directory.metrics.touch()
    directory.tensorboard.mkdir()
    (directory.tensorboard / "events.out.tfevents.1").touch()
    directory.checkpoints.mkdir()
    directory.profile.touch()
    for folder in directory.tracking:
        (folder / "0").mkdir(parents=True)
        (folder / "0" / "meta.yaml").touch()


def fail_in(path: Path, *files: str) -> None:
    """A run that fails before its first row, in whose directory somebody else writes files meanwhile."""
    with contextlib.suppress(ZeroDivisionError), new_directory(path, "x") as directory:
        fill(directory)
        for file in files:
            (path / file).write_text("mine")
        raise ZeroDivisionError


def test_a_run_that_fails_leaves_nothing(tmp_path: Path) -> None:
    fail_in(tmp_path / "a" / "b")
    assert contents(tmp_path) == {"a": None}
    # A directory that was there before stays.
    fail_in(tmp_path / "a")
    assert contents(tmp_path) == {"a": None}


class Refusing(fastrl.callbacks.Callback):
    def on_start(self, run: fastrl.callbacks.Run) -> None:
        raise ZeroDivisionError("no")


def test_a_run_that_has_not_learned_anything_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--num-envs=2", "--num-steps=8", "--minibatch-size=8", "--total-timesteps=32"]
    logged = [*small, "--loggers=csv,tensorboard", "--ppo.action-masks"]
    assert main(["train", "CartPole-v1", *logged]) == 1
    pytest.importorskip("pygame")
    model = fastrl.PPO("CartPole-v1", num_envs=2, num_steps=8, minibatch_size=8, collector="sequential")
    with pytest.raises(HookError, match="no"):
        model.learn(32, run_dir="runs/refused", callbacks=[VideoRecorder(suffix=".gif"), Refusing()])
    assert contents(tmp_path) == {"runs": None}
    capsys.readouterr()
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "no runs in runs\n"


def test_a_run_that_fails_removes_only_what_it_made(tmp_path: Path) -> None:
    fail_in(tmp_path / "a", "notes", "tensorboard/mine")
    assert contents(tmp_path / "a") == {"notes": b"mine", "tensorboard": None, "tensorboard/mine": b"mine"}


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "config.toml", "profile.json", "tensorboard/a", "checkpoints/a", "notes.txt"]
)
def test_a_directory_with_something_in_it_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("[run]\nmine = true\n")
    before = contents(tmp_path)
    assert main(["train", "cage2", *OPTIONS, "--run-dir", str(tmp_path)]) == 2
    message = f"{tmp_path} is neither empty nor a run (there is {name.partition('/')[0]} in it)"
    assert capsys.readouterr().err == f"fastrl train: error: {message}: choose another --run-dir\n"
    assert contents(tmp_path) == before


@pytest.mark.parametrize("file", ["metrics.jsonl", "config.toml", None])
def test_a_checkpoint_beside_foreign_files_does_not_overwrite_them(
    file: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_small(tmp_path / "run", iterations=1)
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "run" / "checkpoints").rename(home / "checkpoints")
    if file is not None:
        (home / file).write_text("[mine]\n")
    before = contents(home)
    assert main(["train", "--resume", str(home), "--total-timesteps", "800"]) == 2
    why = "it has no config.toml" if file is None else f"its {file} was written by something else"
    line = f"fastrl train: error: {home} is no run, {why}: name a new directory with --run-dir\n"
    assert capsys.readouterr().err == line
    assert contents(home) == before
    assert main(["train", "--resume", str(home), f"--run-dir={tmp_path / 'new'}"]) == 0


def killed(path: Path, *options: str) -> None:
    """Leaves what a run leaves that was killed after two rows, before its first checkpoint."""
    train_small(path, *options, iterations=2)
    for file in (*(path / "checkpoints").iterdir(), path / "checkpoints"):
        file.rmdir() if file.is_dir() else file.unlink()
    (path / "summary.json").unlink()
    (path / "profile.json").unlink()


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_starts_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # config.toml names the measured number of threads, which may differ between two runs.
    run, settings = tmp_path / "run", ["--seed=7", "--threads=1"]
    killed(run, *settings)
    assert never_saved(run)
    capsys.readouterr()
    assert main(["train", "--resume", str(run), "--total-timesteps", str(3 * ITERATION)]) == 0
    assert f"run directory {run}, whose run had no checkpoint yet: it starts over" in capsys.readouterr().out
    train_small(tmp_path / "whole", *settings, iterations=3)
    assert learnt(run)["steps"] == 3 * ITERATION
    assert (run / "config.toml").read_text() == (tmp_path / "whole" / "config.toml").read_text()
    rows = [
        json.loads(line)["time/total_timesteps"] for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    assert rows == [ITERATION, 2 * ITERATION, 3 * ITERATION]
    assert not never_saved(run)


def test_or_is_begun_again_with_other_settings(tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed(run, "--seed=7")
    (run / "notes").write_text("mine")
    # A run that then fails leaves a directory in which it can start again.
    with pytest.raises(ZeroDivisionError), new_directory(run, "x"):
        raise ZeroDivisionError
    train_small(run, "--seed=8", iterations=1)
    assert tomllib.loads((run / "config.toml").read_text())["run"]["seed"] == 8
    assert learnt(run)["steps"] == ITERATION
    assert (run / "notes").read_text() == "mine"


@pytest.mark.slow
def test_or_starts_over_in_another_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    killed(run, "--seed=7")
    before = contents(run)
    assert main(["train", "--resume", str(run), "--run-dir", str(other)]) == 0
    assert f"{run} has no checkpoint yet: its run starts over in {other}" in capsys.readouterr().out
    assert tomllib.loads((other / "config.toml").read_text())["run"]["seed"] == 7
    assert contents(run) == before


@pytest.mark.slow
def test_a_run_that_ended_does_not_start_over_without_its_checkpoints(tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed(run)
    (run / "summary.json").write_text("{}")
    before = contents(run)
    assert main(["train", "cage2", *OPTIONS, "--run-dir", str(run)]) == 2
    assert main(["train", "--resume", str(run)]) == 2
    assert contents(run) == before


def test_a_lone_best_checkpoint_is_that_to_go_on_from(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_small(run, iterations=2)
    (only,) = (run / "checkpoints").iterdir()
    only.rename(only.with_name("best.safetensors"))
    assert not never_saved(run)
    assert main(["train", "--resume", str(run), "--total-timesteps", str(3 * ITERATION)]) == 0
    assert learnt(run)["steps"] == 3 * ITERATION


def test_a_directory_of_a_process_that_was_killed_at_once_is_new(tmp_path: Path) -> None:
    (tmp_path / ".config.toml.123.tmp").touch()
    train_small(tmp_path, iterations=1)


def test_a_place_that_cannot_be_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").symlink_to("nowhere")
    for path in (None, Path("runs")):
        with pytest.raises(RunDirectoryError, match=r"cannot make the run directory .*runs"):
            new_directory(path, "x")


def test_names_of_the_same_second_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "now")
    for name in ("x-now", "x-now-2", "x-now-3"):
        directory = new_directory(None, "x")
        assert directory.path == Path("runs", name).absolute()
        if name == "x-now":
            directory.close()
