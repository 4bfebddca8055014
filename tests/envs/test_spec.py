from __future__ import annotations

import functools
import pickle
from pathlib import Path

import gymnasium
import pytest

import fastrl  # noqa: F401 - registers the ids
from fastrl.envs.spec import EnvSpec, any_spec, as_spec


def make_cart(length: float = 1.0) -> gymnasium.Env:
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.length = length
    return env


@pytest.mark.parametrize(
    "env",
    [
        "CartPole-v1",
        "fastrl/Cage2-v0",
        "gymnasium.envs.classic_control:CartPole-v1",
        "gymnasium.envs.classic_control:CartPoleEnv",
        EnvSpec("CartPole-v1"),
        make_cart,
        functools.partial(make_cart, length=2.0),
    ],
)
def test_specs_pickle(env: object) -> None:
    spec = pickle.loads(pickle.dumps(as_spec(env)))
    with spec.make() as made:
        assert isinstance(made, gymnasium.Env)
        made.reset(seed=0)


class Cart(gymnasium.Wrapper):
    def __init__(self, length: float = 1.0, *, mass: float = 1.0) -> None:
        super().__init__(make_cart(length))


def test_a_partial_is_its_function_and_options() -> None:
    name = f"{__name__}:make_cart"
    assert any_spec(functools.partial(make_cart, length=2.0)) == EnvSpec(name, {"length": 2.0})
    assert any_spec(functools.partial(make_cart, 2.0)) == EnvSpec(name, {"length": 2.0})
    twice = functools.partial(functools.partial(Cart, 2.0), mass=3)
    assert any_spec(twice) == EnvSpec(f"{__name__}:Cart", {"length": 2.0, "mass": 3})
    cart = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=7)
    spec = any_spec(cart)
    assert spec == EnvSpec("gymnasium.envs.registration:make", {"id": "CartPole-v1", "max_episode_steps": 7})
    assert spec.make().spec.max_episode_steps == 7
    # Arguments that files cannot hold stay with the function, which keeps its name.
    for length in (float("nan"), (1, 2), Path("x"), {1: 2}):
        spec = any_spec(functools.partial(make_cart, length))
        assert (spec.id, spec.options, spec.is_nameless) == (name, {}, True)
    assert as_spec(functools.partial(make_cart, 2.0)).id == name
    assert any_spec(lambda: None).is_nameless and not any_spec(make_cart).is_nameless


def test_options_reach_the_environment() -> None:
    assert as_spec("fastrl/Cage2-v0", memory="scan").make().observation_space.shape == (62,)
    assert as_spec(make_cart, length=3.0).make().unwrapped.length == 3.0
    spec = as_spec(as_spec("fastrl/Cage2-v0", memory="scan"), episode_length=7)
    assert spec.options == {"memory": "scan", "episode_length": 7}


def test_factories_that_do_not_pickle_are_refused_with_advice() -> None:
    local = gymnasium.make("CartPole-v1")
    with pytest.raises(TypeError, match=r"does not pickle.*my_module:make_env"):
        as_spec(lambda: local)
    with pytest.raises(TypeError, match=r"got an environment.*have to build their own"):
        as_spec(local)
    with pytest.raises(TypeError, match="expected an id, an import path or a function, got int"):
        as_spec(3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPol-v1", "did you mean CartPole-v1"),
        ("no_such_module:make", "No module named 'no_such_module'.*importable in every process"),
        ("no_such_module:Thing-v0", "No module named"),
        ("gymnasium.envs.classic_control:CartPolEnv", "has no 'CartPolEnv'; did you mean CartPoleEnv"),
        ("gymnasium.envs.registration:__name__", "should be a function or class"),
    ],
)
def test_unknown_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_spec(name).make()


def test_mujoco_is_silent_about_gymnasiums_own_models(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mujoco = pytest.importorskip("mujoco", reason="pip install mujoco")
    monkeypatch.chdir(tmp_path)
    before = mujoco.get_mju_user_warning()
    try:
        EnvSpec("HalfCheetah-v5").make().close()
        assert capfd.readouterr().err == "" and list(tmp_path.iterdir()) == []
        with pytest.warns(UserWarning, match="MuJoCo: unstable"):
            mujoco.get_mju_user_warning()("unstable")
    finally:
        mujoco.set_mju_user_warning(before)
