"""The examples, each run as its text says, or with small budgets."""

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pages
import pytest
import torch
from small_runs import differences, learnt, rows_of

import fastrl
from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.cli.main import main
from fastrl.envs import Cage2VectorEnv
from fastrl.networks.parameters import generator_of
from fastrl.rollout.fragment import Fragment
from fastrl.utils import torch_threads
from fastrl.utils.timer import Stopwatch

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
if not EXAMPLES.exists():
    pytest.skip("a source distribution has no examples", allow_module_level=True)
COLLECTORS = ("sequential", "sync", "executor")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def run_example(name: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_cart_pole_is_learned_in_three_lines(tmp_path: Path) -> None:
    said = run_example("cartpole.py", tmp_path)
    assert float(said.partition("(")[2].partition(",")[0]) > 400
    assert "the first action:" in said
    assert [file.name for file in tmp_path.iterdir()] == ["cartpole.safetensors"]


@pytest.mark.slow
def test_an_own_network_has_ten_lines_and_learns(tmp_path: Path) -> None:
    text = (EXAMPLES / "own_network.py").read_text()
    lines = text.partition("class Net")[2].partition("if __name__")[0].splitlines()
    assert len([line for line in lines if line.strip()]) <= 10
    assert float(run_example("own_network.py", tmp_path).partition("(")[2].partition(",")[0]) > 100


@pytest.mark.slow
def test_an_own_callback_has_five_lines_and_stops_the_training(tmp_path: Path) -> None:
    text = (EXAMPLES / "own_callback.py").read_text()
    lines = text.partition("class ")[2].partition("if __name__")[0].splitlines()
    assert len([line for line in lines if line.strip()]) <= 5
    said = run_example("own_callback.py", tmp_path)
    assert 1_000 < int(said.split()[2].replace(",", "")) < 200_000


def test_there_are_few_examples_and_they_are_short() -> None:
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert len(scripts) <= 10 and len(list(EXAMPLES.glob("notebooks/*.ipynb"))) == 3
    for script in scripts:
        lines = script.read_text(encoding="utf-8").splitlines()
        most = 180 if script.name == "ppo_in_one_file.py" else 60
        assert len(lines) <= most, f"{script.name} has {len(lines)} lines"


@pytest.mark.slow
def test_an_own_environment_is_learned(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    example("own_environment").main()
    before, after = (
        float(line.partition("(")[2].partition(",")[0]) for line in capsys.readouterr().out.splitlines()
    )
    assert before < 60 < 80 < after


@pytest.mark.slow
def test_an_own_loop_learns_on_compiled_games(example: Any) -> None:
    main = example("own_loop").main
    assert main(updates=1) < -80 and main(updates=30) > -65


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cage2", "traffic"])
def test_the_simulators_are_trained_on(
    name: str,
    example: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    pages.with_small_budgets(monkeypatch)
    example(name).main()
    assert "red holds" in capsys.readouterr().out if name == "cage2" else list(tmp_path.glob("films/*.gif"))


@pytest.mark.slow
def test_an_own_algorithm_learns(example: Any) -> None:
    algo = example("own_algorithm").A2C
    settings = {"learning_rate": 3e-3, "value_coef": 1.0, "max_grad_norm": 1.0, "collector": "sequential"}
    model = fastrl.Model("CartPole-v1", algo=algo, num_envs=16, seed=0, **settings)
    assert model.learn(80_000, progress=False).evaluate(5)[0] > 300


@pytest.mark.parametrize("masks", [False, True], ids=["box", "masks"])
def test_an_own_algorithm_takes_any_action(masks: bool, example: Any) -> None:
    algo = example("own_algorithm").A2C
    env, options = ("fastrl/Cage2-v0", {"action_masks": True}) if masks else ("Pendulum-v1", {})
    model = fastrl.Model(env, algo=algo, num_envs=4, seed=0, **options)
    assert np.isfinite(model.learn(64, progress=False).metrics[-1]["train/policy_loss"])


@pytest.mark.slow
@pytest.mark.parametrize("collector", COLLECTORS)
def test_an_own_algorithm_goes_with_collectors_and_resumes_exactly(
    collector: str, example: Any, tmp_path: Path
) -> None:
    example("own_algorithm")
    command = ["train", "CartPole-v1", "--algo=own_algorithm:A2C", "--num-envs=4", f"--collector={collector}"]
    command += ["--a2c.gae-lambda=0.9", "--run.eval-episodes=2", "--run.row-seconds=0"]
    command += [] if collector == "sequential" else ["--n-workers=2"]
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    assert main([*command, "--total-timesteps=1600", f"--run-dir={straight}"]) == 0
    assert main([*command, "--total-timesteps=800", f"--run-dir={stopped}"]) == 0
    assert main(["train", f"--resume={stopped}", "--trust", "--total-timesteps=1600"]) == 0
    assert differences(learnt(straight)["learner"], learnt(stopped)["learner"]) == []
    assert rows_of(straight)[-1]["time/total_timesteps"] == 1600
    assert json.loads((straight / "summary.json").read_text())["collector"] == collector


@pytest.mark.slow
def test_own_losses_learn(tmp_path: Path) -> None:
    said = run_example("own_loss.py", tmp_path).splitlines()
    assert len(said) == 2
    assert all(float(line.partition("(")[2].partition(",")[0]) > 200 for line in said)


@pytest.mark.slow
def test_ppo_in_one_file_learns(example: Any) -> None:
    module = example("ppo_in_one_file")
    assert module.main(module.Args(total_timesteps=100_000)) > -80  # at first about -160


@pytest.mark.parametrize("backend", ["torch", "compiled"])
def test_ppo_in_one_file_has_the_losses_of_ppo(backend: Any, example: Any) -> None:
    module = example("ppo_in_one_file")
    args = module.Args(num_envs=6, num_steps=20, num_epochs=2, minibatch_size=40)
    games = Cage2VectorEnv(6, red_agent="bline", episode_length=7, autoreset_mode="same_step")
    spaces = games.single_observation_space, games.single_action_space
    shared = {key: value for key, value in dataclasses.asdict(args).items() if key in vars(PPOConfig())}
    config = PPOConfig(
        **shared,
        final_entropy_coef=args.entropy_coef,
        final_learning_rate=0.0,
        normalize_returns=False,
        normalize_advantages="minibatch",
        hidden=(64, 64),
        activation="tanh",
        update_backend=backend,
    )
    ours = PPO(config, Problem(*spaces, 6, 4 * 120, seed=5))
    agent = module.Agent(spaces[0].shape[0], int(spaces[1].n))
    for theirs, own in zip(agent.parameters(), ours.policy.parameters(), strict=True):
        theirs.data.copy_(own.data)
    optimizer = torch.optim.Adam(agent.parameters(), eps=1e-5)
    shuffling = generator_of(np.random.SeedSequence(5).spawn(3)[2])
    rollout, nothing = module.Rollout(20, 6, spaces[0].shape[0]), np.zeros(0, np.int64)
    names = [each.name for each in dataclasses.fields(Fragment)]
    torch.manual_seed(0)
    games.reset_into(rollout.obs[0], seed=0)
    with torch_threads.one_thread():
        for number in range(4):
            optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - number / 4)
            module.collect(agent, games, rollout)
            module.compute_returns(agent, rollout, args)
            arrays = {name: array for name, array in vars(rollout).items() if name in names}
            episodes = {"returns": np.zeros(0), "lengths": nothing, "episodes": nothing.reshape(0, 2)}
            ours.update([Fragment(**arrays | episodes, version=1, env_indices=np.arange(6))], Stopwatch())
            expected, found = module.update(agent, optimizer, rollout, args, shuffling), ours.metrics()
            rollout.obs[0] = rollout.obs[-1]
            assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-3, abs=1e-5)
    for theirs, own in zip(agent.parameters(), ours.policy.parameters(), strict=True):
        torch.testing.assert_close(theirs.detach(), own.detach(), rtol=0, atol=1e-4)
