"""Facts of runs in run.json, and names of run directories."""

import json
import subprocess
from pathlib import Path

import pytest
from small_runs import ITERATION, train_small

from fastrl.cli.main import main
from fastrl.collectors.resources import machine_cores
from fastrl.runs.directory import RunDirectory, run_name
from fastrl.runs.facts import RunFacts, new_session


def state_of(run: Path) -> tuple[str, str | None]:
    facts = RunFacts.read(run)
    assert facts is not None
    return facts.state, facts.stopped_by


def test_run_facts_say_what_trains_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    train_small(run, "--seed=4", "--run.checkpoint-seconds=0", "--threads=1")
    assert main(["train", f"--resume={run}", f"--total-timesteps={4 * ITERATION}"]) == 0
    facts = RunFacts.read(run)
    assert facts is not None
    assert (facts.task, facts.env, facts.algorithm, facts.seed) == ("cage2", "fastrl/Cage2-v0", "ppo", 4)
    assert (facts.state, facts.total_timesteps, facts.stopped_by) == ("complete", 4 * ITERATION, None)
    assert [each.from_timesteps for each in facts.sessions] == [0, 3 * ITERATION]
    session = facts.sessions[-1]
    assert session.versions.keys() == {"fastrl", "python", "torch", "numpy", "gymnasium"}
    assert session.hardware.keys() == {"processor", "cores", "memory_gib", "system"}
    # The machine's, whatever the run was limited to.
    assert session.hardware["cores"] == machine_cores() and session.hardware["processor"]
    assert session.started_at <= str(session.ended_at)
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    for key, value in (("collector", "native"), ("update_backend", "compiled")):
        assert f'# auto is {value}\n{key} = "auto"\n' in (run / "config.toml").read_text()
    episodes = (run / "episodes.csv").read_text().splitlines()[1:]
    assert len(episodes) == facts.episodes and {line.split(",")[2] for line in episodes} == {"15"}
    assert "nothing left to train" not in capsys.readouterr().out
    config = (run / "config.toml").read_text()
    assert main(["train", f"--resume={run}"]) == 0
    # Nothing is chosen any more; what was is still there.
    assert config == (run / "config.toml").read_text()
    goal = f"the run has reached its goal of {4 * ITERATION} steps: there is nothing left to train"
    assert goal in capsys.readouterr().out
    # A process that was killed leaves the state of a run that trains.
    tree = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**tree, "state": "running"}))
    with RunDirectory(run):
        assert state_of(run) == ("running", None)
    assert state_of(run) == ("interrupted", "killed")
    for damage in ("{", "[]", '{"state": "running"}'):
        (run / "run.json").write_text(damage)
        assert RunFacts.read(run) is None


def test_the_commit_of_the_users_project_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert (new_session(0).commit, new_session(0).dirty) == (None, False)
    (tmp_path / "mine.py").write_text("1")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "mine.py"], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", *arguments], check=True)
    commit = new_session(0).commit
    assert commit is not None and len(commit) == 40 and not new_session(0).dirty
    (tmp_path / "mine.py").write_text("2")
    assert new_session(0).dirty


def test_a_program_that_the_repository_names_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program, ran = tmp_path / "monitor.sh", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch '{ran}'\n")
    program.chmod(0o755)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    one = [*identity, "commit", "-qm", "one", "--allow-empty"]
    for arguments in (["init", "-q"], one, ["config", "core.fsmonitor", str(program)]):
        subprocess.run(["git", *arguments], check=True)
    assert new_session(0).commit is not None and not ran.exists()
    subprocess.run(["git", "status"], check=True, capture_output=True)
    assert ran.exists()


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("CartPole-v1", "CartPole-v1-ppo-s0"),
        ("ALE/Pong-v5", "Pong-v5-ppo-s0"),
        ("my_module:make_env", "make_env-ppo-s0"),
        ("my_module:pkg/Env-v0", "Env-v0-ppo-s0"),
        ("my_module:f.<locals>", "f.-locals--ppo-s0"),
    ],
)
def test_run_directories_are_named_by_what_trains(env: str, name: str) -> None:
    assert run_name(env, "ppo", 0) == name
