"""A run from pixels as its user sees it, on a game that takes no time."""

import json
import operator
import os
import re
import signal
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.envs.registration import EnvSpec as EnvironmentSpec
from rich.console import Console
from shared_memory import shared_memory_of
from small_runs import train_refusal
from train_process import start_training
from waiting import TIMEOUT

import fastrl
from fastrl.cli.main import main
from fastrl.collectors.protocol import CollectError
from fastrl.envs.pixels import PixelEnv
from fastrl.runs.checkpoint import CheckpointError, load_newest
from fastrl.tasks.pixels.settings import PRESETS
from fastrl.tasks.pixels.task import TASK
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.training.trainer import Trainer
from fastrl.utils.command_line import ArgumentParser, add_options, read_arguments
from fastrl.utils.config import build, leaves

SMALL = [
    "fastrl/Catch-v0",
    "--n-workers=1",
    "--num-envs=2",
    "--replay.capacity=2000",
    "--replay.learning-starts=100",
    "--dqn.hidden=8",
    "--dqn.conv=4x3/2",
    "--dqn.batch-size=8",
    "--run.row-seconds=0.1",
    "--run.eval-episodes=2",
    "--device=cpu",
]


CONFIG_TYPE = TASK.settings_type("dqn")


def settings(*options: str) -> Any:
    parser = ArgumentParser()
    add_options(parser, CONFIG_TYPE)
    given = read_arguments(CONFIG_TYPE, parser.parse_args([*SMALL[1:], *options]))
    return build(CONFIG_TYPE, TASK.preset_values(CONFIG_TYPE, "toy"), given)


def make_trainer(*options: str, console: Console | None = None) -> Trainer:
    return TASK.make_trainer(settings(*options), console)


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().rpartition("\n")[0].splitlines()]


@pytest.mark.slow
def test_a_run_leaves_its_settings_metrics_checkpoints_and_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    before = shared_memory_of(os.getpid())
    arguments = [
        *SMALL,
        "--total-timesteps=1500",
        f"--run-dir={run}",
        "--replay.save",
        "--collector=executor",
    ]
    assert main(["train", *arguments]) == 0
    rows = rows_of(run)
    last = rows[-1]
    assert capsys.readouterr().out.splitlines()[-3:] == [
        f"Run directory: {run}",
        f"To score it on new episodes: fastrl eval {run}",
        f"To train it further: fastrl train --resume {run} --total-timesteps {2 * last['time/total_timesteps']}",
    ]
    assert last["time/total_timesteps"] >= 1500
    for name in (
        *(f"collect/{name}" for name in ("dropped", "replay_fill", "staleness", "restarts")),
        *(f"time/seconds_{name}" for name in ("workers_waiting", "workers_environment", "waiting", "update")),
        *("time/fps", "time/updates_per_second", "time/episodes", "time/iterations"),
        *("rollout/exploration_rate", "train/loss", "rollout/ep_rew_mean"),
    ):
        assert any(name in row for row in rows), name
    assert [row["time/total_timesteps"] for row in rows] == sorted(
        row["time/total_timesteps"] for row in rows
    )
    assert last["collect/dropped"] == last["collect/restarts"] == 0
    assert any(row["rollout/ep_rew_mean"] is not None for row in rows)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "complete"
    assert summary["env"] == "fastrl/Catch-v0"
    assert summary["steps"] >= 1500 and summary["iterations"] == last["time/iterations"] > 0
    assert len(summary["evaluation"]["returns"]) == 2
    assert -10 <= summary["evaluation"]["mean"] <= 10
    with (run / "config.toml").open("rb") as file:
        assert tomllib.load(file)["env"]["id"] == "fastrl/Catch-v0"
    _, state = load_newest(run)
    assert state["steps"] == summary["steps"]
    assert shared_memory_of(os.getpid()) <= before

    frames = TASK.play_spec(settings()).make().reset(seed=0)[0]
    assert fastrl.load_policy(run).predict(frames)[0] == fastrl.load(run).predict(frames)[0]
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes=2"]) == 0
    assert "2 episodes: mean return" in capsys.readouterr().out

    # A resumed run has all that was in its replay.
    assert main(["train", "--resume", str(run), "--total-timesteps=2500"]) == 0
    after = rows_of(run)
    assert after[: len(rows)] == rows
    assert after[len(rows)]["time/total_timesteps"] >= summary["steps"]
    assert after[len(rows)]["collect/replay_fill"] >= rows[-1]["collect/replay_fill"]
    assert after[-1]["time/iterations"] > last["time/iterations"]
    _, later = load_newest(run)
    assert later["learner"]["updates"] > state["learner"]["updates"]
    assert later["episodes"] >= state["episodes"]

    # A replay that is damaged is named, with what to do.
    description = json.loads((run / "replay" / "replay.json").read_text())
    for text in ("{", json.dumps(description | {"stack": 2**63})):
        (run / "replay" / "replay.json").write_text(text)
        line = train_refusal(capsys, "--resume", str(run))
        assert f"{run / 'replay'}: " in line
        assert line.endswith(f"; remove {run / 'replay'} to continue without it")


def test_an_environment_that_ends_its_process_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*given: object, **named: object) -> None:
        sys.exit(0)

    state = make_trainer().policy_checkpoint()
    monkeypatch.setattr(PixelEnv, "step", leave)
    with pytest.raises(
        CollectError, match=r"Catch-v0 failed at step 1 of the episode that reset\(.*: SystemExit: 0"
    ):
        TASK.evaluate(state, settings(), EvaluationOptions(1))
    monkeypatch.setattr(PixelEnv, "__init__", leave)
    with pytest.raises(CollectError, match="--env fastrl/Catch-v0: it could not be built: SystemExit: 0"):
        make_trainer()


class MaskedGame(gymnasium.Env[Any, Any]):
    """Frames of one grey; an action that is not allowed is an error."""

    observation_space = gymnasium.spaces.Box(0, 255, (12, 12), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def seen(self) -> tuple[Any, dict[str, Any]]:
        self.allowed = np.arange(3) != self.time % 3
        return np.full((12, 12), 20 * self.time, np.uint8), {"action_mask": self.allowed}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.seen()

    def step(self, action: Any) -> Any:
        assert self.allowed[action]
        self.time += 1
        obs, info = self.seen()
        return obs, float(action), self.time == 9, self.time == 7 and self.np_random.random() < 0.3, info


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["DQN", "PPO"])
def test_games_with_action_masks_are_learned_and_scored(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, settings = "MaskedNoFrameskip-v0", {"env__frame_skip": 1, "env__noop_max": 0, "env__size": 12}
    monkeypatch.setitem(gymnasium.registry, name, EnvironmentSpec(name, entry_point=MaskedGame))
    if algo == "DQN":
        settings |= {"capacity": 500, "learning_starts": 50, "conv": ()}
    common = {"action_masks": True, "num_envs": 2, "collector": "sequential", "eval_episodes": 0}
    model = getattr(fastrl, algo)(name, **common, **settings).learn(200)
    assert 1 <= model.evaluate(5)[0] <= 18
    obs, info = model.env_spec.make().reset(seed=0)
    model.save(tmp_path / "model")
    policy = fastrl.load_policy(tmp_path / "model")
    assert policy.needs_action_mask
    for deterministic in (True, False):
        action = policy.act(obs.reshape(1, -1), deterministic, info["action_mask"][None])
        assert info["action_mask"][action]


def test_an_evaluation_checks_the_policy() -> None:
    state = make_trainer().policy_checkpoint()
    with pytest.raises(
        CheckpointError,
        match=r"fastrl/Catch-v0: the policy takes 200 numbers for 3 actions, the environment has 300",
    ):
        TASK.evaluate(state, settings("--env.stack=3"), EvaluationOptions(1))


@pytest.mark.slow
def test_a_terminal_that_closes_makes_it_save_and_leave(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start_training(*SMALL, f"--run-dir={run}", start_new_session=True)
    assert process.stdout is not None
    process.stdout.close()
    while (
        not (run / "metrics.jsonl").exists()
        or rows_of(run)[-1:] == []
        or not rows_of(run)[-1]["time/iterations"]
    ):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    # Every process of the group gets it, and once more when the shell has ended.
    for _ in range(2):
        os.killpg(process.pid, signal.SIGHUP)
    process.wait(timeout=TIMEOUT)
    assert process.stderr is not None
    printed = process.stderr.read()
    assert (process.returncode, printed) == (
        129,
        "fastrl train: stdout failed (Broken pipe): the run continues without it\n",
    )
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["signal"]) == ("interrupted", "SIGHUP")
    assert load_newest(run)[1]["steps"] == summary["steps"] > 0


@pytest.mark.slow
def test_a_killed_worker_is_replaced_with_a_line_that_says_so() -> None:
    console = Console(record=True, width=200, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    trainer = make_trainer(
        "--total-timesteps=1000000", "--collector=executor", "--n-workers=2", console=console
    )
    rows = trainer.rows()
    killed = False
    for row in rows:
        if not killed and row.steps > 200:
            workers = [each for server in psutil.Process().children() for each in server.children()]
            workers[0].kill()
            killed, at = True, row.steps
        if row.record()["collect/restarts"] and row.steps > at + 500:
            break
    rows.close()  # type: ignore[attr-defined]
    assert re.search(r"worker \d failed at .*: killed by SIGKILL; training continues", console.export_text())
    assert trainer.summary()["restarts"] == trainer.source.state_dict()["restarts"] == 1
    assert trainer.steps > 700


def test_mistakes_end_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pixels = "fastrl.tasks.pixels.task:TASK"
    line = train_refusal(capsys, pixels, "--env=fastrl/Cach-v0")
    assert line == (
        "--env fastrl/Cach-v0: there is no environment fastrl/Cach-v0; did you mean fastrl/Catch-v0?"
    )
    assert "CartPole-v1: expected image observations" in train_refusal(capsys, pixels, "--env=CartPole-v1")
    assert "did you mean --env.num-envs?" in train_refusal(capsys, "fastrl/Catch-v0", "--env.num-env=3")
    assert "did you mean large-batch?" in train_refusal(capsys, "fastrl/Catch-v0", "--preset=large")
    assert "choose a smaller --replay.capacity" in train_refusal(
        capsys, "fastrl/Catch-v0", "--replay.capacity=1e13"
    )
    assert "learning would never start" in train_refusal(capsys, *SMALL, "--replay.learning-starts=3000")
    assert "set conv to smaller ones" in train_refusal(capsys, *SMALL, "--dqn.conv=8x20/1")
    assert "has no checkpoint" in train_refusal(
        capsys, "fastrl/Catch-v0", "--resume", str(tmp_path), "--preset=toy"
    )
    assert "no such run directory" in train_refusal(capsys, "--resume", str(tmp_path / "nowhere"))


def test_a_missing_extra_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gym_super_mario_bros", None)
    assert "pip install 'fastrl[mario]'" in train_refusal(capsys, "SuperMarioBros-v0")


def test_help_names_every_setting_and_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["train", "fastrl/Catch-v0", "--help-all"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    for leaf in leaves(CONFIG_TYPE).values():
        short = leaf.setting.option or f"--{leaf.key.rpartition('.')[2].replace('_', '-')}"
        assert re.search(rf"^  ({short}|{re.escape(leaf.long_option)})\b", out, re.MULTILINE)
        assert leaf.description
    for name in PRESETS:
        assert f"  {name}: " in out


@pytest.mark.parametrize("name", PRESETS)
def test_presets_fit_the_settings(name: str) -> None:
    values = TASK.preset_values(CONFIG_TYPE, name)
    settings = build(CONFIG_TYPE, values)
    assert values and values == {key: operator.attrgetter(key)(settings) for key in values}


@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_options_of_a_game_reach_it(algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["fastrl/Catch-v0", f"--algo={algorithm}", "--total-timesteps=100"]
    wrong = train_refusal(capsys, *small, "--env-options", "bals=3")
    assert "unexpected keyword argument 'bals'" in wrong and "\n" not in wrong
    task_settings = TASK.make_settings(
        {"env.id": "fastrl/Catch-v0", "run.algo": algorithm, "env.options": ("size=7",)}
    )
    env = TASK.env_spec(task_settings).make()
    # A replay of frames stacks them along the first axis.
    assert env.observation_space.shape == ((2, 7, 7) if algorithm == "dqn" else (7, 7, 2))
    assert "such as lanes=3" in train_refusal(capsys, *small, "--env-options", "balls")


def test_presets_come_with_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert PRESETS.presets_for("SuperMarioBros-1-1-v0") == ("mario",)
    assert PRESETS.presets_for("ALE/Pong-v5") == PRESETS.presets_for("Anything-v0") == ("atari",)
    for options, batch, accumulate in (
        (["--env=ALE/Pong-v5"], 32, 1),
        (["ALE/Pong-v5", "--preset=large-batch"], 512, 4),
    ):
        assert main(["train", *options, "--print-config"]) == 0
        tree = tomllib.loads(capsys.readouterr().out)
        assert tree["dqn"]["prioritized"] is True
        assert (tree["dqn"]["batch_size"], tree["dqn"]["accumulate"]) == (batch, accumulate)
    assert main(["train", "fastrl/Catch-v0", "--preset=toy", "--print-config"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["env"]["id"] == "fastrl/Catch-v0"
