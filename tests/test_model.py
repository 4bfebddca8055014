"""Models: training, scoring, saving and using an algorithm from Python."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_runs import differences, learnt, rows_of, untimed, untimed_state
from torch import nn
from toy_algorithm import Toy

import fastrl
from fastrl.algorithms import algorithms
from fastrl.algorithms.protocol import Algorithm
from fastrl.cli.main import main
from fastrl.runs.checkpoint import Checkpoints
from fastrl.utils.errors import UserError

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "num_steps": 32,
    "minibatch_size": 64,
    "hidden": [8],
    "collector": "sequential",
    "device": "cpu",
    "row_seconds": 0,
}
OPTIONS = [
    "--num-envs=4",
    "--ppo.num-steps=32",
    "--ppo.minibatch-size=64",
    "--ppo.hidden=8",
    "--collector=sequential",
    "--device=cpu",
    "--run.row-seconds=0",
]


class Cart(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment of a user's own, without a spec."""

    spec = None

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1").unwrapped)
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Noisy(Cart):
    """The same with a keyword argument."""

    def __init__(self, noise: int = 0) -> None:
        super().__init__()
        self.noise = noise


class DictEnv(gymnasium.Env[Any, Any]):
    """Shows which of three actions is rewarded, in a dict; actions start at 5."""

    observation_space = Dict({"goal": Discrete(3), "noise": Box(-1, 1, (2,), np.float32)})
    action_space = Discrete(3, start=5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._left = 8
        return self._obs(), {}

    def _obs(self) -> Any:
        self._goal = int(self.np_random.integers(3))
        return {"goal": self._goal, "noise": self.np_random.uniform(-1, 1, 2).astype(np.float32)}

    def step(self, action: Any) -> Any:
        reward, self._left = float(action - 5 == self._goal), self._left - 1
        return self._obs(), reward, False, self._left == 0, {}


class Net(nn.Module):
    """A network of a user's own."""

    def __init__(self, obs_space: Any, action_space: Any, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Linear(obs_space.shape[0], width)
        self.policy, self.critic = nn.Linear(width, int(action_space.n)), nn.Linear(width, 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(obs).tanh()
        return self.policy(features), self.critic(features)[:, 0]


def make_cart() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def parameters(model: fastrl.Model) -> Any:
    return untimed_state(model.trainer.state_dict())["learner"]


def test_importing_fastrl_loads_no_torch_and_takes_no_time() -> None:
    code = (
        "import time; clock = time.process_time; start = clock(); import gymnasium, numpy\n"
        "theirs = clock() - start; start = clock(); import fastrl; ours = clock() - start\n"
        "import sys; print(ours / theirs, 'torch' in sys.modules, fastrl.queue.__name__, 'torch' in sys.modules)"
    )
    # Of processor time, and the best of three: another program may fill the caches in between.
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout.split()
        for _ in range(3)
    ]
    assert min(float(run[0]) for run in runs) < 0.25
    assert runs[0][1:] == ["False", "fastrl.queue", "False"]


def test_all_names_the_public_surface() -> None:
    found = {name for name in fastrl.__all__ if getattr(fastrl, name) is not None}
    assert found == set(fastrl.__all__) <= set(dir(fastrl))
    models = {
        name
        for name in fastrl.__all__
        if isinstance(each := getattr(fastrl, name), type) and issubclass(each, fastrl.Model)
    }
    assert models - {"Model"} == {algorithm.__name__ for algorithm in algorithms().values()}
    for name in sorted(models):
        assert getattr(fastrl, name).__doc__
    assert "\n    learning_rate: " in str(fastrl.PPO.__doc__)
    with pytest.raises(AttributeError, match="no attribute 'PPPO'"):
        _ = fastrl.PPPO  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_command_line_trains_the_same_model_and_resumes_it_the_same(tmp_path: Path) -> None:
    # config.toml names the measured number of threads, which may differ between two runs.
    command = ["train", "CartPole-v1", "--seed=3", *OPTIONS, "--run.eval-episodes=0", "--threads=1"]
    assert main([*command, "--total-timesteps=384", f"--run-dir={tmp_path / 'cli'}"]) == 0
    model = fastrl.PPO("CartPole-v1", seed=3, eval_episodes=0, threads=1, **SMALL).learn(
        384, run_dir=tmp_path / "python"
    )
    assert differences(learnt(tmp_path / "cli"), learnt(tmp_path / "python")) == []
    assert (
        rows_of(tmp_path / "cli") == rows_of(tmp_path / "python") == [untimed(row) for row in model.metrics]
    )
    assert (tmp_path / "cli" / "config.toml").read_text() == (tmp_path / "python" / "config.toml").read_text()
    resumed = ["train", "--total-timesteps=768", "--run.schedule-start=384"]
    assert main([*resumed, f"--resume={tmp_path / 'cli'}"]) == 0
    model.learn(384, run_dir=tmp_path / "python")
    assert differences(learnt(tmp_path / "cli"), learnt(tmp_path / "python")) == []
    assert rows_of(tmp_path / "cli") == rows_of(tmp_path / "python")
    # The command line resumes what Python has written, and the other way round.
    resumed = ["train", "--total-timesteps=1152", "--run.schedule-start=768"]
    assert main([*resumed, f"--resume={tmp_path / 'python'}"]) == 0
    loaded = fastrl.load(tmp_path / "cli").learn(384)
    assert differences(parameters(loaded), learnt(tmp_path / "python")["learner"]) == []


def test_without_a_run_directory_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = fastrl.PPO("CartPole-v1", **SMALL).learn(256)
    assert list(tmp_path.iterdir()) == []
    assert "".join(capfd.readouterr()) == ""
    assert (model.steps, len(model.metrics)) == (256, 2)
    assert model.summary is not None and (model.summary.status, model.summary.run) == ("complete", "")


def test_a_model_is_saved_loaded_and_goes_on(tmp_path: Path) -> None:
    straight = fastrl.PPO("CartPole-v1", **SMALL).learn(256)
    straight.save(tmp_path / "new" / "cart.safetensors")
    loaded = fastrl.load(tmp_path / "new" / "cart.safetensors")
    assert type(loaded) is fastrl.PPO
    assert loaded.settings["ppo"] == straight.settings["ppo"]
    assert loaded.evaluate(3) == straight.evaluate(3)
    obs = np.array([0.1, -0.2, 0.03, 0.4], np.float32)
    assert loaded.predict(obs) == straight.predict(obs)
    assert differences(parameters(loaded.learn(256)), parameters(straight.learn(256))) == []
    # An untrained one, too.
    fastrl.PPO("CartPole-v1", **SMALL).save(tmp_path / "fresh.safetensors")
    fresh = fastrl.load(tmp_path / "fresh.safetensors").learn(512)
    assert fresh.steps == 512


def test_a_run_directory_goes_on_where_its_model_stands(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = fastrl.PPO("CartPole-v1", eval_episodes=0, **SMALL).learn(256, run_dir=run)
    loaded = fastrl.load(run).learn(256, run_dir=run)
    assert [row["time/total_timesteps"] for row in rows_of(run)] == [128, 256, 384, 512]
    assert loaded.steps == 512
    # Another model has no business there, nor one that has learned elsewhere since.
    with pytest.raises(UserError, match="has a run in it"):
        fastrl.PPO("CartPole-v1", **SMALL).learn(256, run_dir=run)
    model.learn(128)
    with pytest.raises(UserError, match="has a run in it"):
        model.learn(128, run_dir=run)


def test_the_goal_of_the_settings_is_reached_once() -> None:
    model = fastrl.PPO("CartPole-v1", total_timesteps=256, **SMALL).learn()
    assert model.steps == 256
    with pytest.raises(UserError, match="say how many more"):
        model.learn()
    assert model.learn(total_episodes=3).steps > 256
    assert model.learn(1e2).steps % 128 == 0  # type: ignore[arg-type]
    with pytest.raises(UserError, match="total_timesteps should be"):
        model.learn(0.5)  # type: ignore[arg-type]


ENVS: dict[str, Callable[[], Any]] = {
    "id": lambda: "CartPole-v1",
    "path": lambda: "test_model:make_cart",
    "function": lambda: make_cart,
    "class": lambda: Cart,
    "lambda": lambda: lambda: gymnasium.make("CartPole-v1"),
    "environment": lambda: gymnasium.make("CartPole-v1"),
    "vector": lambda: SyncVectorEnv([make_cart] * 4, autoreset_mode=AutoresetMode.SAME_STEP),
    "lambda of a vector": lambda: lambda num_envs: SyncVectorEnv([make_cart] * num_envs),
}


@pytest.mark.parametrize("kind", ENVS)
def test_an_environment_of_any_kind_is_trained_on(kind: str, tmp_path: Path) -> None:
    env = ENVS[kind]()
    options = {key: value for key, value in SMALL.items() if "vector" not in kind or key != "collector"}
    model = fastrl.PPO(env, preset="classic", total_timesteps=256, **options).learn()
    assert model.steps >= 256
    mean, std = model.evaluate(2)
    assert mean > 0 and std >= 0
    model.save(tmp_path / "model.safetensors")
    loaded = fastrl.load(tmp_path / "model.safetensors", env=env).learn(128)
    assert loaded.steps >= 384
    # Presets are found by an environment's id, so those without one start from others.
    same = "CartPole-v1" if kind in ("id", "environment") else "test_model:make_cart"
    reference = fastrl.PPO(same, preset="classic", total_timesteps=256, **SMALL).learn()
    assert (differences(parameters(model), parameters(reference)) == []) == ("vector" not in kind)


def test_options_reach_a_class_and_are_refused_for_an_environment_that_exists(tmp_path: Path) -> None:
    options: dict[str, Any] = {"env__options": ("noise=7",)}
    model = fastrl.PPO(Noisy, **options, **SMALL)
    assert model.task.env_spec(model.stage_settings).make().noise == 7
    model.save(tmp_path / "model.safetensors")
    loaded = fastrl.load(tmp_path / "model.safetensors", env=Noisy)
    assert loaded.task.env_spec(loaded.stage_settings).make().noise == 7
    with pytest.raises(UserError, match=r"this Noisy is made already, noise=7 comes too late"):
        fastrl.PPO(Noisy(), **options | SMALL | {"num_envs": 1})


@pytest.mark.slow
def test_a_partial_is_saved_as_its_function_and_options(tmp_path: Path) -> None:
    model = fastrl.PPO(functools.partial(Noisy, noise=7), **SMALL, total_timesteps=256)
    env = model.settings["env"]
    assert (env["id"], env["options"]) == ("test_model:Noisy", ["noise=7"])
    model.learn(run_dir=tmp_path / "run")
    loaded = fastrl.load(tmp_path / "run", trust=True)
    assert loaded.env_spec.make().noise == 7
    assert loaded.evaluate(2) == model.evaluate(2)
    assert fastrl.load(tmp_path / "run", env=functools.partial(Noisy, noise=7)).steps == model.steps
    with pytest.raises(UserError, match=r"has the options \{'noise': 7\}, not noise=8"):
        fastrl.load(tmp_path / "run", env=functools.partial(Noisy, noise=8))
    resumed = ["train", "--resume", str(tmp_path / "run"), "--trust", "--total-timesteps=384"]
    assert main(resumed) == 0
    assert fastrl.load(tmp_path / "run", trust=True).steps >= 384


def test_options_come_on_top_of_those_of_a_partial() -> None:
    env = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=7)
    more = "env__options", ("disable_env_checker=true",)
    file = {"env": {"options": ["max_episode_steps=9"]}}
    for given, expected in (({}, 7), ({"config": file}, 9), (dict([more]), 7)):
        options = fastrl.PPO(env, **SMALL, **given).env_spec.options
        assert options["max_episode_steps"] == expected
        assert options.get("disable_env_checker", False) == (given == dict([more]))


def test_a_function_that_nothing_saved_can_name_is_reported_at_once(tmp_path: Path) -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return Noisy()

    for env in (make, lambda: Noisy(), functools.partial(make), functools.partial(Noisy, noise=np.int64(3))):
        expected = r"at the top of no module.*fastrl\.load\(path\) gives a model that acts.*only with env="
        with pytest.warns(UserWarning, match=expected) as caught:
            model = fastrl.PPO(env, **SMALL, total_timesteps=128)
        assert caught[0].filename == __file__
        assert "functools" not in model.settings["env"]["id"]
    model.learn().save(tmp_path / "model.safetensors")
    obs = np.zeros(4, np.float32)
    assert fastrl.load(tmp_path / "model.safetensors").predict(obs)[0] == model.predict(obs)[0]
    assert fastrl.load(tmp_path / "model.safetensors", env=env).learn(128).steps >= 256


def test_an_environment_without_a_spec_is_the_only_one() -> None:
    env = Cart()
    options = SMALL | {"num_envs": 1, "collector": None, "minibatch_size": 32}
    assert fastrl.PPO(env, **options).learn(64).steps == 64
    assert env.closed == 0
    with pytest.raises(UserError, match="no spec"):
        fastrl.PPO(env, **(options | {"num_envs": 2})).learn(64)
    with pytest.raises(UserError, match="this process"):
        fastrl.PPO(env, **(options | {"collector": "sync"})).learn(64)


@pytest.mark.slow
def test_spaces_of_any_form_are_predicted_in() -> None:
    model = fastrl.PPO(
        DictEnv, num_envs=8, num_steps=64, minibatch_size=128, learning_rate=0.01, collector="sequential"
    )
    model.learn(10_000)
    assert model.evaluate(5)[0] > 7
    goals = np.arange(3)
    batch = {"goal": goals, "noise": np.zeros((3, 2), np.float32)}
    actions, state = model.predict(batch)
    assert actions.tolist() == [5, 6, 7] and state is None
    assert model.predict({"goal": 1, "noise": np.zeros(2, np.float32)})[0] == 6
    masks = np.array([[True, False, True]] * 3)
    for given in (masks, masks.astype(np.int8)):  # as Gymnasium's spaces take them
        assert model.predict(batch, action_masks=given)[0][1] != 6
    drawn = [int(model.predict(batch, deterministic=False)[0][0]) for _ in range(20)]
    assert set(drawn) <= {5, 6, 7}
    for wrong, line in {
        "3": "obs",
        "dict": "expected a dict with the keys 'goal', 'noise'",
    }.items():
        with pytest.raises(UserError, match=line):
            model.predict(wrong if wrong == "3" else {"goal": 1})
    with pytest.raises(UserError, match=r"action_masks: expected bool \[3, 3\]"):
        model.predict(batch, action_masks=masks[:, :2])
    with pytest.raises(UserError, match="has no memory"):
        model.predict(batch, state=np.zeros(3))


def test_an_own_network_and_an_own_algorithm_are_classes(tmp_path: Path) -> None:
    options = {key: value for key, value in SMALL.items() if key != "hidden"}
    model = fastrl.PPO("CartPole-v1", network=Net, network_options={"width": 7}, **options).learn(256)
    assert model.settings["ppo"]["network"] == "test_model:Net"
    model.save(tmp_path / "net.safetensors")
    with pytest.raises(UserError, match="trust"):
        fastrl.load(tmp_path / "net.safetensors")
    assert fastrl.load(tmp_path / "net.safetensors", network=Net).evaluate(2) == model.evaluate(2)
    toy = fastrl.Model("CartPole-v1", algo=Toy, num_envs=4, learning_rate=3, collector="sequential").learn(
        512
    )
    toy.save(tmp_path / "toy.safetensors")
    with pytest.raises(UserError, match="trust"):
        fastrl.load(tmp_path / "toy.safetensors")
    loaded = fastrl.load(tmp_path / "toy.safetensors", algo=Toy)
    assert type(loaded) is fastrl.Model
    assert loaded.learn(512).steps == 1024
    assert loaded.predict(np.zeros(4, np.float32))[0] in (0, 1)

    class Inner(Toy):
        """Cannot be named."""

    with pytest.raises(UserError, match="top of its module"):
        fastrl.Model("CartPole-v1", algo=Inner)


def test_ctrl_c_ends_the_training_and_it_goes_on(tmp_path: Path) -> None:
    model = fastrl.PPO("CartPole-v1", **SMALL)

    def interrupt() -> None:
        while not model.metrics:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        model.learn(10_000_000, run_dir=tmp_path / "run")
    thread.join()
    steps = model.steps
    assert 128 <= steps < 10_000_000
    assert model.evaluate(1)[0] > 0
    assert model.learn(128, run_dir=tmp_path / "run").steps == steps + 128
    assert (tmp_path / "run" / "summary.json").exists()


class Stop(fastrl.callbacks.Callback):
    """Stops a run, or fails, after so many updates."""

    def __init__(self, after: int, *, fail: bool = False) -> None:
        self.after, self.fail = after, fail

    def on_update(self, run: fastrl.callbacks.Run) -> bool:
        if self.fail and run.iterations == self.after:
            raise RuntimeError("the disk is full")
        return run.iterations < self.after


class Recorder:
    """A logger of a user's own."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.closed = 0

    def log(self, row: fastrl.loggers.Row) -> None:
        self.steps.append(row.steps)

    def close(self) -> None:
        self.closed += 1


def test_a_model_acts_as_the_policy_that_it_starts_with(tmp_path: Path) -> None:
    before = fastrl.PPO("CartPole-v1", **SMALL).learn(512)
    before.save(tmp_path / "first.safetensors")
    obs = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    model = fastrl.PPO("CartPole-v1", init=tmp_path / "first.safetensors", **(SMALL | {"seed": 5}))
    other = fastrl.PPO("CartPole-v1", **(SMALL | {"seed": 5}))
    assert (model.predict(obs)[0] == before.predict(obs)[0]).all()
    assert (other.predict(obs)[0] != before.predict(obs)[0]).any()
    assert model.steps == 0
    with pytest.raises(UserError, match=r"--init .*: its network"):
        fastrl.PPO("CartPole-v1", init=tmp_path / "first.safetensors", **(SMALL | {"hidden": [7]}))


def test_callbacks_and_loggers_are_lists_of_objects() -> None:
    model, recorder = fastrl.PPO("CartPole-v1", **SMALL), Recorder()
    model.learn(10_000, callbacks=[Stop(2)], loggers=[recorder])
    assert model.steps == 256
    assert (recorder.steps, recorder.closed) == ([128, 256], 1)
    # Learning before the failure of a callback is kept, and the next call continues it.
    with pytest.raises(RuntimeError, match="the disk is full"):
        model.learn(10_000, callbacks=[Stop(4, fail=True)])
    assert model.steps == 512
    assert model.learn(128).steps == 640
    wrong: Any
    for wrong, message in (
        (
            [Stop],
            r"callbacks: expected objects of a subclass of fastrl.callbacks.Callback, got .*Stop'>: give Stop",
        ),
        ([len], r"callbacks: expected objects of a subclass of fastrl.callbacks.Callback, got <built-in"),
        (Stop(1), r"callbacks: expected a list of objects of a subclass"),
    ):
        with pytest.raises(UserError, match=message):
            model.learn(128, callbacks=wrong)
    for wrong in ("csv", ["csv"], [Recorder]):
        with pytest.raises(
            UserError, match=r"loggers: expected .*objects with methods log\(\) and close\(\), got"
        ):
            model.learn(128, loggers=wrong)


def test_memory_is_given_from_one_prediction_to_the_next() -> None:
    options = {key: value for key, value in SMALL.items() if key != "hidden"}
    model = fastrl.PPO("CartPole-v1", memory="gru", memory_size=8, **options).learn(256)
    obs = np.array([0.1, -0.2, 0.03, 0.4], np.float32)
    _, first = model.predict(obs)
    action, second = model.predict(obs, first)
    assert first.shape == second.shape == (8,) and (first != second).any()
    actions, states = model.predict(np.stack([obs, obs]), np.stack([first, np.zeros_like(first)]))
    assert actions[0] == action
    assert np.allclose(states, [second, first], atol=1e-6)
    with pytest.raises(UserError, match=r"state: expected .* float32 \[2, 8\]"):
        model.predict(np.stack([obs, obs]), first)


def test_a_third_interrupt_ends_at_once_and_spoils_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    model = fastrl.PPO("CartPole-v1", eval_episodes=0, **SMALL).learn(256, run_dir=run)

    class Interrupting(fastrl.callbacks.Callback):
        def on_update(self, run: fastrl.callbacks.Run) -> None:
            if run.iterations == 4:
                os.kill(os.getpid(), signal.SIGINT)

    def interrupted(*arguments: Any) -> Path:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it had been interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.learn(10**8, callbacks=[Interrupting()], run_dir=run)
    # The updates had ended, so the model has them; the run directory has the checkpoint before.
    assert model.steps == 512 and fastrl.load(run).steps == 256
    assert json.loads((run / "run.json").read_text())["state"] == "interrupted"
    assert model.learn(128, run_dir=run).steps == fastrl.load(run).steps == 640


@pytest.mark.slow
def test_in_a_notebook_functions_stay_in_its_process(tmp_path: Path) -> None:
    # As in a notebook, the main module has no file.
    code = """
import gymnasium, fastrl
def make_env():
    return gymnasium.make("CartPole-v1")
small = dict(num_envs=4, num_steps=32, minibatch_size=64, hidden=[8])
print(fastrl.PPO(make_env, n_workers=2, **small).learn(128).summary.collector)
print(fastrl.PPO("CartPole-v1", collector="executor", n_workers=2, **small).learn(128).summary.collector)
try:
    fastrl.PPO(make_env, collector="executor", n_workers=2, **small).learn(128)
except Exception as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    first, second, error, *_ = done.stdout.splitlines()
    assert (first, second) == ("sequential", "executor")
    assert "put the function that makes it into a module" in error
    assert list(tmp_path.iterdir()) == []


class Half(Algorithm[Any]):
    """An algorithm without most of its methods."""

    name = "half"


class Mute:
    """A logger that cannot be closed."""

    def log(self, row: Any) -> None:
        pass


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "id": (lambda: fastrl.PPO("CartPol-v1"), "did you mean CartPole-v1"),
    "no environment": (lambda: fastrl.PPO(3), "env: expected an id, .* got int"),
    "option of another task": (
        lambda: fastrl.PPO("CartPole-v1").evaluate(1, ruleset="main"),
        "evaluate: ruleset does not go with a run of gym",
    ),
    "unknown word": (lambda: fastrl.PPO("cart"), "ppo does not learn in cart"),
    "of another kind": (
        lambda: fastrl.IPPO("CartPole-v1"),
        "ippo does not learn in CartPole-v1; these do: .*ppo",
    ),
    "setting": (lambda: fastrl.PPO("CartPole-v1", learning_rat=1), "did you mean learning_rate"),
    "value": (lambda: fastrl.PPO("CartPole-v1", learning_rate="x"), "learning_rate should be a valid number"),
    "table": (lambda: fastrl.PPO("CartPole-v1", ppo={"gama": 1}), r"ppo\['gama'\]: unknown .* ppo__gamma"),
    "preset": (lambda: fastrl.PPO("CartPole-v1", preset="quick"), "unknown preset quick"),
    "algorithm": (lambda: fastrl.Model("CartPole-v1", algo="pppo"), "got 'pppo'"),
    "half an algorithm": (
        lambda: fastrl.Model("CartPole-v1", algo=Half),
        "all of its methods and a name; it lacks .*update",
    ),
    "logger": (
        lambda: fastrl.PPO("CartPole-v1").learn(1, loggers=[Mute()]),  # type: ignore[list-item]
        r"expected objects with methods log\(\) and close\(\)",
    ),
    "many agents": (lambda: fastrl.PPO("fastrl/coop-merge-v0"), "which ippo, mappo and reinforce train"),
    "two algorithms": (lambda: fastrl.PPO("CartPole-v1", algo=Toy), "fastrl.PPO is ppo"),
    "hidden beside a network": (
        lambda: fastrl.PPO("CartPole-v1", network=Net, hidden=(8,)),
        r"ppo.hidden does nothing beside ppo.network, test_model:Net: leave one of them out",
    ),
    "network": (lambda: fastrl.PPO("CartPole-v1", network=3), "network: expected a class"),
    "device": (lambda: fastrl.PPO("CartPole-v1", device="tpu"), "device should be"),  # type: ignore[arg-type]
    "no run": (lambda: fastrl.load("nowhere"), "no such run directory"),
    "makes nothing": (lambda: fastrl.PPO(lambda: None), "should make a gymnasium.Env"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(mistake: str) -> None:
    make, line = MISTAKES[mistake]
    with pytest.raises(UserError, match=line) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_settings_come_from_files_dicts_and_presets(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[ppo]\ngamma = 0.5\n")
    assert fastrl.PPO("CartPole-v1", config=file, num_envs=4).settings["ppo"]["gamma"] == 0.5
    model = fastrl.PPO("CartPole-v1", config={"ppo": {"gamma": 0.5}}, preset="smoke", gae_lambda=0.9)
    assert (model.settings["ppo"]["gamma"], model.settings["ppo"]["gae_lambda"]) == (0.5, 0.9)
    assert (model.settings["env"]["num_envs"], model.settings["run"]["total_timesteps"]) == (4, 20_000)
    model = fastrl.PPO("FrozenLake-v1", env_options={"map_name": "8x8", "is_slippery": False}, num_envs=2)
    assert model.settings["env"]["options"] == ['map_name="8x8"', "is_slippery=false"]


def test_a_schedule_whose_start_is_given_is_constant(tmp_path: Path) -> None:
    def of_updates(model: fastrl.Model, name: str) -> set[float]:
        return {row[f"train/{name}"] for row in model.learn().metrics}

    few = {"num_envs": 2, "num_steps": 32, "total_timesteps": 256, "run__row_seconds": 0, "eval_episodes": 0}
    model = fastrl.PPO("Acrobot-v1", learning_rate=1e-5, collector="sequential", **few)
    assert of_updates(model, "learning_rate") == {1e-5}
    model = fastrl.IMPALA("CartPole-v1", entropy_coef=0.0, collector="sequential", **few)
    assert of_updates(model, "entropy_coef") == {0.0}
    # The other schedule is the preset's.
    assert len({row["train/learning_rate"] for row in model.metrics}) == len(model.metrics) > 2
    model = fastrl.PPO("CartPole-v1", learning_rate=1e-3, final_learning_rate=5e-4, num_envs=2)
    assert model.settings["ppo"]["final_learning_rate"] == 5e-4
    file = tmp_path / "settings.toml"
    file.write_text("[ppo]\nlearning_rate = 0.5\nentropy_coef = 0.1\nfinal_entropy_coef = 0.2\n")
    ppo = fastrl.PPO("CartPole-v1", config=file, num_envs=2, entropy_coef=0.3).settings["ppo"]
    assert (ppo["final_learning_rate"], ppo["final_entropy_coef"]) == ("none", "none")
    # Epsilon falls in any case.
    dqn = [fastrl.DQN("CartPole-v1", epsilon=epsilon).settings["dqn"] for epsilon in (0.5, 0.0)]
    assert [each["final_epsilon"] for each in dqn] == [0.04, 0.0]


@pytest.mark.slow
def test_a_replay_goes_on_from_one_training_to_the_next() -> None:
    model = fastrl.DQN(
        "CartPole-v1",
        num_envs=2,
        capacity=1000,
        learning_starts=100,
        collector="sequential",
        device="cpu",
        seed=0,
    )
    model.learn(300)
    kept = model.trainer.source.minibatches.replay  # type: ignore[attr-defined]
    before = len(kept)
    assert model.learn(200).steps >= 500
    assert model.trainer.source.minibatches.replay is kept and len(kept) > before  # type: ignore[attr-defined]
    assert model.predict(np.zeros(4, np.float32))[0] in (0, 1)
    assert model.evaluate(2)[0] > 0


def test_agents_of_traffic_learn_and_act_together(tmp_path: Path) -> None:
    model = fastrl.IPPO(
        "fastrl/coop-highway-v0",
        vehicles=3,
        num_envs=2,
        num_steps=8,
        minibatch_size=8,
        device="cpu",
        duration=3,
    )
    model.learn(total_episodes=8)
    mean, std = model.evaluate(4)
    assert np.isfinite([mean, std]).all()
    size = model.trainer.source.problem(1, 0).obs_dim  # type: ignore[attr-defined]
    actions, state = model.predict(np.zeros((3, size), np.float32))
    assert actions.shape == (3,) and state is None
    assert model.predict(np.zeros((5, 3, size), np.float32))[0].shape == (5, 3)
    model.save(tmp_path / "team.safetensors")
    assert type(fastrl.load(tmp_path / "team.safetensors")) is fastrl.IPPO
    episodes = model.trainer.episodes
    assert model.learn(total_episodes=4).trainer.episodes >= episodes + 4
