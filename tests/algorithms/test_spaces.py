"""PPO and IMPALA on observations and actions of all kinds, with networks of all kinds."""

import copy

import numpy as np
import pytest
import torch

from fastrl.algorithms.async_ppo import AsyncPPO, AsyncPPOConfig
from fastrl.algorithms.impala import IMPALA, ImpalaConfig
from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.ppo_loss import log_probs_of
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.protocol import Plan
from fastrl.collectors.sequential import SequentialCollector
from fastrl.envs.rows import ActionRows
from fastrl.envs.spec import EnvSpec
from fastrl.networks import policy_network
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.encoders import Decoder
from fastrl.networks.own_network import OwnPolicy
from fastrl.networks.policy_network import EncodedPolicy
from fastrl.networks.torch_actor import TorchActor
from fastrl.utils.ranks import Shard
from fastrl.utils.timer import Stopwatch

KINDS = {"ppo": (PPO, PPOConfig), "async-ppo": (AsyncPPO, AsyncPPOConfig), "impala": (IMPALA, ImpalaConfig)}
QUICK = {"num_steps": 16, "hidden": (16,)}
CARDS, DIALS = "space_envs:Cards", "space_envs:Dials"
VEHICLES = "fastrl/roundabout-v1"


class Run:
    """An algorithm and what it learns from."""

    def __init__(self, kind, env, updates=5, num_envs=8, seed=0, **settings):
        algorithm_type, config_type = KINDS[kind]
        config = config_type(**settings)
        spec = EnvSpec(env)
        made = spec.make()
        total = updates * num_envs * config.num_steps
        problem = Problem(
            made.observation_space, ActionRows(made.action_space).flat_space, num_envs, total, seed=seed
        )
        self.algorithm = algorithm_type(config, problem)
        plan = Plan(
            env=spec,
            make_actor=self.algorithm.actor_spec(),
            obs_space=made.observation_space,
            action_space=made.action_space,
            num_envs=num_envs,
            num_steps=config.num_steps,
            squash=self.algorithm.squash_actions,
            action_masks=self.algorithm.action_masks,
        )
        self.collector = SequentialCollector(plan)
        self.mean_return = 0.0

    def update(self, times=1):
        weights = np.zeros(self.algorithm.weights_nbytes, np.uint8)
        for _ in range(times):
            self.algorithm.write_weights(weights)
            self.collector.publish(weights)
            fragments = self.collector.collect()
            if len(fragments[0].returns):
                self.mean_return = float(fragments[0].returns.mean())
            self.algorithm.update(fragments, Stopwatch())
        return self


def parameters(run):
    return torch.cat([parameter.detach().flatten() for parameter in run.algorithm.policy.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "updates", "settings", "expected"),
    [
        ("ppo", 14, {"num_steps": 64, "minibatch_size": 64, "learning_rate": 2e-3}, 6),
        ("impala", 90, {"num_steps": 16, "learning_rate": 4e-3}, 4),
    ],
)
def test_learns_from_dicts_with_images(kind, updates, settings, expected):
    """Random actions are right 2 times in 8, those that see the picture or the number alone 4 times."""
    run = Run(kind, CARDS, updates, hidden=(32,), gamma=0.0, **settings)
    assert isinstance(run.algorithm.policy, EncodedPolicy)
    assert isinstance(run.algorithm.actor_spec()(), TorchActor)
    run.update(updates - updates // 6)
    last = [run.update().mean_return for _ in range(updates // 6)]
    assert np.mean(last) > expected


@pytest.mark.slow
@pytest.mark.parametrize("masks", [False, True])
def test_learns_multi_discrete_actions(masks):
    """Random actions get 2.8 of 8, with masks 3.6."""
    run = Run(
        "ppo", DIALS, 20, num_steps=64, minibatch_size=128, learning_rate=4e-3, gamma=0.5, action_masks=masks
    ).update(20)
    assert run.mean_return > 6


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_impala_learns_with_the_masks_that_actors_had(memory):
    """Without staleness a policy gives its own actions the probabilities that they had."""
    run = Run("impala", DIALS, action_masks=True, memory=memory, **QUICK).update()
    assert run.algorithm.rollout.masks[:-1].mean() < 0.8
    assert run.algorithm.metrics()["mean_ratio"] == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize(
    ("env", "settings"),
    [
        (CARDS, {}),
        (CARDS, {"encoder": "impala", "shared_trunk": False, "dropout": 0.2}),
        (CARDS, {"encoder": "mlp", "layer_norm": True}),
        (CARDS, {"network": "own_networks:DictNet"}),
        (DIALS, {"dropout": 0.2}),
        (VEHICLES, {"encoder": "rows"}),
        ("CartPole-v1", {"shared_trunk": True, "normalize_obs": True}),
        ("CartPole-v1", {"network": "own_networks:Net", "network_options": ("width=8", "dropout=0.5")}),
        ("Pendulum-v1", {"layer_norm": True, "squash_actions": True}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_resumes_exactly(kind, env, settings):
    """The state of a learner makes another one learn the same from the same experience."""
    run = Run(kind, env, **QUICK, **settings).update(2)
    state = copy.deepcopy(run.algorithm.state_dict())
    again = Run(kind, env, **QUICK, **settings).update(1)
    again.algorithm.check_state(again.algorithm.config, state)
    again.algorithm.load_state_dict(state)
    fragments = run.collector.collect()
    before = torch.random.get_rng_state()
    for each in (run, again):
        each.algorithm.update(fragments, Stopwatch())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(parameters(run), parameters(again))


def noisy_run(kind, env, **settings):
    """One whose dropout moves probabilities far, while its parameters stay."""
    run = Run(kind, env, learning_rate=0.0, final_learning_rate=0.0, **QUICK, **settings)
    with torch.no_grad():
        for parameter in run.algorithm.policy.parameters():
            parameter.mul_(4)
        if run.algorithm.policy.log_std is not None:
            run.algorithm.policy.log_std.fill_(-1.0)
    return run


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("CartPole-v1", {"dropout": 0.5}),
        ("Pendulum-v1", {"dropout": 0.5}),
        (CARDS, {"encoder": "impala", "shared_trunk": False, "dropout": 0.5}),
        (DIALS, {"dropout": 0.5, "action_masks": True}),
        ("CartPole-v1", {"dropout": 0.5, "memory": "gru"}),
        ("CartPole-v1", {"dropout": 0.5, "memory": "lstm"}),
        ("CartPole-v1", {"network": "own_networks:Net", "network_options": ("width=64", "dropout=0.5")}),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else value,
)
def test_dropout_moves_no_ratio(kind, env, settings):
    """Policies are compared as one function of the observations: only parameters move probabilities."""
    if kind != "impala":
        settings = {**settings, "num_epochs": 2, "minibatch_size": 64, "value_clip": 0.1}
    metrics = noisy_run(kind, env, **settings).update(2).algorithm.metrics()
    assert metrics["clip_fraction"] == 0
    if kind == "impala":
        assert metrics["mean_ratio"] == pytest.approx(1, abs=1e-5)
    else:
        assert abs(metrics["approx_kl"]) < 1e-6


def test_dropout_hides_no_staleness():
    """Ratios to the policies that acted are those of networks without dropout."""
    run = noisy_run("async-ppo", "CartPole-v1", correct_off_policy=False, dropout=0.3).update()
    fragments, ppo = run.collector.collect(), run.algorithm
    with torch.no_grad():
        for parameter in ppo.policy.parameters():
            parameter.mul_(2)
    ppo.update(fragments, Stopwatch())
    with torch.no_grad():
        outputs = ppo.policy.outputs(ppo.rollout.flat("obs"))
        log_probs = log_probs_of(outputs, None, ppo.rollout.flat("actions"))
        ratios = (log_probs - ppo.rollout.flat("log_probs")).exp()
    expected = ((ratios - 1).abs() > ppo.config.clip_range).float().mean().item()
    assert ppo.metrics()["clip_fraction"] == pytest.approx(expected, abs=1e-6) != 0


@pytest.mark.parametrize(
    ("env", "settings", "expected"),
    [
        ("CartPole-v1", {}, ActorCritic),
        ("Pendulum-v1", {"encoder": "mlp", "shared_trunk": False}, ActorCritic),
        ("FrozenLake-v1", {}, ActorCritic),
        ("CartPole-v1", {"shared_trunk": True}, EncodedPolicy),
        ("CartPole-v1", {"layer_norm": True}, EncodedPolicy),
        ("CartPole-v1", {"dropout": 0.1}, EncodedPolicy),
        (DIALS, {}, ActorCritic),
        (DIALS, {"dropout": 0.2}, EncodedPolicy),
        (CARDS, {}, EncodedPolicy),
        (VEHICLES, {}, ActorCritic),
        (VEHICLES, {"encoder": "rows"}, EncodedPolicy),
        ("CartPole-v1", {"network": "own_networks:Net"}, OwnPolicy),
    ],
)
def test_chooses_the_network(env, settings, expected):
    assert type(Run("ppo", env, **settings).algorithm.policy) is expected


def test_only_images_share_layers_by_default():
    shared = {
        env: Run("ppo", env, layer_norm=True).algorithm.policy.critic_trunk is None for env in (CARDS, DIALS)
    }
    assert shared == {CARDS: True, DIALS: False}


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_half_precision_learns_about_the_same_on_a_cpu(memory):
    """Only what is between images and the memory or the last layers is rounded."""
    half, full = (
        Run("ppo", CARDS, **QUICK, memory=memory, precision=precision) for precision in ("bf16", "fp32")
    )
    start = parameters(full)
    weights = np.zeros(full.algorithm.weights_nbytes, np.uint8)
    full.algorithm.write_weights(weights)
    full.collector.publish(weights)
    fragments = full.collector.collect()
    for run in (half, full):
        run.algorithm.update(fragments, Stopwatch())
    ours, theirs = (parameters(run) - start for run in (half, full))
    assert not torch.equal(ours, theirs)
    assert torch.cosine_similarity(ours, theirs, 0) > 0.9
    assert half.algorithm.metrics() == pytest.approx(full.algorithm.metrics(), rel=0.05, abs=0.02)


def test_rollouts_of_images_stay_bytes():
    run = Run("ppo", CARDS, **QUICK).update()
    assert run.algorithm.rollout.obs.dtype == np.uint8
    assert run.algorithm.rollout.distinct_obs().base is not None
    drawn = next(run.algorithm.minibatches())
    batch = drawn.take(Shard(0, slice(0, drawn.size)))
    assert batch.obs.dtype == torch.uint8


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"memory": "gru", "burn_in": 4}], ids=["plain", "memory"])
def test_impala_has_few_images_as_floats_at_a_time(settings, monkeypatch):
    whole = Run("impala", CARDS, **QUICK, **settings).update(3)
    seen = []
    decode = Decoder.forward

    def counted(decoder, rows):
        assert rows.dtype == torch.uint8
        seen.append(len(rows))
        return decode(decoder, rows)

    monkeypatch.setattr(Decoder, "forward", counted)
    monkeypatch.setitem(policy_network.PASS_ROWS, "cpu", 40)
    parted = Run("impala", CARDS, **QUICK, **settings).update(3)
    assert max(seen) == 20
    assert parted.algorithm.metrics() == pytest.approx(whole.algorithm.metrics(), rel=1e-3, abs=1e-5)
    torch.testing.assert_close(parameters(parted), parameters(whole), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("env", "encoder"), [(CARDS, "auto"), (DIALS, "auto"), ("CartPole-v1", "auto"), (VEHICLES, "rows")]
)
def test_checkpoints_make_actors(env, encoder):
    run = Run("ppo", env, shared_trunk=True, encoder=encoder, **QUICK).update()
    made = EnvSpec(env).make()
    actor = PPO.make_actor(
        copy.deepcopy(run.algorithm.policy_state()), made.observation_space, made.action_space
    )
    weights = np.zeros(actor.weights_nbytes // 4, np.float32)
    run.algorithm.write_weights(weights)
    rows = run.algorithm.rollout.obs[0].copy()
    drawn = [np.zeros(run.algorithm.rollout.actions.shape[1:], np.int64) for _ in range(2)]
    own = run.algorithm.actor_spec()()
    own.load(weights)
    for each, actions in zip((actor, own), drawn, strict=True):
        nothing = np.zeros(8, np.uint64), np.zeros(8, np.int64)
        each.act(rows, *nothing, actions, np.zeros(8, np.float32), greedy=True)
    np.testing.assert_array_equal(*drawn)


class TestRefuses:
    @pytest.mark.parametrize(
        ("settings", "match"),
        [
            ({"encoder": "nature"}, "the encoder nature is for images"),
            ({"encoder": "rows"}, "the encoder rows is for tables"),
            ({"network_options": ("width=8",)}, "set network to its module:Class, too"),
            ({"network": "own_networks:Missing"}, "has no attribute 'Missing'"),
        ],
    )
    def test_settings(self, settings, match):
        with pytest.raises(ValueError, match=match):
            Run("ppo", "CartPole-v1", **settings)

    def test_states_of_other_networks(self):
        run = Run("ppo", "CartPole-v1", **QUICK)
        for settings in ({"shared_trunk": True}, {"network": "own_networks:Net"}):
            state = Run("ppo", "CartPole-v1", **QUICK, **settings).algorithm.state_dict()
            for load in (run.algorithm.load_state_dict, run.algorithm.load_policy):
                with pytest.raises(ValueError, match="network"):
                    load(state)

    def test_checkpoints_that_would_import_another_network(self):
        run = Run("ppo", "CartPole-v1", network="own_networks:Net", **QUICK)
        state = run.algorithm.state_dict()
        with pytest.raises(
            ValueError, match="the saved policy has the network own_networks:Net, the settings"
        ):
            PPO.check_state(PPOConfig(**QUICK), state)

    def test_actors_for_other_environments(self):
        policy = Run("ppo", CARDS, **QUICK).algorithm.policy_state()
        made = EnvSpec("CartPole-v1").make()
        with pytest.raises(ValueError, match="the policy takes"):
            PPO.make_actor(policy, made.observation_space, made.action_space)
