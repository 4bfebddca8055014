from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import train_refusal

import fastrl
from fastrl.cli.main import main
from fastrl.envs.cage2.env import EFFECTIVE_ACTIONS, Cage2VectorEnv
from fastrl.envs.cage2.workflow import Cage2WorkflowVectorEnv
from fastrl.tasks import find
from fastrl.tasks.cage2.settings import GameConfig, parse_red_agent, red_weights
from fastrl.tasks.workflow.task import plain_settings

KINDS = ("cage2", "cage2-workflow")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("bline", "bline"),
        ("mix", "bline:0.5,meander:0.5"),
        ("bline:0.5,meander:0.5", "bline:0.5,meander:0.5"),
        ("bline, meander", "bline:1,meander:1"),
        ("sleep:3", "sleep"),
        ({"bline": 1, "sleep": 2}, "bline:1,sleep:2"),
    ],
)
def test_red_agents(given: Any, expected: str) -> None:
    assert parse_red_agent(given) == expected
    assert parse_red_agent(expected) == expected
    assert sum(red_weights(expected).values()) > 0


@pytest.mark.parametrize(
    "given",
    [
        "",
        "blin",
        "bline:",
        "bline:x",
        "bline:-1",
        "bline:0,sleep:0",
        "bline:nan",
        "bline,bline",
        {},
        3,
        None,
        ":1",
    ],
)
def test_what_is_no_red_agent(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="should be mix"):
        parse_red_agent(given)
    if isinstance(given, str):
        for kind in KINDS:
            line = train_refusal(capsys, kind, f"--red-agent={given}")
            assert line.startswith("--red-agent should be mix, one of bline, meander, sleep")
            assert line.endswith(f"got {given!r}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", ["3,3", "145", "-1,2"])
def test_what_are_no_actions(kind: str, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = train_refusal(capsys, kind, f"--env.actions={given}")
    assert line.startswith("--env.actions should be different indices from 0 to 144")


@pytest.mark.parametrize("env_type", [Cage2VectorEnv, Cage2WorkflowVectorEnv])
def test_the_environments_take_the_options(env_type: Any) -> None:
    config = GameConfig(red_agent="bline:1,sleep:3", ruleset="leaderboard", episode_length=7)
    env = env_type(2, **config.options())
    assert env.red_agent == {"bline": 1.0, "sleep": 3.0}
    assert (env.ruleset, env.episode_length, env.memory) == ("leaderboard", 7, "scan")
    assert env.actions == EFFECTIVE_ACTIONS
    env.close()


@pytest.mark.parametrize("algorithm", ["ppo", "async-ppo", "impala", "dqn", "pqn"])
def test_actions_are_masked_by_default(algorithm: str) -> None:
    task = find("cage2")
    changes = {"run.algo": algorithm}
    assert task.has_action_masks(task.make_settings(changes))
    assert not task.has_action_masks(task.make_settings(changes, preset="challenge"))
    switch = {f"{task.algorithm_table(algorithm)}.action_masks": False}
    assert not task.has_action_masks(task.make_settings({**changes, **switch}))


def test_pqn_keeps_near_its_policy_by_default() -> None:
    task = find("cage2")
    config = task.algorithm_settings(task.make_settings({"run.algo": "pqn"}))
    assert (config.munchausen, config.reward_scale, config.final_learning_rate) == (0.98, 0.3, 0.0)
    config = task.algorithm_settings(task.make_settings({"run.algo": "pqn", "pqn.munchausen": None}))
    assert config.munchausen is None


def test_actions_of_workflows_are_masked_by_default() -> None:
    task = find("cage2-workflow")
    settings = task.make_settings()
    assert task.has_action_masks(settings)
    assert settings.inner.ppo(30).action_masks
    assert plain_settings(settings).ppo.action_masks
    settings = task.make_settings({"inner.action_masks": False})
    assert not (task.has_action_masks(settings) or plain_settings(settings).ppo.action_masks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["cage2", "--total-timesteps", "1000", "--env.num-envs", "10"],
        [
            "cage2",
            "--algo",
            "dqn",
            "--total-timesteps",
            "600",
            "--env.num-envs",
            "4",
            "--learning-starts",
            "100",
        ],
        ["cage2-workflow", "--preset", "smoke", "--total-episodes", "400"],
    ],
    ids=["ppo", "dqn", "workflow"],
)
def test_policies_take_only_actions_that_may_have_an_effect(options: list[str], tmp_path: Path) -> None:
    assert main(["train", *options, "--run.eval-episodes", "0", "--run-dir", str(tmp_path / "run")]) == 0
    policy = fastrl.load_policy(tmp_path / "run")
    assert policy.needs_action_mask
    env = Cage2VectorEnv(50, red_agent="bline", memory=policy.memory)
    obs, _ = env.reset(seed=1)
    for _ in range(30):
        masks = env.action_masks()
        actions = policy.act(obs, False, masks)
        assert masks[np.arange(50), actions].all()
        obs, *_ = env.step(actions)
