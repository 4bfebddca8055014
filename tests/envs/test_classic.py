"""Compiled classic control as an environment; `tests/conformance/test_classic_lockstep.py` has Gymnasium beside it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import fastrl
from fastrl.envs import ClassicVectorEnv
from fastrl.envs.classic import IDS
from fastrl.tasks.gym.settings import PRESETS
from fastrl.testing import check_vector_env


def make(name: str, num_envs: int, **options: Any) -> Any:
    return gymnasium.make_vec(f"fastrl/{name}", num_envs, vectorization_mode="vector_entry_point", **options)


@pytest.mark.parametrize("name", IDS)
def test_it_is_a_vector_environment_as_others_are(name: str) -> None:
    def vector(num_envs: int, autoreset_mode: AutoresetMode, num_threads: int = 1) -> Any:
        return make(
            name, num_envs, autoreset_mode=autoreset_mode, num_threads=num_threads, max_episode_steps=25
        )

    check_vector_env(vector, steps=80, time_limit=25, terminates=name == "CartPole-v1")


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_many_are_as_one_with_any_number_of_threads(name: str) -> None:
    envs = [make(name, 1100, num_threads=threads) for threads in (1, 3)]
    single = gymnasium.make(f"fastrl/{name}")
    obs, _ = single.reset(seed=1007)
    first = [env.reset(seed=7)[0] for env in envs]
    np.testing.assert_array_equal(*first)
    np.testing.assert_array_equal(first[0][1000], obs)
    envs[0].action_space.seed(0)
    for _ in range(8):
        actions = envs[0].action_space.sample()
        one, three = (env.step(actions)[:4] for env in envs)
        for mine, other in zip(one, three, strict=True):
            np.testing.assert_array_equal(mine, other)
        np.testing.assert_array_equal(one[0][1000], single.step(actions[1000])[0])


def test_episodes_end_at_the_limit_of_the_caller() -> None:
    env = make("Pendulum-v1", 2, max_episode_steps=3, num_threads=1)
    env.reset(seed=0)
    ends = [env.step(np.zeros((2, 1), np.float32))[3].all() for _ in range(4)]
    assert ends == [False, False, True, False]
    assert gymnasium.make("fastrl/Pendulum-v1", max_episode_steps=7).spec.max_episode_steps == 7  # type: ignore[union-attr]


def test_pictures_are_those_of_gymnasium() -> None:
    pytest.importorskip("pygame")
    for name in IDS:
        theirs, ours = (gymnasium.make(each, render_mode="rgb_array") for each in (name, f"fastrl/{name}"))
        theirs.reset(seed=5)
        ours.reset(seed=5)
        if name != "Pendulum-v1":  # whose picture shows the last torque, too
            theirs.step(theirs.action_space.sample() * 0)
            ours.step(theirs.action_space.sample() * 0)
        np.testing.assert_array_equal(ours.render(), theirs.render())
        ours.close()
        theirs.close()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"task": "Cart"}, ValueError, "task: expected one of 'CartPole', .* got 'Cart'"),
        ({"g": 9.81}, TypeError, "CartPole has no option 'g', its options are: sutton_barto_reward"),
        ({"task": "Acrobot", "g": 1}, TypeError, "Acrobot has no option 'g', its options are: none"),
        ({"task": "Pendulum", "g": "big"}, TypeError, "g: expected a number, got 'big'"),
        ({"task": "Pendulum", "g": 1e9}, ValueError, "option: expected -1000000 to 1000000"),
        ({"max_episode_steps": 0}, ValueError, "max_episode_steps: expected 1 to"),
        ({"sutton_barto_reward": "yes"}, TypeError, "sutton_barto_reward: expected True or False, got 'yes'"),
        ({"render_mode": "ansi"}, ValueError, "render_mode: expected None or 'rgb_array', 'human'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ClassicVectorEnv(2, **options)


def test_actions_are_checked() -> None:
    env = ClassicVectorEnv(2, num_threads=1)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action of environment 1: expected an integer from 0 to 1"):
        env.step(np.array([0, 2]))
    swing = ClassicVectorEnv(1, task="Pendulum", num_threads=1)
    swing.reset(seed=0)
    with pytest.raises(ValueError, match=r"action of environment 0: expected one finite number, got \[NaN\]"):
        swing.step(np.array([[np.nan]], np.float32))


def test_presets_are_those_of_gymnasiums_ids() -> None:
    for name in IDS:
        found = PRESETS.presets_for(f"fastrl/{name}")
        assert found == PRESETS.presets_for(name) is not None


@pytest.mark.parametrize(("kind", "name"), [(fastrl.PPO, "CartPole-v1"), (fastrl.SAC, "Pendulum-v1")])
def test_a_run_is_the_same_on_gymnasiums_and_on_the_compiled_one(kind: Any, name: str) -> None:
    settings: dict[str, Any] = {"seed": 3, "num_envs": 2, "hidden": [16, 16], "run__eval_episodes": 0}
    if kind is fastrl.SAC:
        settings["replay"] = {"learning_starts": 100}
    found = []
    for collector, env in (("sequential", name), ("auto", f"fastrl/{name}")):
        model = kind(env, collector=collector, **settings)
        model.learn(600)
        assert model.trainer.collector == collector.replace("auto", "native")
        found.append([each.detach().numpy() for each in model.parameters()])
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)
