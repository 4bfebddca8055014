"""Defenders against attackers of CAGE Challenge 2: returns, equilibria, ratings, priorities, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from PIL import Image
from small_runs import refusal, run_cli, train_small

import fastrl
from fastrl.cli.main import main
from fastrl.envs import Cage2VectorEnv
from fastrl.envs.cage2.game import Cage2GameVectorEnv
from fastrl.envs.opponents import Turn
from fastrl.play.play import team_seeds
from fastrl.tasks.cage2_game.league import League, league, nash
from fastrl.tasks.cage2_game.opponents import GameSpec, frozen_blue, frozen_red
from fastrl.training.opposed_spec import policy_state, weighted
from fastrl.utils.seeding import agent_streams

EPISODES = 6


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories: two defenders of other memories, and both sides of the game."""
    root = tmp_path_factory.mktemp("league")
    train_small(root / "scan", "--env.memory=scan", "--run.seed=1")
    train_small(root / "full", "--env.memory=full", "--ppo.memory=gru", "--ppo.memory-size=4")
    small = [
        "--env.num-envs=2",
        "--ippo.num-steps=8",
        "--ippo.hidden=8",
        "--run.eval-episodes=0",
        "--device=cpu",
    ]
    assert main(["train", "cage2-game", *small, "--total-timesteps=32", f"--run-dir={root / 'both'}"]) == 0
    return root


def test_returns_are_those_of_the_environment_of_blue(runs: Path) -> None:
    names = [str(runs / name) for name in ("scan", "full")]
    table = league(names, ["bline", "meander"], episodes=EPISODES, episode_length=15)
    for row, name in enumerate(names):
        policy = fastrl.load_policy(name)
        for column, red in enumerate(table.attackers):
            env = Cage2VectorEnv(
                EPISODES, red_agent=red, memory=policy.memory, episode_length=15, autoreset_mode="disabled"
            )
            obs, _ = env.reset(seed=team_seeds(0, EPISODES))
            memory = np.zeros((EPISODES, policy.state_size), np.float32) if policy.state_size else None
            returns = np.zeros(EPISODES)
            for _ in range(15):
                obs, rewards, *_ = env.step(policy.act(obs, True, env.action_masks(), memory))
                returns += rewards
            assert table.returns[row, column] == pytest.approx(returns.mean(), rel=1e-5)
            assert table.errors[row, column] == pytest.approx(returns.std(ddof=1) / EPISODES**0.5, rel=1e-4)


def test_attackers_draw_their_actions_and_defenders_take_the_most_probable(runs: Path) -> None:
    run = str(runs / "both")
    sides = frozen_blue(run, policy_state(run)), frozen_red(run, policy_state(run))
    games = Cage2GameVectorEnv(64, memory="scan", autoreset_mode=AutoresetMode.DISABLED)
    obs, _ = games.reset(seed=0)
    obs = obs.reshape(128, -1)
    streams = agent_streams(np.arange(64, dtype=np.uint64), 2).ravel()
    states = np.zeros((128, 0), np.float32)
    drawn = []
    for index, side in enumerate(sides):
        mine = np.tile(np.arange(2) == index, 64)
        assert len(np.unique(obs[mine], axis=0)) == 1, "all games start alike"
        turn = Turn(games, obs, mine, streams, np.zeros(128, np.int64), games.action_masks(), states)
        drawn.append(len(np.unique(side.act(turn))))
    assert drawn[0] == 1
    assert drawn[1] > 1


@pytest.mark.parametrize(
    ("payoffs", "rows", "columns"),
    [
        ([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], [1 / 3] * 3, [1 / 3] * 3),
        ([[3, -1], [-2, 1]], [3 / 7, 4 / 7], [2 / 7, 5 / 7]),
        ([[-1, -5], [-2, -3]], [0, 1], [0, 1]),
        ([[-7]], [1], [1]),
    ],
)
def test_equilibria_of_small_games_are_found(
    payoffs: list[list[float]], rows: list[float], columns: list[float]
) -> None:
    found = nash(np.array(payoffs, np.float64))
    np.testing.assert_allclose(found[0], rows, atol=2e-3)
    np.testing.assert_allclose(found[1], columns, atol=2e-3)


def test_copies_of_a_player_change_no_rating() -> None:
    payoffs = -np.array([[1.0, 9.0], [4.0, 5.0], [6.0, 2.0]])
    alone = League("abc", "xy", payoffs, payoffs)
    copied = League("abcc", "xyy", payoffs[[0, 1, 2, 2]][:, [0, 1, 1]], np.zeros((4, 3)))
    for before, after in zip(alone.ratings(), copied.ratings(), strict=True):
        np.testing.assert_allclose(before, after[: len(before)], atol=2e-3)


def test_priorities_are_squares_of_costs() -> None:
    table = League(["a", "b"], "xyz", np.array([[-1.0, -2.0, 0.5], [0.0, 0.0, 0.0]]), np.zeros((2, 3)))
    np.testing.assert_allclose(table.priorities(0), [0.2, 0.8, 0])
    np.testing.assert_allclose(table.priorities(1), [1 / 3] * 3)


def test_weights_of_opponents(runs: Path) -> None:
    assert weighted("runs/a:0.5") == ("runs/a", 0.5) and weighted("bline") == ("bline", 1.0)
    for text in ("C:/runs", "a:nan", "a:0", "a:-1", "a:inf", ":2"):
        assert weighted(text) == (text, 1.0)
    opponents = ("meander:0.01", "sleep:0.02", f"{runs / 'both'}:0.97")
    env = GameSpec("fastrl/Cage2Game-v0", {"num_threads": 1}, side="blue", opponents=opponents).make_team(
        1000
    )
    env.reset(seed=0)
    drawn = np.bincount(env.drawn())  # type: ignore[attr-defined]
    assert len(drawn) == 2 and 10 < drawn[0] < 60


def test_the_command_prints_draws_and_writes(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, file = tmp_path / "l.png", tmp_path / "l.json"
    names = [str(runs / name) for name in ("scan", "both")]
    options = ["--attackers", "meander", str(runs / "both"), "--episodes=3", "--episode-length=12"]
    code, out, _ = run_cli(capsys, "league", *names, *options, f"--figure={picture}", f"--json={file}")
    assert code == 0 and "Nash share" in out and f"priorities against {names[0]}" in out.replace("\n", " ")
    assert Image.open(picture).size[0] > 500
    tree = json.loads(file.read_text())
    assert [each["name"] for each in tree["defenders"]] == names
    assert sum(each["nash"] for each in tree["attackers"]) == pytest.approx(1)
    assert sum(tree["defenders"][0]["priorities"].values()) == pytest.approx(1)


def test_players_of_the_other_side_are_refused(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scan = runs / "scan"
    assert "is a run of cage2: expected one of cage2-game" in refusal(
        capsys, "league", scan, "--attackers", scan
    )
    assert "no such run directory" in refusal(capsys, "league", tmp_path / "none")
    assert "there is no folder" in refusal(capsys, "league", scan, f"--json={tmp_path / 'a' / 'b.json'}")
