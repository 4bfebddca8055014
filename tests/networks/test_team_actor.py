"""The actor of many agents chooses as their policies do, with the weights that a learner publishes."""

import pickle

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.envs.rows import ActionRows
from fastrl.networks.action_space import Actions
from fastrl.networks.multi_agent import MultiAgentPolicy, PolicyNetwork
from fastrl.networks.team_actor import Member, TeamActor
from fastrl.utils.seeding import agent_streams, uniforms

SPACES = [Discrete(4), MultiDiscrete([3, 2, 4]), MultiBinary(3), Box(-2, 1, (2,), np.float32)]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def network(actions, seed, **options):
    made = PolicyNetwork(5, actions, hidden=(8,), generator=generator(seed), **options)
    for parameter in made.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator(seed)))
    made.observe(torch.randn(20, 5, generator=generator(seed + 1)))
    return made.requires_grad_(False)


def middle(obs, agents):
    return np.zeros(len(obs), np.int64)


def published(policy, learning):
    weights = np.zeros(sum(policy.policies[name].actor_size for name in learning), np.float32)
    end = 0
    for name in sorted(learning):
        size = policy.policies[name].actor_size
        policy.policies[name].actor_weights(weights[end : end + size])
        end += size
    return weights


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(SPACES),
    st.sampled_from(["tanh", "relu", "elu"]),
    st.booleans(),
    st.sampled_from([0, 3]),
    st.integers(0, 1000),
)
def test_it_chooses_as_the_policies_do(space, activation, normalize_obs, num_ids, seed):
    actions = Actions(ActionRows(space).flat_space)
    options = {"activation": activation, "normalize_obs": normalize_obs, "num_ids": num_ids}
    policies = {"a": network(actions, seed, **options), "b": network(actions, seed + 7, **options)}
    policy = MultiAgentPolicy(["a", "b", "a"], policies, actions)
    actor = pickle.loads(pickle.dumps(policy.actor_spec(["a"])))()
    actor.load(published(policy, ["a"]).data)

    rng = np.random.default_rng(seed)
    obs, alive = rng.normal(size=(12, 5)).astype(np.float32), rng.random(12) < 0.8
    streams, steps = rng.integers(2**63, size=12, dtype=np.uint64), np.zeros(12, np.int64)
    drawn, log_probs = np.ones((12, *actions.shape), actions.dtype), np.ones(12, np.float32)
    actor.act(obs, streams, steps, drawn, log_probs, greedy=True, alive=alive)
    expected, chances = policy.draw(torch.from_numpy(obs), alive, None)
    np.testing.assert_allclose(drawn, expected.numpy(), atol=1e-4)
    np.testing.assert_allclose(log_probs, chances.numpy(), atol=1e-4)

    actor.act(obs, streams, steps, drawn, log_probs, alive=alive)
    for row in np.flatnonzero(alive):
        alone = np.zeros_like(alive)
        alone[row] = True
        other, chance = np.ones_like(drawn), np.ones_like(log_probs)
        actor.act(obs, streams, steps, other, chance, alive=alone)
        np.testing.assert_allclose(other[row], drawn[row], atol=1e-5)
        np.testing.assert_allclose(chance[row], log_probs[row], atol=1e-5)
    assert not drawn[~alive].any() and not log_probs[~alive].any()


def test_policies_that_do_not_learn_keep_their_weights_and_rules_act():
    actions = Actions(Discrete(3))
    policy = MultiAgentPolicy(
        ["new", "old", "rule"],
        {"new": network(actions, 1), "old": network(actions, 2), "rule": middle},
        actions,
    )
    actor = policy.actor_spec(["new"])()
    assert actor.weights_nbytes == 4 * policy.policies["new"].actor_size
    actor.load(np.zeros(actor.weights_nbytes // 4, np.float32).data)
    obs, alive = np.ones((3, 5), np.float32), np.ones(3, np.bool_)
    drawn, log_probs = np.ones(3, np.int64), np.ones(3, np.float32)
    actor.act(obs, np.zeros(3, np.uint64), np.zeros(3, np.int64), drawn, log_probs, greedy=True, alive=alive)
    expected, chances = policy.draw(torch.from_numpy(obs), alive, None)
    assert drawn[1:].tolist() == expected[1:].tolist() and drawn[2] == 0
    assert log_probs[0] == pytest.approx(np.log(1 / 3)) and log_probs[1] == pytest.approx(float(chances[1]))


def test_threads_change_nothing():
    actions = Actions(Discrete(4))
    policy = MultiAgentPolicy(["a"] * 3, {"a": network(actions, 3)}, actions)
    found = []
    for threads in (1, 2):
        actor = policy.actor_spec(["a"])().with_threads(threads)
        actor.load(published(policy, ["a"]).data)
        rng = np.random.default_rng(0)
        obs = rng.normal(size=(3000, 5)).astype(np.float32)
        drawn, log_probs = np.zeros(3000, np.int64), np.zeros(3000, np.float32)
        streams = rng.integers(2**63, size=3000, dtype=np.uint64)
        alive = np.ones(3000, np.bool_)
        actor.act(obs, streams, np.arange(3000), drawn, log_probs, alive=alive)
        found.append((drawn, log_probs))
    np.testing.assert_array_equal(found[0], found[1])


def test_refusals():
    actions = Actions(Discrete(3)).state()
    with pytest.raises(ValueError, match=r"there is none named \['b'\]"):
        TeamActor(["a", "b"], {"a": Member(rule=middle)}, actions)
    actor = TeamActor(["a"], {"a": Member(rule=lambda obs, agents: [[1]])}, actions)
    with pytest.raises(ValueError, match="expected 0 bytes, got 4"):
        actor.load(np.zeros(1, np.float32).data)
    with pytest.raises(ValueError, match=r"'a' should give actions \[1\], gave \[1, 1\]"):
        actor.act(
            np.ones((1, 5), np.float32),
            np.zeros(1, np.uint64),
            np.zeros(1, np.int64),
            np.zeros(1, np.int64),
            np.zeros(1, np.float32),
            alive=np.ones(1, np.bool_),
        )


def test_agents_have_independent_streams():
    streams = agent_streams(np.arange(4000, dtype=np.uint64), 2)
    assert len(np.unique(streams)) == 8000
    drawn = uniforms(streams.ravel(), np.zeros(8000, np.int64)).reshape(4000, 2)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.08 and abs(drawn.mean() - 0.5) < 0.03
