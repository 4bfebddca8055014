import numpy as np
import pytest
import torch
from fake_env import Constant, Corridor
from fragments import Rows, parts, whole_episodes

from fastrl.networks.actor_critic import ActorCritic
from fastrl.rollout.fragment import Fragment, allocate
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
    # Unused rows hold no leftover values.
    assert np.isfinite(rollout.final_obs).all()


def test_a_rollout_of_another_size_is_made():
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


def test_rows_of_different_lengths_follow_each_other_each_cut_off_at_its_end():
    env = Corridor(num_envs=2, episode_length=9)
    fragments = [played(env, 4), played(env, 9)]
    rollout = lay_out(fragments, Rollout(4, 2, 5, 2))
    assert (rollout.num_steps, rollout.num_rows) == (4 + 4 + 9 + 9, 1)
    at = 0
    for fragment in fragments:
        for row in range(2):
            steps = np.s_[at : at + fragment.num_steps]
            at += fragment.num_steps
            for name in ("obs", *STEPS[:-1]):
                expected = getattr(fragment, name)[: fragment.num_steps, row]
                np.testing.assert_array_equal(getattr(rollout, name)[steps, 0], expected, err_msg=name)
            ended = fragment.terminations[-1, row] | fragment.truncations[-1, row]
            assert ended == (fragment.num_steps == 9)
            # The value of what follows the last step is that of the final observation, as of a truncated episode.
            assert rollout.truncations[at - 1, 0] and not rollout.terminations[at - 1, 0]
            last = fragment.final_obs[-1, row] if ended else fragment.obs[-1, row]
            np.testing.assert_array_equal(rollout.final_obs[at - 1, 0], last)


def test_ends_of_rows_in_a_column_have_the_advantages_of_rows_side_by_side():
    whole = played(Corridor(num_envs=3, episode_length=7, stagger=True), 20)
    values = np.random.default_rng(0).normal(size=(21, 3)).astype(np.float32)
    final_values = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
    expected = lay_out([whole], Rollout(20, 3, 5, 2))
    expected.values[:], expected.final_values[:] = values, final_values
    expected.compute_advantages(0.9, 0.8)
    longer = played(Corridor(num_envs=1, episode_length=7), 21)
    column = lay_out([whole, longer], Rollout(1, 1, 5, 2))
    for row in range(3):
        steps = np.s_[20 * row : 20 * row + 20]
        column.values[steps, 0], column.final_values[steps, 0] = values[:-1, row], final_values[:, row]
        if not (whole.terminations[-1, row] | whole.truncations[-1, row]):
            column.final_values[20 * row + 19, 0] = values[-1, row]
    column.compute_advantages(0.9, 0.8)
    for row in range(3):
        found = column.advantages[20 * row : 20 * row + 20, 0]
        np.testing.assert_allclose(found, expected.advantages[:, row], rtol=1e-5, atol=1e-6)


def test_bytes_and_actions_of_several_numbers_keep_their_dtype():
    rollout = Rollout(3, 2, 4, 5, masks=True, action_width=2, obs_dtype=np.uint8)
    assert (rollout.obs.dtype, rollout.final_obs.dtype) == (np.uint8, np.uint8)
    assert (rollout.actions.shape, rollout.actions.dtype) == ((3, 2, 2), np.int64)
    arrays = allocate(7, 1, 4, (2,), np.int64, obs_dtype=np.uint8, num_masked=5)
    arrays["actions"][:] = arrays["obs"][:-1, :, :2] = np.arange(14).reshape(7, 1, 2)
    none = {"returns": np.empty(0), "lengths": np.empty(0, np.int64), "episodes": np.empty((0, 2), np.int64)}
    fragment = Fragment(**arrays, version=1, env_indices=np.arange(1), **none)
    found = lay_out([fragment], rollout)
    assert found.obs.dtype == np.uint8 and found.masks.shape == (8, 1, 5)
    assert found.actions.tolist() == fragment.actions.tolist() and found.actions.dtype == np.int64
    assert found.obs.tolist() == fragment.obs.tolist()


def test_refuses_what_does_not_fit():
    env = Corridor(num_envs=2, episode_length=9)
    rollout = Rollout(4, 2, 5, 2)
    with pytest.raises(ValueError, match="no fragments"):
        lay_out([], rollout)
    with pytest.raises(ValueError, match=r"observations of length 5, the learner expects 3"):
        lay_out([played(env, 4)], Rollout(4, 2, 3, 2))
    with pytest.raises(ValueError, match=r"observations of float32, the learner expects uint8"):
        lay_out([played(env, 4)], Rollout(4, 2, 5, 2, obs_dtype=np.uint8))
    with pytest.raises(ValueError, match=r"actions int64 \[\], the learner expects int64 \[2\]"):
        lay_out([played(env, 4)], Rollout(4, 2, 5, 4, action_width=2))
