"""Runs in stages: settings change at given steps, observations get longer, and all resumes exactly."""

import copy
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import OPTIONS, learnt, same, settings_of, trainer_of, untimed_state

import fastrl
from fastrl.cli.main import main
from fastrl.runs.checkpoint import Checkpoints, load_newest
from fastrl.tasks import find
from fastrl.training.stages import saved_stage, stages_of
from fastrl.training.trainer import Trainer

# An update has 80 environment steps.
STAGES = (
    "160 env.memory=none",
    "320 env.memory=scan ppo.critic_warmup=100 ppo.learning_rate=5e-3 ppo.final_learning_rate=0",
)
RUN = ["--total-timesteps=480", "--run.row-seconds=0", "--env.memory=decoys", "--stages", *STAGES]
STAGED = [*OPTIONS, *RUN]


def staged_trainer(*options: str) -> Trainer:
    return trainer_of("cage2", *STAGED, *options)


def obs_dim(state: dict[str, Any]) -> int:
    size: int = state["policy"]["architecture"]["obs_dim"]
    return size


def states_of(trainer: Trainer) -> list[dict[str, Any]]:
    """A copy of the state after each update."""
    return [copy.deepcopy(trainer.state_dict()) for _ in trainer.rows()]


def test_stages_have_their_settings_one_after_the_other() -> None:
    trainer = staged_trainer()
    rates, sizes, policies = [], [], []
    for row in trainer.rows():
        rates.append(row.metrics["train/learning_rate"])
        state = copy.deepcopy(trainer.state_dict())
        sizes.append(obs_dim(state))
        policies.append(state["policy"]["weights"])
        assert state["config"]["env"]["memory"] == {52: "none", 62: "scan", 103: "decoys"}[sizes[-1]]
        assert state["stages"]["config"]["run"]["stages"] == list(STAGES)
    assert sizes == [52, 52, 62, 62, 103, 103]
    # Each stage has a schedule of its own.
    np.testing.assert_allclose(rates, [1e-3, 5e-4, 5e-3, 2.5e-3, 1e-3, 5e-4])
    # The critic alone learns in the two updates of the second stage.
    for name, tensor in policies[2].items():
        before, after = policies[1][name], policies[3][name]
        if name.startswith("actor"):
            assert torch.equal(tensor, after)
            assert torch.equal(tensor[..., : before.shape[-1]], before)
            assert not tensor[..., before.shape[-1] :].any()
    assert trainer.steps == 480
    assert trainer.iteration == 6


def test_a_learning_rate_that_a_stage_names_alone_is_constant_in_it() -> None:
    settings = settings_of(
        "cage2", *OPTIONS, "--total-timesteps=480", "--stages", "160 ppo.learning_rate=5e-3"
    )
    first, last = (stage.settings.ppo for stage in stages_of(settings))
    assert (first.learning_rate, first.final_learning_rate) == (5e-3, None)
    assert (last.learning_rate, last.final_learning_rate) == (1e-3, 0.0)


def test_adam_goes_on_from_stage_to_stage() -> None:
    trainer = staged_trainer()
    before: dict[str, Any] = {}
    for state in states_of(trainer):
        adam = state["learner"]["optimizer"]["adam"]
        if before:
            assert adam["step"] >= before["step"]
        before = adam
    # 2 updates of 4 steps in the first and last stage; the warm-up has an optimiser of its own.
    assert before["step"] == 16


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["compiled", "torch"])
def test_run_in_stages_resumes_exactly_after_any_update(backend: str) -> None:
    option = f"--ppo.update-backend={backend}"
    through = states_of(staged_trainer(option))
    assert len(through) == 6
    assert [saved_stage(state) for state in through] == [0, 0, 1, 1, 2, 2]
    for done, state in enumerate(through[:-1]):
        settings = settings_of("cage2", *STAGED, option)
        resumed = find("cage2").make_trainer(settings, stage=saved_stage(state))
        resumed.load_state_dict(copy.deepcopy(state))
        for expected, found in zip(through[done + 1 :], states_of(resumed), strict=True):
            assert same(untimed_state(expected), untimed_state(found)), (done, found["steps"])


class Interrupt(fastrl.callbacks.Callback):
    """Asks the process to stop, as Ctrl-C does."""

    name = "interrupt"

    def __init__(self, at: int) -> None:
        self.at = at

    def on_update(self, run: Any) -> None:
        if run.timesteps == self.at:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_interrupted_run_of_one_directory_ends_as_the_undisturbed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["train", "cage2", *STAGED, "--run.keep-checkpoints=9", f"--run-dir={whole}"]) == 0
    assert "stage 2 of 3 from step 160: 320 env.memory=scan" in capsys.readouterr().out
    assert [file.name[-15:-12] for file in Checkpoints(whole / "checkpoints").paths()] == [
        "160",
        "320",
        "480",
    ]
    model = fastrl.PPO("cage2", config=whole / "config.toml")
    for at in (160, 240, 320):
        with pytest.raises(KeyboardInterrupt):
            model.learn(callbacks=[Interrupt(at)], run_dir=parts)
        # A checkpoint of a stage loads as a policy of that stage's observations.
        size = 52 if at == 160 else 62
        policy = fastrl.load_policy(parts)
        assert policy.obs_dim == size
        assert model.env_spec.make().observation_space.shape == (size,)
        assert main(["eval", str(parts), "--episodes=2"]) == 0
        model = fastrl.load(parts)
        model.evaluate(2)
    assert main(["train", "--resume", str(parts)]) == 0
    a, b = learnt(whole), learnt(parts)
    for each in (a, b):
        each["stages"] = each["stages"]["index"]
    assert same(a, b)


def test_python_trains_the_same(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", "cage2", *STAGED, f"--run-dir={run}"]) == 0
    model = fastrl.PPO("cage2", config=run / "config.toml").learn()
    ours, theirs = model.trainer.policy_checkpoint()["policy"], load_newest(run)[1]["policy"]
    assert same(ours, theirs)
    assert len(model.metrics) == 6


@pytest.mark.slow
def test_evaluations_on_the_way_see_what_the_stage_observes(tmp_path: Path) -> None:
    options = [*STAGED, "--run.eval-episodes=2", "--eval-freq=1"]
    assert main(["train", "cage2", *options, f"--run-dir={tmp_path / 'run'}"]) == 0


def refusal(*options: str) -> str:
    with pytest.raises(fastrl.utils.errors.UserError) as caught:
        trainer_of("cage2", *OPTIONS, "--total-timesteps=480", *options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_makes_no_stages_is_refused_in_a_line() -> None:
    for change in (
        "run.seed=1",
        "ppo.hidden=4",
        "env.num_envs=4",
        "ppo.memory=gru",
        "collect.collector=sync",
    ):
        line = refusal("--stages", f"160 {change}")
        assert line.startswith(f"run.stages: {change.partition('=')[0]} is the same in all stages"), line
    assert "'env.memory' in '160 env.memory' should be TABLE.NAME=VALUE" in refusal(
        "--stages", "160 env.memory"
    )
    assert "run.stages: env.memory should be" in refusal("--stages", "160 env.memory=all")
    assert "run.stages: the end of 'soon env.memory=scan'" in refusal("--stages", "soon env.memory=scan")
    line = refusal("--stages", "160 env.memory=none", "80 env.memory=scan")
    assert "should end after step 160, got 80" in line
    line = refusal("--env.memory=none", "--stages", "160 env.memory=scan")
    assert "stage 2: its network has 62 inputs, not 52: there may be more than in it, not fewer" in line
    line = refusal("--stages", "160 env.actions=none")
    assert "stage 2: it chooses among other actions: env.actions should be the same" in line
    with pytest.raises(fastrl.utils.errors.UserError, match="stages end at environment steps"):
        stages_of(settings_of("cage2", "--total-episodes=10", "--stages", "160 env.memory=none"))
    with pytest.raises(fastrl.utils.errors.UserError, match="--algo dqn has no stages"):
        stages_of(settings_of("cage2", "--algo=dqn", "--stages", "160 env.memory=none"))


@pytest.mark.slow
def test_stage_whose_value_function_sees_the_truth_gives_a_policy_of_blue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    truth = ["--env.memory=decoys", "--env.observe=truth", "--ppo.actor-inputs=103", "--eval-freq=1"]
    stages = ["--stages", "160 env.memory=scan env.observe=blue ppo.actor_inputs=0"]
    options = [*OPTIONS, "--total-timesteps=320", "--run.eval-episodes=2", *truth, *stages]
    assert main(["train", "cage2", *options, f"--run-dir={run}"]) == 0
    policy = fastrl.load_policy(run)
    assert (policy.obs_dim, policy.memory, policy.observe) == (103, "decoys", "blue")
    assert policy.act(np.zeros((2, 103), np.float32)).shape == (2,)
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes=2"]) == 0
    assert "true state" not in capsys.readouterr().out
    assert "103 with --env.memory decoys" in refusal(*truth, "--ppo.actor-inputs=62")
    assert "in CAGE 2 it is for --env.observe truth" in refusal("--ppo.actor-inputs=52")
