import copy
import json
import math
import os
import shutil
import signal
import tomllib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
import torch
from small_runs import (
    ITERATION,
    OPTIONS,
    differences,
    learnt,
    rows_of,
    same,
    train_refusal,
    train_small,
    trainer_of,
    untimed,
)
from train_process import start_training, wait_for_rows
from waiting import wait_until

from fastrl import load_policy
from fastrl.cli.main import main
from fastrl.runs.checkpoint import Checkpoints, load_checkpoint, load_newest, save_checkpoint
from fastrl.tasks import find
from fastrl.tasks.cage2.settings import PRESETS
from fastrl.utils.config import build, check, to_tree


def test_rows_tell_what_was_done() -> None:
    training = trainer_of("cage2", *OPTIONS, "--total-timesteps", 3 * ITERATION - 1)
    rows = [row.record() for row in training.rows()]
    assert [row["time/total_timesteps"] for row in rows] == [ITERATION, 2 * ITERATION, 3 * ITERATION]
    assert [row["time/iterations"] for row in rows] == [1, 2, 3]
    # Episodes of 15 steps in rollouts of 10.
    assert [row["time/episodes"] for row in rows] == [0, 8, 16]
    assert math.isnan(rows[0]["rollout/ep_rew_mean"])
    assert rows[1]["rollout/ep_len_mean"] == rows[2]["rollout/ep_len_mean"] == 15
    each = {f"rollout/ep_rew_mean_{name}" for name in ("bline", "meander")}
    assert {name for name in rows[1] if "rew_mean_" in name} <= each
    assert rows[2]["train/entropy"] > 0
    parts = {name: value for name, value in rows[2].items() if name.startswith("time/seconds_")}
    assert 0 < sum(parts.values()) < rows[2]["time/time_elapsed"]
    names = {"environment", "inference", "buffer", "waiting", "returns", "update", "publishing"}
    assert parts.keys() == {f"time/seconds_{name}" for name in names}
    assert sum(value for name, value in rows[2].items() if "share" in name) == pytest.approx(1)
    assert sum(training.activities.values()) < training.seconds


@pytest.mark.slow
def test_one_seed_fixes_a_run(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train_small(tmp_path / name, "--seed", str(seed))
    assert same(learnt(tmp_path / "a"), learnt(tmp_path / "b"))
    assert rows_of(tmp_path / "a") == rows_of(tmp_path / "b")
    assert not same(learnt(tmp_path / "a")["policy"], learnt(tmp_path / "c")["policy"])


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--ppo.normalize-obs", "--ppo.action-masks", "--env.memory=full", "--env.actions=none"),
        ("--no-ppo.normalize-returns", "--ppo.target-kl=1e-4", "--red-agent=sleep"),
    ],
    ids=["default", "masks", "plain"],
)
def test_restored_it_goes_on_as_if_never_stopped(tmp_path: Path, options: Sequence[str]) -> None:
    whole, first, second = (
        trainer_of("cage2", *OPTIONS, "--total-timesteps", 6 * ITERATION, *options) for _ in range(3)
    )
    expected = list(whole.rows())
    list(islice(first.rows(), 2))
    save_checkpoint(tmp_path / "c", first.state_dict())

    second.load_state_dict(load_checkpoint(tmp_path / "c"))
    rows = list(second.rows())
    for row, other in zip(rows, expected[2:], strict=True):
        assert repr(untimed(row.record())) == repr(untimed(other.record()))
    for part in ("learner", "policy", "source"):
        assert same(second.state_dict()[part], whole.state_dict()[part])


# Iterations of a run that is killed in the middle.
KILLED = 150


@pytest.mark.slow
def test_killed_and_resumed_it_ends_with_the_same_parameters(tmp_path: Path) -> None:
    # Long enough to be killed in the middle of whatever it does, saving included.
    options = ["--run.checkpoint-seconds=0", "--run.row-seconds=0"]
    train_small(tmp_path / "whole", *options, iterations=KILLED)

    killed = tmp_path / "killed"

    def was_killed_twice() -> bool:
        shutil.rmtree(killed, ignore_errors=True)
        total = f"--total-timesteps={KILLED * ITERATION}"
        arguments = ["cage2", *OPTIONS, *options, total, f"--run-dir={killed}"]
        for rows in (15, 50):
            process = start_training(*arguments)
            wait_for_rows(killed, rows, process)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert 0 < learnt(killed)["steps"] <= KILLED * ITERATION
            arguments = [f"--resume={killed}"]
        return learnt(killed)["steps"] < KILLED * ITERATION

    # It may come to its end before whoever should kill it gets round to it.
    wait_until(was_killed_twice)
    assert main(["train", "--resume", str(killed)]) == 0

    assert differences(learnt(killed), learnt(tmp_path / "whole")) == []
    assert rows_of(killed) == rows_of(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_asked_to_stop_it_saves_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    options = [*OPTIONS, "--total-timesteps", 10**9, "--run.checkpoint-seconds", 10**6, "--run-dir", run]
    options.append("--run.row-seconds=0")
    process = start_training("cage2", *options)
    wait_for_rows(run, 3, process)
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == 128 + number
    assert err == ""
    assert f"Interrupted; to resume: fastrl train --resume {run}" in out.replace("\n", " ")
    steps = learnt(run)["steps"]
    assert rows_of(run)[-1]["time/total_timesteps"] == steps
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["signal"]) == ("interrupted", number.name)

    assert main(["train", "--resume", str(run), "--total-timesteps", str(steps + 2 * ITERATION)]) == 0
    assert [row["time/total_timesteps"] for row in rows_of(run)] == [
        ITERATION * (i + 1) for i in range(steps // ITERATION + 2)
    ]
    assert json.loads((run / "summary.json").read_text())["status"] == "complete"


def test_a_run_directory_holds_it_all(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "mine"
    train_small(run, "--run.keep-checkpoints=2", "--run.checkpoint-seconds=0", iterations=5)
    assert {path.name for path in run.iterdir()} == {
        "config.toml",
        "episodes.csv",
        "learning_curve.png",
        "metrics.jsonl",
        "run.json",
        "tensorboard",
        "checkpoints",
        "summary.json",
        "profile.json",
    }
    steps = [int(path.stem.partition("-")[2]) for path in Checkpoints(run / "checkpoints").paths()]
    assert steps == [4 * ITERATION, 5 * ITERATION]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "complete"
    assert summary["steps"] == 5 * ITERATION
    assert list(summary["parts"]) == [
        "environment",
        "inference",
        "buffer",
        "publishing",
        "waiting",
        "returns",
        "update",
        "other",
    ]
    assert sum(part["share"] for part in summary["parts"].values()) == pytest.approx(1)
    assert sum(part["seconds"] for part in summary["parts"].values()) == pytest.approx(summary["seconds"])
    assert summary["peak_memory_mib"] > 10
    assert summary["evaluation"] is None


@pytest.mark.slow
def test_its_settings_can_be_run_again(tmp_path: Path) -> None:
    # config.toml names the measured number of threads, which may differ between two runs.
    settings = ["--ppo.learning-rate=0.01", "--seed=5", "--red-agent=bline:1,sleep:3", "--threads=1"]
    train_small(tmp_path / "a", *settings)
    file = tmp_path / "a" / "config.toml"
    assert main(["train", "cage2", "--config", str(file), "--run-dir", str(tmp_path / "b")]) == 0
    assert file.read_text() == (tmp_path / "b" / "config.toml").read_text()
    assert same(learnt(tmp_path / "a"), learnt(tmp_path / "b"))


def test_the_summary_scores_every_red_agent_over_every_horizon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_small(tmp_path / "run", "--run.eval-episodes=2", "--ruleset=leaderboard", iterations=1)
    evaluation = json.loads((tmp_path / "run" / "summary.json").read_text())["evaluation"]
    assert evaluation["ruleset"] == "leaderboard"
    assert [(score["red_agent"], score["horizon"]) for score in evaluation["scores"]] == [
        (red_agent, horizon) for red_agent in ("bline", "meander", "sleep") for horizon in (30, 50, 100)
    ]
    out = capsys.readouterr().out
    for words in ("B_line", "Meander", "'leaderboard'", "where the time went", "peak memory"):
        assert words in out
    assert out.splitlines()[-4:] == [
        f"Run directory: {tmp_path / 'run'}",
        f"To score it by the challenge's protocol: fastrl eval {tmp_path / 'run'}",
        f"To film it: fastrl render {tmp_path / 'run'} --out episode.mp4",
        f"To train it further: fastrl train --resume {tmp_path / 'run'} --total-timesteps {2 * ITERATION}",
    ]


def test_a_finished_run_stays_finished(tmp_path: Path) -> None:
    train_small(tmp_path)
    before = learnt(tmp_path), rows_of(tmp_path)
    (tmp_path / "summary.json").unlink()
    assert main(["train", "--resume", str(tmp_path)]) == 0
    assert same(before, (learnt(tmp_path), rows_of(tmp_path)))
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "complete"


def test_the_settings_that_a_run_would_go_on_with_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_small(tmp_path, "--seed=5", iterations=1)
    before = sorted(tmp_path.rglob("*")), (tmp_path / "config.toml").read_bytes()
    capsys.readouterr()
    assert main(["train", "--resume", str(tmp_path), "--print-config", "--total-timesteps=1e6"]) == 0
    settings = tomllib.loads(capsys.readouterr().out)
    assert (settings["run"]["seed"], settings["run"]["total_timesteps"]) == (5, 1_000_000)
    assert settings["ppo"]["hidden"] == [8]
    assert "ppo.gamma" in train_refusal(capsys, "--resume", tmp_path, "--print-config", "--ppo.gamma=0.5")
    assert (sorted(tmp_path.rglob("*")), (tmp_path / "config.toml").read_bytes()) == before


@pytest.mark.slow
def test_from_an_older_checkpoint_the_later_ones_are_written_again(tmp_path: Path) -> None:
    train_small(tmp_path / "run", "--run.checkpoint-seconds=0", iterations=4)
    expected = learnt(tmp_path / "run"), rows_of(tmp_path / "run")
    older, _, newest = Checkpoints(tmp_path / "run" / "checkpoints").paths()
    newest.write_bytes(b"damaged")
    assert main(["train", "--resume", str(older)]) == 0
    assert same(expected, (learnt(tmp_path / "run"), rows_of(tmp_path / "run")))


def test_a_lone_checkpoint_goes_on_in_a_new_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_small(tmp_path / "run", "--run.checkpoint-seconds=0", iterations=4)
    oldest = Checkpoints(tmp_path / "run" / "checkpoints").paths()[0]
    lone = oldest.rename(tmp_path / "lone.safetensors")
    assert "name a new one with --run-dir" in train_refusal(capsys, "--resume", lone)
    assert main(["train", "--resume", str(lone), "--run-dir", str(tmp_path / "new")]) == 0
    assert same(learnt(tmp_path / "run"), learnt(tmp_path / "new"))
    assert rows_of(tmp_path / "new") == rows_of(tmp_path / "run")[2:]


def test_what_cannot_be_resumed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert "no such run directory" in train_refusal(capsys, "--resume", run)
    run.mkdir()
    assert "has no checkpoint" in train_refusal(capsys, "--resume", run)
    run.rmdir()
    train_small(run, "--run.checkpoint-seconds=0")
    before = sorted(run.rglob("*"))
    line = train_refusal(capsys, "--resume", run, "--ppo.gamma", "0.5")
    assert "ppo.gamma" in line
    assert "run.total_timesteps" in line
    assert "--config" in train_refusal(capsys, "--resume", run, "--config", run / "config.toml")
    assert "unknown environment cage3; did you mean cage2?" in train_refusal(capsys, "cage3", "--resume", run)
    newest = Checkpoints(run / "checkpoints").paths()[-1]
    good = newest.read_bytes()
    newest.write_bytes(good[:-1])
    assert "the one before it is" in train_refusal(capsys, "--resume", run)

    state = dict(load_newest(Checkpoints(run / "checkpoints").paths()[0])[1])
    for broken in ({"config": {}}, {"learner": {}}, {"source": {}}, {"config": {"run": {"sed": 1}}}):
        save_checkpoint(newest, state | broken)
        train_refusal(capsys, "--resume", run)
    # Sizes in a checkpoint are compared with its weights before memory is allocated.
    config = state["config"]
    huge = {"config": config | {"ppo": config["ppo"] | {"hidden": [10**7, 10**7]}}}
    save_checkpoint(newest, state | huge)
    assert "the saved hidden layers are [8], not [10000000, 10000000]" in train_refusal(
        capsys, "--resume", run
    )
    learner = copy.deepcopy(state["learner"])
    learner["policy"]["architecture"]["hidden"] = [10**7, 10**7]
    save_checkpoint(newest, state | huge | {"learner": learner})
    assert "is claimed, the weights are 8 arrays of" in train_refusal(capsys, "--resume", run)
    save_checkpoint(newest, state | {"config": config | {"env": config["env"] | {"num_envs": 10**6}}})
    assert "1,000,000 environments are claimed, the state has 8" in train_refusal(capsys, "--resume", run)
    for forged in ({"iteration": "many"}, {"steps": -1}, {"seconds": b""}, {"parts": {"update": [1.0]}}):
        save_checkpoint(newest, state | forged)
        assert "should be a" in train_refusal(capsys, "--resume", run)
    learner = copy.deepcopy(state["learner"])
    learner["optimizer"]["adam"]["exp_avg"] = torch.zeros(3)
    save_checkpoint(newest, state | {"learner": learner})
    assert "the optimizer's exp_avg should have shape" in train_refusal(capsys, "--resume", run)
    save_checkpoint(newest, {})
    assert "does not name its task" in train_refusal(capsys, "--resume", run)
    assert sorted(run.rglob("*")) == before


def test_two_processes_cannot_train_in_one_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import fcntl

    train_small(tmp_path)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert "is in use" in train_refusal(capsys, "--resume", tmp_path)
    os.close(descriptor)
    assert main(["train", "--resume", str(tmp_path)]) == 0


def test_a_directory_with_a_run_in_it_is_not_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_small(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    line = train_refusal(capsys, "cage2", *OPTIONS, "--run-dir", tmp_path)
    assert f"--resume {tmp_path}" in line
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_runs_get_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["train", "cage2", *OPTIONS, "--total-episodes", "8"]) == 0
    first, second = sorted((tmp_path / "runs").iterdir())
    assert first.name.startswith("Cage2-v0-ppo-s0-2")
    settings = tomllib.loads((first / "config.toml").read_text())
    assert settings["run"]["total_episodes"] == 8
    assert second.is_dir()


def test_other_settings_that_make_no_sense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not torch.cuda.is_available():
        assert "PyTorch finds no CUDA device" in train_refusal(capsys, "cage2", "--device", "cuda")
    assert "different indices from 0 to 144" in train_refusal(capsys, "cage2", "--env.actions", "1,145")
    assert "different indices" in train_refusal(capsys, "cage2", "--env.actions", "1,1")
    assert "--num-envs should be greater" in train_refusal(capsys, "cage2", "--num-envs", "0")
    assert "--num-envs should be less" in train_refusal(capsys, "cage2", "--num-envs", "1e12")
    file = tmp_path / "f.toml"
    file.write_text("[env]\nactions = []")
    assert f"{file}: env.actions should be different" in train_refusal(capsys, "cage2", "--config", file)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_good(name: str) -> None:
    settings = find("cage2").settings_type("ppo")
    config = build(settings, find("cage2").preset_values(settings, name))
    assert config != settings()
    assert build(settings, check(settings, to_tree(config), name)) == config


def test_the_record_preset_observes_more_in_its_second_stage(tmp_path: Path) -> None:
    settings = find("cage2").settings_type("ppo")
    (stage,) = build(settings, find("cage2").preset_values(settings, "record")).run.stages
    _, changes = stage.split(" ")
    small = [*(option for option in OPTIONS if "memory" not in option), "--stages", f"{ITERATION} {changes}"]
    run = tmp_path / "run"
    widths = []
    for iterations in (1, 3):
        resume = (
            ["--resume", str(run)] if widths else ["cage2", "--preset=record", *small, f"--run-dir={run}"]
        )
        assert main(["train", *resume, f"--total-timesteps={iterations * ITERATION}"]) == 0
        policy = load_policy(run)
        assert policy.needs_action_mask
        widths.append((policy.memory, policy.obs_dim))
    assert widths == [("scan", 62), ("full", 240)]
