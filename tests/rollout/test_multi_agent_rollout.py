"""Rollouts of rows: advantages of agents that come and go, against an obvious loop over each agent's lives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.rollout.rollout import Rollout


def rollout_of(alive, rewards, values, terminations, truncations, final_values):
    num_steps, num_rows = rewards.shape
    rollout = Rollout(num_steps, num_rows, 2, 3, many_agents=True)
    rollout.alive[:], rollout.rewards[:], rollout.values[:] = alive, rewards, values
    rollout.terminations[:], rollout.truncations[:] = terminations, truncations
    rollout.final_values[:] = final_values
    return rollout


def plain_advantages(rollout, gamma, gae_lambda, scale=1.0):
    """Of each row, from each step on, to the end of the life or of the rollout."""
    advantages = np.zeros(rollout.rewards.shape)
    for row in range(rollout.num_rows):
        for start in range(rollout.num_steps):
            if not rollout.alive[start, row]:
                continue
            weight = 1.0
            for t in range(start, rollout.num_steps):
                if rollout.terminations[t, row]:
                    ahead = 0.0
                elif rollout.truncations[t, row]:
                    ahead = rollout.final_values[t, row]
                else:
                    ahead = rollout.values[t + 1, row]
                delta = scale * rollout.rewards[t, row] + gamma * ahead - rollout.values[t, row]
                advantages[start, row] += weight * delta
                if rollout.terminations[t, row] or rollout.truncations[t, row]:
                    break
                weight *= gamma * gae_lambda
    return advantages


@st.composite
def rollouts(draw):
    """Rows whose agents end, are absent for a while, and start again, with garbage where no agent is alive."""
    num_steps, num_rows = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (num_steps, num_rows)
    terminations, truncations = rng.random(shape) < 0.2, rng.random(shape) < 0.2
    alive = np.zeros((num_steps + 1, num_rows), np.bool_)
    alive[0] = rng.random(num_rows) < 0.7
    for t in range(num_steps):
        ended = terminations[t] | truncations[t]
        begins = rng.random(num_rows) < 0.4
        alive[t + 1] = np.where(alive[t] & ~ended, True, begins)
    values = rng.normal(size=(num_steps + 1, num_rows)).astype(np.float32)
    final_values = rng.normal(size=shape).astype(np.float32)
    rewards = rng.normal(size=shape).astype(np.float32)
    garbage = draw(st.sampled_from([0.0, 1e30, np.nan, -np.inf]))
    rewards[~alive[:-1]] = garbage
    values[~alive] = garbage
    final_values[~(alive[:-1] & truncations & ~terminations)] = garbage
    return rollout_of(alive, rewards, values, terminations, truncations, final_values)


@settings(deadline=None, max_examples=300)
@given(rollouts(), st.floats(0, 1), st.floats(0, 1), st.sampled_from([1.0, 0.5]))
def test_advantages_are_those_of_each_agents_own_lives(rollout, gamma, gae_lambda, scale):
    rollout.compute_advantages(gamma, gae_lambda, scale)
    expected = plain_advantages(rollout, gamma, gae_lambda, scale)
    np.testing.assert_allclose(rollout.advantages, expected, rtol=1e-4, atol=1e-5)
    alive = rollout.alive[:-1]
    np.testing.assert_allclose(
        rollout.returns[alive], (expected + rollout.values[:-1])[alive], rtol=1e-4, atol=1e-5
    )
    assert not rollout.advantages[~alive].any() and not rollout.returns[~alive].any()


def test_truncation_and_termination_bootstrap_once_and_never():
    """Reward -1 each step, value 1 everywhere, lambda 0: an advantage is -1 + gamma * 1 - 1, or -1 - 1 at the end."""
    shape, gamma = (3, 3), 0.9
    terminations, truncations = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    truncations[1, 0] = truncations[1, 2] = terminations[1, 1] = terminations[1, 2] = True
    rollout = rollout_of(
        np.ones((4, 3), np.bool_),
        np.full(shape, -1),
        np.ones((4, 3)),
        terminations,
        truncations,
        np.ones(shape),
    )
    rollout.compute_advantages(gamma, 0.0)
    goes_on, ends = -1 + gamma - 1, -2
    expected = [[goes_on, goes_on, goes_on], [goes_on, ends, ends], [goes_on, goes_on, goes_on]]
    np.testing.assert_allclose(rollout.advantages, expected, rtol=1e-6)


def test_the_end_of_the_rollout_is_not_the_end_of_the_dead():
    """Rows that are dead at both ends of a rollout learn nothing, and the values behind it are not looked at."""
    alive = np.array([[True, False], [False, False], [False, True]])
    rollout = rollout_of(
        alive,
        np.array([[1.0, 5], [5, 5]]),
        np.array([[0.5, 9], [9, 9], [9, 9]]),
        np.array([[True, False], [False, False]]),
        np.zeros((2, 2), np.bool_),
        np.full((2, 2), 9.0),
    )
    rollout.compute_advantages(0.9, 0.95)
    assert rollout.advantages.tolist() == [[0.5, 0], [0, 0]]
    assert rollout.returns.tolist() == [[1, 0], [0, 0]]


def test_tensors_are_views_and_flat_leaves_out_what_follows_the_last_step():
    rollout = Rollout(3, 4, 5, 2, continuous=True, many_agents=True)
    assert rollout.actions.shape == (3, 4, 2) and rollout.actions.dtype == np.float32
    rollout.obs[2, 3] = 7
    assert rollout.flat("obs").shape == (12, 5) and (rollout.flat("obs")[11] == 7).all()
    assert rollout.flat("rewards").data_ptr() == rollout.rewards.ctypes.data


def test_cut_off_is_of_the_living_alone():
    rollout = Rollout(1, 4, 1, 3, many_agents=True)
    rollout.alive[0] = [True, True, True, False]
    rollout.truncations[0] = [True, True, False, True]
    rollout.terminations[0] = [False, True, True, False]
    assert rollout.cut_off().tolist() == [[True, False, False, False]]


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_refuses_nothing_at_all(sizes):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        Rollout(*sizes, 3, many_agents=True)
