"""PPO and fragments: the same update however they are cut, known answers, off-policy correction."""

import copy

import numpy as np
import pytest
import torch
from fake_env import Bandit, Constant, Corridor, Dial
from fragments import Rows, parts, whole_episodes
from small_runs import assert_same_state
from test_ppo import LINEAR, QUICK, ppo_for, written_and_read

from fastrl.networks.action_space import Actions
from fastrl.utils.timer import Stopwatch


def test_a_rollout_cut_into_fragments_gives_the_same_update():
    env = Corridor(num_envs=6, stagger=True)
    config = QUICK | {"num_steps": 12, "normalize_obs": True}
    whole, other = ppo_for(env, **config), ppo_for(env, **config)
    watch, rows = Stopwatch(), Rows(env)
    for _ in range(3):
        fragment = rows.play(whole.policy, 12)
        whole.load_rollout([fragment], watch)
        other.load_rollout(parts(fragment, 1, 2, 3), watch)
        np.testing.assert_array_equal(other.rollout.values, whole.rollout.values)
        assert other.learn(watch) == whole.learn(watch)
        assert other.steps == whole.steps
    assert_same_state(other.state_dict(), whole.state_dict())


def test_log_probs_of_the_present_policy_keep_to_the_masks():
    env = Bandit(num_envs=8, masked=True)
    ppo = ppo_for(env, action_masks=True, num_steps=5)
    fragment = Rows(env).play(distinct(ppo).policy, 5, masks=True)
    ppo.load_rollout([fragment], Stopwatch(), correct_off_policy=True)
    np.testing.assert_allclose(ppo.rollout.log_probs, fragment.log_probs, rtol=1e-5)


def known_answer(learner, env, unit):
    """The returns of one update with value 1 everywhere, and which of its steps are true ends."""
    with torch.no_grad():
        learner.policy.critic[0].weight.zero_()
        learner.policy.critic[0].bias.fill_(1.0)
    fragment = Rows(env).play(learner.policy, 12)
    learner.load_rollout(parts(fragment, 1, 3) if unit == "steps" else whole_episodes(fragment), Stopwatch())
    learner.learn(Stopwatch())
    rollout = learner.rollout
    assert rollout.terminations.any()
    assert rollout.truncations[~rollout.terminations].any()
    return rollout.returns, rollout.terminations


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize("corrected", [False, True])
def test_truncation_with_a_known_answer(unit, corrected):
    """Reward -1 each step, value 1, lambda 0: -1 + gamma, once, and -1 at a true end."""
    env = Constant(num_envs=4, episode_length=3, stagger=unit == "steps")
    ppo = ppo_for(env, num_steps=12, **LINEAR)
    load_rollout = ppo.load_rollout
    ppo.load_rollout = lambda *arguments: load_rollout(*arguments, correct_off_policy=corrected)
    returns, terminated = known_answer(ppo, env, unit)
    np.testing.assert_allclose(returns, np.where(terminated, -1, -1 + 0.99), rtol=1e-5)


@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_the_true_last_observation_is_what_is_bootstrapped(unit):
    """The same with the observation itself as value: 3 after a reset, then 1, and 5 where the episode was cut off."""
    env = Constant(num_envs=2, episode_length=3)
    ppo = ppo_for(env, num_steps=6, gamma=0.9, **LINEAR)
    with torch.no_grad():
        ppo.policy.critic[0].weight.fill_(1.0)
    fragment = Rows(env).play(ppo.policy, 6)
    ppo.load_rollout([fragment] if unit == "steps" else whole_episodes(fragment), Stopwatch())
    ppo.learn(Stopwatch())
    cut_off, terminated = [-1 + 0.9, -1 + 0.9, -1 + 0.9 * 5], [-1 + 0.9, -1 + 0.9, -1]
    if unit == "steps":
        expected = np.array([cut_off * 2, terminated * 2]).T
    else:
        expected = np.array([cut_off, cut_off, terminated, terminated]).T
    np.testing.assert_allclose(ppo.rollout.returns, expected, rtol=1e-6)


def distinct(learner):
    """With a policy that has made up its mind: new ones do everything with equal probability."""
    with torch.no_grad():
        learner.policy.actor[-1].weight.mul_(100)
    return learner


def test_what_older_policies_did_counts_by_vtrace():
    env = Corridor(num_envs=4, stagger=True)
    ppo = ppo_for(env, num_steps=8, normalize_advantages="none", normalize_returns=False, learning_rate=0.0)
    fragment = Rows(env).play(distinct(ppo_for(env, seed=5)).policy, 8)
    ppo.load_rollout([fragment], Stopwatch(), correct_off_policy=True)
    rollout = ppo.rollout
    with torch.no_grad():
        log_probs = torch.log_softmax(ppo.policy.outputs(torch.from_numpy(fragment.obs[:-1])), -1)
    log_probs = log_probs.gather(2, torch.from_numpy(fragment.actions)[..., None])[..., 0].numpy()
    np.testing.assert_allclose(rollout.log_probs, log_probs, rtol=1e-5)
    expected = copy.deepcopy(rollout)
    expected.compute_vtrace(log_probs - fragment.log_probs, 0.99, trace_lambda=0.95)
    metrics = ppo.learn(Stopwatch())
    np.testing.assert_allclose(rollout.returns, expected.returns, rtol=1e-4)
    np.testing.assert_allclose(rollout.advantages, expected.advantages, rtol=1e-4, atol=1e-6)
    # The trust region is around the policy as it is: its first ratio is 1, however old the experience.
    assert metrics.approx_kl == pytest.approx(0, abs=1e-6)
    ppo.load_rollout([fragment], Stopwatch())
    assert ppo.learn(Stopwatch()).approx_kl > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_learns_from_fragments_of_an_older_policy(unit, corrected):
    env = Corridor(num_envs=8, episode_length=30)
    ppo = ppo_for(env, total_timesteps=16_000, **QUICK)
    older, watch, returns = copy.deepcopy(ppo.policy), Stopwatch(), []
    rows = Rows(env)
    while ppo.steps < ppo.total_timesteps:
        if unit == "episodes":
            rows = Rows(env, seed=ppo.steps)
        fragment = rows.play(older, 32)
        fragments = parts(fragment, 4, 4) if unit == "steps" else whole_episodes(fragment)
        older = copy.deepcopy(ppo.policy)
        ppo.load_rollout(fragments, watch, correct_off_policy=corrected)
        ppo.learn(watch)
        returns.append(fragment.returns)
    assert np.concatenate(returns[-5:]).mean() > -5  # best is -4; at random about -17


NO_ENTROPY = {"entropy_coef": 0.0, "final_entropy_coef": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize("corrected", [False, True])
def test_learns_continuous_actions_from_an_older_policy(corrected):
    env = Dial(stagger=True)
    ppo = ppo_for(env, total_timesteps=20_000, initial_log_std=-0.5, **(QUICK | NO_ENTROPY))
    older, watch, rows, returns = copy.deepcopy(ppo.policy), Stopwatch(), Rows(env), []
    while ppo.steps < ppo.total_timesteps:
        fragment = rows.play(older, 32)
        older = copy.deepcopy(ppo.policy)
        ppo.load_rollout(parts(fragment, 4, 12), watch, correct_off_policy=corrected)
        ppo.learn(watch)
        returns.append(fragment.returns.mean())
    assert returns[0] < -8
    assert returns[-1] > -2  # the best is 0
    with torch.no_grad():
        means = ppo.policy.outputs(torch.eye(3)).numpy()
    np.testing.assert_allclose(Actions(env.single_action_space).to_env(means), Dial.targets, atol=15)
    assert ppo.policy.log_std.max() < -1


def test_what_older_policies_drew_counts_by_vtrace():
    env = Dial(num_envs=4, stagger=True)
    config = {"num_steps": 8, "normalize_advantages": "none", "normalize_returns": False}
    ppo = ppo_for(env, initial_log_std=-0.5, learning_rate=0.0, **config)
    fragment = Rows(env).play(distinct(ppo_for(env, seed=5)).policy, 8)
    ppo.load_rollout([fragment], Stopwatch(), correct_off_policy=True)
    with torch.no_grad():
        means = ppo.policy.outputs(torch.from_numpy(fragment.obs[:-1]))
    log_probs = torch.distributions.Normal(means, np.exp(-0.5)).log_prob(torch.from_numpy(fragment.actions))
    log_probs = log_probs.sum(-1).numpy()
    np.testing.assert_allclose(ppo.rollout.log_probs, log_probs, rtol=1e-5)
    expected = copy.deepcopy(ppo.rollout)
    expected.compute_vtrace(log_probs - fragment.log_probs, 0.99, trace_lambda=0.95)
    assert ppo.learn(Stopwatch()).approx_kl == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(ppo.rollout.returns, expected.returns, rtol=1e-4)


def test_the_deviation_stays_within_its_range():
    env = Dial()
    ppo = ppo_for(env, initial_log_std=2.0, num_steps=8, learning_rate=10.0, entropy_coef=100.0)
    ppo.load_rollout([Rows(env).play(ppo.policy, 8)], Stopwatch())
    ppo.learn(Stopwatch())
    assert ppo.policy.log_std.tolist() == [2, 2]


def test_resumes_with_continuous_actions_to_the_bit():
    env = Dial(num_envs=4, stagger=True)
    first, second = (ppo_for(env, seed=seed, **QUICK) for seed in (0, 1))
    rows, watch = Rows(env), Stopwatch()
    fragments = [rows.play(first.policy, 10) for _ in range(3)]
    first.load_rollout(fragments[:1], watch)
    first.learn(watch)
    second.load_state_dict(written_and_read(first.state_dict()))
    for learner in (first, second):
        for fragment in fragments[1:]:
            learner.load_rollout([fragment], watch)
            learner.learn(watch)
    assert_same_state(first.state_dict(), second.state_dict())


def test_refuses_actions_of_another_kind():
    fragment = Rows(Dial(num_envs=2)).play(ppo_for(Dial(num_envs=2)).policy, 4)
    env = Bandit(num_envs=2, contexts=3)
    with pytest.raises(ValueError, match=r"actions float32 \[2\], the learner expects int64 \[\]"):
        ppo_for(env).load_rollout([fragment], Stopwatch())


def test_refuses_masks():
    env = Corridor(num_envs=2)
    ppo = ppo_for(env, num_steps=4, action_masks=True)
    with pytest.raises(ValueError, match="fragments have none"):
        ppo.load_rollout([Rows(env).play(ppo.policy, 4)], Stopwatch())


def test_time_has_its_names():
    env = Corridor(num_envs=2)
    ppo = ppo_for(env, total_timesteps=9)
    watch = Stopwatch()
    ppo.load_rollout([Rows(env).play(ppo.policy, 4)], watch)
    ppo.learn(watch)
    assert set(watch.seconds) == {"buffer", "inference", "returns", "update"}
