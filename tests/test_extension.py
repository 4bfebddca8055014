"""A new algorithm, logger and task: each is one file, and the package is not touched."""

import json
import sys
import tomllib
from pathlib import Path
from typing import ClassVar

import pytest
from echo_task.task import EchoTask, EnvConfig
from small_runs import differences, learnt, rows_of

from fastrl.algorithms import find
from fastrl.cli.main import main
from fastrl.loggers import LoggedRun, Logger, Row
from fastrl.runs.directory import RunDirectory
from fastrl.tasks.traffic import task as traffic

TOY = "--algo=toy_algorithm:Toy"
# The task of any environment, for those that have a task of their own.
GYM = ["fastrl.tasks.gym.task:TASK"]
COLLECTORS = {
    "sequential": ["--env=CartPole-v1"],
    "sync": ["--env=CartPole-v1", "--n-workers=2"],
    "executor": ["--env=CartPole-v1", "--n-workers=2"],
    "native": ["--env=fastrl/Cage2-v0", "--env.options", "episode_length=20"],
    "ray": ["--env=CartPole-v1", "--n-workers=2"],
}


def train(run: Path, *options: object, steps: int = 192) -> None:
    """A run of updates of 64 environment steps."""
    small = ["--num-envs=4", "--toy.num-steps=16", "--run.row-seconds=0", f"--total-timesteps={steps}"]
    assert main(["train", *GYM, TOY, *small, f"--run-dir={run}", *map(str, options)]) == 0


@pytest.mark.parametrize(
    "collector",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("executor", "ray") else ())
        for name in COLLECTORS
    ],
)
def test_an_algorithm_of_ones_own_trains_with_each_collector(collector: str, tmp_path: Path) -> None:
    if collector == "ray":
        pytest.importorskip("ray", reason="pip install '.[test-all]'")
    train(tmp_path / "run", *COLLECTORS[collector], f"--collector={collector}", "--run.eval-episodes=2")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["algorithm"], summary["collector"]) == ("toy", collector)
    assert summary["steps"] == 192
    assert summary["evaluation"]["episodes"] == 2
    assert [row["time/iterations"] for row in rows_of(tmp_path / "run")] == [1, 2, 3]
    assert learnt(tmp_path / "run")["learner"]["policy"]["weights"].any()


@pytest.mark.slow
def test_an_algorithm_of_ones_own_learns(tmp_path: Path) -> None:
    options = ["--env=CartPole-v1", "--collector=sequential", "--num-envs=8", "--toy.num-steps=64"]
    train(tmp_path / "run", *options, "--toy.learning-rate=3", "--run.eval-episodes=5", steps=25_000)
    returns = [row["rollout/ep_rew_mean"] for row in rows_of(tmp_path / "run")]
    assert sum(returns[-5:]) / 5 > 3 * returns[0]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["evaluation"]["mean"] > 100


@pytest.mark.slow
def test_an_algorithm_of_ones_own_is_resumed_exactly_and_scored(tmp_path: Path) -> None:
    options = ["--env=CartPole-v1", "--collector=sequential", "--run.eval-episodes=0"]
    train(tmp_path / "straight", *options)
    train(tmp_path / "stopped", *options, steps=64)
    resume = ["train", f"--resume={tmp_path / 'stopped'}", "--total-timesteps=192"]
    # The checkpoint names code, which only the user's word imports.
    assert main(resume) == 2
    assert main([*resume, "--trust"]) == 0
    assert differences(learnt(tmp_path / "straight"), learnt(tmp_path / "stopped")) == []
    assert rows_of(tmp_path / "straight") == rows_of(tmp_path / "stopped")
    assert main(["eval", str(tmp_path / "stopped"), "--episodes=2", "--trust"]) == 0


class Recorder(Logger):
    """A logger of a user's own."""

    rows: ClassVar[list[Row]] = []
    closed: ClassVar[list[RunDirectory]] = []

    def __init__(self, run: LoggedRun) -> None:
        self._directory = run.directory

    def log(self, row: Row) -> None:
        self.rows.append(row)

    def close(self) -> None:
        self.closed.append(self._directory)


def test_a_logger_of_ones_own_gets_the_rows_of_a_run(tmp_path: Path) -> None:
    options = ["--env=CartPole-v1", "--collector=sequential", "--run.eval-episodes=0"]
    train(tmp_path / "run", *options, f"--run.loggers={__name__}:Recorder")
    assert [row.steps for row in Recorder.rows] == [64, 128, 192]
    assert [directory.path for directory in Recorder.closed] == [tmp_path / "run"]
    assert not (tmp_path / "run" / "tensorboard").exists()


TASK = "echo_task.task:TASK"


@pytest.fixture
def _as_if_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("echo_task", "echo_task.task"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.slow
@pytest.mark.usefixtures("_as_if_not_imported")
def test_a_task_of_ones_own_is_trained_on_resumed_and_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Schedules that end elsewhere would be another run.
    constant = ["--lr=0.01", "--ppo.final-learning-rate=0.01", "--ppo.final-entropy-coef=0.01"]
    sizes = ["--ppo.num-steps=16", "--ppo.minibatch-size=64"]
    small = ["--collector=sequential", "--preset=short", *sizes, *constant]
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert main(["train", TASK, *small, f"--run-dir={straight}"]) == 0
    assert main(["train", TASK, *small, f"--run-dir={stopped}", "--total-timesteps=1024"]) == 0
    assert tomllib.loads((straight / "config.toml").read_text())["kind"] == TASK
    summary = json.loads((straight / "summary.json").read_text())
    assert (summary["kind"], summary["env"]) == (TASK, "echo_task.task:Echo")
    assert summary["evaluation"]["mean"] == 4
    assert summary["perfect_episodes"] == rows_of(straight)[-1]["rollout/perfect_episodes"] > 500
    # A run imports its task only if the user names it or trusts the run.
    capsys.readouterr()
    del sys.modules["echo_task.task"]
    resume = [f"--resume={stopped}", "--total-timesteps=4096"]
    assert main(["train", *resume]) == main(["eval", str(stopped)]) == 2
    assert "kind would import the module 'echo_task.task'" in capsys.readouterr().err
    assert "echo_task.task" not in sys.modules
    assert main(["train", TASK, *resume]) == 0
    assert differences(learnt(straight), learnt(stopped)) == []
    assert rows_of(straight) == rows_of(stopped)
    assert main(["eval", str(stopped), "--episodes=3", "--trust", "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out[out.index("{") :])["runs"][0]["returns"] == [4] * 3


def test_a_task_of_ones_own_has_help_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", TASK, "--help"])
    text = capsys.readouterr().out
    assert "Trains agents that repeat what they see." in text
    assert "short: episodes of four steps" in text
    assert main(["train", TASK, "--length=3", "--print-config"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["env"]["length"] == 3


@pytest.mark.parametrize("name", ["ppo", "sac", "bc"])
def test_tables_of_a_task_are_settings_of_each_of_its_algorithms(name: str) -> None:
    class Tabled(EchoTask):
        tables: ClassVar = {"games": EnvConfig(length=3)}

    assert Tabled().settings_tables(find(name))["games"].length == 3


def test_recorded_traffic_has_no_curriculum() -> None:
    assert "curriculum" in traffic.TASK.settings_tables(find("ippo"))
    assert "curriculum" not in traffic.TASK.settings_tables(find("mabc"))
