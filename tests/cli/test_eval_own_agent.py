"""``fastrl eval module:agent``: agents that users have written by hand are scored as runs are."""

import functools
import importlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from small_runs import run_cli, train_small

from fastrl.tasks import find
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.utils.progress import Progress

eval_command = importlib.import_module("fastrl.cli.eval")

AGENTS = """
import numpy as np


class Balance:
    def __init__(self):
        self.episodes = 0

    def reset(self):
        self.episodes += 1
        self.steps = 0

    def act(self, obs):
        self.steps += 1
        return int(obs[2] + 0.5 * obs[3] > 0)


class Defender:
    space = None

    def set_initial_values(self, action_space, observation):
        assert self.space is None and observation.shape == (52,)
        self.space = action_space

    def end_episode(self):
        self.steps = 0

    def get_action(self, observation, action_space):
        assert (action_space, observation.shape) == (145, (52,)) and self.space == 145
        self.steps += 1
        assert self.steps <= 100
        return 0


def left(obs):
    return 0


def failing(obs):
    raise ValueError("no idea")


class Nothing:
    pass


def scalar(obs):  # as models of Stable-Baselines3 answer
    return np.array(0)


def beyond(obs):
    return 145


def half(obs):
    return 1.5


constant = 3
"""


@pytest.fixture(autouse=True)
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module ``own_agents`` in the current directory."""
    (tmp_path / "own_agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_agents", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


def scores_of(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    code, out, err = run_cli(capsys, "eval", *arguments, "--json")
    assert code == 0, err
    return {each["run"]: each for each in json.loads(out)["runs"]}


def test_agents_play_the_episodes_of_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    given = "own_agents:Balance", "own_agents:left", "--env=CartPole-v1", "--episodes=5"
    scores = scores_of(capsys, *given)
    assert scores["own_agents:Balance"]["mean"] == 500
    assert 8 <= scores["own_agents:left"]["mean"] <= 11
    assert scores_of(capsys, *given) == scores
    assert scores_of(capsys, *given, "--seed=1")["own_agents:left"] != scores["own_agents:left"]


def test_a_defender_has_the_protocols_table_beside_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    train_small(tmp_path / "run")
    options = "--episodes=2", "--ruleset=main", "--mode=deterministic"
    scores = scores_of(capsys, "own_agents:Defender", "baseline:sleep", tmp_path / "run", *options)
    # Both sleep, in the same games.
    assert scores["own_agents:Defender"]["scores"] == scores["baseline:sleep"]["scores"]
    assert len(scores) == 3
    code, text, _ = run_cli(capsys, "eval", "own_agents:Defender", "--env=cage2", *options)
    assert code == 0 and "own_agents:Defender" in text and "CardiffUni" in text
    same = scores_of(capsys, "own_agents:scalar", "--env=cage2", *options)
    assert same["own_agents:scalar"]["scores"] == scores["baseline:sleep"]["scores"]


def test_an_agents_episodes_end_at_the_limit_of_the_settings(tmp_path: Path) -> None:
    sys.path.append(str(tmp_path))
    task = find("gym")
    settings = task.make_settings({"env.id": "CartPole-v1", "collect.max_episode_steps": 7})
    scores = task.evaluate_agent("own_agents:Balance", settings, EvaluationOptions(3))
    assert scores.to_tree()["returns"] == [7.0] * 3


def test_progress_without_a_terminal_only_grows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_command, "Progress", functools.partial(Progress, interval=0.0))
    subjects = "baseline:sleep", "baseline:react-restore"
    code, _, err = run_cli(capsys, "eval", *subjects, "--episodes=2", "--json")
    assert code == 0
    lines = [line.rpartition(": ") for line in err.splitlines()]
    shares = [int(share.rstrip("%")) for _, _, share in lines]
    assert shares == sorted(shares) and (shares[0], shares[-1]) == (0, 100)
    names = [name for name, _, _ in lines]
    assert [name for name, _ in itertools.groupby(names)] == list(subjects)


@pytest.mark.parametrize(
    ("subject", "env", "line"),
    [
        ("own_agents:left", None, "say where it is scored: --env cage2, --env CartPole-v1"),
        (
            "own_agents:missing",
            "CartPole-v1",
            "agent own_agents:missing: module 'own_agents' has no attribute",
        ),
        ("no_such_agents:left", "CartPole-v1", "agent no_such_agents:left: No module named 'no_such_agents'"),
        (
            "own_agents:Nothing",
            "CartPole-v1",
            "expected a function from an observation to an action, or a class",
        ),
        ("own_agents:constant", "CartPole-v1", "get_action(observation, action_space), got int"),
        ("own_agents:beyond", "cage2", "agent own_agents:beyond: expected an action from 0 to 144, got 145"),
        ("own_agents:half", "cage2", "expected an action from 0 to 144, got 1.5"),
        ("own_agents:left", "fastrl/coop-merge-v0", "plays CAGE 2, or environments of one agent"),
    ],
)
def test_mistakes_with_agents_are_one_line(
    capsys: pytest.CaptureFixture[str], subject: str, env: str | None, line: str
) -> None:
    code, _, err = run_cli(
        capsys, "eval", subject, *([] if env is None else [f"--env={env}"]), "--episodes=2"
    )
    assert code == 2
    assert err.count("\n") == 1 and line in err


def test_what_an_agent_raises_is_shown_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_cli(capsys, "eval", "own_agents:failing", "--env=CartPole-v1", "--episodes=2")
    assert code == 1
    assert 'raise ValueError("no idea")' in err
    assert err.splitlines()[-1] == "fastrl eval: error: agent own_agents:failing failed: ValueError: no idea"
