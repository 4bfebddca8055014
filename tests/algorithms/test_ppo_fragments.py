"""PPO from fragments of a collector: the same as from its own collection, known answers, off-policy correction."""

import copy

import numpy as np
import pytest
import torch
from fake_env import Bandit, Constant, Corridor, Dial
from fragments import Rows, parts, whole_episodes
from test_ppo import LINEAR, QUICK, assert_same_state, one_thread, ppo_for, written_and_read

from fastrl.networks.action_space import Actions
from fastrl.utils.timer import Stopwatch

__all__ = ["one_thread"]


def test_fragments_teach_what_the_same_rollout_does():
    """What a collector brings, cut into fragments in any order of rows, or native: the same update."""
    native_env, env = Corridor(num_envs=6, stagger=True), Corridor(num_envs=6, stagger=True)
    config = QUICK | {"num_steps": 12, "normalize_obs": True}
    native, other = ppo_for(native_env, **config), ppo_for(env, **config)
    watch = Stopwatch()
    for _ in range(3):
        native.collect(native_env, watch)
        rollout = native.rollout
        fragment = Rows(env).play(native.policy, 12)
        for name in ("actions", "log_probs", "rewards", "terminations", "truncations", "final_obs", "obs"):
            getattr(fragment, name)[:] = getattr(rollout, name)
        other.take_in(parts(fragment, 1, 2, 3), watch)
        np.testing.assert_array_equal(other.rollout.values, rollout.values)
        ours, theirs = other.learn(watch), native.learn(watch)
        assert ours.policy_loss == pytest.approx(theirs.policy_loss, abs=1e-5)
        assert ours.value_loss == pytest.approx(theirs.value_loss, rel=1e-3)
        assert other.steps == native.steps
    for name, weight in native.policy.state_dict().items():
        torch.testing.assert_close(other.policy.state_dict()[name], weight, rtol=1e-3, atol=1e-4)


def known_answer(learner, env, unit):
    """The returns of one update with value 1 everywhere, and which of its steps are true ends."""
    with torch.no_grad():
        learner.policy.critic[0].weight.zero_()
        learner.policy.critic[0].bias.fill_(1.0)
    fragment = Rows(env).play(learner.policy, 12)
    learner.take_in(parts(fragment, 1, 3) if unit == "steps" else whole_episodes(fragment), Stopwatch())
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
    take_in = ppo.take_in
    ppo.take_in = lambda *arguments: take_in(*arguments, correct_off_policy=corrected)
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
    ppo.take_in([fragment] if unit == "steps" else whole_episodes(fragment), Stopwatch())
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
    ppo = ppo_for(env, num_steps=8, normalize_advantages=False, normalize_returns=False, learning_rate=0.0)
    fragment = Rows(env).play(distinct(ppo_for(env, seed=5)).policy, 8)
    ppo.take_in([fragment], Stopwatch(), correct_off_policy=True)
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
    ppo.take_in([fragment], Stopwatch())
    assert ppo.learn(Stopwatch()).approx_kl > 1e-4


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_learns_from_fragments_of_an_older_policy(unit, corrected):
    env = Corridor(num_envs=8, episode_length=30)
    ppo = ppo_for(env, total_steps=16_000, **QUICK)
    older, watch, returns = copy.deepcopy(ppo.policy), Stopwatch(), []
    rows = Rows(env)
    while ppo.steps < ppo.total_steps:
        if unit == "episodes":
            rows = Rows(env, seed=ppo.steps)
        fragment = rows.play(older, 32)
        fragments = parts(fragment, 4, 4) if unit == "steps" else whole_episodes(fragment)
        older = copy.deepcopy(ppo.policy)
        ppo.take_in(fragments, watch, correct_off_policy=corrected)
        ppo.learn(watch)
        returns.append(fragment.returns)
    assert np.concatenate(returns[-5:]).mean() > -5  # best is -4; at random about -17


NO_ENTROPY = {"entropy_coef": 0.0, "final_entropy_coef": 0.0}


@pytest.mark.parametrize("corrected", [False, True])
def test_learns_continuous_actions_from_an_older_policy(corrected):
    env = Dial(stagger=True)
    ppo = ppo_for(env, total_steps=20_000, initial_log_std=-0.5, **(QUICK | NO_ENTROPY))
    older, watch, rows, returns = copy.deepcopy(ppo.policy), Stopwatch(), Rows(env), []
    while ppo.steps < ppo.total_steps:
        fragment = rows.play(older, 32)
        older = copy.deepcopy(ppo.policy)
        ppo.take_in(parts(fragment, 4, 12), watch, correct_off_policy=corrected)
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
    config = {"num_steps": 8, "normalize_advantages": False, "normalize_returns": False}
    ppo = ppo_for(env, initial_log_std=-0.5, learning_rate=0.0, **config)
    fragment = Rows(env).play(distinct(ppo_for(env, seed=5)).policy, 8)
    ppo.take_in([fragment], Stopwatch(), correct_off_policy=True)
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
    ppo.take_in([Rows(env).play(ppo.policy, 8)], Stopwatch())
    ppo.learn(Stopwatch())
    assert ppo.policy.log_std.tolist() == [2, 2]


def test_resumed_with_continuous_actions_it_goes_on_to_the_bit():
    env = Dial(num_envs=4, stagger=True)
    first, second = (ppo_for(env, seed=seed, **QUICK) for seed in (0, 1))
    rows, watch = Rows(env), Stopwatch()
    fragments = [rows.play(first.policy, 10) for _ in range(3)]
    first.take_in(fragments[:1], watch)
    first.learn(watch)
    second.load_state_dict(written_and_read(first.state_dict()))
    for learner in (first, second):
        for fragment in fragments[1:]:
            learner.take_in([fragment], watch)
            learner.learn(watch)
    assert_same_state(first.state_dict(), second.state_dict())


def test_refuses_actions_of_another_kind():
    fragment = Rows(Dial(num_envs=2)).play(ppo_for(Dial(num_envs=2)).policy, 4)
    env = Bandit(num_envs=2, contexts=3)
    with pytest.raises(ValueError, match=r"actions float32 \[2\], the learner expects int64 \[\]"):
        ppo_for(env).take_in([fragment], Stopwatch())


def test_refuses_masks():
    env = Corridor(num_envs=2)
    ppo = ppo_for(env, num_steps=4, action_masks=True)
    with pytest.raises(ValueError, match="fragments have none"):
        ppo.take_in([Rows(env).play(ppo.policy, 4)], Stopwatch())


def test_time_has_its_names():
    env = Corridor(num_envs=2)
    ppo = ppo_for(env, total_steps=9)
    watch = Stopwatch()
    ppo.take_in([Rows(env).play(ppo.policy, 4)], watch)
    ppo.learn(watch)
    assert set(watch.seconds) == {"buffer", "inference", "returns", "update"}
