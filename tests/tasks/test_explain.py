"""Explanations of games of CAGE Challenge 2: returns of alternatives, costs by host, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image
from small_runs import OPTIONS as SMALL
from small_runs import refusal, train_small

import fastrl
from fastrl.cli.main import main
from fastrl.envs import Cage2VectorEnv
from fastrl.envs.cage2.env import ACTIONS, HOSTS
from fastrl.envs.cage2.memory import Ruleset
from fastrl.play.policy import Policy
from fastrl.tasks.cage2.explain import CLEAR, Explanation, costs_by_host, explain, in_words

LENGTH, CONTINUATIONS = 12, 40
OPTIONS = {"red_agent": "meander", "episode_length": LENGTH}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "run"
    train_small(path)
    return path


@pytest.fixture(scope="module")
def policy(run: Path) -> Policy:
    return fastrl.load_policy(run)


@pytest.fixture(scope="module")
def explanation(policy: Policy) -> Explanation:
    return explain(policy, OPTIONS, 3, continuations=CONTINUATIONS)


def test_the_game_is_the_policys(policy: Policy, explanation: Explanation) -> None:
    env = Cage2VectorEnv(1, **OPTIONS, autoreset_mode="disabled")  # type: ignore[arg-type]
    obs, _ = env.reset(seed=3)
    for step in explanation.steps:
        assert step.seen == in_words(obs[0])
        action = policy.act(obs, True, env.action_masks())
        assert step.action == ACTIONS[action[0]] == step.alternatives[0].action
        obs, rewards, *_ = env.step(action)
        assert step.reward == rewards[0]
        assert (step.red_access == env.truth()["red_access"][0]).all()
    assert explanation.total == pytest.approx(sum(step.reward for step in explanation.steps))


def test_alternatives_are_continuations_of_the_same_game(policy: Policy, explanation: Explanation) -> None:
    """The third step, played again with public methods alone."""
    env = Cage2VectorEnv(1, **OPTIONS, autoreset_mode="disabled")  # type: ignore[arg-type]
    obs, _ = env.reset(seed=3)
    for step in explanation.steps[:2]:
        obs, *_ = env.step([ACTIONS.index(step.action)])
    streams = np.random.SeedSequence([3, 3]).generate_state(CONTINUATIONS, np.uint64)
    returns = []
    for each in explanation.steps[2].alternatives:
        games = env.branch(env.save_state(0), CONTINUATIONS, seed=streams)
        actions, total = np.full(CONTINUATIONS, ACTIONS.index(each.action)), np.zeros(CONTINUATIONS)
        for _ in range(LENGTH - 2):
            obs, rewards, _, truncated, _ = games.step(actions)
            total += rewards
            actions = policy.act(obs, True, games.action_masks())
        assert truncated.all()
        returns.append(total)
        assert each.mean == pytest.approx(total.mean())
        assert each.gain == pytest.approx((total - returns[0]).mean())
        assert each.gain_error == pytest.approx((total - returns[0]).std(ddof=1) / CONTINUATIONS**0.5)
        assert each.costs.sum() == pytest.approx(-total.mean())


def test_regret_is_the_gain_of_the_best(explanation: Explanation) -> None:
    for step in explanation.steps:
        assert len(step.alternatives) == 8 and step.best is not None
        assert step.regret == max(each.gain for each in step.alternatives) >= 0
        assert step.saved.sum() == pytest.approx(step.regret)
        assert step.is_clear == (step.regret > CLEAR * step.best.gain_error)
        chances = [each.probability for each in step.alternatives[1:]]
        assert chances == sorted(chances, reverse=True)
    assert explanation.costs().sum() == pytest.approx(-explanation.total)
    clear = [step.regret for step in explanation.steps if step.is_clear]
    assert explanation.regrets().sum() == pytest.approx(sum(clear))


def test_an_attack_that_nobody_stops(policy: Policy) -> None:
    """Red is root on an Enterprise host and has a session on another one: its removal keeps red off Op_Server0."""

    class Idle:
        """Sleeps in the game that is explained, and in all its continuations."""

        memory, observe, state_size, needs_action_mask, obs_dim = "none", "blue", 0, False, 52
        actions, distribution = policy.actions, policy.distribution

        def act(self, obs: Any, *_: object) -> Any:
            return np.zeros(len(obs), np.int64)

    options = {"red_agent": "bline", "episode_length": 15}
    found = explain(Idle(), options, 1, continuations=20, most=0, steps=range(11, 12))  # type: ignore[arg-type]
    step = found.steps[10]
    assert [bool(each.alternatives) for each in found.steps] == [each.number == 11 for each in found.steps]
    assert step.is_clear and step.best is not None and step.regret > 10
    assert step.seen.startswith("exploit on Enterprise2") and step.best.action == "Remove Enterprise2"
    assert len(step.alternatives) > 50 and step.action == "Sleep"
    assert step.saved[HOSTS.index("Op_Server0")] > 5, "Impact costs most"


@pytest.mark.parametrize("ruleset", get_args(Ruleset))
def test_costs_add_up_to_rewards(ruleset: Ruleset) -> None:
    env = Cage2VectorEnv(64, red_agent="bline", ruleset=ruleset)
    env.reset(seed=0)
    generator, impact = np.random.default_rng(0), 0.0
    for _ in range(60):
        actions = np.where(generator.random(64) < 0.9, 0, generator.integers(145, size=64))
        _, rewards, *_ = env.step(actions)
        costs = costs_by_host(env.truth()["red_access"], actions, rewards, ruleset)
        np.testing.assert_allclose(costs.sum(axis=1), -rewards, atol=1e-9)
        assert (costs > -1e-6).all()
        impact = max(impact, costs[:, HOSTS.index("Op_Server0")].max())
    assert impact >= 10


def test_words_of_an_observation() -> None:
    bits = np.zeros((13, 4), np.float32)
    assert in_words(bits.ravel()) == "nothing"
    bits[HOSTS.index("User1")] = (1, 1, 0, 1)
    bits[HOSTS.index("Enterprise0")] = (1, 0, 1, 1)
    bits[HOSTS.index("Enterprise1")] = (0, 0, 1, 0)
    bits[HOSTS.index("Enterprise2")] = (0, 0, 1, 0)
    assert in_words(bits.ravel()) == (
        "scan of Enterprise0; exploit on User1; root: Enterprise0; user: User1; unknown: Enterprise1, Enterprise2"
    )


def test_the_command_writes_table_json_and_figure(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [f"--json={tmp_path / 'game.json'}", f"--figure={tmp_path / 'game.png'}"]
    short = ["--continuations=10", "--steps=2-4", "--most=3", "--episode-length=6", "--seed=7"]
    assert main(["explain", str(run), *short, *files]) == 0
    out = capsys.readouterr().out
    assert out.startswith("seed 7, attacker ") and "hosts that mattered" in out
    assert "of 3 steps have a regret above 3 standard errors" in out
    tree = json.loads((tmp_path / "game.json").read_text())
    assert tree["run"] == str(run) and tree["seed"] == 7 and len(tree["steps"]) == 6
    assert [len(step["alternatives"]) for step in tree["steps"]] == [0, 3, 3, 3, 0, 0]
    assert tree["return"] == pytest.approx(-sum(tree["costs"].values()))
    with Image.open(tmp_path / "game.png") as picture:
        assert picture.width > 400
    assert main(["explain", str(run), *short]) == 0
    assert out.startswith(capsys.readouterr().out), "the same game again"


@pytest.mark.parametrize("memory", [["--ppo.memory=gru"], ["--env.actions=effective"], ["--run.algo=dqn"]])
def test_other_policies_are_explained(memory: list[str], tmp_path: Path) -> None:
    if "dqn" in memory[0]:
        shared = [each for each in SMALL if not each.startswith(("--ppo", "--run.torch"))]
        arguments = ["cage2", "--algo=dqn", *shared, "--total-timesteps=160", "--dqn.hidden=8"]
        assert main(["train", *arguments, f"--run-dir={tmp_path / 'run'}"]) == 0
    else:
        train_small(tmp_path / "run", *memory)
    found = explain(
        fastrl.load_policy(tmp_path / "run"), {**OPTIONS, "episode_length": 4}, 1, continuations=4
    )
    assert all(step.alternatives[0].action == step.action for step in found.steps)
    assert found.steps[0].alternatives[0].mean == pytest.approx(-found.steps[0].alternatives[0].costs.sum())


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--steps=20"], "--steps: the game has 15 steps, got 20"),
        (["--steps=4-2"], "should be a step or a first and a last one such as 5-12, got '4-2'"),
        (["--json=nowhere/game.json"], "nowhere/game.json: there is no folder nowhere"),
        (["--figure=game.pdf"], "expected a name that ends in .png or .svg, got game.pdf"),
        (["--continuations=1"], "should be an integer of at least 2, got"),
    ],
)
def test_mistakes_are_one_line(
    options: list[str], line: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in refusal(capsys, "explain", run, *options)


def test_runs_of_other_tasks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = [
        "--num-envs=1",
        "--total-timesteps=8",
        "--ppo.num-steps=8",
        "--ppo.minibatch-size=8",
        "--ppo.hidden=4",
    ]
    small += ["--collector=sequential", "--run.eval-episodes=0", "--device=cpu"]
    assert main(["train", "CartPole-v1", *small, f"--run-dir={tmp_path / 'cart'}"]) == 0
    assert "fastrl exploit take agents of your own" in refusal(capsys, "explain", "my_agent:Agent")
    line = refusal(capsys, "explain", tmp_path / "cart")
    assert line.endswith("cart is a run of gym: only runs of cage2 can be explained")
