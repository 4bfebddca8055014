from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from small_runs import differences, learnt, run_cli

from fastrl.autotune import tuner
from fastrl.autotune.trial import Turn
from fastrl.autotune.tuner import Tuner
from fastrl.cli import autotune as module
from fastrl.utils.config import to_toml

SMALL = (
    "--num-envs=4",
    "--num-steps=16",
    "--hidden=8",
    "--minibatch-size=32",
    "--run.eval-episodes=0",
    "--run.loggers=",
    "--device=cpu",
)
QUICK = "--tune-seconds=0.5"


@pytest.mark.slow
def test_the_written_file_has_reasons_and_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tuned.toml"
    code, out, _ = run_cli(capsys, "autotune", "CartPole-v1", *SMALL, QUICK, "--gamma=0.97", "--out", file)
    assert code == 0
    for words in ("a step of the environment: ", "measured", "lowest", "highest", "chosen", "default"):
        assert words in out
    assert f"fastrl train CartPole-v1 --config {file}" in out
    text = file.read_text()
    tree = tomllib.loads(text)
    assert tree["ppo"]["gamma"] == 0.97 and tree["env"]["id"] == "CartPole-v1"
    assert tree["collect"]["collector"] in ("sequential", "sync", "executor")
    lines = text.splitlines()
    for name in ("collector", "n_workers", "torch_threads"):
        [at] = [i for i, line in enumerate(lines) if line.startswith(f"{name} = ")]
        assert lines[at - 1].startswith("# "), name
    run = tmp_path / "run"
    code, out, _ = run_cli(
        capsys, "train", "CartPole-v1", "--config", file, "--total-timesteps=128", "--run-dir", run
    )
    assert code == 0
    assert f"collecting with {tree['collect']['collector']!r}" in out
    # It may be written again, and nothing else is replaced.
    assert run_cli(capsys, "autotune", "CartPole-v1", *SMALL, QUICK, "--out", file)[0] == 0
    for other in (tmp_path, run / "config.toml"):
        code, out, err = run_cli(capsys, "autotune", "CartPole-v1", QUICK, "--out", other)
        assert (code, out) == (2, "")
        assert err == (
            f"fastrl autotune: error: --out {other} exists and is no file of fastrl autotune: choose another name\n"
        )


def check_auto_learns_the_same(algo: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Trains with and without --auto, and returns the directory of the former."""
    own = ["train", "CartPole-v1", f"--algo={algo}", "--num-envs=4", *SMALL[2:3], *SMALL[4:]]
    # Rows that come by the clock have other means.
    own += ["--total-timesteps=320", "--run.row-seconds=0"]
    own += ["--replay.learning-starts=64"] if algo == "dqn" else [SMALL[1], SMALL[3]]
    alone, tuned = folder / "alone", folder / "tuned"
    assert run_cli(capsys, *own, "--run-dir", alone)[0] == 0
    code, out, _ = run_cli(capsys, *own, "--auto", QUICK, "--run-dir", tuned)
    assert code == 0 and "chosen" in out
    assert differences(learnt(alone), learnt(tuned)) == []
    # The run's file says why.
    assert "steps/s; " in (tuned / "config.toml").read_text().partition("collector = ")[0]
    return tuned


@pytest.mark.slow
def test_a_run_with_auto_learns_the_same_to_the_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With made-up speeds."""
    monkeypatch.setattr(tuner, "cores", lambda: 2)
    monkeypatch.setattr(
        Tuner, "turn", lambda _, way: Turn(9 if way.label == "executor, 2 workers" else 5, 1.0)
    )
    text = (check_auto_learns_the_same("ppo", tmp_path, capsys) / "config.toml").read_text()
    assert "# 9 steps/s; " in text and 'collector = "executor"' in text and "n_workers = 2" in text


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_run_that_is_measured_learns_the_same_to_the_bit(
    algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = check_auto_learns_the_same(algo, tmp_path, capsys)
    assert run_cli(capsys, "train", "--resume", tuned, "--total-timesteps=400")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["autotune"], None),
        (["autotune", "CartPole-v1", "--tune-seconds=0"], "--tune-seconds"),
        (["autotune", "CartPole-v1", "--resume", "run"], "--resume"),
        (["autotune", "CartPol-v1"], "did you mean CartPole-v1?"),
        (["autotune", "CartPole-v1", "--collector=ray"], "--collector ray: nothing is measured on a cluster"),
        (["autotune", "CartPole-v1", "--may-change=gamma"], "--may-change: unknown name gamma"),
        (
            ["train", "CartPole-v1", "--may-change=num-envs"],
            "--may-change says what measuring may choose: add --auto",
        ),
        (["train", "CartPole-v1", "--auto", "--seeds=0,1"], "--auto measures for one run at a time"),
    ],
)
def test_mistakes_are_told_in_a_line(
    arguments: list[str],
    line: str | None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run_cli(capsys, *arguments)
    if line is None:
        assert code == 0 and out.startswith("usage: fastrl autotune ENV") and "--resume" not in out
    else:
        assert code == 2 and err.count("\n") == 1 and line in err
    assert not list(tmp_path.iterdir())


def test_comments_stand_above_their_settings() -> None:
    from fastrl.tasks import find

    settings = find("gym").make_settings({"env.id": "CartPole-v1"})
    plain = to_toml(settings)
    text = to_toml(settings, {"collect.n_workers": "as many\nas cores", "no.such": "setting"})
    assert tomllib.loads(text) == tomllib.loads(plain)
    assert "# as many as cores\nn_workers = " in text
    assert len(text.splitlines()) == len(plain.splitlines()) + 1
    assert (
        module.AutotuneCommand.purpose
        in module.AutotuneCommand(find("gym"), "x", ["CartPole-v1"]).description()
    )
