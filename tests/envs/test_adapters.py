"""The adapters, tested with the libraries that they adapt to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, VecNormalize

from fastrl.envs import Cage2Env, Cage2VectorEnv, adapters
from fastrl.envs.adapters import SB3VecEnv


class Coin(gymnasium.Env):
    """An environment that terminates at random, is truncated at step 5, or both; its info has the step."""

    observation_space = Box(0, 1, (2,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {"count": 0, "options": repr(options)}

    def step(self, action: Any) -> Any:
        self.count += 1
        lucky = bool(self.np_random.random() < 0.2)
        return self.observe(), float(action) + 0.1, lucky, self.count >= 5, {"count": self.count}

    def observe(self) -> Any:
        return self.np_random.random(2, np.float32)


def coins(n: int) -> SyncVectorEnv:
    return SyncVectorEnv([Coin] * n, autoreset_mode=AutoresetMode.SAME_STEP)


def cage2(n: int, **kwargs: Any) -> Cage2VectorEnv:
    return Cage2VectorEnv(n, autoreset_mode="same_step", episode_length=7, **kwargs)


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert_same(ours[key], theirs[key])
    else:
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("native", "single"),
    [
        (coins, Coin),
        (cage2, lambda: Cage2Env(episode_length=7)),
        (
            lambda n: cage2(n, info_state=True, memory="full"),
            lambda: Cage2Env(episode_length=7, info_state=True, memory="full"),
        ),
    ],
    ids=["coins", "cage2", "cage2 with info"],
)
def test_it_agrees_with_sb3s_own_vecenv_of_single_environments(
    native: Callable[[int], Any], single: Callable[[], Any]
) -> None:
    ours, theirs = SB3VecEnv(native(3)), DummyVecEnv([single] * 3)
    rng = np.random.default_rng(0)
    for seed in (5, None):
        if seed is not None:
            assert ours.seed(seed) == theirs.seed(seed)
        np.testing.assert_array_equal(ours.reset(), theirs.reset())
        for _ in range(25):
            actions = rng.integers(ours.action_space.n, size=3)
            for a, b in zip(ours.step(actions)[:3], theirs.step(actions)[:3], strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)
            infos = ours.step(actions)[3], theirs.step(actions)[3]
            for a, b in zip(*infos, strict=True):
                assert_same(a, b)
            for a, b in zip(ours.reset_infos, theirs.reset_infos, strict=True):
                # A single Cage2Env names the red agent at a reset; the vector environment has the method `red_agents`.
                assert_same(a, {key: value for key, value in b.items() if key != "red_agent"})


def test_truncation_and_termination_are_distinguished() -> None:
    env = SB3VecEnv(coins(64))
    env.seed(1)
    env.reset()
    flags = set()
    for _ in range(20):
        counts = [info["count"] for info in env.step(np.zeros(64, np.int64))[3]]
        _, _, dones, infos = env.step(np.zeros(64, np.int64))
        flags |= {(bool(done), info["TimeLimit.truncated"]) for done, info in zip(dones, infos, strict=True)}
        assert all(("terminal_observation" in info) == done for info, done in zip(infos, dones, strict=True))
        assert max(counts) <= 5
    assert flags == {(False, False), (True, False), (True, True)}


def test_the_callers_changes_to_arrays_do_not_reach_the_environment() -> None:
    class Reusing(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            obs, _, *rest = super().step(actions)
            self.given = np.ones(self.num_envs, np.float32)
            return obs, self.given, *rest

    inner = Reusing([Coin] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    env = SB3VecEnv(inner)
    env.reset()
    rewards = env.step(np.zeros(2, np.int64))[1]
    rewards += 10.0
    assert inner.given.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("wrap", [lambda env: env, VecMonitor, VecNormalize])
def test_sb3s_ppo_trains_on_it(wrap: Callable[[VecEnv], VecEnv]) -> None:
    env = wrap(SB3VecEnv(cage2(8)))
    model = PPO("MlpPolicy", env, n_steps=16, batch_size=32, n_epochs=2, seed=3, device="cpu")
    before = [parameter.clone() for parameter in model.policy.parameters()]
    model.learn(2 * 8 * 16)
    assert model.num_timesteps == 2 * 8 * 16
    assert any((a != b).any() for a, b in zip(before, model.policy.parameters(), strict=True))
    mean, _ = evaluate_policy(model, env, n_eval_episodes=8, warn=False)
    assert -1000 < mean <= 0


def test_the_same_seed_trains_the_same_policy() -> None:
    def trained() -> Any:
        model = PPO(
            "MlpPolicy", SB3VecEnv(cage2(4)), n_steps=8, batch_size=16, n_epochs=1, seed=3, device="cpu"
        )
        return [parameter.detach().numpy() for parameter in model.learn(64).policy.parameters()]

    assert all(np.array_equal(a, b) for a, b in zip(trained(), trained(), strict=True))


def test_sb3s_replay_buffer_gets_the_true_last_observation() -> None:
    env = SB3VecEnv(cage2(2, red_agent="sleep"))
    model = DQN("MlpPolicy", env, learning_starts=8, buffer_size=64, batch_size=8, seed=0, device="cpu")
    model.learn(60)
    buffer = model.replay_buffer
    assert buffer is not None
    ends = buffer.dones[:30].astype(bool)
    np.testing.assert_array_equal(np.flatnonzero(ends.any(1)), [6, 13, 20, 27])
    np.testing.assert_array_equal(buffer.timeouts[:30], buffer.dones[:30])


def test_attributes_and_methods_reach_the_environment() -> None:
    env = SB3VecEnv(cage2(3, memory="full"))
    assert env.get_attr("episode_length") == [7, 7, 7]
    assert env.get_attr("episode_length", 1) == [7]
    assert env.has_attr("action_masks")
    assert not env.has_attr("wheels")
    env.reset()
    masks = env.env_method("action_masks", indices=[0, 2])
    assert [mask.shape for mask in masks] == [(145,), (145,)]
    env.set_attr("label", "a")
    env.set_attr("label", "b", indices=1)
    assert env.get_attr("label") == ["a", "b", "a"]
    assert env.env_is_wrapped(gymnasium.Wrapper) == [False] * 3
    assert env.env_is_wrapped(gymnasium.Wrapper, 0) == [False]
    assert list(env.get_images()) == [None] * 3
    assert env.unwrapped is env
    env.close()
    env.close()


def test_options_are_used_for_the_next_reset_only() -> None:
    env = SB3VecEnv(coins(2))
    env.set_options({"wind": 1})
    env.reset()
    assert [info["options"] for info in env.reset_infos] == ["{'wind': 1}"] * 2
    env.reset()
    assert [info["options"] for info in env.reset_infos] == ["None"] * 2
    env.set_options([{"wind": 1}, {}])
    with pytest.raises(ValueError, match="expected the same for every environment"):
        env.reset()


def test_unsuitable_environments_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"expected the autoreset mode \S*SAME_STEP, got \S*NEXT_STEP; make it"
    ):
        SB3VecEnv(Cage2VectorEnv(2))
    with pytest.raises(TypeError, match=r"expected a gymnasium.vector.VectorEnv, got Cage2Env"):
        SB3VecEnv(Cage2Env())


def test_without_sb3_the_error_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['stable_baselines3'] = None; from fastrl.envs.adapters import SB3VecEnv"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    says = "SB3VecEnv needs Stable-Baselines3, which is not installed: pip install 'fastrl[sb3]'"
    assert done.stderr.strip().splitlines()[-1] == f"ImportError: {says}"


def test_an_unknown_adapter_is_an_attribute_error() -> None:
    assert not hasattr(adapters, "Wheels")
