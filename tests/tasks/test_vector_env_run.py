"""Runs on vector environments of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from PIL import Image
from walk_env import WalkVectorEnv

import fastrl
from fastrl.callbacks import VideoRecorder
from fastrl.cli.main import main
from fastrl.collectors.protocol import CollectError
from fastrl.envs.spec import as_spec
from fastrl.runs.checkpoint import load_newest
from fastrl.runs.errors import HookError, TrainError
from fastrl.sources.collecting import CollectConfig
from fastrl.sources.rollouts import RolloutSource

MODES = ["next_step", "same_step", "disabled"]


def cart_poles(num_envs: int = 4, mode: str = "next_step") -> VectorEnv[Any, Any, Any]:
    return SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * num_envs, autoreset_mode=AutoresetMode[mode.upper()]
    )


class Drawn(gymnasium.Env[Any, Any]):
    """Draws its number times 10 and its steps; its episodes take 3 steps, those of number 1 take 2."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012
    observation_space, action_space = Box(0, 9, (1,), np.float32), Discrete(2)

    def __init__(self, number: int, render_mode: str | None) -> None:
        self.number, self.render_mode, self.t = number, render_mode, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return (
            np.full(1, self.t, np.float32),
            float(self.t),
            self.t == (2 if self.number == 1 else 3),
            False,
            {},
        )

    def render(self) -> Any:
        return np.full((16, 16, 3), 10 * self.number + self.t, np.uint8)


def drawn(
    num_envs: int = 3, mode: str = "next_step", render_mode: str | None = None
) -> VectorEnv[Any, Any, Any]:
    makers = [lambda number=number: Drawn(number, render_mode) for number in range(num_envs)]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode[mode.upper()])


def undrawn(num_envs: int = 3) -> VectorEnv[Any, Any, Any]:
    return drawn(num_envs)


SMALL: dict[str, Any] = {"num_steps": 8, "minibatch_size": 8, "hidden": [8], "eval_episodes": 0}


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


@pytest.mark.slow
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


@pytest.mark.slow
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
    problem = source.problem(1000, 0)
    assert problem.obs_dim == 4 and problem.action_space == gymnasium.spaces.Discrete(2)
    env.reset()
    env.close()


@pytest.mark.parametrize("mode", MODES)
def test_the_first_environment_is_filmed(mode: str, tmp_path: Path) -> None:
    env = "test_vector_env_run:drawn"
    model = fastrl.PPO(env, num_envs=3, env__options={"mode": mode}, **SMALL)
    model.learn(48, run_dir=tmp_path / "run", callbacks=[VideoRecorder(suffix=".gif")])
    assert len(list((tmp_path / "run" / "videos").glob("*.gif"))) == 2
    films = model.task.films(model.stage_settings)
    assert films.fps == 5
    played = list(films.play(model.trainer.policy_checkpoint(), 2, 3))
    films.close()
    assert [step.episode for step in played] == [0] * 4 + [1] * 4
    # In other modes the next episode has started already; the last picture is repeated.
    last = 3 if mode == "next_step" else 2
    assert [int(step.drawn[0, 0, 0]) for step in played] == [0, 1, 2, last] * 2
    assert [step.reward for step in played] == [0, 1, 2, 3] * 2
    out = tmp_path / "film.gif"
    assert main(["render", str(tmp_path / "run"), "--trust", f"--out={out}", "--episodes=2"]) == 0
    with Image.open(out) as film:
        assert film.size == (16, 16)


def test_what_cannot_be_filmed_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = {
        "undrawn": "takes none: give its function a parameter render_mode",
        "walks": "neither render mode, rgb_array or ansi",
    }
    for name, line in lines.items():
        run = tmp_path / name
        fastrl.PPO(f"test_vector_env_run:{name}", num_envs=3, **SMALL).learn(24, run_dir=run)
        capsys.readouterr()
        assert main(["render", str(run), "--trust", f"--out={tmp_path}/a.gif"]) == 2
        error = capsys.readouterr().err
        assert line in error and error.count("\n") == 1
    with pytest.raises(TrainError, match="make it with render_mode='rgb_array'"):
        fastrl.PPO(drawn(), **SMALL).learn(24, callbacks=[VideoRecorder()])


def walks(num_envs: int = 3) -> VectorEnv[Any, Any, Any]:
    return WalkVectorEnv(num_envs)


def test_an_environment_of_which_there_is_one_is_not_reset_by_evaluations_during_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = drawn(render_mode="rgb_array")
    model = fastrl.PPO(env, **SMALL).learn(48)
    assert model.evaluate(4)[0] > 0
    films = model.task.films(model.stage_settings)
    assert len(list(films.play(model.trainer.policy_checkpoint(), 1, 0))) == 4
    model.learn(24)
    own = SMALL | {"eval_freq": 1, "eval_episodes": 2}
    with pytest.raises(CollectError, match="is in use, and there is one of it"):
        fastrl.PPO(env, **own).learn(48)
    # An environment each.
    assert fastrl.PPO(lambda num_envs: drawn(num_envs), num_envs=3, **own).learn(48).steps >= 48
    with pytest.raises(HookError, match="in use"):
        model.learn(48, callbacks=[VideoRecorder()])
