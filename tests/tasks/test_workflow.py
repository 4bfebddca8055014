import csv
import json
import signal
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import differences, same

import fastrl
from fastrl.cli.main import main, main_train
from fastrl.envs.cage2.env import Cage2VectorEnv
from fastrl.envs.cage2.workflow import workflow_name
from fastrl.runs.checkpoint import load_checkpoint, load_newest, save_checkpoint
from fastrl.runs.row import Row
from fastrl.sources.rollouts import RolloutSource
from fastrl.tasks.workflow.figure import save_picture
from fastrl.tasks.workflow.learner import WorkflowPPO
from fastrl.tasks.workflow.outcome import Outcome
from fastrl.tasks.workflow.report import Report
from fastrl.tasks.workflow.task import TASK
from fastrl.tasks.workflow.trainer import SearchTrainer
from fastrl.training.callbacks import Callback, Run
from fastrl.training.evaluation import Evaluation
from fastrl.utils.command_line import ArgumentParser, add_options, read_arguments
from fastrl.utils.config import build
from fastrl.utils.interrupts import Interrupted

# Runs of a second: 20 episodes of all workflows together, a search of 40 more.
OPTIONS = [
    "--total-episodes=60",
    "--episodes-per-update=5",
    "--inner.measured-episodes=3",
    "--inner.hidden=8",
    "--inner.pretrain-share=0.34",
    "--search.trial-share=0.6",
    "--search.final-episodes=8",
    "--search.initial=3",
    "--env.episode-length=6",
    "--n-workers=1",
    "--no-plain-ppo",
    "--run.eval-episodes=0",
    "--compliance-threshold=0.1",
    "--device=cpu",
]


def small_trainer(*options: str) -> SearchTrainer:
    config_type, parser = TASK.settings_type("ppo"), ArgumentParser()
    add_options(parser, config_type)
    arguments = parser.parse_args([*OPTIONS, *options])
    return TASK.make_trainer(build(config_type, read_arguments(config_type, arguments)))


def run_small(path: Path, *options: str) -> int:
    return main(["train", "cage2-workflow", *OPTIONS, f"--run-dir={path}", *options])


def error_line(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    try:
        code: object = main_train(["cage2-workflow", *map(str, arguments)])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("fastrl-train: error: ")
    return lines[0]


def learnt(run: Path) -> dict[str, Any]:
    _, state = load_newest(run)
    return {key: state[key] for key in ("steps", "learner", "source", "plain", "policy")}


def without_times(row: Row) -> dict[str, Any]:
    numbers = {name: number for name, number in row.metrics.items() if not name.startswith("time/")}
    return {"steps": row.steps, "done": row.done, **numbers}


@pytest.mark.slow
def test_a_failing_evaluation_leaves_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no evaluation today")

    monkeypatch.setattr(Evaluation, "at_end", fail)
    with pytest.raises(ZeroDivisionError):
        run_small(tmp_path, "--run.eval-episodes=2")
    for name in ("summary.json", "workflows.json", "workflows.png", "checkpoints/best.safetensors"):
        assert (tmp_path / name).exists()


@pytest.mark.slow
def test_a_run_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    pictures = []

    def count_pictures(report: Report, path: Path, plain: Outcome | None) -> None:
        pictures.append(plain)
        save_picture(report, path, plain)

    monkeypatch.setattr("fastrl.tasks.workflow.trainer.save_picture", count_pictures)
    assert run_small(run, "--plain-ppo", "--run.eval-episodes=2", "--total-episodes=60") == 0
    out = capsys.readouterr().out
    for text in (
        "workflows tried (bayes)",
        "best workflow: ",
        "60 episodes for workflows, then as many for PPO without workflows",
        "PPO without workflows, 1,000 episodes without exploration: return",
        "plain PPO",
        "leaderboard",
        "where the time went",
    ):
        assert text in out
    # A complete search cannot be trained further.
    assert out.splitlines()[-2:] == [
        f"Run directory: {run}",
        f"To score its best policy by the challenge's protocol: fastrl eval {run}",
    ]

    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "complete"
    assert summary["episodes"] == 120
    assert summary["search_seconds"] < summary["seconds"]
    assert summary["chosen"]["workflow"] == summary["evaluation"]["best"]["workflow"]
    scored = [(scores["contender"], scores["ruleset"]) for scores in summary["evaluation"]["protocol"]]
    assert sorted(scored) == [
        (name, rules) for name in ("plain PPO", "workflow") for rules in ("leaderboard", "main")
    ]
    steps = list(csv.DictReader((run / "steps.csv").read_text().splitlines()))
    assert int(steps[-1]["used"]) == 60
    assert sum(int(step["episodes"]) for step in steps) == 40
    tree = json.loads((run / "workflows.json").read_text())
    assert len(tree["steps"]) == len(steps)
    tried = list(csv.DictReader((run / "workflows.csv").read_text().splitlines()))
    assert [row["workflow"] for row in tried] == [each["workflow"] for each in tree["workflows"]]
    assert (run / "workflows.png").read_bytes().startswith(b"\x89PNG")
    # The report is written once, with the scores of the last evaluation.
    [plain] = pictures
    assert plain is not None and plain.mean_return == summary["evaluation"]["plain"]["mean_return"]

    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["time/total_timesteps"] for row in rows] == sorted(
        {row["time/total_timesteps"] for row in rows}
    )
    assert rows[-1]["time/episodes"] == 120
    assert "rollout/compliance" in rows[0] and "plain_rollout/ep_rew_mean" in rows[-1]

    policy = fastrl.load_policy(run / "checkpoints" / "best.safetensors")
    assert policy.workflow == tree["chosen"]["workflow"] == fastrl.load_policy(run).workflow
    env = Cage2VectorEnv(3, memory=policy.memory)
    assert policy.act(env.reset(seed=1)[0]).shape == (3,)
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes=2", "--ruleset=main", "--json"]) == 0
    (scores,) = json.loads(capsys.readouterr().out)["runs"]
    # The same policy in the same episodes as at the end of the run.
    assert scores["protocol"][0]["scores"] == summary["evaluation"]["protocol"][0]["scores"]
    assert {name: scores[name] for name in ("best", "plain")} == {
        name: summary["evaluation"][name] for name in ("best", "plain")
    }


class Ended(Callback):
    """Counts the episodes that it is told of."""

    count = 0

    def on_update(self, run: Run) -> None:
        self.count += len(run.ended)


@pytest.mark.parametrize(
    ("network", "search"), [pytest.param("shared", "bayes", marks=pytest.mark.slow), ("separate", "halving")]
)
def test_resumes_exactly(tmp_path: Path, network: str, search: str) -> None:
    options = f"--inner.networks={network}", f"--search={search}", "--plain-ppo"
    whole, ended = small_trainer(*options), Ended()
    whole.callbacks.append(ended)
    expected = list(whole.rows())
    assert ended.count == whole.episodes == 120
    assert whole.source.search.used + whole.source.joint_episodes == 60
    for done in (2, len(expected) - 3):
        first = small_trainer(*options)
        list(islice(first.rows(), done))
        save_checkpoint(tmp_path / "c", first.state_dict())
        second = small_trainer(*options)
        second.load_state_dict(load_checkpoint(tmp_path / "c"))
        rows = list(second.rows())
        assert differences([*map(without_times, rows)], [*map(without_times, expected[done:])]) == []
        assert (second.iteration, second.episodes) == (whole.iteration, whole.episodes)
        for part in ("learner", "source", "policy"):
            assert differences(second.state_dict()[part], whole.state_dict()[part]) == []
        assert second.plain is not None and whole.plain is not None
        assert same(second.plain.state_dict()["policy"], whole.plain.state_dict()["policy"])


def interrupted_after(update: int, signals: int) -> Callable[..., None]:
    """`WorkflowPPO.update` that gets so many Ctrl-C during its n-th call."""
    make_update, calls = WorkflowPPO.update, 0

    def interrupted(self: WorkflowPPO, *args: Any) -> None:
        nonlocal calls
        calls += 1
        for _ in range(signals if calls == update else 0):
            signal.raise_signal(signal.SIGINT)
        make_update(self, *args)

    return interrupted


@pytest.mark.parametrize("signals", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(
    ("networks", "update", "made"),
    [
        pytest.param("shared", 1, 0, marks=pytest.mark.slow),
        ("shared", 5, 1),
        pytest.param("separate", 3, 3, marks=pytest.mark.slow),
    ],
)
def test_interrupted_and_resumed_it_ends_the_same(
    networks: str,
    update: int,
    made: int,
    signals: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also in the middle of a workflow's training, whose updates are kept."""
    options = f"--inner.networks={networks}", "--search.trial-episodes=30"
    assert run_small(tmp_path / "whole", *options) == 0
    with monkeypatch.context() as patch:
        patch.setattr(WorkflowPPO, "update", interrupted_after(update, signals))
        assert run_small(tmp_path / "stopped", *options) == 130
    assert "to resume: fastrl train --resume" in capsys.readouterr().out
    summary = json.loads((tmp_path / "stopped" / "summary.json").read_text())
    assert summary["status"] == "interrupted" and summary["iterations"] == update
    _, state = load_newest(tmp_path / "stopped")
    assert state["source"]["made"] == made
    assert main(["train", "--resume", str(tmp_path / "stopped"), "--n-workers=2"]) == 0
    assert differences(learnt(tmp_path / "stopped"), learnt(tmp_path / "whole")) == []
    assert (tmp_path / "stopped" / "steps.csv").read_text() == (tmp_path / "whole" / "steps.csv").read_text()


@pytest.mark.slow
def test_interrupted_before_the_first_update_of_the_plain_policy_it_keeps_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = "--plain-ppo", "--total-episodes=60", "--run.eval-episodes=0"

    def interrupt(self: RolloutSource, *_: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(RolloutSource, "next", interrupt)
        trainer = small_trainer(*options)
        list(trainer.rows())
    assert trainer.episodes == 60 and trainer.plain is None
    save_checkpoint(tmp_path / "c", trainer.state_dict())
    resumed = small_trainer(*options)
    resumed.load_state_dict(load_checkpoint(tmp_path / "c"))
    list(resumed.rows())
    assert resumed.episodes == 120


@pytest.mark.parametrize("search", ["random", "halving", "exhaustive"])
def test_every_search_uses_up_its_episodes(search: str) -> None:
    total = 420 if search == "exhaustive" else 60
    options = [f"--total-episodes={total}", "--inner.pretrain-share=0.1"]
    trainer = small_trainer(f"--search={search}", *options)
    for row in trainer.rows():
        assert row.done <= total
    assert trainer.episodes == total
    assert trainer.source.search.name == search


def test_one_workflow_is_trained_alone() -> None:
    order = "user,op_host,defender,enterprise,op_server"
    trainer = small_trainer("--workflow", order.upper())
    assert trainer.source.joint_episodes == 0
    rows = list(trainer.rows())
    outcomes = trainer.source.search.outcomes
    assert {workflow_name(outcome.workflow) for outcome in outcomes} == {order}
    # A row for each update and each measurement.
    assert len(rows) == trainer.iteration + len(outcomes) and len(outcomes) > 3
    assert [row.done for row in rows] == sorted({row.done for row in rows}) and rows[-1].done == 60
    assert sum(len(row.ended) for row in rows) == 60
    assert trainer.policy_checkpoint()["workflow"] == order


@pytest.mark.slow
def test_says_that_no_workflow_reaches_the_threshold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_small(tmp_path / "run", "--compliance-threshold=1") == 0
    assert "no workflow reached compliance 1; most compliant: " in capsys.readouterr().out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["chosen"] is None
    assert fastrl.load_policy(tmp_path / "run").workflow == summary["most_compliant"]["workflow"]


def test_the_policy_of_the_best_training_is_kept() -> None:
    trainer = small_trainer("--workflow=user,op_host,defender,enterprise,op_server")
    seen: list[tuple[float, np.ndarray]] = []
    outcomes = trainer.source.search.outcomes
    for _ in trainer.rows():
        if len(outcomes) > len(seen):
            outcome = outcomes[-1]
            weights = trainer.algorithm.policy_of(outcome.workflow)["weights"]["actor.0.bias"].numpy()
            seen.append((outcome.mean_return, weights))
    kept = trainer.source.best
    assert kept is not None
    best, weights = max(enumerate(seen), key=lambda each: (each[1][0], each[0]))[1]
    assert kept.outcome.mean_return == best
    np.testing.assert_array_equal(kept.policy["weights"]["actor.0.bias"].numpy(), weights)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n-workers=0"], "--n-workers should be greater than or equal to 1"),
        (["--n-workers=-2"], "--n-workers should be"),
        (["--n-workers=many"], "--n-workers should be"),
        (["--workflow=user,enterprise"], "missing"),
        (["--workflow=user,enterprise,op_host,op_serve,defender"], "did you mean op_server"),
        (["--compliance-threshold=1.5"], "--compliance-threshold should be less than or equal to 1"),
        (["--search=grid"], "--search should be"),
        (["--total-episodes=0"], "--total-episodes should be greater"),
        (["--total-episodes=10", "--workflow=user,enterprise,op_host,op_server,defender"], "at least 456"),
        (["--search=exhaustive", "--total-episodes=2000"], "exhaustive search of 120 orders needs at least"),
        (["--red-agent=blue"], "--red-agent should be"),
        (["--episodes-per-update=0"], "--episodes-per-update should be greater"),
        (["--preset=smok"], "did you mean smoke"),
        (["--serch=bayes"], "did you mean --search"),
        (["--algo=impala"], "a search for workflows trains with ppo"),
        (["--total-timesteps=1000"], "the length of a search is in episodes, give --total-episodes"),
        (["--eval-freq=10"], "a search measures each policy that it trains"),
        (["--init=runs/other"], "a search starts with new networks"),
    ],
)
def test_mistakes_are_errors_of_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert message in error_line(capsys, *arguments, "--run-dir", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_resumed_run_keeps_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_small(tmp_path / "run") == 0
    for option in ("--search=random", "--total-episodes=100", "--ruleset=leaderboard"):
        line = error_line(capsys, "--resume", tmp_path / "run", option)
        assert "cannot change when a run is resumed" in line
    assert "does not go with --resume" in error_line(capsys, "--resume", tmp_path / "run", "--preset=smoke")


def test_help_says_what_workers_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main_train(["cage2-workflow", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "workers are threads" in out
    assert "smoke: " in out
