"""Runs on vector environments of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from fastrl.cli.main import main
from fastrl.envs.spec import as_spec
from fastrl.training.checkpoint import load_newest
from fastrl.training.rollouts import CollectConfig, RolloutSource

MODES = ["next_step", "same_step", "disabled"]


def cart_poles(num_envs: int = 4, mode: str = "next_step") -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * num_envs, autoreset_mode=AutoresetMode[mode.upper()]
    )


def train(run: Path, *options: str, steps: int = 384) -> int:
    return main(
        [
            "train",
            "test_vector_env_run:cart_poles",
            "--num-envs=4",
            "--ppo.num-steps=32",
            "--ppo.minibatch-size=32",
            "--ppo.hidden=8",
            "--device=cpu",
            "--run.row-seconds=0",
            f"--total-timesteps={steps}",
            f"--run-dir={run}",
            *options,
        ]
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_run_trains_evaluates_and_resumes(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(run, f"--env-options=mode={mode}", "--run.eval-episodes=7") == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["collector"] == "vector"
    assert len(summary["evaluation"]["returns"]) == 7
    # A step that only resets is none of the run's: more updates are needed.
    _, state = load_newest(run)
    assert state["steps"] >= 384 and (state["iteration"] > 3) == (mode == "next_step")
    capsys.readouterr()
    assert main(["train", "--resume", str(run), "--total-timesteps=512", "--trust"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 of 4 running episodes are restarted: a vector environment starts its episodes itself" in said
    assert load_newest(run)[1]["steps"] >= 512


@pytest.mark.parametrize("mode", MODES)
def test_a_network_with_memory_trains_and_is_scored(mode: str, tmp_path: Path) -> None:
    options = [
        f"--env-options=mode={mode}",
        "--ppo.memory=gru",
        "--ppo.memory-size=8",
        "--run.eval-episodes=5",
    ]
    assert train(tmp_path / "run", *options) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert len(summary["evaluation"]["returns"]) == 5


def test_one_seed_fixes_a_run(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert train(tmp_path / name, f"--seed={seed}", "--run.eval-episodes=0") == 0
    a, b, c = (load_newest(tmp_path / name)[1]["policy"]["weights"] for name in "abc")
    assert all((a[key] == b[key]).all() for key in a)
    assert any((a[key] != c[key]).any() for key in a)


@pytest.mark.parametrize("algorithm", ["async-ppo", "impala"])
def test_algorithms_that_collect_while_they_learn(algorithm: str, tmp_path: Path) -> None:
    arguments = [
        "--env=test_vector_env_run:cart_poles",
        "--num-envs=4",
        "--total-timesteps=400",
        "--device=cpu",
    ]
    options = [f"--algo={algorithm}", "--run.eval-episodes=0", f"--run-dir={tmp_path / 'run'}"]
    assert main(["train", *arguments, *options]) == 0


def test_another_number_of_environments_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--env-options=num_envs=3", "--run.eval-episodes=0"]
    assert train(tmp_path / "run", *options) != 0
    said = capsys.readouterr()
    assert "makes 3 environments, expected 4: set num_envs to 3" in said.out + said.err


def test_a_source_takes_a_vector_environment_itself() -> None:
    env = cart_poles()
    source = RolloutSource(as_spec(env), 4, CollectConfig())
    assert source.env_id == "SyncVectorEnv"
    problem = source.problem(1000, 0, "cpu")
    assert problem.obs_dim == 4 and problem.action_space == gymnasium.spaces.Discrete(2)
    env.reset()
    env.close()
