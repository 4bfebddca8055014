"""Words of other libraries are answered by ours."""

import re
from pathlib import Path
from typing import Any

import pytest
from small_runs import run_cli

import fastrl
from fastrl.callbacks import Callback
from fastrl.utils import other_names
from fastrl.utils.config import ConfigError, leaves
from fastrl.utils.other_names import other_setting


@pytest.mark.parametrize(
    ("algo", "name", "answer"),
    [
        ("ppo", "policy_kwargs", "hidden=(64, 64)"),
        ("ppo", "verbose", "learn(progress=False)"),
        ("ppo", "tensorboard_log", "learn(run_dir='runs/mine')"),
        ("ppo", "vf_coef", "it is value_coef"),
        ("ppo", "n_epochs", "it is num_epochs"),
        ("dqn", "exploration_fraction", "it is epsilon_steps"),
        ("dqn", "replay_buffer_class", "hindsight is hindsight"),
        ("ppo", "buffer_size", "not of this algorithm; of others it is capacity"),
        ("ppo", "log_interval", "run__row_seconds="),
        ("ppo", "env_kwargs", "it is env_options"),
        ("ppo", "gamm", "did you mean gamma?"),
    ],
)
def test_settings_of_other_libraries_are_answered(algo: str, name: str, answer: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: unknown setting; .*{re.escape(answer)}"):
        fastrl.Model("CartPole-v1", algo=algo, **{name: 1})


def test_options_of_other_libraries_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_cli(capsys, "train", "CartPole-v1", "--vf-coef=0.5")
    assert code == 2
    assert "unknown option --vf-coef; it is value_coef, of half the squared error" in err


def test_every_answer_names_settings_that_there_are() -> None:
    tables: set[str] = set()
    for algo, env in (
        ("ppo", "CartPole-v1"),
        ("dqn", "CartPole-v1"),
        ("sac", "Pendulum-v1"),
        ("td3", "Pendulum-v1"),
    ):
        model = fastrl.Model(env, algo=algo, num_envs=1, hidden=[4])
        tables |= {
            key.rpartition(".")[2]
            for key in leaves(type(model.task.make_settings({"run.algo": algo, "env.id": env})))
        }
    settings = Path(other_names.__file__).read_text().partition("_METHODS")[0]
    named = set(re.findall(r"\{(\w+)\}", settings))
    assert len(named) > 20 and named <= tables
    assert other_setting("n-steps", {"num_steps"}) == "it is num_steps"
    assert other_setting("nothing_of_the_kind", {"num_steps"}) == ""


@pytest.mark.parametrize(
    ("use", "error", "answer"),
    [
        (lambda model: type(model).load("x"), AttributeError, "fastrl.load(path) reads a model"),
        (lambda model: model.set_env, AttributeError, "fastrl.load(path, env=...)"),
        (lambda model: model.num_timesteps, AttributeError, "it is steps of a model"),
        (lambda model: model.q_net, AttributeError, "it is network"),
        (lambda model: model.get_distribution, AttributeError, "model.distribution(obs)"),
        (lambda model: model.nothing, AttributeError, "fastrl.PPO has no attribute 'nothing'"),
        (lambda model: model.learn(10, callback=3), ConfigError, "learn(callbacks=[...])"),
        (lambda model: model.learn(10, progress_bar=True), ConfigError, "it is learn(progress=True)"),
        (
            lambda model: model.evaluate(n_eval_episodes=3),
            ConfigError,
            "n_eval_episodes is episodes of model.evaluate",
        ),
        (lambda model: fastrl.A2C, AttributeError, "IMPALA is the nearest"),
        (lambda model: model.learn(10, nothing=3), ConfigError, "there are total_timesteps, total_episodes"),
        (lambda model: fastrl.PPO("MlpPolicy", "CartPole-v1"), ConfigError, "expected the environment alone"),
    ],
)
def test_calls_of_other_libraries_are_answered(use: Any, error: type[Exception], answer: str) -> None:
    model = fastrl.PPO("CartPole-v1", hidden=[4], num_envs=1)
    assert not hasattr(model, "nothing")
    with pytest.raises(error, match=re.escape(answer)):
        use(model)


def test_callbacks_are_answered() -> None:
    said: list[str] = []

    class Counting(Callback):
        def on_update(self, run: Any) -> None:
            with pytest.raises(AttributeError) as caught:
                run.num_timesteps  # noqa: B018
            said.append(str(caught.value))

    fastrl.PPO("CartPole-v1", hidden=[4], num_envs=1, num_steps=8).learn(8, callbacks=[Counting()])
    assert "timesteps of the run that callbacks see" in said[0]


def test_a_missing_module_that_registers_an_environment_is_named() -> None:
    with pytest.raises(Exception, match="FetchReach-v3 needs gymnasium_robotics, which is not installed"):
        fastrl.PPO("FetchReach-v3")
