"""PPO: its losses against automatic differentiation, its learning, its exact resumption, its refusals."""

import dataclasses
import itertools
import json

import gymnasium
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from fake_env import Bandit, Constant, Corridor, Dial
from fragments import Rows
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from small_runs import assert_same_state

from fastrl.algorithms.ppo import PPO, Minibatch
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.distributions import mask_logits
from fastrl.utils.ranks import Shard
from fastrl.utils.timer import Stopwatch


def plain_loss(logits, values, batch, clip_range, value_clip, value_coef, entropy_coef):
    """The objective as the paper writes it, sample by sample, for automatic differentiation."""
    values = values[batch.rows]
    distribution = torch.distributions.Categorical(logits=mask_logits(logits[batch.rows], batch.masks))
    ratio = (distribution.log_prob(batch.actions) - batch.log_probs).exp()
    policy_loss = -torch.min(
        ratio * batch.advantages, ratio.clamp(1 - clip_range, 1 + clip_range) * batch.advantages
    ).mean()
    squares = (values - batch.returns) ** 2
    if value_clip is not None:
        clipped = batch.values + (values - batch.values).clamp(-value_clip, value_clip)
        squares = torch.max(squares, (clipped - batch.returns) ** 2)
    value_loss = squares.mean() / 2
    entropy = distribution.entropy().mean()
    return policy_loss + value_coef * value_loss - entropy_coef * entropy, policy_loss, value_loss, entropy


def whole_minibatches(ppo):
    """The minibatches of an update without shards."""
    for drawn in ppo.minibatches():
        batch = drawn.take(Shard(0, slice(0, drawn.size)))
        assert len(batch.actions) == drawn.size
        yield batch


@st.composite
def minibatches(draw, masked):
    num_rows, size, num_actions = draw(st.integers(1, 4)), draw(st.integers(1, 8)), draw(st.integers(1, 5))

    def floats(*shape):
        return torch.from_numpy(draw(hnp.arrays(np.float64, shape, elements=st.floats(-3, 3))))

    rows = draw(hnp.arrays(np.int64, size, elements=st.integers(0, num_rows - 1)))
    actions = draw(hnp.arrays(np.int64, size, elements=st.integers(0, num_actions - 1)))
    masks = None
    if masked:
        allowed = draw(hnp.arrays(np.bool_, (size, num_actions)))
        allowed[np.arange(size), actions] = True
        masks = torch.from_numpy(allowed)
    batch = Minibatch(
        obs=torch.zeros(num_rows, 1),
        rows=torch.from_numpy(rows),
        actions=torch.from_numpy(actions),
        log_probs=-floats(size).abs(),
        advantages=floats(size),
        returns=floats(size),
        values=floats(size),
        masks=masks,
    )
    return floats(num_rows, num_actions), floats(num_rows), batch


def loss_of(logits, values, batch, *, entropy_coef, **coefficients):
    """The loss of a learner at outputs of its networks."""
    ppo = ppo_for(Bandit(), hidden=(1,), **coefficients)
    ppo.entropy_coef = entropy_coef
    return ppo.loss(batch._replace(outputs=logits, new_values=values))


def check_gradients(case, value_clip=None):
    logits, values, batch = case
    if value_clip is not None:
        # At a kink of the loss any slope between those of the two sides is a gradient.
        predictions = values[batch.rows]
        moved = predictions - batch.values
        clipped = batch.values + moved.clamp(-value_clip, value_clip)
        beyond = moved.abs() >= value_clip
        assume(not (beyond & ((clipped - batch.returns).abs() == (predictions - batch.returns).abs())).any())
    coefficients = {"clip_range": 0.2, "value_clip": value_clip, "value_coef": 0.7, "entropy_coef": 0.3}
    logits.requires_grad_(), values.requires_grad_()
    loss, policy_loss, value_loss, entropy = plain_loss(logits, values, batch, **coefficients)
    expected = torch.autograd.grad(loss, (logits, values))
    losses = loss_of(logits, values, batch, **coefficients)
    found = torch.autograd.grad(losses.total, (logits, values))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(losses.policy_loss, policy_loss)
    torch.testing.assert_close(losses.value_loss, value_loss)
    torch.testing.assert_close(losses.entropy, entropy)


class TestLosses:
    @settings(deadline=None)
    @given(minibatches(masked=False))
    def test_gradients_are_those_of_autograd(self, case):
        check_gradients(case)

    @settings(deadline=None)
    @given(minibatches(masked=True))
    def test_gradients_with_masks(self, case):
        check_gradients(case)

    @settings(deadline=None)
    @given(minibatches(masked=False), st.floats(0.01, 2))
    def test_gradients_with_value_clipping(self, case, value_clip):
        check_gradients(case, value_clip)

    @settings(deadline=None)
    @given(minibatches(masked=True))
    def test_masked_logits_do_not_matter(self, case):
        logits, values, batch = case
        # Those that all samples of a row have masked.
        matters = (
            torch.zeros(logits.shape, dtype=torch.int64).index_add_(0, batch.rows, batch.masks.long()) > 0
        )
        other = torch.where(matters, logits, 17.0)
        coefficients = {"clip_range": 0.2, "value_clip": None, "value_coef": 0.5, "entropy_coef": 0.1}
        results = []
        for each in (logits, other):
            losses = loss_of(each.requires_grad_(), values, batch, **coefficients)
            results.append((losses.metrics(), *torch.autograd.grad(losses.total, each)))
        for a, b in zip(*results, strict=True):
            assert torch.equal(a, b)
        assert not results[0][1][~matters].any()


def problem_of(env, total_timesteps, seed=0):
    spaces = env.single_observation_space, env.single_action_space
    return Problem(*spaces, env.num_envs, total_timesteps, seed=seed)


def ppo_for(env, *, seed=0, total_timesteps=20_000, **config):
    return PPO(
        PPOConfig(**config),
        problem_of(env, total_timesteps, seed),
    )


def collect(ppo, env, watch=None):
    """Loads the next steps of an environment into the learner's rollout; returns the fragment."""
    if not hasattr(env, "rows"):
        env.rows = Rows(env)
    fragment = env.rows.play(ppo.policy, ppo.config.num_steps, masks=ppo.config.action_masks)
    ppo.load_rollout([fragment], watch or Stopwatch())
    return fragment


def train(ppo, env):
    """Until total_timesteps; returns the mean return of the last episodes."""
    watch = Stopwatch()
    returns = []
    while ppo.steps < ppo.total_timesteps:
        returns.append(collect(ppo, env, watch).returns)
        metrics = ppo.learn(watch)
        assert all(np.isfinite(value) for value in dataclasses.asdict(metrics).values())
    return np.concatenate(returns[-5:]).mean()


QUICK = {"num_steps": 32, "minibatch_size": 128, "learning_rate": 3e-3, "hidden": (32,)}


class TestLearning:
    @pytest.mark.parametrize("stagger", [False, True])
    def test_finds_the_right_action_of_each_context(self, stagger):
        env = Bandit(stagger=stagger)
        assert train(ppo_for(env, **QUICK), env) > 9.5  # of 10; at random 1.7

    @pytest.mark.parametrize("stagger", [False, True])
    def test_goes_to_the_end_of_the_corridor(self, stagger):
        env = Corridor(stagger=stagger)
        assert train(ppo_for(env, **QUICK), env) > -4.2  # best is -4; at random about -17

    @pytest.mark.parametrize(
        "option",
        [
            {"activation": "tanh"},
            {"value_clip": 0.2},
            {"normalize_obs": True},
            {"normalize_returns": False},
            {"normalize_advantages": "none"},
            {"target_kl": 0.05},
            {"reward_scale": 0.1},
            {"hidden": (32, 16, 8)},
        ],
        ids=lambda option: next(iter(option)),
    )
    def test_learns_with_each_option(self, option):
        env = Corridor(stagger=True)
        assert train(ppo_for(env, **(QUICK | option)), env) > -4.5

    def test_learns_a_linear_policy(self):
        env = Bandit()
        assert train(ppo_for(env, **(QUICK | {"hidden": (), "learning_rate": 0.03})), env) > 9.5

    def test_obeys_masks(self):
        """Forbidden actions would give 10 each: mean returns far above the optimum."""
        env = Bandit(masked=True)
        assert 9.5 < train(ppo_for(env, action_masks=True, **QUICK), env) <= 10

    def test_without_masks_takes_what_they_forbid(self):
        env = Bandit(masked=True)
        assert train(ppo_for(env, action_masks=False, **QUICK), env) > 50


LINEAR = {
    "hidden": (),
    "gae_lambda": 0.0,
    "normalize_returns": False,
    "normalize_advantages": "none",
    "learning_rate": 0.0,
}


class TestTruncation:
    def test_with_a_known_answer(self):
        """Reward -1 each step, lambda 0, and a value function that is the observation itself."""
        env = Constant(num_envs=2, episode_length=3)
        ppo = ppo_for(env, num_steps=6, gamma=0.9, **LINEAR)
        with torch.no_grad():
            ppo.policy.critic[0].weight.fill_(1.0)
        collect(ppo, env)
        ppo.learn(Stopwatch())
        # Observed: 3 1 1 (then 5, and reset) 3 1 1 (then 5, and reset).
        cut_off = [-1 + 0.9 * 1, -1 + 0.9 * 1, -1 + 0.9 * 5] * 2
        terminated = [-1 + 0.9 * 1, -1 + 0.9 * 1, -1] * 2
        returns = ppo.rollout.returns
        np.testing.assert_allclose(returns[:, 0], cut_off, rtol=1e-6)
        np.testing.assert_allclose(returns[:, 1], terminated, rtol=1e-6)
        np.testing.assert_allclose(ppo.rollout.advantages, returns - ppo.rollout.values[:-1], rtol=1e-6)

    def test_value_one(self):
        """The same with value 1 everywhere: -1 + gamma, and -1 at a true end."""
        env = Constant(num_envs=2, episode_length=3, stagger=True)
        ppo = ppo_for(env, num_steps=7, **LINEAR)
        with torch.no_grad():
            ppo.policy.critic[0].weight.zero_()
            ppo.policy.critic[0].bias.fill_(1.0)
        collect(ppo, env)
        ppo.learn(Stopwatch())
        expected = np.where(ppo.rollout.terminations, -1, -1 + 0.99)
        assert ppo.rollout.terminations.any()
        assert ppo.rollout.truncations[~ppo.rollout.terminations].any()
        np.testing.assert_allclose(ppo.rollout.returns, expected, rtol=1e-5)


def written_and_read(state):
    """A deep copy, as a checkpoint would make it: tensors, and everything else through JSON."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {key: written_and_read(value) for key, value in state.items()}
    return json.loads(json.dumps(state))


EVERYTHING = QUICK | {"normalize_obs": True, "value_clip": 0.3, "action_masks": True, "num_steps": 13}


class TestResume:
    @pytest.mark.parametrize("make_env", [Bandit, Corridor])
    @pytest.mark.parametrize("stop_after", [0, 1, 3])
    def test_to_the_bit(self, make_env, stop_after):
        env = make_env(stagger=True)
        whole = ppo_for(env, **EVERYTHING)
        watch = Stopwatch()
        for _ in range(stop_after):
            collect(whole, env)
            whole.learn(watch)
        saved = written_and_read(whole.state_dict())
        fragments, metrics = [], []
        for _ in range(3):
            fragments.append(collect(whole, env))
            metrics.append(whole.learn(watch))

        other_env = make_env(stagger=True)
        other = ppo_for(other_env, **EVERYTHING)
        # It has learnt something else in the meantime.
        collect(other, other_env)
        other.learn(watch)
        other.load_state_dict(saved)
        assert_same_state(other.state_dict(), saved)
        for fragment, expected in zip(fragments, metrics, strict=True):
            other.load_rollout([fragment], watch)
            assert other.learn(watch) == expected
        assert_same_state(other.state_dict(), whole.state_dict())

    def test_same_seed_same_parameters_and_another_seed_others(self):
        states = []
        for seed in (1, 1, 2):
            env = Bandit()
            ppo = ppo_for(env, seed=seed, total_timesteps=1500, **QUICK)
            train(ppo, env)
            states.append(ppo.policy_state()["weights"]["actor.0.weight"])
        assert torch.equal(states[0], states[1])
        assert not torch.equal(states[0], states[2])

    def test_global_random_state_is_neither_read_nor_written(self):
        torch_before, numpy_before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        env = Bandit()
        train(ppo_for(env, total_timesteps=1000, **QUICK), env)
        assert torch.equal(torch.random.get_rng_state(), torch_before)
        assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002

    def test_refuses_the_state_of_another_network(self):
        env = Bandit()
        saved = ppo_for(env, **QUICK).state_dict()
        with pytest.raises(ValueError, match=r"saved network is \{.*\[32\].*\}, this run's is \{.*\[16\]"):
            ppo_for(env, **(QUICK | {"hidden": (16,)})).load_state_dict(saved)

    def test_refuses_the_state_of_another_normalisation(self):
        env = Bandit()
        saved = ppo_for(env, **QUICK).state_dict()
        with pytest.raises(ValueError, match="normalize_returns"):
            ppo_for(env, normalize_returns=False, **QUICK).load_state_dict(saved)

    def test_refuses_weights_that_are_not_finite(self):
        env = Bandit()
        saved = written_and_read(ppo_for(env, **QUICK).state_dict())
        saved["policy"]["weights"]["actor.0.bias"][0] = torch.inf
        with pytest.raises(ValueError, match=r"weights 'actor.0.bias' are not finite"):
            ppo_for(env, **QUICK).load_state_dict(saved)


class TestNotFinite:
    @pytest.mark.parametrize("part", ["actor", "critic"])
    def test_parameters(self, part):
        env = Bandit()
        ppo = ppo_for(env, **QUICK)
        with torch.no_grad():
            getattr(ppo.policy, part)[0].weight[0, 0] = torch.nan
        with pytest.raises(
            FloatingPointError, match=rf"network's {part}.0.weight is not finite .* after 512 steps"
        ):
            collect(ppo, env)

    def test_rewards(self):
        class Broken(Bandit):
            def advance(self, actions):
                rewards, terminations = super().advance(actions)
                return rewards * np.nan, terminations

        env = Broken()
        ppo = ppo_for(env, **QUICK)
        collect(ppo, env)
        with pytest.raises(FloatingPointError, match="not finite"):
            ppo.learn(Stopwatch())

    def test_observations(self):
        class Broken(Bandit):
            def observe(self, out):
                out[:] = np.nan

        env = Broken()
        with pytest.raises(FloatingPointError, match="gave NaN or infinity for observations"):
            collect(ppo_for(env, **QUICK), env)


class TestSchedules:
    def test_linear_from_start_to_end(self):
        env = Bandit(num_envs=2)
        ppo = ppo_for(
            env,
            total_timesteps=100,
            num_steps=10,
            learning_rate=1.0,
            final_learning_rate=0.5,
            entropy_coef=0.1,
            final_entropy_coef=0.3,
        )
        rows = []
        for _ in range(7):
            collect(ppo, env)
            rows.append(ppo.learn(Stopwatch()))
        np.testing.assert_allclose([row.learning_rate for row in rows], [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5])
        np.testing.assert_allclose(
            [row.entropy_coef for row in rows], [0.1, 0.14, 0.18, 0.22, 0.26, 0.3, 0.3]
        )

    def test_a_learning_rate_of_zero_learns_nothing(self):
        env = Bandit()
        ppo = ppo_for(env, learning_rate=0.0)
        before = written_and_read(ppo.policy_state()["weights"])
        collect(ppo, env)
        ppo.learn(Stopwatch())
        assert_same_state(before, ppo.policy_state()["weights"])


class TestUpdate:
    def test_uses_every_sample_once_an_epoch(self):
        env = Bandit(num_envs=7)
        ppo = ppo_for(env, num_steps=11, num_epochs=3, minibatch_size=20)
        collect(ppo, env)
        ppo.rollout.log_probs[:] = np.arange(77).reshape(11, 7)  # names the samples
        batches = [batch.log_probs.tolist() for batch in whole_minibatches(ppo)]
        assert [len(batch) for batch in batches] == [20, 19, 19, 19] * 3
        epochs = [[*itertools.chain(*batches[i : i + 4])] for i in (0, 4, 8)]
        assert all(sorted(epoch) == list(range(77)) for epoch in epochs)
        assert epochs[0] != epochs[1]

    def test_minibatches_keep_samples_together(self):
        env = Bandit(masked=True)
        ppo = ppo_for(env, action_masks=True, num_steps=11, minibatch_size=44)
        collect(ppo, env)
        for batch in whole_minibatches(ppo):
            assert len(batch.obs) == 4  # as many as there are contexts
            assert len(batch.rows) == len(batch.actions) == 44
            obs, masks = batch.obs[batch.rows], batch.masks
            actions, context = batch.actions.unsqueeze(1), obs.argmax(1, keepdim=True)
            assert masks.gather(1, actions).all()
            assert masks.gather(1, context).all()
            log_probs = torch.log_softmax(mask_logits(ppo.policy.outputs(obs), masks), -1)
            torch.testing.assert_close(batch.log_probs, log_probs.gather(1, actions).squeeze(1))
            torch.testing.assert_close(batch.values, ppo.policy.value(obs))

    def test_metrics_of_the_first_step(self):
        """Before anything has moved, the ratio is 1."""
        env = Bandit()
        ppo = ppo_for(env, num_epochs=1, minibatch_size=10_000)
        collect(ppo, env)
        metrics = ppo.learn(Stopwatch())
        assert metrics.gradient_steps == 1
        assert metrics.approx_kl == pytest.approx(0, abs=1e-6)
        assert metrics.clip_fraction == 0
        assert metrics.policy_loss == pytest.approx(0, abs=1e-5)  # advantages have mean 0
        assert metrics.entropy == pytest.approx(np.log(6), rel=1e-3)
        assert metrics.grad_norm > 0

    def test_target_kl_stops_early(self):
        env = Bandit()
        steps = []
        for target_kl in (None, 1e-6):
            ppo = ppo_for(env, target_kl=target_kl, minibatch_size=100, num_epochs=10, learning_rate=1e-2)
            collect(ppo, env)
            steps.append(ppo.learn(Stopwatch()).gradient_steps)
        assert steps[0] == 160
        assert 1 <= steps[1] < 10

    def test_time_has_its_names(self):
        env = Bandit()
        watch = Stopwatch()
        ppo = ppo_for(env, **QUICK)
        collect(ppo, env, watch)
        ppo.learn(watch)
        assert set(watch.seconds) == {"inference", "buffer", "returns", "update"}

    def test_policy_state_is_enough_for_inference(self):
        env = Bandit()
        ppo = ppo_for(env, total_timesteps=1000, normalize_obs=True, **QUICK)
        train(ppo, env)
        network = ActorCritic.from_state(written_and_read(ppo.policy_state()))
        obs = torch.eye(4)
        assert torch.equal(network.outputs(obs), ppo.policy.outputs(obs))


class TestRefuses:
    def test_observations_it_cannot_handle(self):
        obs_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(3))
        with pytest.raises(ValueError, match="observations should be a Box, Discrete"):
            PPO(PPOConfig(), Problem(obs_space, gymnasium.spaces.Discrete(2), 1, total_timesteps=1))

    @pytest.mark.parametrize(
        "action_space",
        [gymnasium.spaces.Box(0, 1, (2, 2), np.float32), gymnasium.spaces.Discrete(3, start=1)],
    )
    def test_actions_it_cannot_handle(self, action_space):
        obs_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
        with pytest.raises(ValueError, match="actions should be Discrete from 0 on"):
            PPO(PPOConfig(), Problem(obs_space, action_space, 1, total_timesteps=1))

    def test_continuous_actions_with_masks(self):
        with pytest.raises(ValueError, match="action masks are for discrete actions"):
            ppo_for(Dial(), action_masks=True)

    def test_fragments_without_masks_where_it_uses_them(self):
        env = Bandit()
        fragment = Rows(env).play(ppo_for(env).policy, 4)
        with pytest.raises(ValueError, match="uses action masks and the fragments have none"):
            ppo_for(env, action_masks=True).load_rollout([fragment], Stopwatch())
        masked = Rows(env).play(ppo_for(env).policy, 4, masks=True)
        with pytest.raises(ValueError, match="have action masks and the learner uses none"):
            ppo_for(env).load_rollout([masked], Stopwatch())

    def test_no_steps(self):
        with pytest.raises(ValueError, match="total_timesteps must be at least 1"):
            ppo_for(Bandit(), total_timesteps=0)

    @pytest.mark.parametrize(
        "option",
        [
            {"num_steps": 0},
            {"num_epochs": 0},
            {"minibatch_size": 0},
            {"gamma": 1.1},
            {"gae_lambda": -0.1},
            {"clip_range": 0},
            {"value_clip": 0},
            {"learning_rate": -1},
            {"learning_rate": float("nan")},
            {"max_grad_norm": 0},
            {"hidden": (64, 0)},
            {"activation": "gelu"},
            {"precision": "fp8"},
            {"lerning_rate": 1e-3},
        ],
    )
    def test_options_that_make_no_sense(self, option):
        with pytest.raises(ValidationError):
            PPOConfig(**option)

    def test_changes_to_the_configuration(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            PPOConfig().gamma = 0.5
