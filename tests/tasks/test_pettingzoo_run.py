"""Runs on parallel environments of PettingZoo: found by their factory, trained, resumed and evaluated."""

import json
from pathlib import Path

import parallel_toys
import pytest
from small_runs import differences, untimed_state

import fastrl
from fastrl.cli.main import main
from fastrl.tasks.pettingzoo.task import TASK
from fastrl.training.checkpoint import load_checkpoint, load_newest, save_checkpoint
from fastrl.training.trainer import Trainer

SMALL = ["--preset=smoke", "--env.num-envs=3", "--run.eval-episodes=5"]


def train(run: Path, env: str = "Leavers", *options: str) -> int:
    return main(["train", f"parallel_toys:{env}", *SMALL, f"--run-dir={run}", *options])


def training_of(env: str, algorithm: str) -> Trainer:
    # An update has 96 steps, 32 of each environment: it ends in the middle of episodes of 6 steps.
    changes = {
        "run.algo": algorithm,
        "run.total_timesteps": 96 * 4,
        "run.eval_episodes": 0,
        "env.id": f"parallel_toys:{env}",
        "env.num_envs": 3,
    }
    training = TASK.make_trainer(TASK.make_settings(changes, preset="smoke"))
    assert isinstance(training, Trainer)
    return training


@pytest.mark.parametrize("algorithm", ["ippo", "mappo", "reinforce"])
@pytest.mark.parametrize("env", ["Leavers", "Differing"])
def test_stopped_in_the_middle_of_episodes_it_ends_as_if_never_stopped(
    env: str, algorithm: str, tmp_path: Path
) -> None:
    straight, training = training_of(env, algorithm), training_of(env, algorithm)
    list(straight.rows())
    rows = training.rows()
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    save_checkpoint(tmp_path / "stopped", training.state_dict())
    resumed = training_of(env, algorithm)
    resumed.load_state_dict(load_checkpoint(tmp_path / "stopped"))
    list(resumed.rows())
    ends = [untimed_state(each.state_dict()) for each in (resumed, straight)]
    assert ends[0]["source"]["steps"] == 96 * 4
    assert differences(*ends) == []


def test_a_factory_is_found_to_make_a_parallel_environment(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "Leavers", "--total-timesteps=96") == 0
    _, state = load_newest(tmp_path / "run")
    assert state["kind"] == "pettingzoo" and state["algorithm"] == "ippo"


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
        ("ImageSeeing", (), "observes images"),
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


def test_models_train_from_python() -> None:
    model = fastrl.IPPO(parallel_toys.Leavers, preset="smoke", num_envs=2, eval_episodes=0)
    model.learn(192)
    mean, _ = model.evaluate(episodes=2)
    assert 0 <= mean <= 13 / 3
