"""Runs on environments that raise: their error comes with the traceback of their own code, then in a line."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

import fastrl
from fastrl.cli.main import main
from fastrl.tasks.gym.task import GymTask

OPTIONS = [
    "--collector=sequential",
    "--num-envs=1",
    "--total-timesteps=32",
    "--ppo.num-steps=16",
    "--ppo.minibatch-size=16",
    "--ppo.hidden=8",
    "--device=cpu",
]


class Faulty(gymnasium.Env[Any, Any]):
    """Fails where ``fails`` says."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    fails: ClassVar[str] = ""

    def __init__(self, colour: str = "red") -> None:
        self.taken = 0
        if self.fails == "build":
            out_of_order()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.fails == "reset":
            out_of_order()
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        if self.fails == "step" and self.taken == 5:
            out_of_order()
        if self.fails == "exit":
            sys.exit(0)
        return np.zeros(2, np.float32), np.nan if self.fails == "nan" else 1.0, self.taken % 8 == 0, False, {}

    def close(self) -> None:
        if self.fails == "close":
            sys.exit(0)


def out_of_order() -> None:
    raise KeyError("out of order")


def said(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    """The lines of the traceback, and the last one."""
    *trace, line = capsys.readouterr().err.splitlines()
    return trace, line


def fail_with(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(Faulty, "fails", what)


def test_one_that_cannot_be_built_begins_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    fail_with(monkeypatch, "build")
    command = ["train", "test_gym_faults:Faulty", *OPTIONS, f"--run-dir={run}"]
    assert main(command) == 1
    trace, line = said(capsys)
    own = "fastrl train: error: --env test_gym_faults:Faulty: it could not be built: KeyError: 'out of order'"
    assert line == own
    trace = trace[trace.index("Traceback (most recent call last):") :]
    assert [part.rpartition("in ")[2] for part in trace if part.startswith("  File")] == [
        "__init__",
        "out_of_order",
    ]
    assert not run.exists()
    # Options that its constructor does not take are an error of the call, not of the environment.
    assert main([*command, "--env-options", "color=red"]) == 2
    assert said(capsys)[1].endswith("got an unexpected keyword argument 'color'")


def test_one_that_ends_its_process_when_it_is_closed_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, "close")
    run = tmp_path / "run"
    options = [*OPTIONS, "--run.eval-episodes=1", f"--run-dir={run}"]
    assert main(["train", "test_gym_faults:Faulty", *options]) == 0
    assert json.loads((run / "summary.json").read_text())["evaluation"]["returns"] == [8.0]


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        (
            "reset",
            r"failed at step 0 of the episode that reset\(seed=\d+\) started: KeyError: 'out of order'",
        ),
        ("step", r"failed at step 5 of the episode that reset\(seed=\d+\) started: KeyError: 'out of order'"),
        ("exit", r"failed at step 1 of .* started: SystemExit: 0"),
        ("nan", r"failed at step 1 of .* started: it gave a reward of nan"),
        ("build", r"it could not be built: KeyError: 'out of order'"),
    ],
)
def test_one_that_fails_when_a_policy_is_scored(
    fails: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    begin = ["train", "test_gym_faults:Faulty", *OPTIONS]
    if fails == "step":
        # Within the run: what it came to is there all the same.
        evaluate = GymTask.evaluate

        def fail(*arguments: Any, **options: Any) -> Any:
            fail_with(monkeypatch, fails)
            return evaluate(*arguments, **options)

        monkeypatch.setattr(GymTask, "evaluate", fail)
        assert main([*begin, f"--run-dir={run}"]) == 1
        summary = json.loads((run / "summary.json").read_text())
        assert (summary["status"], summary["steps"], summary["evaluation"]) == ("complete", 32, None)
    else:
        assert main([*begin, "--run.eval-episodes=0", f"--run-dir={run}"]) == 0
        capsys.readouterr()
        fail_with(monkeypatch, fails)
        assert main(["eval", str(run), "--env=test_gym_faults:Faulty", "--episodes=2"]) == 1
    trace, line = said(capsys)
    assert re.search(message, line)
    assert any("out_of_order" in part for part in trace) == ("KeyError" in line)
    assert not any(str(Path(fastrl.__file__).parent) in part for part in trace)


def test_a_run_on_it_that_cannot_go_on_does_not_blame_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    options = [*OPTIONS, "--run.eval-episodes=0", f"--run-dir={run}"]
    assert main(["train", "test_gym_faults:Faulty", *options]) == 0
    capsys.readouterr()
    fail_with(monkeypatch, "build")
    assert main(["train", "--resume", str(run), "--trust", "--total-timesteps=64"]) == 1
    assert said(capsys)[1].endswith("it could not be built: KeyError: 'out of order'")
    assert list((run / "checkpoints").iterdir())
    fail_with(monkeypatch, "exit")
    assert main(["train", "--resume", str(run), "--trust", "--total-timesteps=64"]) == 1
    assert said(capsys)[1].endswith("failed 3 times at a fragment of rows 0 to 0: SystemExit: 0")


class Wandering(Faulty):
    """Changes the current directory in each step."""

    def step(self, action: Any) -> Any:
        os.chdir(Path(__file__).parent)
        return super().step(action)


@pytest.mark.slow
def test_one_that_changes_the_current_directory_does_not_split_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = set(Path(__file__).parent.iterdir())
    options = [*OPTIONS, "--run.eval-episodes=1", "--num-envs=1", "--loggers=csv"]
    record = ["demos", "record", "test_gym_faults:Wandering", "--expert=random"]
    for command in (
        ["train", "test_gym_faults:Wandering", *options, "--run-dir=a/run"],
        ["train", "--resume=a/run", "--total-timesteps=64", "--trust"],
        ["train", "test_gym_faults:Wandering", *options],
        [*record, "--episodes=2", "--out=demos", "--collector=sequential"],
    ):
        monkeypatch.chdir(tmp_path)
        assert main(command) == 0
    (unnamed,) = (tmp_path / "runs").iterdir()
    for run in (tmp_path / "a" / "run", unnamed):
        for name in (
            "config.toml",
            "metrics.jsonl",
            "metrics.csv",
            "summary.json",
            "checkpoints",
            "run.json",
        ):
            assert (run / name).exists(), name
    assert len(fastrl.demos.load(tmp_path / "demos")) == 2
    assert set(Path(__file__).parent.iterdir()) == foreign


def test_priorities_that_are_not_finite_end_in_the_line_about_the_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--learning-starts=64", "--dqn.batch-size=16", "--total-timesteps=2000", "--dqn.hidden=8"]
    command = ["train", "CartPole-v1", "--algo=dqn", *options, "--dqn.learning-rate=1e30"]
    assert main([*command, "--dqn.prioritized", f"--run-dir={tmp_path / 'run'}"]) == 1
    trace, line = said(capsys)
    assert "not finite (NaN or infinity) after" in line and "lower the learning rate" in line
    assert not any("Traceback" in each for each in trace)
