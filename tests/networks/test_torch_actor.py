import pickle

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from fastrl.collectors.protocol import Plan
from fastrl.collectors.sequential import SequentialCollector
from fastrl.envs.rows import ObsRows
from fastrl.envs.spec import EnvSpec
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import MlpActor, moved
from fastrl.networks.encoded_q import EncodedQ
from fastrl.networks.epsilon_greedy import EpsilonGreedyActor
from fastrl.networks.parameters import write_tensors
from fastrl.networks.policy_network import EncodedPolicy
from fastrl.networks.torch_actor import TorchActor
from fastrl.utils.seeding import act_streams, normals, uniforms_of_parts

OBS = ObsRows(Box(-9, 9, (5,), np.float32))
BOX = Box(-1, 1, (3,), np.float32)


def policy_of(space, seed=0, **options):
    actions = Actions(space)
    policy = EncodedPolicy(
        OBS.state(),
        actions.size,
        hidden=(16,),
        **{"shared_trunk": False} | options,
        continuous=actions.is_box,
        generator=torch.Generator().manual_seed(seed),
    )
    with torch.no_grad():
        policy.actor.weight.mul_(200)
    return policy, actions


def act(actor, actions, rows, masks=None, greedy=False, states=None):
    k = len(rows)
    drawn, log_probs = np.zeros((k, *actions.shape), actions.dtype), np.zeros(k, np.float32)
    streams = act_streams(3, np.arange(k), np.zeros(k, np.int64))
    if states is not None and not actor.state_size:
        states = None
    actor.act(rows, streams, np.arange(k) % 7, drawn, log_probs, masks, states, greedy=greedy)
    return drawn, log_probs


def observations(k=2000):
    return np.random.default_rng(0).normal(size=(k, 5)).astype(np.float32)


def torch_actor(policy, actions):
    """PyTorch's actor, also of networks that have a compiled form."""
    actor = TorchActor(policy.maker(), actions.state())
    weights = np.zeros(actor.weights_nbytes // 4, np.float32)
    write_tensors(list(policy.state_dict().values()), weights)
    actor.load(weights.data)
    return actor


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete([2, 3]), BOX], ids=str)
@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
def test_it_acts_as_the_compiled_actor(space, greedy, normalize_obs, memory):
    policy, actions = policy_of(
        space, normalize_obs=normalize_obs, memory=memory, shared_trunk=memory != "none", memory_size=7
    )
    rows = observations()
    policy.update_statistics(torch.from_numpy(rows))
    actor, compiled = torch_actor(policy, actions), policy.loaded_actor(actions)
    assert isinstance(compiled, MlpActor) and actor.state_size == compiled.state_size
    states, others = np.zeros((2, len(rows), actor.state_size), np.float32)
    for _ in range(3):
        own, log_probs = act(actor, actions, rows, greedy=greedy, states=states)
        other, other_log_probs = act(compiled, actions, rows, greedy=greedy, states=others)
        same = np.isclose(own, other, atol=1e-4).reshape(len(rows), -1).all(1)
        assert same.mean() > 0.999
        np.testing.assert_allclose(log_probs[same], other_log_probs[same], atol=1e-3)
        np.testing.assert_allclose(states, others, atol=1e-5)


@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete([2, 3]), BOX], ids=str)
def test_log_probs_are_those_of_the_draws(space):
    from fastrl.algorithms.ppo_loss import log_probs_of
    from fastrl.networks.distributions import choices_of

    policy, actions = policy_of(space)
    rows = observations(300)
    drawn, log_probs = act(torch_actor(policy, actions), actions, rows)
    with torch.no_grad():
        outputs = policy.outputs(torch.from_numpy(rows))
        expected = log_probs_of(outputs, policy.log_std, torch.from_numpy(drawn), choices_of(actions))
    np.testing.assert_allclose(log_probs, expected, atol=1e-5)


@pytest.mark.parametrize("greedy", [False, True])
def test_masked_choices_are_never_drawn(greedy):
    policy, actions = policy_of(MultiDiscrete([2, 3]))
    masks = np.random.default_rng(1).random((500, 5)) < 0.5
    masks[:, [0, 3]] = True
    drawn, _ = act(torch_actor(policy, actions), actions, observations(500), masks, greedy)
    assert np.take_along_axis(masks, drawn + np.array([0, 2]), 1).all()


def test_greedy_actions_are_the_most_probable():
    policy, actions = policy_of(MultiDiscrete([2, 3]))
    rows = observations(50)
    drawn, _ = act(torch_actor(policy, actions), actions, rows, greedy=True)
    with torch.no_grad():
        first, second = policy.outputs(torch.from_numpy(rows)).split([2, 3], 1)
    np.testing.assert_array_equal(drawn, torch.stack([first.argmax(1), second.argmax(1)], 1))


@pytest.fixture
def uncompiled(monkeypatch):
    """Policies have no compiled form, as those of images."""
    monkeypatch.setattr(EncodedPolicy, "actor_architecture", lambda self: None)
    return monkeypatch


def test_a_spec_pickles_and_its_actor_takes_weights(uncompiled):
    policy, actions = policy_of(Discrete(4), normalize_obs=True, dropout=0.5, layer_norm=True)
    policy.update_statistics(torch.from_numpy(observations(50)))
    actor = pickle.loads(pickle.dumps(policy.actor_spec(actions)))()
    assert isinstance(actor, TorchActor)
    assert actor.weights_nbytes == policy.actor_nbytes
    weights = np.zeros(actor.weights_nbytes // 4, np.float32)
    policy.actor_weights(weights)
    actor.load(bytes(weights.data))
    rows = observations(50)
    for one, other in zip(
        act(actor, actions, rows), act(policy.loaded_actor(actions), actions, rows), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_it_draws_from_no_global_generator():
    policy, actions = policy_of(BOX)
    before = torch.random.get_rng_state()
    act(torch_actor(policy, actions), actions, observations(5))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_refuses_weights():
    actor = torch_actor(*policy_of(Discrete(4)))
    with pytest.raises(ValueError, match=r"weights: expected .* bytes, got 8"):
        actor.load(np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="NaN or infinity"):
        actor.load(np.full(actor.weights_nbytes // 4, np.nan, np.float32))


def test_normal_numbers_have_the_right_moments():
    k = 50_000
    streams = act_streams(0, np.arange(k), np.zeros(k, np.int64))
    drawn = normals(streams, np.zeros(k, np.int64), 3)
    assert drawn.shape == (k, 3)
    np.testing.assert_allclose(drawn.mean(0), 0, atol=0.02)
    np.testing.assert_allclose(np.cov(drawn.T), np.eye(3), atol=0.02)
    numbers = uniforms_of_parts(streams, np.zeros(k, np.int64), 3)
    np.testing.assert_allclose(np.cov(numbers.T), np.eye(3) / 12, atol=0.002)


def plan_of(policy, actions, **options):
    return Plan(EnvSpec("Acrobot-v1"), policy.actor_spec(actions), OBS.space, actions.space, 2, 3, **options)


def test_actors_of_the_learners_process_are_on_its_device(uncompiled):
    """No memory is needed for the device "meta", which computes nothing."""
    policy, actions = policy_of(Discrete(4))
    local = plan_of(policy, actions, actor_device="meta").make_local_actor()
    assert {each.device.type for each in local.network.parameters()} == {"meta"}
    plan = plan_of(policy, actions)
    for made in (plan.make_local_actor(), plan_of(policy, actions, actor_device="meta").make_actor()):
        assert {each.device.type for each in made.network.parameters()} == {"cpu"}
    with SequentialCollector(plan_of(policy, actions, actor_device="meta")) as collector:
        assert {each.device.type for each in collector.runner.actor.network.parameters()} == {"meta"}
    values = EncodedQ(OBS.state(), 4)
    exploring = moved(EpsilonGreedyActor(values.actor_spec(actions), 4), "meta")
    assert {each.device.type for each in exploring.network.network.parameters()} == {"meta"}
    uncompiled.undo()
    compiled = MlpActor(policy_of(Discrete(4))[0].actor_architecture())
    assert moved(compiled, "meta") is compiled


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("space", [Discrete(4), MultiDiscrete([2, 3]), BOX], ids=str)
def test_a_gpu_chooses_as_the_cpu_does(space, memory):
    policy, actions = policy_of(space, layer_norm=True, memory=memory, memory_size=8, shared_trunk=True)
    rows = observations()
    cpu, gpu = torch_actor(policy, actions), moved(torch_actor(policy, actions), "cuda")
    states = [np.zeros((len(rows), 8), np.float32) for _ in range(2)]
    found = [act(each, actions, rows, states=own)[0] for each, own in zip((cpu, gpu), states, strict=True)]
    near = np.isclose(*found, atol=1e-3).reshape(len(rows), -1).all(1)
    assert near.mean() > 0.99
    assert np.allclose(*states, atol=1e-3)
