import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import fastrl  # noqa: F401 - registers it
from fastrl.envs.pixels import make_pixels
from fastrl.envs.toys.catch import CatchEnv


def play(env, choose, seed):
    """The return of an episode and its number of steps."""
    obs, _ = env.reset(seed=seed)
    total, steps = 0.0, 0
    while True:
        obs, reward, terminated, truncated, _ = env.step(choose(obs))
        assert not terminated
        total, steps = total + reward, steps + 1
        if truncated:
            return total, steps


def follow(obs):
    """The optimal policy: moves under the ball, the one bright cell above the lowest row."""
    ball, paddle = obs[:-1].any(axis=0).argmax(), obs[-1].argmax()
    return int(np.sign(ball - paddle)) + 1 if obs[:-1].any() else 1


def test_passes_gymnasiums_checker():
    check_env(gymnasium.make("fastrl/Catch-v0").unwrapped, skip_render_check=True)


@pytest.mark.parametrize(("size", "balls"), [(10, 10), (2, 1), (5, 3)])
def test_the_optimum_is_the_number_of_balls(size, balls):
    env = CatchEnv(size, balls)
    for seed in range(20):
        assert play(env, follow, seed) == (balls, balls * (size - 1))


def test_other_policies_are_much_worse():
    env, rng = CatchEnv(), np.random.default_rng(0)
    chance = np.mean([play(env, lambda _: int(rng.integers(3)), seed)[0] for seed in range(200)])
    assert -9 < chance < -7
    assert play(env, lambda obs: 2 - follow(obs), 0)[0] <= -4


def test_observations_have_only_ball_and_paddle():
    env = CatchEnv()
    obs, _ = env.reset(seed=0)
    assert obs.dtype == np.uint8 and obs.shape == (10, 10)
    for t in range(9):
        assert (obs[t] > 0).sum() == 1 and obs[-1].argmax() == max(5 - t, 0)
        assert obs.sum() == 2 * 255
        obs, *_ = env.step(0)


def test_refuses():
    with pytest.raises(ValueError, match="size should be at least 2"):
        CatchEnv(1)
    env = CatchEnv()
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action should be 0"):
        env.step(3)


def test_works_as_a_pixel_environment():
    env = make_pixels("fastrl/Catch-v0", size=None, frame_skip=1, noop_max=0)
    assert env.observation_space.shape == (10, 10)
    assert play(env, follow, 1) == (10, 90)
