import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from small_runs import train_small

from fastrl.envs.cage2.env import ACTIONS, RED_AGENTS, Cage2VectorEnv
from fastrl.tasks.cage2.evaluate import (
    HORIZONS,
    PUBLISHED,
    RULESETS,
    Act,
    Contender,
    Evaluation,
    Score,
    evaluate,
    score_table,
)
from fastrl.training.policy import load_policy


def always(action: str, scan_memory: bool = False) -> Contender:
    def enter(env: Cage2VectorEnv, seed: int) -> Act:
        return lambda obs: np.full(len(obs), ACTIONS.index(action), np.int64)

    return Contender(action, scan_memory, enter)


def by_cell(evaluation: Evaluation) -> dict[tuple[str, int], Score]:
    return {(score.red_agent, score.horizon): score for score in evaluation.scores}


def test_scores_with_a_known_answer() -> None:
    # Against nobody a Restore costs 1 a step and nothing else happens.
    evaluation = evaluate(always("Restore User1"), ruleset="main", episodes=5, red_agents=["sleep"])
    assert [(score.horizon, score.mean, score.standard_error) for score in evaluation.scores] == [
        (30, -30.0, 0.0),
        (50, -50.0, 0.0),
        (100, -100.0, 0.0),
    ]
    assert evaluation.total == -180
    assert evaluation.total_standard_error == 0


def test_statistics_are_those_of_single_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    import fastrl.tasks.cage2.evaluate

    returns: list[float] = []
    run_episodes = fastrl.tasks.cage2.evaluate.run_episodes

    def record(*args: Any, **options: Any) -> Any:
        facts = run_episodes(*args, **options)
        returns.extend(facts["return"])
        return facts

    monkeypatch.setattr(fastrl.tasks.cage2.evaluate, "run_episodes", record)
    monkeypatch.setattr(fastrl.tasks.cage2.evaluate, "BATCH", 7)
    (score,) = evaluate(
        always("Sleep"), ruleset="main", episodes=20, horizons=[30], red_agents=["bline"]
    ).scores
    assert len(returns) == 20
    assert len(set(returns)) > 2
    assert score.mean == pytest.approx(np.mean(returns))
    assert score.standard_error == pytest.approx(np.std(returns, ddof=1) / math.sqrt(20))


def test_episodes_do_not_depend_on_how_many_are_played_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import fastrl.tasks.cage2.evaluate

    options: dict[str, Any] = {"ruleset": "main", "episodes": 30, "seed": 4}
    expected = evaluate(Contender.from_baseline("react-restore"), **options)
    assert evaluate(Contender.from_baseline("react-restore"), num_threads=1, **options) == expected
    monkeypatch.setattr(fastrl.tasks.cage2.evaluate, "BATCH", 8)
    split = evaluate(Contender.from_baseline("react-restore"), **options)
    assert [score.mean for score in split.scores] == pytest.approx([score.mean for score in expected.scores])
    options["seed"] = 5
    assert evaluate(Contender.from_baseline("react-restore"), **options).total != expected.total


def test_one_episode_has_no_standard_error() -> None:
    (score,) = evaluate(
        always("Sleep"), ruleset="main", episodes=1, horizons=[30], red_agents=["bline"]
    ).scores
    assert math.isnan(score.standard_error)


# From 200 episodes each of the real CybORG, ruleset main: mean and standard error.
RECORDED = {
    ("sleep", "bline", 100): (-1134.9, 1.3),
    ("sleep", "meander", 50): (-277.7, 5.1),
    ("react-remove", "bline", 100): (-921, 14),
    ("react-restore", "bline", 30): (-31.0, 2.7),
    ("react-restore", "meander", 100): (-212, 15),
    ("random", "meander", 100): (-589, 20),
    ("random", "sleep", 100): (-8.9, 0.2),
}


@pytest.mark.parametrize(("blue", "red_agent", "horizon"), RECORDED)
def test_baselines_score_as_in_the_real_simulator(blue: str, red_agent: str, horizon: int) -> None:
    (score,) = evaluate(
        Contender.from_baseline(blue),
        ruleset="main",
        episodes=1000,
        horizons=[horizon],
        red_agents=[red_agent],
    ).scores
    mean, error = RECORDED[blue, red_agent, horizon]
    # Five standard errors: a false alarm in a million, and none at all for this seed.
    assert abs(score.mean - mean) < 5 * math.hypot(error, score.standard_error)


def test_a_policy_is_given_what_it_was_trained_on(tmp_path: Path) -> None:
    for name, options in {
        "plain": (),
        "memory": ("--env.scan-memory",),
        "masked": ("--ppo.action-masks", "--env.actions=none"),
    }.items():
        train_small(tmp_path / name, *options, iterations=1)
        policy = load_policy(tmp_path / name)
        evaluation = evaluate(Contender.from_policy(policy, name), ruleset="leaderboard", episodes=3)
        assert set(by_cell(evaluation)) == {(red, horizon) for red in RED_AGENTS for horizon in HORIZONS}
        assert evaluation.total < 0
        assert evaluate(Contender.from_policy(policy, name), ruleset="leaderboard", episodes=3) == evaluation
        drawn = evaluate(
            Contender.from_policy(policy, name, deterministic=False), ruleset="leaderboard", episodes=3
        )
        assert drawn.total != evaluation.total


def test_published_totals_are_the_sums_of_their_scores() -> None:
    whole = [other for other in PUBLISHED if len(other.scores) == 9]
    assert whole
    for other in whole:
        assert other.total == pytest.approx(sum(other.scores.values()), abs=0.01)


def text_of(parts: Iterable[Any]) -> str:
    out = io.StringIO()
    console = Console(file=out, width=80)
    for part in parts:
        console.print(part)
    return out.getvalue()


@pytest.mark.parametrize("ruleset", RULESETS)
def test_the_table_shows_all_scores_beside_the_published_ones(ruleset: Any) -> None:
    evaluation = evaluate(always("Sleep"), ruleset=ruleset, episodes=2, seed=3)
    text = text_of([score_table(evaluation)])
    for score in evaluation.scores:
        assert f"{score.mean + 0.0:.2f} ± {score.standard_error:.2f}" in text
    assert f"{evaluation.total:.2f}" in text
    assert f"'{ruleset}'" in text
    assert "seed 3" in text
    published = {
        "leaderboard": ("-3.47", "-54.57", "-56.90", "-57.05"),
        "main": ("-5.05", "-36.00", "-58.20"),
    }
    for number in published[ruleset]:
        assert number in text
    assert max(map(len, text.splitlines())) <= 80
    assert "-0.00" not in text
