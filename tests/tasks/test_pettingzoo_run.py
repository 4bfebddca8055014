"""Runs on parallel environments of PettingZoo: found by their factory, trained, resumed and evaluated."""

import functools
import json
import multiprocessing
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import parallel_toys
import pytest
from shared_memory import shared_memory_of
from small_runs import differences, untimed_state
from waiting import is_running

import fastrl
from fastrl.cli.main import main
from fastrl.collectors.protocol import CollectError
from fastrl.play.policy import PredictError
from fastrl.runs.checkpoint import load_checkpoint, load_newest, save_checkpoint
from fastrl.tasks.pettingzoo.task import TASK
from fastrl.training.trainer import Trainer

SMALL = ["--preset=smoke", "--env.num-envs=3", "--run.eval-episodes=5"]


def train(run: Path, env: str = "Leavers", *options: str) -> int:
    return main(["train", f"parallel_toys:{env}", *SMALL, f"--run-dir={run}", *options])


def training_of(env: str, algorithm: str, updates: int = 4, **changes: Any) -> Trainer:
    # An update has 96 steps, 32 of each environment: it ends in the middle of episodes of 6 steps.
    changes = {
        **{key.replace("__", "."): value for key, value in changes.items()},
        "run.algo": algorithm,
        "run.total_timesteps": 96 * updates,
        # A row after each update.
        "run.row_seconds": 0,
        "run.eval_episodes": 0,
        "env.id": f"parallel_toys:{env}",
        "env.num_envs": 3,
    }
    training = TASK.make_trainer(TASK.make_settings(changes, preset="smoke"))
    assert isinstance(training, Trainer)
    return training


def check_resume(make: Callable[..., Trainer], updates: int, path: Path, **resumed_with: Any) -> None:
    """Compares a training that was never stopped with one that was stopped and resumed, perhaps with other settings."""
    straight, training = make(), make()
    list(straight.rows())
    rows = training.rows()
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    save_checkpoint(path, training.state_dict())
    resumed = make(**resumed_with)
    resumed.load_state_dict(load_checkpoint(path))
    list(resumed.rows())
    ends = [untimed_state(each.state_dict()) for each in (resumed, straight)]
    assert ends[0]["source"]["steps"] == 96 * updates
    assert differences(*ends) == []


@pytest.mark.parametrize("algorithm", ["ippo", "mappo", "reinforce"])
def test_policies_of_differing_agents_resume_to_the_bit(algorithm: str, tmp_path: Path) -> None:
    check_resume(functools.partial(training_of, "Differing", algorithm), 4, tmp_path / "stopped")


def test_workers_step_to_the_same_bits_and_take_over_a_resumed_run(tmp_path: Path) -> None:
    make = functools.partial(training_of, "Kinds", "ippo", 2, env__options=("obs=nested", "length=50"))
    check_resume(make, 2, tmp_path / "stopped", collect__n_workers=2)


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced() -> None:
    training = training_of("Leavers", "ippo", 4, collect__n_workers=2)
    rows = training.rows()
    next(rows)
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    list(rows)
    assert training.steps == 384
    assert training.source.report().restarts == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ((), "parallel_toys:Failing failed: KeyError: 'lane 3'"),
        (
            ("--n-workers=2", "--env.options", "at=0"),
            r"worker \d failed 3 times at a fragment of rows [0-2 to]+: KeyError: 'lane 3'",
        ),
        (("--env.options", "at=0"), "parallel_toys:Failing failed: KeyError: 'lane 3'"),
        (
            ("--env.options", "at=-1"),
            "--env parallel_toys:Failing: it could not be built: KeyError: 'lane 3'",
        ),
    ],
)
def test_an_environment_that_raises_is_one_line_after_its_traceback(
    options: tuple[str, ...], line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", "Failing", "--algo=ippo", *options) == 1
    *trace, last = capfd.readouterr().err.splitlines()
    assert re.fullmatch(f"fastrl train: error: {line}", last)
    assert trace[0] == "Traceback (most recent call last):" and trace[-1] == "KeyError: 'lane 3'"
    if "--n-workers=2" not in options:
        # Only its own code.
        files = [row for row in trace if row.startswith("  File")]
        assert all("parallel_toys.py" in row for row in files)


def test_an_environment_that_raises_loses_nothing_of_the_updates_before(tmp_path: Path) -> None:
    training = training_of("Failing", "ippo", 3)
    rows = training.rows()
    next(rows)
    with pytest.raises(CollectError, match="lane 3"):
        list(rows)
    save_checkpoint(tmp_path / "stopped", training.state_dict())
    resumed = training_of("Failing", "ippo", 3, env__options=("at=100",))
    resumed.load_state_dict(load_checkpoint(tmp_path / "stopped"))
    list(resumed.rows())
    assert resumed.steps == 288


def test_workers_end_with_the_training(tmp_path: Path) -> None:
    before = shared_memory_of(os.getpid())
    training = training_of("Leavers", "ippo", 2, collect__n_workers=2)
    rows = training.rows()
    next(rows)
    pids = [child.pid for child in multiprocessing.active_children()]
    assert len(pids) == 2 and all(map(is_running, pids))
    list(rows)
    assert shared_memory_of(os.getpid()) <= before and not any(map(is_running, pids))
    save_checkpoint(tmp_path / "end", training.state_dict())


def test_what_breaks_the_interface_in_a_worker_is_one_line() -> None:
    training = training_of("Vanishing", "ippo", collect__n_workers=2)
    with pytest.raises(CollectError, match="agent 'b' left agents without being terminated"):
        list(training.rows())


def test_a_factory_is_found_to_make_a_parallel_environment(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "Leavers", "--total-timesteps=96") == 0
    _, state = load_newest(tmp_path / "run")
    assert state["kind"] == "pettingzoo" and state["algorithm"] == "ippo"


@pytest.mark.slow
def test_agents_learn_to_choose_what_they_see(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, "Leavers", "--total-timesteps=6000") == 0
    summary = json.loads((run / "summary.json").read_text())
    # 3 steps of "a", 6 of "b" and 4 of "late", each paid 1, over three agents.
    assert summary["evaluation"]["mean"] == pytest.approx(13 / 3)
    assert main(["eval", str(run), "--episodes=3", "--trust"]) == 0


def test_agents_of_other_spaces_have_policies_of_their_own(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "Differing", "--total-timesteps=96") == 0
    _, state = load_newest(tmp_path / "run")
    assert sorted(state["policy"]["actors"]) == ["group0", "group1"]


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("Mixed", (), "should be equal, or all Discrete"),
        ("OtherImages", (), "should all have one observation space"),
        ("Leavers", ("--env.size=8",), "--env.size is for images"),
        ("Kinds", ("--env.stack=2",), "--env.stack 2 needs --env.size"),
        ("Leavers", ("--ippo.encoder=nature",), "the encoder nature is for images"),
        ("Vanishing", (), "left agents without being terminated or truncated"),
        ("not_parallel", ("--algo=ippo",), "should make a PettingZoo ParallelEnv"),
        ("Leavers", ("--algo=ppo",), "a PettingZoo ParallelEnv"),
        ("Leavers", ("--env.options", "size=3"), "unexpected keyword argument 'size'"),
    ],
)
def test_a_mistake_is_one_line(
    env: str, options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", env, "--total-timesteps=96", *options) in (1, 2)
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


@pytest.mark.slow
def test_a_run_on_small_frames_is_scored_and_filmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "episode.gif"
    assert train(run, "Kinds", "--env.size=8", "--env.stack=2", "--total-timesteps=96") == 0
    assert main(["eval", str(run), "--episodes=3", "--trust"]) == 0
    capsys.readouterr()
    assert main(["render", str(run), f"--out={out}", "--trust"]) == 0
    # The first picture, and one after each of 6 steps.
    assert capsys.readouterr().out.startswith(f"{out}: 7 pictures, return ")
    assert out.stat().st_size > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "package", "options"),
    [
        ("mpe2.simple_spread_v3", "mpe2", ("--algo=mappo", "--env.num-envs=2", "--total-timesteps=50")),
        (
            "pettingzoo.butterfly.pistonball_v6",
            "pymunk",
            ("--env.num-envs=2", "--ippo.num-steps=4", "--total-timesteps=8", "--env.options=max_cycles=5"),
        ),
    ],
)
def test_environments_with_a_preset(
    env: str, package: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    run = tmp_path / "run"
    assert main(["train", f"{env}:parallel_env", *options, "--run.eval-episodes=2", f"--run-dir={run}"]) == 0
    assert main(["render", str(run), f"--out={tmp_path / 'episode.gif'}", "--trust"]) == 0
    assert (tmp_path / "episode.gif").stat().st_size > 1000


@pytest.mark.learning
def test_pictures_are_learnt_from(tmp_path: Path) -> None:
    options = ("--env.size=8", "--env.stack=2", "--total-timesteps=3000", "--ippo.learning-rate=3e-3")
    assert train(tmp_path / "run", "Kinds", *options) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["evaluation"]["mean"] > 4


@pytest.mark.slow
def test_whole_episodes_are_learnt_from() -> None:
    options: dict[str, Any] = {"num_envs": 4, "episodes_per_update": 12, "learning_rate": 3e-3}
    model = fastrl.IPPO(parallel_toys.Leavers, eval_episodes=0, **options)
    model.learn(3_000)
    assert model.steps % 72 == 0
    assert model.evaluate(episodes=4)[0] > 4


def test_whole_episodes_are_cut_off_after_their_longest_steps() -> None:
    options: dict[str, Any] = {"episodes_per_update": 3, "collect__max_episode_steps": 4}
    model = fastrl.IPPO(parallel_toys.Leavers, preset="smoke", num_envs=2, eval_episodes=0, **options)
    model.learn(24)
    assert model.steps == 24


def test_a_policy_chooses_actions_of_the_agents_that_are_there(tmp_path: Path) -> None:
    model = fastrl.MAPPO(
        parallel_toys.Kinds,
        preset="smoke",
        num_envs=2,
        eval_episodes=0,
        env__options=["actions=multi_binary"],
    )
    env = parallel_toys.Kinds(actions="multi_binary", length=3)
    observations, _ = env.reset(seed=1)
    while env.agents:
        actions, state = model.predict(observations)
        assert state is None and actions.keys() == observations.keys()
        observations, *_ = env.step(actions)
        observations = {agent: observations[agent] for agent in env.agents}
    for wrong, message in (
        (np.zeros(3), "expected a dict of observations by agent"),
        ({"c": 0}, "expected a dict of observations by agent"),
        ({"a": np.zeros(3, np.uint8)}, r"obs\['a'\]: expected integers of shape"),
    ):
        with pytest.raises(PredictError, match=message):
            model.predict(wrong)


def test_models_train_from_python() -> None:
    model = fastrl.IPPO(parallel_toys.Leavers, preset="smoke", num_envs=2, eval_episodes=0)
    model.learn(192)
    mean, _ = model.evaluate(episodes=2)
    assert 0 <= mean <= 13 / 3
