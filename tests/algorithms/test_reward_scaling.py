import numpy as np
import pytest
import torch
from fake_env import Constant
from fragments import Rows, parts, whole_episodes

from fastrl.algorithms.reward_scaling import ReturnScale
from fastrl.networks.actor_critic import ActorCritic
from fastrl.rollout.fragment import without_steps
from fastrl.rollout.layout import lay_out
from fastrl.rollout.rollout import Rollout


def test_is_one_over_the_deviation_of_discounted_returns():
    rng = np.random.default_rng(0)
    rollout = Rollout(50, 3, 1, 2)
    scale = ReturnScale(3, gamma=0.9)
    sums, all_sums = np.zeros(3), []
    for _ in range(2):  # sums continue from one rollout to the next
        rollout.rewards[:] = rng.normal(size=(50, 3)) * 100
        rollout.terminations[:] = rng.random((50, 3)) < 0.05
        rollout.truncations[:] = rng.random((50, 3)) < 0.05
        factor = scale.update_rows(rollout)
        for t in range(50):
            sums = 0.9 * sums + rollout.rewards[t]
            all_sums.append(sums)
            sums = np.where(rollout.terminations[t] | rollout.truncations[t], 0, sums)
    assert factor == pytest.approx(1 / np.std(all_sums), rel=1e-5)


def test_resumes_exactly():
    rng = np.random.default_rng(0)
    rollout = Rollout(5, 3, 1, 2)
    first, second = ReturnScale(3, gamma=0.9), ReturnScale(3, gamma=0.9)
    for scale in (first, first, second):
        rollout.rewards[:] = rng.normal(size=(5, 3))
        scale.update_rows(rollout)
    second.load_state_dict(first.state_dict())
    assert second.update_rows(rollout) == first.update_rows(rollout)


def test_rows_continue_from_fragment_to_fragment():
    """Rows continue from fragment to fragment, however they are divided into fragments."""
    rng = np.random.default_rng(1)
    rows, scale, slow = Rows(Constant(num_envs=3, episode_length=4)), ReturnScale(3, 0.9), ReturnScale(3, 0.9)
    policy = ActorCritic(1, 2, (), generator=torch.Generator())
    for _ in range(3):
        fragment = rows.play(policy, 6)
        fragment.rewards[:] = rng.normal(size=(6, 3)) * 50
        rollout = lay_out([fragment], Rollout(6, 3, 1, 2))
        assert scale.update(parts(fragment, 2, 1)) == pytest.approx(slow.update_rows(rollout), rel=1e-5)
    np.testing.assert_allclose(scale.discounted, slow.discounted, rtol=1e-5)


def test_rows_of_different_lengths_count_each_step_once():
    rng = np.random.default_rng(3)
    fragment = Rows(Constant(num_envs=4, episode_length=5)).play(
        ActorCritic(1, 2, (), generator=torch.Generator()), 10
    )
    fragment.rewards[:] = rng.normal(size=(10, 4)) * 50
    skipped = np.zeros((10, 4), bool)
    skipped[5, :2] = True
    scale = ReturnScale(4, 0.9)
    found = scale.update(without_steps(fragment, skipped))
    sums, all_sums = np.zeros(4), []
    for t in range(10):
        sums = np.where(skipped[t], sums, 0.9 * sums + fragment.rewards[t])
        all_sums += sums[~skipped[t]].tolist()
        sums[fragment.terminations[t] | fragment.truncations[t]] = 0
    assert found == pytest.approx(1 / np.std(all_sums), rel=1e-4)
    np.testing.assert_allclose(scale.discounted, sums, rtol=1e-5)


def test_whole_episodes_start_at_zero():
    rng = np.random.default_rng(2)
    scale, slow = ReturnScale(1, 0.9), ReturnScale(1, 0.9)
    policy = ActorCritic(1, 2, (), generator=torch.Generator())
    fragment = Rows(Constant(num_envs=2, episode_length=5)).play(policy, 10)
    fragment.rewards[:] = rng.normal(size=(10, 2))
    episodes = whole_episodes(fragment)
    expected = [slow.update_rows(episode) for episode in episodes][-1]
    assert scale.update(episodes) == pytest.approx(expected, rel=1e-5)
    assert not scale.discounted.any()
