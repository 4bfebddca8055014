"""`MultiAgentVectorEnv` over a compiled class or a stub, and `make_multi`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from stub_native_vec import AGENTS, LIMIT, StubNativeVec, stub_env

from fastrl.envs import HighwayVectorEnv, MultiAgentVectorEnv, make_multi, register_multi
from fastrl.envs.episode_log import EPISODE_FIELDS
from fastrl.envs.registration import MULTI_AGENT_IDS

K = 4
MODES = ["same_step", "next_step", "disabled"]


def play(env: MultiAgentVectorEnv, steps: int, seed: int = 0) -> list[Any]:
    """Steps with random actions through `step_into` and resets by mask if the mode needs it. Returns copies of all
    written arrays."""
    rows = env.num_envs * env.num_agents
    rng = np.random.default_rng(seed)
    obs = np.zeros((rows, 2), np.float32)
    rewards = np.zeros(rows, np.float32)
    terminations, truncations, alive = (np.zeros(rows, np.bool_) for _ in range(3))
    seen = []
    for _ in range(steps):
        actions = (rng.random(rows) < 0.3).astype(np.int64)
        env.step_into(actions, obs, rewards, terminations, truncations, alive)
        seen.append([a.copy() for a in (actions, obs, rewards, terminations, truncations, alive)])
        over = ~alive.reshape(env.num_envs, -1).any(axis=1)
        if env.autoreset_mode is AutoresetMode.DISABLED and over.any():
            env.reset_into(obs, alive, reset_mask=over)
    return seen


def test_shapes_of_reset_and_step() -> None:
    env = stub_env(K)
    obs, alive = env.reset(seed=3)
    assert obs.shape == (K, AGENTS, 2) and obs.dtype == np.float32
    assert alive.shape == (K, AGENTS) and alive.dtype == np.bool_ and alive.all()
    np.testing.assert_array_equal(obs[:, 0, 0], [3, 4, 5, 6])
    obs, rewards, terminations, truncations, alive, info = env.step(np.eye(K, AGENTS, dtype=np.int8))
    np.testing.assert_array_equal(rewards, np.broadcast_to([1, 2, 3], (K, AGENTS)))
    assert rewards.dtype == np.float32
    np.testing.assert_array_equal(terminations, np.eye(K, AGENTS, dtype=bool))
    assert not truncations.any()
    np.testing.assert_array_equal(alive, ~terminations)
    np.testing.assert_array_equal(obs[..., 1], np.full((K, AGENTS), 2))
    assert info == {}


def test_a_mask_resets_some_environments_and_returns_all_observations() -> None:
    env = stub_env(K)
    env.reset(seed=0)
    env.step(np.zeros((K, AGENTS), np.int64))
    obs, alive = env.reset(seed=[10, 11, 12, 13], reset_mask=np.array([True, False, False, False]))
    np.testing.assert_array_equal(obs[:, 0, 0], [10, 1, 2, 3])
    np.testing.assert_array_equal(obs[:, 0, 1], [1, 2, 2, 2])
    assert alive.all()


@pytest.mark.parametrize("mode", MODES)
def test_the_log_agrees_with_a_slow_count(mode: str) -> None:
    env = stub_env(K, mode)
    env.reset(seed=0)
    assert set(env.episodes()) == set(EPISODE_FIELDS)
    assert all(np.isnan(env.episodes()[key]).all() for key in EPISODE_FIELDS if key != "finished")
    alive = np.ones(K * AGENTS, np.bool_)
    returns = [[0.0] * AGENTS for _ in range(K)]
    agents, lengths = [AGENTS] * K, [0] * K
    finished, last = [0] * K, [(np.nan,) * 3] * K
    count = [1] * K
    for actions, _, rewards, _, _, after in play(env, 60):
        for i in range(K):
            mine = range(i * AGENTS, (i + 1) * AGENTS)
            if not any(alive[r] for r in mine) and mode == "next_step":
                count[i] += 1
                agents[i] = AGENTS - (count[i] % 3 == 0)
                alive[list(mine)] = after[list(mine)]
                continue
            lengths[i] += 1
            for agent, r in enumerate(mine):
                returns[i][agent] += rewards[r]
                alive[r] = alive[r] and actions[r] == 0 and lengths[i] < LIMIT
            if not any(alive[r] for r in mine):
                finished[i] += 1
                last[i] = (lengths[i], sum(returns[i]) / agents[i], agents[i])
                returns[i], lengths[i] = [0.0] * AGENTS, 0
                if mode != "next_step":
                    count[i] += 1
                    agents[i] = AGENTS - (count[i] % 3 == 0)
                    for agent, r in enumerate(mine):
                        alive[r] = agent < agents[i]
    episodes = env.episodes()
    assert min(finished) > 5
    np.testing.assert_array_equal(episodes["finished"], finished)
    got = np.stack([episodes[key] for key in ("length", "return_mean", "num_agents")], axis=1)
    np.testing.assert_allclose(got, last)
    assert np.isnan(episodes["success"]).all()


def test_info_marks_ends() -> None:
    env = stub_env(2)
    env.reset(seed=0)
    ones = np.array([[1, 1, 1], [0, 0, 0]])
    obs, _, terminations, _, alive, info = env.step(ones)
    assert terminations[0].all() and alive.all()
    np.testing.assert_array_equal(info["_episode"], [True, False])
    np.testing.assert_array_equal(info["_final_obs"], [True, False])
    assert info["final_obs"][0, 0, 1] == 2 and obs[0, 0, 1] == 1
    assert info["episode"]["length"][0] == 1 and info["episode"]["return_mean"][0] == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_saved_env_has_the_same_future(mode: str) -> None:
    env, other = stub_env(K, mode), stub_env(K, mode)
    env.reset(seed=0)
    play(env, 13, seed=1)
    other.load_state(env.save_state())
    for ours, theirs in zip(play(env, 30, seed=2), play(other, 30, seed=2), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
    for key, value in env.episodes().items():
        np.testing.assert_array_equal(value, other.episodes()[key])


def test_a_damaged_log_is_refused_before_anything_changes() -> None:
    env = stub_env(K)
    env.reset(seed=0)
    play(env, 7)
    state = env.save_state()
    for damaged in (state[:-1] + bytes([state[-1] ^ 1]), state[:20], b""):
        with pytest.raises(ValueError, match="damaged"):
            env.load_state(damaged)
        assert env.save_state() == state


@pytest.mark.parametrize(
    ("actions", "kind", "message"),
    [
        (np.zeros((K, AGENTS)), TypeError, r"integers of shape \(4, 3\), got dtype float64"),
        (np.zeros((K, AGENTS), np.bool_), TypeError, "integers"),
        (np.zeros(K * AGENTS, np.int64), ValueError, r"got shape \(12,\)"),
        (np.zeros((K, AGENTS + 1), np.int64), ValueError, r"got shape \(4, 4\)"),
        (np.full((K, AGENTS), 2**63, np.uint64), ValueError, "below"),
        ([["a"] * AGENTS] * K, TypeError, "integers"),
        (np.full((K, AGENTS), 7), ValueError, "expected 0 or 1"),
    ],
)
def test_unusable_actions_are_refused(actions: Any, kind: type[Exception], message: str) -> None:
    env = stub_env(K)
    env.reset(seed=0)
    before = env.save_state()
    with pytest.raises(kind, match=message):
        env.step(actions)
    assert env.save_state() == before


@pytest.mark.parametrize(
    ("seed", "kind"), [(-1, ValueError), (2**64 - 2, ValueError), ([1, 2], ValueError), (1.5, TypeError)]
)
def test_unusable_seeds_are_refused(seed: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="seed"):
        stub_env(K).reset(seed=seed)


def test_without_a_seed_the_first_reset_draws_one_and_streams_continue() -> None:
    env = stub_env(K)
    first, _ = env.reset()
    again, _ = env.reset()
    np.testing.assert_array_equal(first[..., 0], again[..., 0])
    assert len({float(x) for e in (env, stub_env(K)) for x in e.reset()[0][:, 0, 0]}) > 3


def test_boxes_accept_integers_and_floats() -> None:
    taken = []

    class Native(StubNativeVec):
        def step(self, actions: Any, *args: Any, **kwargs: Any) -> None:
            taken.append(actions)
            super().step(np.zeros(len(actions), np.int64), *args, **kwargs)

    space = Box(-1, 1, (2,), np.float32)
    env = MultiAgentVectorEnv(lambda mode: Native(K, mode), Box(0, 9, (2,), np.float32), space)
    env.reset(seed=0)
    env.step(np.full((K, AGENTS, 2), 0.5))
    assert taken[0].shape == (K * AGENTS, 2) and taken[0].dtype == np.float32
    with pytest.raises(ValueError, match=r"numbers of shape \(4, 3, 2\)"):
        env.step(np.zeros((K, AGENTS)))


def test_the_space_must_fit_the_simulator() -> None:
    with pytest.raises(ValueError, match=r"expected shape \(2,\), got \(3,\)"):
        MultiAgentVectorEnv(lambda mode: StubNativeVec(K, mode), Box(0, 9, (3,), np.float32), Discrete(2))


def test_set_difficulty_of_a_fixed_simulator_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="stub has a fixed number of agents"):
        stub_env(K).set_difficulty(num_agents=2)


def test_difficulty_is_one_value_or_one_per_environment() -> None:
    given: list[Any] = []

    class Native(StubNativeVec):
        def set_difficulty(self, num_agents: Any, density: Any) -> None:
            given.append((num_agents, density))

    env = MultiAgentVectorEnv(lambda mode: Native(K, mode), Box(0, 9, (2,), np.float32), Discrete(2))
    env.set_difficulty(num_agents=2)
    np.testing.assert_array_equal(given[-1][0], [2] * K)
    assert given[-1][0].dtype == np.int64 and given[-1][1] is None
    env.set_difficulty(density=np.array([1, 2, 3, 4]))
    assert given[-1][0] is None and given[-1][1].dtype == np.float64
    for options, kind in [
        ({"num_agents": 2.5}, TypeError),
        ({"num_agents": True}, TypeError),
        ({"num_agents": np.array([1, 2])}, ValueError),
        ({"density": "1"}, TypeError),
    ]:
        with pytest.raises(kind, match=next(iter(options))):
            env.set_difficulty(**options)  # type: ignore[arg-type]
    assert len(given) == 2


def test_disabled_requires_a_reset_after_an_end() -> None:
    env = stub_env(K, "disabled")
    env.reset(seed=0)
    env.step(np.ones((K, AGENTS), np.int64))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.ones((K, AGENTS), np.int64))


@pytest.mark.parametrize("env_id", MULTI_AGENT_IDS)
def test_every_simulator_has_the_same_interface(env_id: str) -> None:
    env, other = make_multi(env_id, 3), make_multi(env_id, 3, num_threads=1)
    rng = np.random.default_rng(0)
    first, alive = env.reset(seed=1)
    again, _ = other.reset(seed=1)
    np.testing.assert_array_equal(first, again)
    assert first.shape == (3, env.num_agents, *env.single_observation_space.shape) and alive.any()
    for _ in range(12):
        space = env.single_action_space
        shape = (3, env.num_agents, *(space.shape or ()))
        actions = (
            rng.integers(space.n, size=shape) if isinstance(space, Discrete) else rng.uniform(-1, 1, shape)
        )
        ours, theirs = env.step(actions), other.step(actions)
        for a, b in zip(ours[:5], theirs[:5], strict=True):
            np.testing.assert_array_equal(a, b)
        assert all(env.single_observation_space.contains(row) for own in ours[0] for row in own)
    assert list(env.episodes())[: len(EPISODE_FIELDS)] == list(EPISODE_FIELDS)
    for key, values in env.episodes().items():
        assert values.shape == (3,) and values.dtype == (np.int64 if key == "finished" else np.float64)
    other.load_state(env.save_state())
    assert other.save_state() == env.save_state()


def test_highways_agree_with_their_single_agent_vector_env() -> None:
    multi = make_multi("fastrl/highway-fast-v0", 4)
    roads = HighwayVectorEnv(4, fast=True, autoreset_mode="same_step")
    obs, _ = multi.reset(seed=0)
    np.testing.assert_array_equal(obs.reshape(4, 5, 5), roads.reset(seed=0)[0])
    returns, rng = np.zeros(4), np.random.default_rng(0)
    for _ in range(31):
        actions = rng.integers(5, size=4)
        obs, rewards, terminations, truncations, _, info = multi.step(actions[:, None])
        expected = roads.step(actions)
        np.testing.assert_array_equal(obs.reshape(4, 5, 5), expected[0])
        np.testing.assert_allclose(rewards[:, 0], expected[1], rtol=1e-6)
        np.testing.assert_array_equal(terminations[:, 0], expected[2])
        np.testing.assert_array_equal(truncations[:, 0], expected[3])
        returns += expected[1]
        for i in np.flatnonzero(expected[2] | expected[3]):
            np.testing.assert_allclose(info["episode"]["return_mean"][i], returns[i], rtol=1e-5)
            returns[i] = 0
    assert (multi.episodes()["finished"] > 0).all()


def test_make_multi_lists_the_known_ids() -> None:
    with pytest.raises(ValueError, match="id: expected one of"):
        make_multi("fastrl/no-such-v0", 2)


def test_a_registered_environment_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MULTI_AGENT_IDS, "tests/stub-v0", "")  # removed again after the test
    register_multi("tests/stub-v0", "stub_native_vec:stub_env")
    env = make_multi("tests/stub-v0", 2, mode="disabled")
    assert (env.num_envs, env.num_agents, env.autoreset_mode.name) == (2, AGENTS, "DISABLED")
