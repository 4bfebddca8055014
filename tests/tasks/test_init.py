"""New runs that start with the weights of old ones: what is loaded, what is not, what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import train_refusal

from fastrl.cli.main import main
from fastrl.runs.checkpoint import find_checkpoint, load_newest, save_checkpoint

CAGE2 = [
    *("cage2", "--env.num-envs=4", "--env.episode-length=10", "--total-timesteps=40"),
    *(
        "--ppo.num-steps=10",
        "--ppo.minibatch-size=20",
        "--ppo.hidden=8",
        "--run.eval-episodes=0",
        "--device=cpu",
    ),
]
GYM = [
    *(
        "CartPole-v1",
        "--collector=sequential",
        "--num-envs=2",
        "--total-timesteps=16",
        "--device=cpu",
    ),
    "--run.eval-episodes=0",
]
PPO = ["--ppo.num-steps=8", "--ppo.minibatch-size=8", "--ppo.hidden=8"]
IMPALA = ["--algo=impala", "--impala.num-steps=8", "--impala.hidden=8"]
PIXELS = [
    *("fastrl/Catch-v0", "--dqn.conv=8x4/4", "--dqn.hidden=16", "--replay.capacity=2000"),
    *(
        "--replay.learning-starts=100",
        "--n-workers=1",
        "--total-timesteps=200",
        "--run.eval-episodes=0",
        "--device=cpu",
    ),
]
PENDULUM = [
    *("Pendulum-v1", "--collector=sequential", "--num-envs=2", "--total-timesteps=40", "--device=cpu"),
    *("--replay.learning-starts=20", "--run.eval-episodes=0"),
]
SAC = ["--algo=sac", "--sac.hidden=8", "--sac.batch-size=8"]
TD3 = ["--algo=td3", "--td3.hidden=8", "--td3.batch-size=8"]
TRAFFIC = [
    *(
        "traffic",
        "--env=fastrl/ring-v0",
        "--vehicles=1",
        "--num-envs=2",
        "--total-episodes=2",
        "--env.options=horizon=10",
    ),
    *("--ippo.num-steps=10", "--ippo.hidden=8", "--run.eval-episodes=0", "--device=cpu"),
]


def ppo_weights(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return state["policy"]["weights"]


def actor_weights(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    critics = state["learner"]["critics"].values()
    return state["policy"]["actors"]["shared"]["weights"] | next(iter(critics))["weights"]


def sac_weights(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {**ppo_weights(state), "log_temperature": state["learner"]["log_temperature"]}


Weights = Callable[[dict[str, Any]], dict[str, torch.Tensor]]


@pytest.mark.parametrize(
    ("both", "first", "second", "weights"),
    [
        (CAGE2, [], ["--ppo.learning-rate=0", "--seed=5", "--red-agent=bline"], ppo_weights),
        (GYM, PPO, [*IMPALA, "--impala.learning-rate=0", "--seed=5"], ppo_weights),
        pytest.param(PIXELS, [], ["--dqn.learning-rate=0", "--seed=5"], ppo_weights, marks=pytest.mark.slow),
        (TRAFFIC, [], ["--ippo.learning-rate=0", "--seed=5"], actor_weights),
        (
            [*PENDULUM, *SAC],
            ["--sac.learning-rate=0.1"],
            ["--sac.learning-rate=0", "--sac.temperature=0.7", "--seed=5"],
            sac_weights,
        ),
        (
            [*PENDULUM, *TD3],
            [],
            ["--td3.learning-rate=0", "--td3.exploration-noise=0.3", "--seed=5"],
            ppo_weights,
        ),
    ],
    ids=["cage2", "gym", "pixels", "traffic", "sac", "td3"],
)
def test_weights_are_loaded_and_all_else_is_new(
    both: list[str],
    first: list[str],
    second: list[str],
    weights: Weights,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    assert main(["train", *both, *first, f"--run-dir={old}"]) == 0
    assert main(["train", *both, *second, f"--init={old}", f"--run-dir={new}"]) == 0
    assert f"starting with the weights of {find_checkpoint(old)}" in capsys.readouterr().out.replace("\n", "")
    before, after = load_newest(old)[1], load_newest(new)[1]
    # The learning rate is 0, so they are what it started with.
    for name, tensor in weights(before).items():
        assert torch.equal(weights(after)[name], tensor), name
    assert after["steps"] <= 2 * before["steps"]
    assert after["config"]["run"]["init_from"] == str(old)
    assert main(["train", "--resume", str(old), "--seed=5"]) == 2
    assert f"it would be another run: --init {find_checkpoint(old)} starts one" in capsys.readouterr().err


def test_run_with_further_inputs_starts_with_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    assert main(["train", *CAGE2, "--env.memory=none", f"--run-dir={old}"]) == 0
    wider = [*CAGE2, "--ppo.learning-rate=0", "--seed=5", f"--run-dir={new}"]
    assert main(["train", *wider, "--init", str(old)]) == 0
    out = capsys.readouterr().out.replace("\n", "")
    assert "its 52 inputs are the first, 10 new ones start with weights of zero" in out
    before, after = (ppo_weights(load_newest(run)[1]) for run in (old, new))
    for name, tensor in before.items():
        if tensor.shape == after[name].shape:
            assert torch.equal(after[name], tensor), name
        else:
            assert torch.equal(after[name][:, :52], tensor)
            assert not after[name][:, 52:].any()
    to = ["--run-dir", tmp_path / "third", "--init", new]
    line = train_refusal(capsys, *CAGE2, "--env.memory=none", *to)
    assert "its network has 62 inputs, not 52: there may be more than in it, not fewer" in line


@pytest.mark.slow
def test_what_does_not_fit_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*GYM, *PPO]
    gym, cage2, new = tmp_path / "gym", tmp_path / "cage2", tmp_path / "new"
    assert main(["train", *options, f"--run-dir={gym}"]) == 0
    assert main(["train", *CAGE2, f"--run-dir={cage2}"]) == 0
    to = ["--run-dir", new, "--init"]
    assert "its network has hidden [8], not [8, 4]" in train_refusal(
        capsys, *options, "--ppo.hidden=8,4", *to, gym
    )
    line = train_refusal(capsys, "Acrobot-v1", *options[1:], *to, gym)
    assert "its actions are {'kind': 'discrete', 'size': 2}, not {'kind': 'discrete', 'size': 3}" in line
    assert f"--init {cage2}: a run of another task, cage2, not of gym" in train_refusal(
        capsys, *options, *to, cage2
    )
    for actions in ("none", ",".join(map(str, range(80)))):
        line = train_refusal(capsys, *CAGE2, f"--env.actions={actions}", *to, cage2)
        assert "it chooses among other actions: env.actions should be the same" in line
    assert "no such run directory" in train_refusal(capsys, *options, *to, tmp_path / "nowhere")
    file, state = load_newest(gym)
    save_checkpoint(file, {**state, "learner": {**state["learner"], "policy": {}}})
    assert "has no weights that this fastrl can use: KeyError('architecture')" in train_refusal(
        capsys, *options, *to, gym
    )
    assert not new.exists()
