"""Cooperative driving from Python: shapes, masks, difficulty, episode statistics, seeds, states and errors."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from fastrl.envs import MultiAgentVectorEnv, make_multi
from fastrl.envs.traffic.coop import ACTIONS, CoopVectorEnv

IDS = ["fastrl/coop-highway-v0", "fastrl/coop-merge-v0"]
each_id = pytest.mark.parametrize("env_id", IDS)
each_mode = pytest.mark.parametrize("mode", ["same_step", "next_step", "disabled"])
each_type = pytest.mark.parametrize("action_type", ["meta", "continuous"])


def draw(env: MultiAgentVectorEnv, rng: np.random.Generator) -> np.ndarray:
    shape = (env.num_envs, env.num_agents)
    if isinstance(env.single_action_space, Discrete):
        return rng.integers(len(ACTIONS), size=shape)
    return rng.uniform(-1, 1, (*shape, 2)).astype(np.float32)


def play(env: MultiAgentVectorEnv, steps: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    seen = []
    for _ in range(steps):
        step = env.step(draw(env, rng))
        seen.append(step[:5])
        over = ~step[4].any(axis=1)
        if env.autoreset_mode.name == "DISABLED" and over.any():
            env.reset(reset_mask=over)
    return seen


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


@each_id
@each_type
def test_spaces(env_id: str, action_type: str) -> None:
    env = make_multi(env_id, 3, action_type=action_type, num_agents=6)
    lanes = 4 if "highway" in env_id else 3
    assert (env.num_envs, env.num_agents, env.name) == (3, 15, env_id)
    assert env.single_observation_space == Box(-1, 1, (61 + lanes,), np.float32)
    expected = Discrete(5) if action_type == "meta" else Box(-1, 1, (2,), np.float32)
    assert env.single_action_space == expected
    obs, alive = env.reset(seed=0)
    np.testing.assert_array_equal(alive, np.broadcast_to(np.arange(15) < 6, (3, 15)))
    assert (obs[:, 6:] == 0).all() and (obs[:, :6, 4 : 4 + lanes].sum(axis=-1) == 1).all()


@each_id
@each_mode
@each_type
def test_arrays_keep_their_invariants(env_id: str, mode: str, action_type: str) -> None:
    env = make_multi(
        env_id,
        8,
        max_agents=7,
        num_agents=5,
        duration=20,
        policy_frequency=1,
        autoreset_mode=mode,
        action_type=action_type,
    )
    _, before = env.reset(seed=1)
    rng = np.random.default_rng(2)
    ends = 0
    for _ in range(90):
        obs, rewards, terminations, truncations, alive, info = env.step(draw(env, rng))
        assert np.isfinite(obs).all() and (np.abs(obs) <= 1).all() and np.isfinite(rewards).all()
        resting = ~before.any(axis=1)
        assert mode == "next_step" or not resting.any()
        silent = ~before
        for rows in (rewards, terminations, truncations):
            assert not rows[silent].any()
        assert not (terminations & truncations).any()
        over = before & (terminations | truncations)
        ended = ~resting & ~(before & ~over).any(axis=1)
        going = ~resting & ~ended
        np.testing.assert_array_equal(alive[going], (before & ~over)[going])
        assert not obs[going][~before[going]].any(), "who was not there sees nothing"
        started = resting | (ended if mode == "same_step" else False)
        np.testing.assert_array_equal(alive[started], np.broadcast_to(np.arange(7) < 5, (started.sum(), 7)))
        assert bool(info) == ended.any()
        if info:
            np.testing.assert_array_equal(info["_episode"], ended)
            assert (info["episode"]["num_agents"][ended] == 5).all()
        if mode == "same_step" and info:
            assert info["final_obs"][ended][before[ended]].any(axis=-1).all()
            assert not info["final_obs"][ended][~before[ended]].any()
        ends += int(ended.sum())
        if mode == "disabled" and ended.any():
            with pytest.raises(gymnasium.error.ResetNeeded):
                env.step(draw(env, rng))
            _, alive = env.reset(reset_mask=ended)
        before = alive
    assert ends > 16


@each_id
@each_mode
def test_seeds_fix_episodes_and_states_restore_them(env_id: str, mode: str) -> None:
    options: dict[str, Any] = {"autoreset_mode": mode, "max_agents": 8, "duration": 15}
    env, other = make_multi(env_id, 4, **options), make_multi(env_id, 4, num_threads=1, **options)
    assert_same([env.reset(seed=7)], [other.reset(seed=[7, 8, 9, 10])])
    assert_same(play(env, 40), play(other, 40))
    state = env.save_state()
    future = play(env, 40, seed=5)
    third = make_multi(env_id, 4, **options)
    third.load_state(state)
    assert_same(future, play(third, 40, seed=5))
    assert third.save_state() == env.save_state() != state
    assert (env.episodes()["finished"] > 1).all()


@each_id
def test_results_do_not_depend_on_threads(env_id: str) -> None:
    envs = [make_multi(env_id, 150, max_agents=4, duration=8, num_threads=n) for n in (1, 3)]
    for env in envs:
        env.reset(seed=0)
    assert_same(play(envs[0], 20), play(envs[1], 20))


@each_id
def test_difficulty_takes_effect_at_the_next_reset(env_id: str) -> None:
    env = make_multi(env_id, 4, max_agents=10, duration=5)
    env.reset(seed=0)
    env.set_difficulty(num_agents=np.array([1, 4, 7, 10]), density=0.0)
    obs, _, _, _, alive, _ = env.step(np.ones((4, 10), np.int64))
    assert (alive.sum(axis=1) > 4).all()
    while not env.episodes()["finished"].all():
        obs, _, _, _, alive, _ = env.step(np.ones((4, 10), np.int64))
    obs, alive = env.reset(seed=0)
    np.testing.assert_array_equal(alive.sum(axis=1), [1, 4, 7, 10])
    lanes = obs.shape[-1] - 61
    present = obs[..., 5 + lanes :: 7]
    assert present[0].sum() == 0, "nobody else is there"
    assert present[1, :4].sum(axis=1).max() <= 3
    state = env.save_state()
    env.set_difficulty(num_agents=2)
    env.load_state(state)
    env.reset(seed=0)
    assert env.reset(seed=0)[1].sum() == 22, "the difficulty is part of the state"
    env.set_difficulty(density=3.0)
    np.testing.assert_array_equal(env.reset(seed=0)[1].sum(axis=1), [1, 4, 7, 10])
    assert env.reset(seed=0)[0][0, 0, 5 + lanes :: 7].sum() > 2


@each_id
@pytest.mark.parametrize(
    ("difficulty", "message"),
    [
        ({"num_agents": 0}, "num_agents: expected 1 to 10"),
        ({"num_agents": 11}, "num_agents: expected 1 to 10"),
        ({"num_agents": -3}, "num_agents"),
        ({"num_agents": np.array([1, 2, 3, 11])}, "got 11"),
        ({"density": -0.1}, "density: expected 0 to 4"),
        ({"density": np.nan}, "density"),
        ({"density": np.inf}, "density"),
        ({"num_agents": 3, "density": 5.0}, "density"),
    ],
)
def test_impossible_difficulties_change_nothing(env_id: str, difficulty: Any, message: str) -> None:
    env = make_multi(env_id, 4, max_agents=10)
    env.reset(seed=0)
    before = env.save_state()
    with pytest.raises(ValueError, match=message):
        env.set_difficulty(**difficulty)
    assert env.save_state() == before


def careful(obs: np.ndarray) -> np.ndarray:
    """A driver that brakes behind a near vehicle in its lane and accelerates on a free lane."""
    speed = obs[..., 2] * 40
    seen = obs[..., 9:].reshape(*obs.shape[:-1], 8, 7)
    dx, dy, dvx = (seen[..., k] * scale for k, scale in ((1, 150), (2, 12), (3, 40)))
    ahead = (seen[..., 0] == 1) & (np.abs(dy) < 3) & (dx > 0)
    wanted = 10 + 0.8 * speed[..., None] + 2 * np.maximum(-dvx, 0)
    blocked = (ahead & (dx < wanted)).any(axis=-1)
    return np.where(blocked, 4, np.where(speed < 22.5, 3, 1))


def test_a_driver_can_act_on_the_observations() -> None:
    accounts = []
    for sees in (True, False):
        env = make_multi("fastrl/coop-highway-v0", 32, max_agents=8)
        obs, _ = env.reset(seed=0)
        rng = np.random.default_rng(0)
        while not env.episodes()["finished"].all():
            obs, *_ = env.step(careful(obs) if sees else draw(env, rng))
        account = env.episodes()
        np.testing.assert_allclose(account["success"] + account["collision_rate"], 1)
        accounts.append({key: values.mean() for key, values in account.items()})
    seeing, blind = accounts
    assert seeing["collision_rate"] < 0.02 and blind["collision_rate"] > 0.6
    assert seeing["return_mean"] > 3 * blind["return_mean"] and seeing["throughput"] > blind["throughput"]
    assert seeing["min_ttc"] > 1 > blind["min_ttc"]


@pytest.mark.parametrize("seed", range(6))
def test_episode_statistics_agree_with_sums_over_steps(seed: int) -> None:
    """Compared with sums over the results of the steps."""
    env = make_multi("fastrl/coop-merge-v0", 1, max_agents=9, num_agents=7, autoreset_mode="disabled")
    _, alive = env.reset(seed=seed)
    assert env.episodes()["finished"] == 0 and np.isnan(env.episodes()["length"])
    rng = np.random.default_rng(seed)
    returned, length, crashed = 0.0, 0, 0
    speeds: list[float] = []
    arrivals: list[int] = []
    while alive.any():
        actions = draw(env, rng) if rng.random() < 0.3 else np.ones((1, 9), np.int64)
        obs, rewards, terminations, _, after, info = env.step(actions)
        length += 1
        returned += rewards.sum()
        speeds += list(obs[alive][:, 2] * 40)
        # The arrival is 150 m past the ramp's end, half of the unit of that distance.
        gone = obs[terminations]
        arrivals += [length] * int((gone[:, 7] <= -0.5).sum())
        crashed += int((gone[:, 7] > -0.5).sum())
        alive = after
    account = {key: values[0] for key, values in info["episode"].items()}
    assert account["finished"] == 1 and account["length"] == length and account["num_agents"] == 7
    np.testing.assert_allclose(account["return_mean"], returned / 7, rtol=1e-5)
    np.testing.assert_allclose(account["mean_speed"], np.mean(speeds), rtol=1e-5)
    np.testing.assert_allclose(account["collision_rate"], crashed / 7)
    np.testing.assert_allclose(account["success"], len(arrivals) / 7)
    # A step is a second.
    assert account["driving_time"] == len(speeds)
    np.testing.assert_allclose(account["arrival_time"], np.mean(arrivals) if arrivals else np.nan)
    assert 0 <= account["min_ttc"] <= 100 and (account["min_ttc"] == 0) == (crashed > 0)
    assert 0 <= account["throughput"] < 20_000


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"lanes": 0}, ValueError, "lanes: expected 1 to 16, got 0"),
        ({"lanes": -1}, ValueError, "lanes: -1 is out of range"),
        ({"lanes": 2.5}, TypeError, "lanes"),
        ({"max_agents": 0}, ValueError, "max_agents: expected 1 to 64"),
        ({"max_agents": 65}, ValueError, "max_agents"),
        ({"max_agents": 2**70}, ValueError, "max_agents: 1180591620717411303424 is out of range"),
        ({"num_agents": 1.0}, TypeError, "num_agents: expected an integer, got float"),
        ({"num_threads": -(2**70)}, ValueError, "num_threads: -1180591620717411303424 is out of range"),
        ({"num_agents": 16}, ValueError, r"num_agents: expected 1 to 15 \(max_agents\), got 16"),
        ({"num_agents": 0}, ValueError, "num_agents"),
        ({"background": -1}, ValueError, "background"),
        ({"background": 10**30}, ValueError, "background: 1000000000000000000000000000000 is out of range"),
        ({"density": float("nan")}, ValueError, "density: expected 0 to 4, got NaN"),
        ({"cooperation": 1.5}, ValueError, "cooperation: expected 0 to 1, got 1.5"),
        ({"cooperation": "much"}, TypeError, "cooperation"),
        ({"duration": 0.0}, ValueError, "duration"),
        ({"duration": float("inf")}, ValueError, "duration"),
        (
            {"policy_frequency": 2},
            ValueError,
            "policy_frequency: expected a divisor of simulation_frequency 5",
        ),
        ({"simulation_frequency": 0}, ValueError, "simulation_frequency"),
        ({"collision_reward": float("nan")}, ValueError, "collision_reward"),
        ({"reward_speed_range": (30.0, 20.0)}, ValueError, "reward_speed_range"),
        ({"reward_speed_range": (-5.0, 20.0)}, ValueError, "reward_speed_range"),
        ({"action_type": "keys"}, ValueError, "action_type: expected 'meta' or 'continuous', got 'keys'"),
        ({"autoreset_mode": "never"}, ValueError, "autoreset_mode"),
        ({"num_threads": -1}, ValueError, "num_threads"),
        ({"lane_count": 3}, TypeError, "lane_count"),
        ({"road": "drift"}, ValueError, "road: expected 'highway' or 'merge', got 'drift'"),
    ],
)
def test_unusable_options_are_named(options: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        CoopVectorEnv(2, **options)


@pytest.mark.parametrize("num_envs", [0, -1, 2**40])
def test_unusable_numbers_of_environments(num_envs: int) -> None:
    with pytest.raises(ValueError, match="num_envs: expected 1 to"):
        make_multi(IDS[0], num_envs)


@each_id
@pytest.mark.parametrize(
    ("action_type", "bad"),
    [
        ("meta", 5),
        ("meta", -1),
        ("continuous", [1.5, 0.0]),
        ("continuous", [0.0, -1.001]),
        ("continuous", [np.nan, 0.0]),
        ("continuous", [0.0, np.inf]),
    ],
)
def test_unusable_actions_change_nothing(env_id: str, action_type: str, bad: Any) -> None:
    env = make_multi(env_id, 3, max_agents=5, num_agents=4, action_type=action_type)
    env.reset(seed=0)
    before = env.save_state()
    actions = np.zeros(
        (3, 5, *env.single_action_space.shape), np.int64 if action_type == "meta" else np.float32
    )
    actions[1, 2] = bad
    with pytest.raises(ValueError, match="action of agent 2 of environment 1: expected"):
        env.step(actions)
    assert env.save_state() == before
    actions[1, 2] = 0
    actions[1, 4] = bad
    env.step(actions)


def test_states_of_other_options_are_refused() -> None:
    env = make_multi(IDS[0], 2)
    env.reset(seed=0)
    before = env.save_state()
    for other in (make_multi(IDS[0], 2, cooperation=0.1), make_multi(IDS[1], 2), make_multi(IDS[0], 3)):
        other.reset(seed=0)
        with pytest.raises(ValueError, match="cannot be restored"):
            env.load_state(other.save_state())
    for damaged in (before[:-1], before[:40] + b"x" + before[41:], b""):
        with pytest.raises(ValueError, match="cannot be restored"):
            env.load_state(damaged)
    assert env.save_state() == before


def test_a_closed_env_refuses_calls() -> None:
    env = make_multi(IDS[0], 2)
    env.reset(seed=0)
    env.close()
    env.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        env.step(np.zeros((2, 15), np.int64))


@each_id
def test_cooperation_mixes_the_reward_with_the_teams_mean(env_id: str) -> None:
    """The same traffic for each share, because actions do not depend on rewards."""
    runs = {}
    for share in (0.0, 0.25, 1.0):
        env = make_multi(env_id, 4, max_agents=6, cooperation=share, autoreset_mode="disabled")
        _, alive = env.reset(seed=5)
        rng = np.random.default_rng(1)
        runs[share] = []
        for _ in range(12):
            step = env.step(draw(env, rng))
            runs[share].append((alive, step[1]))
            alive = step[4]
            if not alive.any(axis=1).all():
                break
    for (alive, own), (_, mixed), (_, team) in zip(*runs.values(), strict=True):
        mean = own.sum(axis=1, keepdims=True) / alive.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(team, np.where(alive, mean, 0), atol=1e-6)
        np.testing.assert_allclose(mixed, np.where(alive, 0.75 * own + 0.25 * mean, 0), atol=1e-6)
    assert len(runs[0.0]) > 2
