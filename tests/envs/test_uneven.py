import time

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import fastrl  # noqa: F401 - registers it
from fastrl.envs.toys.uneven import UnevenEnv, compute

QUICK = {"step_seconds": 0.0}


def play(env, seed, action=1):
    """Observations, rewards, durations and how an episode ended."""
    obs, info = env.reset(seed=seed)
    seen, rewards, seconds = [obs], [], [info["seconds"]]
    while True:
        obs, reward, terminated, truncated, info = env.step(action)
        seen.append(obs)
        rewards.append(reward)
        seconds.append(info["seconds"])
        if terminated or truncated:
            return np.array(seen), np.array(rewards), np.array(seconds), (terminated, truncated)


@pytest.mark.parametrize("options", [{}, {"drawn": True}, {"distribution": "bimodal", "obs_size": 1}])
def test_passes_gymnasiums_checker(options):
    check_env(gymnasium.make("fastrl/Uneven-v0", **QUICK, **options).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("distribution", ["constant", "exponential", "lognormal", "bimodal"])
def test_everything_is_determined_by_the_seed(distribution, drawn):
    options = {"step_seconds": 1e-6, "distribution": distribution, "drawn": drawn, "length": 20}
    env, other = UnevenEnv(**options), UnevenEnv(**options)
    play(other, 5, action=0)
    first, second, different = play(env, 7), play(other, 7), play(env, 8)
    for a, b in zip(first[:3], second[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    assert first[3] == second[3] == (drawn, not drawn)
    assert not np.array_equal(first[0][:1], different[0][:1])


def test_the_reward_is_for_the_sign():
    obs, rewards, _, _ = play(UnevenEnv(**QUICK), 3)
    np.testing.assert_array_equal(rewards, obs[:-1, 0] > 0)
    _, others, _, _ = play(UnevenEnv(**QUICK), 3, action=0)
    np.testing.assert_array_equal(others, 1 - rewards)
    assert 20 < rewards.sum() < 80


@pytest.mark.parametrize(
    ("distribution", "largest"),
    [("constant", 1.0), ("exponential", 2.72), ("lognormal", 4.4), ("bimodal", 3.8)],
)
def test_durations_follow_the_distribution(distribution, largest):
    """The mean, and the duration of the slowest of eight, for which a barrier waits."""
    env = UnevenEnv(distribution=distribution)
    drawn = env.draw(np.random.default_rng(1), 400_000)
    assert drawn.mean() == pytest.approx(1, rel=0.03)
    assert drawn.reshape(-1, 8).max(1).mean() == pytest.approx(largest, rel=0.05)


def test_lengths_are_drawn_around_the_mean():
    env = UnevenEnv(**QUICK, drawn=True, length=10)
    lengths = np.array([len(play(env, seed)[1]) for seed in range(400)])
    assert lengths.min() == 1 and lengths.max() == 19
    assert lengths.mean() == pytest.approx(10, abs=1)


@pytest.mark.parametrize("busy", [False, True])
def test_steps_take_at_least_their_time(busy):
    env = UnevenEnv(step_seconds=0.001, busy=busy, length=10, reset_seconds=0.01)
    start = time.perf_counter()
    _, _, seconds, _ = play(env, 0)
    passed = time.perf_counter() - start
    assert seconds[0] == 0.01
    assert passed >= seconds.sum() > 0.01


def test_busy_steps_use_cpu_time():
    start = time.thread_time()
    compute(0.02)
    assert time.thread_time() - start >= 0.02


def test_refuses():
    for options, message in [
        ({"distribution": "normal"}, "one of constant, exponential, lognormal, bimodal, got 'normal'"),
        ({"length": 0}, "at least 1"),
        ({"obs_size": 0}, "at least 1"),
        ({"step_seconds": -1}, "at least 0"),
        ({"sigma": float("nan")}, "at least 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            UnevenEnv(**options)
    env = UnevenEnv(**QUICK, length=1)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action should be 0 or 1"):
        env.step(2)
    env.step(0)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)
