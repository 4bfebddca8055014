"""TeamEnv, the environment on which multi-agent trainers are tested, keeps its contract."""

import numpy as np
import pytest
from team_env import EDGE, TeamEnv


def straight(obs, box):
    """Actions towards the goal."""
    side = np.sign(obs[..., 0])
    return side[..., None].astype(np.float32) if box else side.astype(np.int64) + 1


@pytest.mark.parametrize("box", [False, True])
def test_walking_straight_gives_the_best_return(box):
    env = TeamEnv(200, 3, box=box)
    obs, _ = env.reset(seed=1)
    for _ in range(3):
        obs, *_ = env.step(straight(obs, box))
    episodes = env.episodes()
    assert (episodes["finished"] >= 1).all()
    assert (episodes["success"] == 1).all() and (episodes["collision_rate"] == 0).all()
    assert episodes["return_mean"].mean() == pytest.approx(env.best_return(), abs=0.05)


def test_agents_terminate_or_are_truncated_separately():
    env = TeamEnv(1, 3, horizon=3)
    env.reset(seed=0)
    env.distance[0] = [1, 4, -2]
    rewards, terminations, truncations, alive = env.step(np.array([[2, 0, 1]]))[1:5]
    assert terminations.tolist() == [[True, True, False]] and not truncations.any()
    assert rewards[0].tolist() == [1, -1, -2 / EDGE]
    assert alive.tolist() == [[False, False, True]]
    obs, rewards, *_ = env.step(np.array([[99, 99, 1]]))  # actions of agents that are not alive are ignored
    assert not obs[0, :2].any() and not rewards[0, :2].any()
    obs, _, terminations, truncations, alive, final = env.step(np.array([[1, 1, 1]]))
    assert truncations.tolist() == [[False, False, True]] and not terminations.any()
    assert alive.all()
    assert final[0, 2].tolist() == [-2 / EDGE, 1, 1] and obs[0, 2, 1] == 0
    assert env.episodes()["length"][0] == 3 and env.episodes()["success"][0] == pytest.approx(1 / 3)


def test_difficulty_takes_effect_at_the_next_reset():
    env = TeamEnv(2, 4, horizon=1)
    env.reset(seed=0)
    env.set_difficulty(num_agents=[1, 3], density=1.0)
    stay = np.ones((2, 4), np.int64)
    alive = env.step(stay)[4]
    assert alive.sum(1).tolist() == [1, 3]
    before = env.distance.copy()
    env.horizon = 5
    env.step(stay * 2)
    assert (env.distance == before).all()
    with pytest.raises(ValueError, match="1 to 4"):
        env.set_difficulty(num_agents=5)


def test_a_restored_state_has_the_same_future():
    env, other = TeamEnv(3, 2, density=0.3), TeamEnv(3, 2)
    obs, _ = env.reset(seed=5)
    env.step(straight(obs, False))
    other.load_state(env.save_state())
    actions = np.random.default_rng(0).integers(0, 3, (20, 3, 2))
    for action in actions:
        for a, b in zip(env.step(action), other.step(action), strict=True):
            np.testing.assert_array_equal(a, b)
