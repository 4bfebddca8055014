"""Settings that change over a run: functions and curves mean the same to every algorithm, and files keep them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import differences, untimed_state

import fastrl
from fastrl.cli.main import main

NETWORK = {"hidden": [8], "num_envs": 2, "collector": "sequential", "device": "cpu", "row_seconds": 0}
PPO = {**NETWORK, "num_steps": 16, "minibatch_size": 16}
REPLAY = {**NETWORK, "batch_size": 8, "replay__capacity": 200, "replay__learning_starts": 20}
MERGE = "fastrl/coop-merge-v0"
TEAM = {**NETWORK, "hidden": [8], "num_steps": 8, "minibatch_size": 64, "run__eval_episodes": 0}


def learned(name: str, env: str, steps: int, **settings: Any) -> fastrl.Model:
    return getattr(fastrl, name)(env, seed=3, **settings).learn(steps)


def parameters(model: fastrl.Model) -> Any:
    return untimed_state(model.trainer.state_dict())["learner"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["compiled", "torch"])
@pytest.mark.parametrize(
    ("name", "env", "settings"),
    [
        ("PPO", "CartPole-v1", PPO),
        ("IMPALA", "CartPole-v1", {**NETWORK, "num_steps": 16}),
        ("DQN", "CartPole-v1", REPLAY),
        ("SAC", "Pendulum-v1", REPLAY),
        ("TD3", "Pendulum-v1", REPLAY),
        ("MAPPO", MERGE, {**TEAM, "lr_schedule": "linear"}),
    ],
)
def test_a_line_is_what_two_numbers_are(name: str, env: str, settings: Any, backend: str) -> None:
    if name != "IMPALA":
        settings = {**settings, "update_backend": backend}
    end = {} if name == "MAPPO" else {"final_learning_rate": 0.0}
    by_numbers = learned(name, env, 150, learning_rate=1e-3, **end, **settings)
    by_function = learned(name, env, 150, learning_rate=lambda remaining: 1e-3 * remaining, **settings)
    constant = learned(name, env, 150, learning_rate=1e-3, **{**settings, **_constant(name)})
    assert not differences(parameters(by_numbers), parameters(by_function))
    assert differences(parameters(by_numbers), parameters(constant))


def _constant(name: str) -> dict[str, Any]:
    return {"lr_schedule": "constant"} if name == "MAPPO" else {}


def test_rates_and_bonuses_follow_their_functions() -> None:
    model = learned(
        "PPO",
        "CartPole-v1",
        160,
        learning_rate=lambda remaining: 1e-3 * remaining**2,
        entropy_coef="exponential:0.1:0.001",
        **PPO,
    )
    done = np.arange(5) / 5
    rows = model.metrics
    assert [row["train/learning_rate"] for row in rows] == pytest.approx(1e-3 * (1 - done) ** 2, abs=1e-7)
    assert [row["train/entropy_coef"] for row in rows] == pytest.approx(0.1 * 0.01**done)


def rates(model: fastrl.Model) -> list[float]:
    return [row["train/learning_rate"] for row in model.metrics]


def test_schedules_belong_to_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    model = learned("PPO", "CartPole-v1", 160, learning_rate="linear:1e-3", **PPO)
    falling = pytest.approx([1e-3, 8e-4, 6e-4, 4e-4, 2e-4])
    assert rates(model) == falling
    model.learn(160, run_dir=tmp_path / "run")
    assert rates(model)[5:] == falling
    # A run that is resumed with a further goal has one schedule from where it started to the new end.
    resumed = fastrl.load(tmp_path / "run")
    assert resumed.settings["run"]["schedule_start"] == 160
    options = ["--total-timesteps=480", "--run.row-seconds=0", "--run.eval-episodes=0"]
    for start, of_start in (([], 0.5), (["--run.schedule-start=320"], 1.0)):
        command = ["train", "--resume", str(tmp_path / "run"), f"--run-dir={tmp_path / str(of_start)}"]
        assert main([*command, *options, *start]) == 0
        first = json.loads((tmp_path / str(of_start) / "metrics.jsonl").read_text().splitlines()[0])
        assert first["train/learning_rate"] == pytest.approx(1e-3 * of_start)


@pytest.mark.parametrize(
    ("name", "env", "settings"),
    [
        ("IMPALA", "CartPole-v1", {**NETWORK, "num_steps": 16}),
        ("DQN", "CartPole-v1", REPLAY),
        ("SAC", "Pendulum-v1", REPLAY),
        ("MAPPO", MERGE, TEAM),
    ],
)
def test_each_call_of_learn_starts_the_schedule_of_every_algorithm(
    name: str, env: str, settings: Any
) -> None:
    # The rate is above 0 in the first fifth alone, which is over when the second call starts.
    model = learned(name, env, 150, learning_rate="points:0=1e-3,0.2=1e-3,0.3=0,1=0", **settings)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model.learn(150)
    assert any(bool((new != old).any()) for new, old in zip(model.parameters(), before, strict=True))


def test_an_interrupted_call_of_learn_continues_its_schedule() -> None:
    class Stop(fastrl.callbacks.Callback):
        def on_update(self, run: fastrl.callbacks.Run) -> bool:
            return run.timesteps < 256

    model = learned("PPO", "CartPole-v1", 160, learning_rate="linear:1e-3", **PPO)
    model.learn(160, callbacks=[Stop()]).learn()
    assert rates(model)[5:] == pytest.approx([1e-3, 8e-4, 6e-4, 4e-4, 2e-4])


def test_epsilon_follows_a_curve_over_its_steps() -> None:
    model = learned(
        "DQN", "CartPole-v1", 100, epsilon="points:0=1,0.5=0.2,1=0.1", epsilon_steps=200, **REPLAY
    )
    assert model.policy_checkpoint["policy"]["epsilon"] == pytest.approx(0.2)


def test_a_resumed_run_needs_no_function(tmp_path: Path) -> None:
    def rate(remaining: float) -> float:
        return 1e-3 * float(np.cos(1.5 * (1 - remaining)))

    whole = fastrl.PPO("CartPole-v1", seed=3, learning_rate=rate, run__total_timesteps=160, **PPO)
    whole.learn(run_dir=tmp_path / "whole")
    part = fastrl.PPO("CartPole-v1", seed=3, learning_rate=rate, run__total_timesteps=160, **PPO)
    part.save(tmp_path / "part.safetensors")
    loaded = fastrl.load(tmp_path / "part.safetensors")
    assert loaded.settings["ppo"]["learning_rate"] == whole.settings["ppo"]["learning_rate"]
    loaded.learn()
    assert not differences(parameters(loaded), parameters(whole))


def test_the_command_line_takes_curves(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["train", "CartPole-v1", "--algo=ppo", "--print-config"]
    assert main([*line, "--learning-rate", "cosine:3e-4:1e-5", "--entropy-coef", "0.02"]) == 0
    out = capsys.readouterr().out
    assert 'learning_rate = "cosine:0.0003:1e-05"\nfinal_learning_rate = "none"' in out
    assert "entropy_coef = 0.02" in out
    assert main([*line, "--learning-rate", "cosin:3e-4"]) == 2
    assert "a schedule such as linear:3e-4" in capsys.readouterr().err
    assert main([*line, "--lr", "linear:3e-4", "--final-learning-rate=1e-4"]) == 2
    assert "leave the other end out" in capsys.readouterr().err
