"""Trainings and scores of CAGE Challenge 4."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from small_runs import settings_of

import fastrl.tasks.cage4.evaluate
from fastrl.cli.main import main
from fastrl.envs.cage4.env import CAUSES
from fastrl.tasks.cage4.evaluate import Cage4Scoring
from fastrl.tasks.cage4.scores import Evaluation
from fastrl.training.evaluation_options import EvaluationOptions

SMALL = (
    "--env.num-envs=4",
    "--env.num-threads=1",
    "--ippo.num-steps=40",
    "--ippo.hidden=8",
    "--run.eval-episodes=0",
)


def baseline(name: str, episodes: int, seed: int) -> Evaluation:
    return Cage4Scoring().evaluate_baseline(name, EvaluationOptions(episodes, seed))


def test_protocol_gives_the_score_of_the_challenges_own_evaluation() -> None:
    # What the challenge's evaluation.py prints for SleepAgent: --max-eps 2 --seed 424242.
    scores = baseline("sleep", 2, 424242)
    assert (scores.mean_return, scores.std_return) == (-7291.0, pytest.approx(2797.314426373982))
    assert scores.metrics()["action_cost"] == 0


def test_further_episodes_are_evaluations_with_the_next_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastrl.tasks.cage4.evaluate, "EPISODES", 2)
    first, second, both = baseline("sleep", 2, 7), baseline("sleep", 1, 8), baseline("sleep", 3, 7)
    assert both.mean_return == pytest.approx((2 * first.mean_return + second.mean_return) / 3)


def test_guard_scores_as_in_the_python_model() -> None:
    scores = baseline("guard", 6, 0)
    # -342 with a standard deviation of 57 an episode, of which 230 are prices of Restore.
    assert abs(scores.mean_return + 342) < 5 * 57 / 6**0.5
    assert scores.parts[..., CAUSES.index("action_cost")].sum() == pytest.approx(-230, abs=25)


def test_small_run_trains_evaluates_and_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    options = [*SMALL, "--total-timesteps=320", "--run.eval-episodes=2", f"--run-dir={run}"]
    assert main(["train", "cage4", *options]) == 0
    capsys.readouterr()
    command = ["eval", str(run), "baseline:sleep", "--episodes=2", "--json", "--mode=both"]
    assert main(command) == 0
    trees = json.loads(capsys.readouterr().out)["runs"]
    assert [tree["mode"] for tree in trees] == ["deterministic", "stochastic", "scripted"]
    for tree in trees:
        scores = Evaluation.from_tree(tree)
        assert scores.mean_return == pytest.approx(scores.parts.sum())
        assert scores.to_tree() == Evaluation.from_tree(json.loads(json.dumps(scores.to_tree()))).to_tree()


@pytest.mark.parametrize(
    ("command", "heard"),
    [
        (["baseline:guard"], "headquarters"),
        (["baseline:sleep", "--env=cage4"], "headquarters"),
        (["baseline:sleep"], "Meander"),
        (["baseline:gard", "--env=cage4"], "unknown baseline gard; did you mean guard?"),
    ],
)
def test_baselines_belong_to_a_task(
    command: list[str], heard: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["eval", *command, "--episodes=1"])
    captured = capsys.readouterr()
    assert heard in captured.out + captured.err


@pytest.mark.parametrize("rules", ["impact+fairness", "impact+impact"])
def test_rules_that_do_not_exist_or_are_repeated_end_in_one_line(
    rules: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["train", "cage4", f"--rules={rules}"])
    assert capsys.readouterr().err == (
        "fastrl train: error: --rules should be original, or some of impact, green-service, red-session, restore-cost"
        f" joined by +, each once, got '{rules}'\n"
    )


def test_scores_are_shown_by_zone_phase_and_cause_beside_published_ones() -> None:
    ledgers = np.zeros((3, 3, 6, 4), np.int32)
    ledgers[:, 1, 4, 2], ledgers[0, 2, 5, 3] = -30, -6
    console = Console(file=io.StringIO(), width=140)
    Evaluation.from_ledgers(ledgers, 0, "stochastic").show(console)
    lines = {line.split("  ")[0].strip(): line.split() for line in console.file.getvalue().splitlines()}  # type: ignore[attr-defined]
    assert lines["headquarters"][1:] == ["0.0", "0.0", "-30.0", "0.0", "-30.0"]
    assert lines["phase 2"][2:] == ["0.0", "0.0", "0.0", "-2.0", "-2.0"]
    assert lines["total"][1:] == ["0.0", "0.0", "-30.0", "-2.0", "-32.0"]
    assert "-193.68" in lines["KEEP (fifth of the challenge's leaderboard)"]


def test_settings_reach_the_environment() -> None:
    settings = settings_of("cage4", "--env.view=challenge", "--env.rewards=team", "--red-agent=discovery")
    options = settings.env.options()
    assert (options["view"], options["rewards"], options["red_agent"]) == ("challenge", "team", "discovery")
