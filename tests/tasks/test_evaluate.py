import io
import itertools
import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from small_runs import train_small

from fastrl.envs.cage2.baselines import make_baseline
from fastrl.envs.cage2.env import ACTIONS, RED_AGENTS, Cage2VectorEnv
from fastrl.play.policy import load_policy
from fastrl.runs.metrics import mean_and_error
from fastrl.tasks.cage2.evaluate import RULESETS, Act, Contender, episode_seeds, evaluate
from fastrl.tasks.cage2.scores import HORIZONS, PUBLISHED, Evaluation, Score, comparison_table, score_table
from fastrl.training.comparison import Comparison, Scored, compare
from fastrl.utils.files import to_json
from fastrl.utils.tables import show


def always(action: str) -> Contender:
    def enter(env: Cage2VectorEnv, seed: int) -> Act:
        return lambda obs: np.full(len(obs), ACTIONS.index(action), np.int64)

    return Contender(action, "none", enter)


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


def test_contenders_meet_the_same_draws_until_their_actions_differ() -> None:
    """Games of equal seeds are equal to the bit up to the first step whose action has another effect."""

    def rewards_of(change_at: int) -> np.ndarray[Any, Any]:
        steps = []

        def enter(env: Cage2VectorEnv, seed: int) -> Act:
            def act(obs: Any) -> Any:
                steps.append(obs.copy())
                name = "Restore User1" if len(steps) > change_at else "Sleep"
                return np.full(len(obs), ACTIONS.index(name), np.int64)

            return act

        contender = Contender("changes", "none", enter)
        options: dict[str, Any] = {"horizons": [50], "red_agents": ["meander"], "num_threads": 1}
        evaluate(contender, ruleset="main", episodes=40, **options)
        return np.array(steps)

    never, late = rewards_of(1000), rewards_of(20)
    assert (never[:21] == late[:21]).all() and (never[:21] != never[0]).any()
    assert (never[21:] != late[21:]).any()


@pytest.mark.slow
def test_differences_are_those_of_single_episodes() -> None:
    """A slow model: one episode at a time, each of its own seed."""
    contenders = {name: Contender.from_baseline(name) for name in ("sleep", "react-restore", "react-remove")}
    options: dict[str, Any] = {"ruleset": "main", "seed": 3, "episodes": 12}
    scored = [
        Scored(name, {"ruleset": "main"}, evaluate(each, **options)) for name, each in contenders.items()
    ]

    def play(name: str, red_agent: str, horizon: int) -> list[float]:
        returns = []
        for seed in episode_seeds(3, red_agent, horizon, 12)[1]:
            env = Cage2VectorEnv(1, red_agent=red_agent, episode_length=horizon, autoreset_mode="disabled")
            env.reset(seed=[seed])
            blue = make_baseline(name, 1)
            returns.append(sum(float(env.step(blue.act(env.alerts()))[1][0]) for _ in range(horizon)))
        return returns

    differences = compare(scored, paired=True, own_env=False).differences
    assert [(each.name, each.to, each.episodes) for each in differences] == [
        ("react-restore", "sleep", 12),
        ("react-remove", "sleep", 12),
    ]
    for each in differences:
        errors = []
        for red_agent in RED_AGENTS:
            for horizon in HORIZONS:
                own, first = play(each.name, red_agent, horizon), play("sleep", red_agent, horizon)
                gaps = [a - b for a, b in zip(own, first, strict=True)]
                part = each.parts[f"{red_agent}_{horizon}"]
                errors.append(statistics.stdev(gaps) / math.sqrt(12))
                assert part.mean == pytest.approx(statistics.fmean(gaps))
                assert part.standard_error == pytest.approx(errors[-1])
        assert each.total.mean == pytest.approx(sum(part.mean for part in each.parts.values()))
        assert each.total.standard_error == pytest.approx(math.sqrt(sum(error**2 for error in errors)))
        assert json.loads(to_json(each.to_tree()))["total"]["mean"] == each.total.mean


def test_paired_differences_of_like_contenders_have_small_errors() -> None:
    """Two defenders that differ in one rare action: their errors nearly cancel."""

    def almost(period: int) -> Contender:
        def enter(env: Cage2VectorEnv, seed: int) -> Act:
            blue, step = make_baseline("react-restore", env.num_envs), itertools.count()

            def act(obs: Any) -> Any:
                actions = blue.act(env.alerts())
                if next(step) % period == period - 1:
                    actions[:] = ACTIONS.index("Restore User2")
                return actions

            return act

        return Contender(f"every {period}", "none", enter)

    evaluations = [
        evaluate(almost(period), ruleset="main", episodes=300, horizons=[30], red_agents=["bline"])
        for period in (29, 30)
    ]
    [difference] = compare(
        [Scored(each.contender, {}, each) for each in evaluations], paired=True, own_env=False
    ).differences
    independent = math.hypot(*(each.total_standard_error for each in evaluations))
    assert difference.total.standard_error < independent / 3


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


@pytest.mark.slow
def test_a_policy_is_given_what_it_was_trained_on(tmp_path: Path) -> None:
    for name, options in {
        "plain": (),
        "memory": ("--env.memory=full",),
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


def test_a_policy_of_the_true_state_says_so_everywhere(tmp_path: Path) -> None:
    train_small(tmp_path / "bound", "--env.memory=full", "--env.observe=truth", iterations=1)
    policy = load_policy(tmp_path / "bound")
    assert (policy.observe, policy.obs_dim) == ("truth", 630)
    contender = Contender.from_policy(policy, "bound")
    evaluation = evaluate(contender, ruleset="main", episodes=2, horizons=[30])
    tree = evaluation.to_tree()
    assert tree["observe"] == "truth" and Evaluation.from_tree(tree) == evaluation
    other = evaluate(Contender.from_baseline("sleep"), ruleset="main", episodes=2, horizons=[30])
    assert other.to_tree()["observe"] == "blue"
    comparison = Comparison((), (), ())
    for table in (score_table([evaluation]), comparison_table([other, evaluation], comparison)):
        assert "bound observes the true state (not blue-legal)" in " ".join(text_of([table]).split())
    assert "true state" not in text_of([score_table([other])])


def test_published_totals_are_the_sums_of_their_scores() -> None:
    whole = [other for other in PUBLISHED if len(other.scores) == 9]
    assert whole
    for other in whole:
        assert other.total == pytest.approx(sum(other.scores.values()), abs=0.01)


def text_of(parts: Iterable[Any], width: int = 80) -> str:
    out = io.StringIO()
    show(Console(file=out, width=width, force_terminal=True, color_system=None), *parts)
    return out.getvalue()


@pytest.mark.parametrize("ruleset", RULESETS)
def test_the_table_shows_all_scores_beside_the_published_ones(ruleset: Any) -> None:
    evaluation = evaluate(always("Sleep"), ruleset=ruleset, episodes=2, seed=3)
    text = text_of([score_table([evaluation])])
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


def test_the_ruleset_of_cyborg_plusplus() -> None:
    """There every session of red's costs, so that B_line against nobody always costs the same."""
    evaluation = evaluate(always("Sleep"), ruleset="plusplus", episodes=20)
    score = by_cell(evaluation)["bline", 100]
    assert (score.mean, score.standard_error) == (pytest.approx(-1143.8), pytest.approx(0, abs=1e-9))
    text = text_of([score_table([evaluation])])
    assert "on ruleset 'plusplus'" in text and "Published" not in text


@pytest.mark.parametrize("ruleset", RULESETS)
def test_several_contenders_are_rows_of_one_table(ruleset: Any) -> None:
    rng = np.random.default_rng(0)
    scored, evaluations = [], []
    for name in ("runs/good-0", "runs/good-1", "runs/a-long-name-of-a-run"):
        returns = tuple(-rng.exponential(20.0, 30) for _ in range(9))
        cells = [(red_agent, horizon) for red_agent in RED_AGENTS for horizon in HORIZONS]
        scores = [Score(*cell, 30, *mean_and_error(own)) for cell, own in zip(cells, returns, strict=True)]
        evaluations.append(Evaluation(name, ruleset, 0, tuple(scores), mode="deterministic", returns=returns))
        settings = {"run": {"seed": int(name == "runs/good-1")}, "env": {"x": "good" in name}}
        variant = {"ruleset": ruleset, "mode": "deterministic"}
        scored.append(Scored(name, variant, evaluations[-1], settings))
    comparison = compare(scored, paired=True, own_env=False)
    text = text_of([comparison_table(evaluations, comparison)], 100)
    assert max(map(len, text.splitlines())) <= 100
    for name in ("runs/a-long-name-of-a-run", "2 seeds of runs/good-*", "runs/good-1 - runs/good-0"):
        assert name in text
    for evaluation in evaluations:
        for score in evaluation.scores:
            assert f"{score.mean:.2f}" in text and f"±{score.standard_error:.2f}" in text
        assert f"{evaluation.total:.2f}" in text and f"±{evaluation.total_standard_error:.2f}" in text
    for difference in comparison.differences:
        assert f"{difference.total.mean:.2f}" in text and f"±{difference.total.standard_error:.2f}" in text
    assert f"{comparison.spreads[0].total['mean']:.2f}" in text
    assert ("-54.57" if ruleset == "leaderboard" else "-58.20") in text
