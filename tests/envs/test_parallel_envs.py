"""Parallel environments of PettingZoo as vector environments of several agents."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from parallel_toys import Differing, Leavers, Mixed, OtherImages, Vanishing, not_parallel
from pettingzoo.test import parallel_api_test

from fastrl.envs.adapters.parallel import ParallelVectorEnv
from fastrl.envs.contract import ContractError
from fastrl.envs.episode_log import EPISODE_FIELDS

A, B, LATE = range(3)
MODES = ["same_step", "next_step", "disabled"]


def make(
    num_envs: int = 2, kind: Any = Leavers, mode: str = "same_step", **options: Any
) -> ParallelVectorEnv:
    return ParallelVectorEnv(kind, num_envs, autoreset_mode=mode, name="toy", **options)


def zeros(env: ParallelVectorEnv) -> np.ndarray:
    space = env.single_action_space
    return np.zeros((env.num_envs, env.num_agents, *(space.shape or ())), space.dtype)


def trajectory(env: ParallelVectorEnv, steps: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    seen = []
    for _ in range(steps):
        seen.append(env.step(rng.integers(2, size=(env.num_envs, env.num_agents))))
        over = ~seen[-1][4].any(axis=1)
        if env.autoreset_mode.name == "DISABLED" and over.any():
            seen.append(env.reset(reset_mask=over))
    return seen


def expect_same(ours: Any, theirs: Any) -> None:
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        ours, theirs = list(ours.values()), list(theirs.values())
    if isinstance(ours, list | tuple):
        for a, b in zip(ours, theirs, strict=True):
            expect_same(a, b)
    else:
        np.testing.assert_array_equal(ours, theirs)


def test_pettingzoo_accepts_the_toy() -> None:
    parallel_api_test(Differing(), num_cycles=50)


def test_agents_come_and_go() -> None:
    env = make(1)
    obs, alive = env.reset(seed=1)
    assert obs.shape == (1, 3, 2) and alive.tolist() == [[True, True, False]]
    assert not obs[0, LATE].any()
    for t in range(1, 6):
        obs, rewards, terminations, truncations, alive, info = env.step(zeros(env))
        assert terminations[0].tolist() == [t == 3, False, False]
        assert alive[0].tolist() == [t < 3, True, t >= 2]
        assert not truncations.any() and info == {}
        assert rewards[0, LATE] == 0 or t > 2
        # The true last observation of one that left, and zeros from then on.
        assert obs[0, A].any() == (t <= 3)
    obs, _, _, truncations, alive, info = env.step(zeros(env))
    assert truncations[0].tolist() == [False, True, True]
    assert alive.tolist() == [[True, True, False]]
    np.testing.assert_array_equal(info["final_obs"][0, [B, LATE], 1], [1, 1])
    np.testing.assert_array_equal(obs[0, [A, B], 1], [0, 0])
    assert info["episode"]["length"] == 6 and info["episode"]["num_agents"] == 3


def test_returns_are_means_over_all_agents_that_took_part() -> None:
    env = make(1)
    env.reset(seed=3)
    total = 0.0
    for _ in range(6):
        _, rewards, *_, info = env.step(zeros(env))
        total += float(rewards.sum())
    assert info["episode"]["return_mean"] == pytest.approx(total / 3)
    assert list(env.episodes()) == list(EPISODE_FIELDS)
    assert np.isnan(env.episodes()["collision_rate"]).all()


@pytest.mark.parametrize("mode", MODES)
def test_seeds_fix_everything_and_an_environment_does_not_depend_on_the_others(mode: str) -> None:
    several, again, alone = make(3, mode=mode), make(3, mode=mode), make(1, mode=mode)
    for env in (several, again):
        env.reset(seed=5)
    first, _ = alone.reset(seed=7)
    ours = trajectory(several, 20)
    expect_same(ours, trajectory(again, 20))
    fresh, _ = several.reset(seed=5)
    np.testing.assert_array_equal(fresh[2], first[0])
    np.testing.assert_array_equal(fresh[1], several.reset(seed=[0, 6, 0])[0][1])
    assert (fresh[0] != several.reset(seed=99)[0][0]).any() or (fresh != several.reset(seed=98)[0]).any()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", [0, 2, 6, 10])
def test_a_saved_env_has_the_same_future(mode: str, steps: int) -> None:
    env, other = make(mode=mode), make(mode=mode)
    env.reset(seed=0)
    trajectory(env, steps)
    other.load_state(env.save_state())
    expect_same(env.observe(), other.observe())
    assert other.save_state() == env.save_state()
    expect_same(trajectory(env, 15, seed=1), trajectory(other, 15, seed=1))


def test_damaged_states_are_refused() -> None:
    env = make()
    env.reset(seed=0)
    trajectory(env, 2)
    for state in (b"", env.save_state()[:-1], b"x" * 40, make(3).save_state()):
        with pytest.raises(ValueError, match="cannot be restored"):
            env.load_state(state)


def test_next_step_resets_with_the_step_after_an_end() -> None:
    env = make(1, mode="next_step")
    env.reset(seed=0)
    *_, alive, _ = trajectory(env, 6)[-1]
    assert not alive.any()
    obs, rewards, terminations, truncations, alive, _ = env.step(zeros(env))
    assert alive.tolist() == [[True, True, False]] and obs[0, B, 1] == 0
    assert not rewards.any() and not (terminations | truncations).any()


def test_resets_that_are_needed() -> None:
    env = make(1, mode="disabled")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(zeros(env))
    env.reset(seed=0)
    for _ in range(6):
        env.step(zeros(env))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(zeros(env))


def test_agents_are_truncated_after_max_episode_steps() -> None:
    env = make(1, max_episode_steps=2)
    env.reset(seed=0)
    env.step(zeros(env))
    *_, truncations, _, info = env.step(zeros(env))
    assert truncations[0].tolist() == [True, True, False]
    assert info["episode"]["length"] == 2


def test_actions_are_the_environments_own() -> None:
    # The toy asserts that its space contains each.
    trajectory_of(make(kind=functools.partial(Leavers, start=3)))
    box = make(kind=functools.partial(Leavers, continuous=True))
    assert isinstance(box.single_action_space, Box)
    box.reset(seed=0)
    _, rewards, *_ = box.step(np.zeros((2, 3, 1), np.float32))
    np.testing.assert_array_equal(rewards, [[0, 0, 0]] * 2)


def trajectory_of(env: ParallelVectorEnv) -> None:
    env.reset(seed=0)
    trajectory(env, 8)


def test_agents_of_other_spaces_have_padded_rows_and_a_group_of_their_own() -> None:
    env = make(1, kind=Differing)
    assert env.form.groups == ("group0", "group1", "group0")
    assert env.single_observation_space.shape == (5,) and env.single_action_space == Discrete(3)
    obs, _ = env.reset(seed=0)
    assert not obs[0, A, 2:].any() and obs[0, B, 2:].all()
    # Of a surplus choice the remainder.
    env.step(np.full((1, 3), 2))
    assert make(1).form.groups == ("group0",) * 3


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (not_parallel, "should make a PettingZoo ParallelEnv, got a object"),
        (Mixed, "those of a are Discrete"),
        (OtherImages, "should all have one observation space; that of a"),
    ],
)
def test_what_does_not_fit_is_refused(kind: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make(kind=kind)
    assert "\n" not in str(caught.value)


class WithoutReward(Leavers):
    def step(self, actions: Any) -> Any:
        observations, _, *others = super().step(actions)
        return observations, {}, *others


class WideObservation(Leavers):
    def _observe(self, agent: str) -> Any:
        return np.zeros(3, np.float32)


class OldReset(Leavers):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed)[0]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Vanishing, "agent 'b' left agents without being terminated or truncated"),
        (WithoutReward, "step\\(\\) gave no reward of agent 'a'"),
        (WideObservation, "gave a an observation that its observation_space does not have: expected numbers"),
        (OldReset, "reset\\(\\) should return \\(observations, infos\\), got a dict"),
    ],
)
def test_what_breaks_the_interface_is_named(kind: Any, message: str) -> None:
    env = make(kind=kind)
    with pytest.raises(ContractError, match=f"^toy: .*{message}"):
        trajectory_of(env)
