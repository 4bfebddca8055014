"""The file of episodes: each has its own step, whatever collected it, however often the run was resumed."""

import json
from pathlib import Path

import numpy as np
import pytest

from fastrl.cli.main import main

COLLECTORS = ["sequential", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sync", "executor"))]


def train(run: Path, algorithm: str, *options: str) -> list[str]:
    """Trains on CartPole; the lines of the file of episodes without the heading."""
    plain = [f"--algo={algorithm}", f"--{algorithm}.hidden=8", f"--run-dir={run}", "--run.eval-episodes=0"]
    assert main(["train", "CartPole-v1", *plain, "--device=cpu", *options]) == 0
    return (run / "episodes.csv").read_text().splitlines()[1:]


@pytest.mark.parametrize("options", [("ppo", "--ppo.num-steps=64"), ("dqn", "--replay.learning-starts=50")])
def test_one_environment_ends_an_episode_after_its_steps(tmp_path: Path, options: tuple[str, str]) -> None:
    lines = train(
        tmp_path / "run", *options, "--num-envs=1", "--total-timesteps=640", "--run.row-seconds=1000"
    )
    steps, _, lengths = np.array([line.split(",") for line in lines], float).T
    assert len(steps) > 5
    np.testing.assert_array_equal(steps, lengths.cumsum())


@pytest.mark.parametrize("collector", COLLECTORS)
def test_collectors_count_the_same(tmp_path: Path, collector: str) -> None:
    options = ["--num-envs=4", "--ppo.num-steps=32", "--total-timesteps=1024"]
    expected = train(tmp_path / "native", "ppo", *options)
    assert train(tmp_path / collector, "ppo", *options, f"--collector={collector}") == expected
    steps = [int(line.partition(",")[0]) for line in expected]
    assert steps == sorted(steps) and {step % 4 for step in steps} == {0}
    assert len(set(steps)) > len(steps) / 2


def test_a_resumed_run_has_each_episode_once(tmp_path: Path) -> None:
    """Also of DQN, which learns from a step only after it was counted as collected."""
    run = tmp_path / "run"
    options = ["--num-envs=3", "--replay.learning-starts=50", "--run.checkpoint-seconds=0"]
    before = train(run, "dqn", *options, "--total-timesteps=300")
    for checkpoint in sorted((run / "checkpoints").glob("step-*.safetensors"))[:1]:
        assert main(["train", "--resume", str(checkpoint), "--total-timesteps=600"]) == 0
    lines = (run / "episodes.csv").read_text().splitlines()[1:]
    facts = json.loads((run / "run.json").read_text())
    assert len(lines) == facts["episodes"] > len(before)
    steps = [int(line.partition(",")[0]) for line in lines]
    assert steps == sorted(steps) and steps[-1] <= facts["total_timesteps"] == 600
    assert lines[: len(before) - 3] == before[:-3]
