"""The compiled gradient steps of PPO against PyTorch's, from the same rollouts."""

import copy

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from ppo_updates import (
    SPACES,
    assert_close,
    assert_close_metrics,
    assert_same,
    fill,
    learn,
    learner,
    table_learner,
)

from fastrl._native._rust import PpoUpdate
from fastrl.algorithms.async_ppo import AsyncPPO, AsyncPPOConfig
from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.protocol import Problem
from fastrl.utils.timer import Stopwatch

CONFIGS = st.fixed_dictionaries(
    {
        "hidden": st.sampled_from([(), (1,), (16,), (17, 33), (8, 8, 8)]),
        "activation": st.sampled_from(["tanh", "relu"]),
        "minibatch_size": st.sampled_from([1, 7, 33, 1000]),
        "num_epochs": st.integers(1, 3),
        "value_clip": st.sampled_from([None, 0.1]),
        "clip_range": st.sampled_from([0.1, 0.3]),
        "value_coef": st.sampled_from([0.0, 0.5]),
        "entropy_coef": st.sampled_from([0.0, 0.05]),
        "max_grad_norm": st.sampled_from([0.1, 1e6]),
        "normalize_obs": st.booleans(),
        "normalize_advantages": st.sampled_from(["rollout", "minibatch", "none"]),
        "obs_dim": st.sampled_from([1, 6, 19]),
    }
)


class TestAgainstPyTorch:
    @pytest.mark.slow
    @pytest.mark.parametrize("kind", SPACES)
    @settings(deadline=None, max_examples=25)
    @given(config=CONFIGS, masked=st.booleans(), distinct=st.sampled_from([None, 1, 4]))
    def test_same_parameters_moments_and_metrics(self, kind, config, masked, distinct):
        options = config | {"action_masks": masked and kind != "box"}
        torchs, compiled = (learner(backend, kind, **options) for backend in ("torch", "compiled"))
        metrics = [learn(ppo, distinct=distinct) for ppo in (torchs, compiled)]
        # Where a gradient is nearly zero Adam moves a parameter by the sign of its rounding error.
        rate = compiled.config.learning_rate
        steps = sum(metric.gradient_steps for metric in metrics[0])
        assert_close(torchs, compiled, rtol=1e-3, atol=rate * (0.02 + 1e-3 * steps))
        assert_close_metrics(*metrics)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", SPACES)
    def test_chunks_of_rows(self, kind):
        """Minibatches larger than the rows that go through the network together."""
        options = {"num_steps": 67, "num_envs": 5, "minibatch_size": 200}
        torchs, compiled = (learner(backend, kind, **options) for backend in ("torch", "compiled"))
        assert_close_metrics(*(learn(ppo) for ppo in (torchs, compiled)))
        assert_close(torchs, compiled, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("epochs", [1, 4])
    def test_stops_at_the_same_step(self, epochs):
        """Also the order of the next update is the same, though not all of this one was drawn."""
        options = {"target_kl": 0.02, "num_epochs": epochs, "learning_rate": 0.01}
        torchs, compiled = (learner(backend, **options) for backend in ("torch", "compiled"))
        metrics = [learn(ppo, 3) for ppo in (torchs, compiled)]
        assert any(metric.gradient_steps < 4 * epochs for metric in metrics[0])
        assert_close_metrics(*metrics)
        assert_close(torchs, compiled, rtol=1e-3, atol=1e-4)

    def test_deviations_stay_in_their_range(self):
        ppo = learner("compiled", "box", learning_rate=10.0, num_epochs=1, minibatch_size=1000)
        learn(ppo, 1)
        assert set(ppo.policy.log_std.tolist()) <= {-5.0, 2.0}

    def test_one_backend_resumes_what_the_other_saved(self):
        whole, first = learner("compiled"), learner("compiled")
        learn(whole, 1), learn(first, 1)
        then_torch, then_compiled = learner("torch"), learner("compiled")
        for other in (then_torch, then_compiled):
            other.load_state_dict(copy.deepcopy(first.state_dict()))
        for ppo in (whole, then_torch, then_compiled):
            fill(ppo, 7)
            ppo.learn(Stopwatch())
        assert_same(whole, then_compiled)
        assert_close(whole, then_torch, rtol=1e-3, atol=1e-4)

    def test_async_ppo_has_it(self):
        problem = Problem(Box(-1, 1, (2,), np.float32), Discrete(2), 2, 100)
        assert AsyncPPO(AsyncPPOConfig(), problem).compiled_update is not None


TABLES = st.fixed_dictionaries(
    {
        "rows": st.sampled_from([2, 5, 16]),
        "width": st.sampled_from([1, 4, 27]),
        "actions": st.sampled_from([16, 17, 55, 177]),
        "hidden": st.sampled_from([(), (16,), (17, 33)]),
        "activation": st.sampled_from(["tanh", "relu"]),
        "minibatch_size": st.sampled_from([1, 7, 1000]),
        "entropy_coef": st.sampled_from([0.0, 0.05]),
        "max_grad_norm": st.sampled_from([0.1, 1e6]),
        "action_masks": st.booleans(),
    }
)


class TestTables:
    @pytest.mark.slow
    @settings(deadline=None, max_examples=25)
    @given(config=TABLES, distinct=st.sampled_from([None, 1, 6]))
    def test_same_parameters_moments_and_metrics(self, config, distinct):
        torchs, compiled = (table_learner(backend, **config) for backend in ("torch", "compiled"))
        metrics = [learn(ppo, distinct=distinct) for ppo in (torchs, compiled)]
        rate = compiled.config.learning_rate
        steps = sum(metric.gradient_steps for metric in metrics[0])
        assert_close(torchs, compiled, rtol=1e-3, atol=rate * (0.02 + 1e-3 * steps))
        assert_close_metrics(*metrics)

    @pytest.mark.parametrize("activation", ["tanh", "relu"])
    def test_blocks_of_tables(self, activation):
        """Minibatches of more tables than go through the network together."""
        options = {"num_steps": 80, "minibatch_size": 200, "rows": 80, "actions": 81, "learning_rate": 1e-4}
        options |= {"activation": activation, "action_masks": True}
        torchs, compiled = (table_learner(backend, **options) for backend in ("torch", "compiled"))
        assert_close_metrics(*(learn(ppo) for ppo in (torchs, compiled)))
        assert_close(torchs, compiled, rtol=1e-3, atol=1e-4)

    def test_the_number_of_threads_does_not_matter(self, monkeypatch):
        results = []
        for threads in (1, 2, 3):
            monkeypatch.setattr("fastrl.algorithms.compiled_update.threads", lambda threads=threads: threads)
            results.append(table_learner("compiled", num_steps=80, minibatch_size=200, rows=80, actions=81))
            learn(results[-1], distinct=20)
        for other in results[1:]:
            assert_same(results[0], other)

    def test_precision(self):
        for encoder in ("pointer", "rows"):
            with pytest.raises(
                ValueError, match="is for precision fp32 with the encoders pointer and rows: set"
            ):
                table_learner("compiled", precision="bf16", encoder=encoder)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_the_number_of_threads_does_not_matter(kind, precision, monkeypatch):
    results = []
    for threads in (1, 2, 3, 16):
        monkeypatch.setattr("fastrl.algorithms.compiled_update.threads", lambda threads=threads: threads)
        options = {"hidden": (128, 128), "num_steps": 200, "minibatch_size": 150, "precision": precision}
        ppo = learner("compiled", kind, **options)
        fill(ppo)
        ppo.learn(Stopwatch())
        results.append(ppo)
    for other in results[1:]:
        assert_same(results[0], other)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_numbers_that_overflow_are_found():
    ppo = learner("compiled", normalize_advantages="none")
    fill(ppo)
    ppo.rollout.rewards[:] = 1e38
    with pytest.raises(FloatingPointError, match="not finite"):
        ppo.learn(Stopwatch())


class TestChoice:
    @pytest.mark.parametrize(
        "config",
        [{"layer_norm": True}, {"memory": "gru", "num_steps": 11}, {"shared_trunk": True}, {"dropout": 0.1}],
    )
    def test_of_networks_that_have_none(self, config):
        with pytest.raises(
            ValueError, match=r"update_backend compiled is for separate perceptrons.*set update_backend"
        ):
            learner("compiled", **config)
        assert learner("auto", **config).compiled_update is None

    def test_of_half_precision(self):
        with pytest.raises(
            ValueError, match="update_backend compiled is for precision fp32 or bf16: set update_backend"
        ):
            learner("compiled", precision="fp16")
        assert learner("auto", precision="fp16").compiled_update is None
        assert learner("auto", precision="bf16").compiled_update is not None

    def test_auto_and_torch(self):
        assert learner("auto").compiled_update is not None
        assert learner("torch").compiled_update is None


def arrays(samples=4, obs_dim=2, width=3):
    """Arguments of `PpoUpdate.run` for a linear network."""
    parameters = (obs_dim + 1) * (width + 1)
    floats = [np.zeros(parameters, np.float32) for _ in range(3)]
    obs, groups = np.ones((1, obs_dim), np.float32), np.zeros(samples, np.int64)
    rest = [np.zeros(samples, np.float32) for _ in range(4)]
    order = np.arange(samples)[None]
    return [*floats, obs, groups, np.zeros(samples, np.int64), *rest, None, None, order]


RUN = {
    "steps": 0,
    "minibatches": 2,
    "clip_range": 0.2,
    "value_clip": None,
    "value_coef": 0.5,
    "entropy_coef": 0.0,
    "max_grad_norm": 0.5,
    "learning_rate": 1e-3,
    "normalize_advantages": False,
    "target_kl": None,
    "num_threads": 1,
}


class TestRefusals:
    def refuses(self, match, place, value, **run):
        update, given = PpoUpdate(obs_dim=2, hidden=[], activation="relu", nvec=[3]), arrays()
        assert update.num_parameters == len(given[0])
        if place is not None:
            given[place] = value
        before = given[0].copy()
        with pytest.raises((ValueError, TypeError), match=match):
            update.run(*given, **(RUN | run))
        assert np.array_equal(given[0], before)

    def test_arrays(self):
        self.refuses(r"parameters: expected .* shape \(12,\)", 0, np.zeros(11, np.float32))
        self.refuses("obs: expected .* float32", 3, np.zeros((1, 2)))
        self.refuses("groups: expected numbers from 0 to 0, got 1", 4, np.array([0, 0, 1, 0]))
        self.refuses("actions: expected numbers from 0 to 2, got 3", 5, np.array([0, 1, 3, 2]))
        self.refuses("actions: expected numbers from 0 to 2, got -1", 5, np.array([0, 1, -1, 2]))
        self.refuses("masks: expected", 10, np.ones((2, 3), bool))
        self.refuses("learned: expected", 11, np.ones((2, 1), bool))
        self.refuses("order: expected numbers from 0 to 3, got 4", 12, np.array([[0, 1, 2, 4]]))
        self.refuses("minibatches: expected 1 to 4, got 5", None, None, minibatches=5)
        self.refuses("minibatches: expected 1 to 4, got 0", None, None, minibatches=0)

    def test_clip_ranges(self):
        for clips in ({"clip_range": -0.1}, {"clip_range": float("nan")}, {"value_clip": -0.1}):
            self.refuses("clip_range, value_clip: expected numbers from 0 on, got", None, None, **clips)

    def test_rows_of_values(self):
        critic = PpoUpdate(obs_dim=2, hidden=[], activation="relu", networks="critic")
        parameters, obs, out = np.ones(3, np.float32), np.ones((4, 2), np.float32), np.zeros(4, np.float32)
        for row in (-1, 4):
            with pytest.raises(ValueError, match=f"rows: expected numbers from 0 to 3, got {row}"):
                critic.values(parameters, obs, np.array([0, row]), out, num_threads=1)
        assert not out.any()
        critic.values(parameters, obs, np.array([3, 1]), out, num_threads=2)
        assert out.tolist() == [0, 3, 0, 3]

    def test_shared_memory(self):
        shared = np.zeros(12, np.float32)
        update, given = PpoUpdate(obs_dim=2, hidden=[], activation="relu", nvec=[3]), arrays()
        given[1] = given[2] = shared
        with pytest.raises(ValueError, match="mean and square share memory"):
            update.run(*given, **RUN)

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"activation": "elu"}, "activation: expected 'tanh' or 'relu', got 'elu'"),
            ({"nvec": None}, "nvec, numbers"),
            ({"numbers": 2}, "nvec, numbers"),
            ({"nvec": []}, "nvec, numbers"),
            ({"networks": "all"}, "networks: expected 'both', 'actor' or 'critic', got 'all'"),
            ({"critic_outputs": 0}, "widths of 1 to"),
            ({"nvec": [0]}, "widths of 1 to"),
            ({"hidden": [0]}, "widths of 1 to"),
            ({"nvec": [2**16, 2**16]}, "widths of 1 to"),
            ({"table_rows": 1}, "table_rows: expected 2 to 1024 rows"),
            ({"table_rows": 2, "nvec": [1]}, "at most as many as the 1 actions"),
            ({"table_rows": 2, "nvec": [2, 2]}, "table_rows: expected an nvec of one number"),
            ({"table_rows": 2, "networks": "actor"}, "table_rows: expected an nvec of one number"),
            ({"pooling": (1, 1, 2)}, r"pooling: expected tables, .* in 2 numbers, got \(1, 1, 2\)"),
            ({"pooling": (0, 2, 1)}, "pooling: expected tables, "),
            ({"pooling": (1, 2, 0)}, "pooling: expected tables, "),
            ({"pooling": (1, 3, 1)}, "pooling: expected tables, "),
            ({"pooling": (2**63, 2, 2**63)}, "pooling: expected tables, "),
            ({"obs_dim": 2**16, "pooling": (1, 1025, 1)}, "at most 1024 of all tables"),
            (
                {"obs_dim": 2**16, "pooling": (512, 2, 64)},
                "pooling: expected at most 65536 features, got 98304",
            ),
            ({"pooling": (1, 2, 1), "actor_inputs": 1}, "pooling: expected none of actor_inputs"),
            ({"pooling": (1, 2, 1), "layer_norm": True}, "pooling: expected none of actor_inputs"),
            ({"pooling": (1, 2, 1), "bf16": True}, "pooling: expected none of actor_inputs"),
            ({"pooling": (1, 2, 1), "table_rows": 2}, "pooling: expected none of actor_inputs"),
            ({"shared_trunk": True}, "shared_trunk: expected pooling, both networks"),
            (
                {"pooling": (1, 2, 1), "shared_trunk": True, "networks": "actor"},
                "shared_trunk: expected pooling, both networks",
            ),
            (
                {"pooling": (1, 2, 1), "shared_trunk": True, "critic_outputs": 2},
                "shared_trunk: expected pooling, both networks",
            ),
        ],
    )
    def test_shapes(self, options, match):
        with pytest.raises(ValueError, match=match):
            PpoUpdate(**({"obs_dim": 2, "hidden": [4], "activation": "relu", "nvec": [3]} | options))


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "box"])
@pytest.mark.parametrize("hidden", [(), (16, 12)])
def test_policy_that_sees_part_of_an_observation(kind, hidden):
    config = {"actor_inputs": 4, "hidden": hidden, "normalize_obs": True}
    compiled, plain = learner("compiled", kind, **config), learner("torch", kind, **config)
    before = critic_bits(compiled)
    assert_close_metrics(learn(compiled), learn(plain))
    assert_close(compiled, plain, rtol=1e-4, atol=2e-5)
    assert compiled.policy.actor[0].weight.shape[1] == 4
    assert critic_bits(compiled) != before
    # Inputs beyond `actor_inputs` change the value function, not the policy.
    obs = np.random.default_rng(5).normal(size=(9, 6)).astype(np.float32)
    other = obs.copy()
    other[:, 4:] += 1
    seen, values = [], []
    for network, rows in (
        (compiled.policy, obs),
        (compiled.policy, other),
        (compiled.policy.blind(), obs[:, :4].copy()),
    ):
        actor = network.loaded_actor(compiled.actions)
        drawn = np.zeros((9, *compiled.actions.space.shape), np.float32 if kind == "box" else np.int64)
        log_probs = np.zeros(9, np.float32)
        actor.act(rows, np.arange(9, dtype=np.uint64), np.zeros(9, np.int64), drawn, log_probs)
        seen.append((drawn.tobytes(), log_probs.tobytes()))
        if network is compiled.policy:
            values.append(network.value(torch.from_numpy(rows)))
    assert seen[0] == seen[1] == seen[2]
    assert not torch.equal(*values)
    # A saved policy acts on whole observations and on what it sees.
    for space in (Box(-np.inf, np.inf, (size,), np.float32) for size in (6, 4)):
        PPO.make_actor(compiled.policy_state(), space, SPACES[kind])
    with pytest.raises(ValueError, match="the policy takes 6 numbers"):
        PPO.make_actor(compiled.policy_state(), Box(-1, 1, (5,), np.float32), SPACES[kind])


def test_policy_that_sees_part_of_an_observation_starts_with_the_weights_of_one_that_sees_no_more():
    old, new = learner("torch", obs_dim=4), learner("torch", actor_inputs=4)
    learn(old)
    assert new.load_policy(old.state_dict()) == [
        "its 4 inputs are the first, 2 new ones start with weights of zero"
    ]
    assert policy_bits(old) == policy_bits(new)


def test_policy_that_sees_part_of_an_observation_refuses_other_networks():
    for config in ({"memory": "gru"}, {"shared_trunk": True}, {"layer_norm": True}):
        with pytest.raises(
            ValueError, match="actor_inputs is for policies and value functions that are separate"
        ):
            learner("torch", actor_inputs=4, **config)
    with pytest.raises(ValueError, match="actor_inputs should be from 1 to 6, got 7"):
        learner("torch", actor_inputs=7)


def policy_bits(ppo):
    """Everything that the policy acts by."""
    actor = [*ppo.policy.actor.parameters(), *ppo.policy.buffers()]
    log_std = [] if ppo.policy.log_std is None else [ppo.policy.log_std]
    return [tensor.detach().numpy().tobytes() for tensor in actor + log_std]


def critic_bits(ppo):
    return [tensor.detach().numpy().tobytes() for tensor in ppo.policy.critic.parameters()]


@pytest.mark.parametrize("backend", ["compiled", "torch"])
@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "box"])
@pytest.mark.parametrize("normalize_advantages", ["rollout", "minibatch"])
def test_critic_alone_learns_during_its_warmup(backend, kind, normalize_advantages):
    config = {"normalize_advantages": normalize_advantages, "normalize_obs": True, "entropy_coef": 0.1}
    ppo = learner(backend, kind, critic_warmup=60, **config)
    plain = learner(backend, kind, **config)
    policy, losses = policy_bits(ppo), []
    for _ in range(2):  # 33 steps each
        critic = critic_bits(ppo)
        fill(ppo)
        losses.append(ppo.learn(Stopwatch()))
        assert policy_bits(ppo) == policy
        assert critic_bits(ppo) != critic
    assert losses[1].value_loss < losses[0].value_loss
    assert losses[0].entropy > 0 and losses[0].policy_loss == 0
    # Then all is as in a run that starts with these weights: the optimiser has no steps of the warm-up.
    plain.policy.load_state_dict(ppo.policy.state_dict())
    plain.steps, ppo.total_timesteps = ppo.steps, plain.total_timesteps
    own, others = plain.state_dict(), ppo.state_dict()
    plain.load_state_dict(own | {key: others[key] for key in ("generators", "return_scale")})
    fill(ppo)
    fill(plain)
    assert vars(ppo.learn(Stopwatch())) == vars(plain.learn(Stopwatch()))
    assert_same(ppo, plain)
    assert policy_bits(ppo) != policy


@pytest.mark.parametrize("backend", ["compiled", "torch"])
def test_warmup_of_the_critic_resumes_exactly(backend):
    through, resumed = (learner(backend, critic_warmup=80) for _ in range(2))
    for update in range(4):
        if update == 1:
            resumed.load_state_dict(copy.deepcopy(through.state_dict()))
        fill(through, update)
        through.learn(Stopwatch())
        if update:
            fill(resumed, update)
            resumed.learn(Stopwatch())
            assert_same(through, resumed)


def test_warmup_of_a_critic_that_shares_layers_is_refused():
    for config in ({"shared_trunk": True}, {"memory": "gru"}):
        with pytest.raises(ValueError, match="critic_warmup needs a value function that shares no layer"):
            learner("torch", critic_warmup=10, **config)
    learner("torch", critic_warmup=10, layer_norm=True)
