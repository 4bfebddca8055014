import numpy as np
import pytest
import torch
from fake_env import Constant, Corridor
from fragments import Rows, parts, whole_episodes

from fastrl.networks.actor_critic import ActorCritic
from fastrl.rollout.layout import lay_out
from fastrl.rollout.rollout import Rollout

STEPS = ("actions", "log_probs", "rewards", "terminations", "truncations")


def played(env, num_steps=40):
    policy = ActorCritic(env.single_observation_space.shape[0], 2, (4,), generator=torch.Generator())
    return Rows(env).play(policy, num_steps)


def test_fragments_of_one_length_stand_side_by_side():
    whole = played(Corridor(num_envs=6, episode_length=7, stagger=True))
    rollout = Rollout(40, 6, 5, 2)
    assert lay_out(parts(whole, 1, 3, 2), rollout) is rollout
    for name in STEPS:
        np.testing.assert_array_equal(getattr(rollout, name), getattr(whole, name), err_msg=name)
    np.testing.assert_array_equal(rollout.obs, whole.obs)
    ended = whole.terminations | whole.truncations
    np.testing.assert_array_equal(rollout.final_obs[ended], whole.final_obs[ended])
    # What is meaningless is not passed on.
    assert np.isfinite(rollout.final_obs).all()


def test_a_rollout_of_another_size_is_made_anew():
    whole = played(Corridor(num_envs=6))
    before = Rollout(40, 5, 5, 2)
    rollout = lay_out([whole], before)
    assert rollout is not before
    assert rollout.rewards.shape == (40, 6)
    assert rollout.num_actions == 2


def test_episodes_of_different_lengths_follow_each_other():
    episodes = whole_episodes(played(Corridor(num_envs=6, length=3, episode_length=9)))
    assert len({episode.num_steps for episode in episodes}) > 1
    rollout = lay_out(episodes, Rollout(1, 1, 3, 2))
    assert rollout.rewards.shape == (sum(episode.num_steps for episode in episodes), 1)
    for name in STEPS:
        expected = np.concatenate([getattr(episode, name) for episode in episodes])
        np.testing.assert_array_equal(getattr(rollout, name), expected, err_msg=name)
    start = 0
    for episode in episodes:
        steps = np.s_[start : start + episode.num_steps]
        np.testing.assert_array_equal(rollout.obs[steps], episode.obs[:-1])
        start += episode.num_steps
        np.testing.assert_array_equal(rollout.final_obs[start - 1], episode.obs[-1])
    np.testing.assert_array_equal(rollout.obs[-1], episodes[-1].obs[-1])


def test_episodes_of_one_length_are_columns():
    episodes = whole_episodes(played(Constant(num_envs=3, episode_length=5)))
    rollout = lay_out(episodes, Rollout(1, 1, 1, 2))
    assert rollout.rewards.shape == (5, len(episodes))


def test_refuses_what_does_not_fit():
    env = Corridor(num_envs=2, episode_length=9)
    rollout = Rollout(4, 2, 5, 2)
    with pytest.raises(ValueError, match="no fragments"):
        lay_out([], rollout)
    with pytest.raises(ValueError, match=r"observations of length 5, the learner expects 3"):
        lay_out([played(env, 4)], Rollout(4, 2, 3, 2))
    with pytest.raises(ValueError, match=r"fragments of \[4, 5\] steps do not fit"):
        lay_out([played(env, 4), played(env, 5)], rollout)
