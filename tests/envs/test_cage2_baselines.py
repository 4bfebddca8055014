"""The scripted defenders act and score like those of the challenge."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from cage2_baseline import run_baseline

from fastrl.envs.cage2.baselines import BASELINES, ReactPolicy, make_baseline
from fastrl.envs.cage2.env import ACTIONS, HOSTS, Cage2VectorEnv


def alert(*hosts: str) -> np.ndarray:
    return np.array([[host in hosts for host in HOSTS]])


def test_react_reads_alerts_only_after_a_monitor_and_in_their_order() -> None:
    policy = make_baseline("react-restore", 1)
    named = lambda *hosts: ACTIONS[policy.act(alert(*hosts))[0]]  # noqa: E731
    assert named("User1") == "Monitor", "nothing was monitored before the first step"
    assert named("User3", "Enterprise1") == "Restore Enterprise1"
    assert named("User2") == "Restore User3", "the alert came while it restored"
    assert named("User2") == "Monitor"
    assert named("User0") == "Monitor", "User0 is left alone"
    assert named("User2") == "Restore User2"
    policy.reset()
    assert named("User2") == "Monitor"


def test_react_remove_removes() -> None:
    policy = make_baseline("react-remove", 1)
    policy.act(alert())
    assert ACTIONS[policy.act(alert("Op_Server0"))[0]] == "Remove Op_Server0"


def test_reset_by_mask_clears_only_these_games() -> None:
    policy = make_baseline("react-remove", 2)
    policy.act(np.zeros((2, 13), np.bool_))
    both = np.repeat(alert("User1", "User2"), 2, axis=0)
    policy.act(both)
    policy.reset(np.array([True, False]))
    names = [ACTIONS[a] for a in policy.act(np.zeros((2, 13), np.bool_))]
    assert names == ["Monitor", "Remove User2"]


# Means of 200 episodes of the real CybORG at 100 steps, with their standard errors.
PUBLISHED = [
    ("sleep", "bline", "main", -1134.9, 1.3),
    ("sleep", "meander", "main", -974.6, 4.8),
    ("react-remove", "bline", "main", -921, 14),
    ("react-remove", "meander", "main", -598, 19),
    ("react-restore", "bline", "main", -546, 25),
    ("react-restore", "meander", "main", -212, 15),
    ("random", "bline", "main", -739, 25),
    ("random", "meander", "main", -589, 20),
    ("random", "sleep", "main", -8.9, 0.2),
]


@pytest.mark.parametrize(("blue", "red", "ruleset", "mean", "error"), PUBLISHED)
def test_scores_agree_with_cyborg(blue: str, red: str, ruleset: str, mean: float, error: float) -> None:
    """Within four standard errors of the difference: a false alarm once in 16,000 for the choice of seeds."""
    returns = run_baseline(blue, episodes=2000, seed=5, red_agent=red, ruleset=ruleset)
    own = returns.std() / np.sqrt(len(returns))
    assert abs(returns.mean() - mean) < 4 * np.hypot(error, own)


def test_unknown_baseline_is_named() -> None:
    with pytest.raises(
        ValueError, match="expected one of sleep, react-remove, react-restore, random, got 'react'"
    ):
        make_baseline("react", 1)
    assert all(make_baseline(name, 3).act(np.zeros((3, 13), np.bool_)).shape == (3,) for name in BASELINES)


def test_memory_that_is_kept_elsewhere_gives_the_same_actions() -> None:
    random = np.random.default_rng(0)
    whole, parts, states = (
        make_baseline("react-restore", 3),
        ReactPolicy(3, "Restore"),
        np.zeros((3, 14), np.float32),
    )
    for _ in range(50):
        alerts = random.random((3, 13)) < 0.1
        expected = whole.act(alerts)
        parts.reset()
        parts.load_memory(states)
        assert (parts.act(alerts) == expected).all()
        parts.store_memory(states)


def test_one_game_has_the_alerts_of_many() -> None:
    one, many = gymnasium.make("fastrl/Cage2-v0").unwrapped, Cage2VectorEnv(1, autoreset_mode="disabled")
    one.reset(seed=1)
    many.reset(seed=1)
    seen = 0
    for _ in range(60):
        one.step(1)
        many.step(np.array([1]))
        assert (one.alerts() == many.alerts()[0]).all()
        seen += int(one.alerts().sum())
    assert seen
