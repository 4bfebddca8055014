"""The actor of many agents chooses as their policies do, with the weights that a learner publishes."""

import pickle

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fastrl.envs.rows import ActionRows
from fastrl.networks.action_space import Actions
from fastrl.networks.multi_agent import MultiAgentPolicy, PolicyNetwork
from fastrl.networks.team_actor import Member, TeamActor
from fastrl.play.team_policy import TeamPolicy
from fastrl.utils.seeding import agent_streams, uniforms

SIZES = st.integers(1, 4)
SPACES = st.one_of(
    st.builds(lambda n: Discrete(n + 1), SIZES),
    st.builds(MultiDiscrete, st.lists(SIZES, min_size=1, max_size=3)),
    st.builds(MultiBinary, SIZES),
    st.builds(
        lambda low, width, size: Box(low, low + width, (size,), np.float32), st.integers(-3, 3), SIZES, SIZES
    ),
)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def network(actions, seed, **options):
    made = PolicyNetwork(5, actions, hidden=(8,), generator=generator(seed), **options)
    for parameter in made.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator(seed)))
    made.observe(torch.randn(20, 5, generator=generator(seed + 1)))
    return made.requires_grad_(False)


@settings(deadline=None, max_examples=30)
@given(SPACES, st.sampled_from(["tanh", "elu"]), st.sampled_from([0, 3]), st.integers(0, 1000))
def test_it_keeps_to_the_masks_of_agents_that_act(space, activation, num_ids, seed):
    actions = Actions(ActionRows(space).flat_space)
    assume(not actions.is_box)
    options = {"activation": activation, "num_ids": num_ids}
    policies = {"a": network(actions, seed, **options), "b": network(actions, seed + 7, **options)}
    policy = MultiAgentPolicy(["a", "b", "a"], policies, actions)
    rng = np.random.default_rng(seed)
    obs, alive = rng.normal(size=(12, 5)).astype(np.float32), rng.random(12) < 0.8
    firsts = np.cumsum(actions.nvec) - actions.nvec
    allowed = rng.random((12, actions.size)) < 0.3
    np.put_along_axis(allowed, rng.integers(actions.nvec, size=(12, len(firsts))) + firsts, True, -1)
    allowed[~alive] = False

    def make(policy):
        found = []
        for masks in (allowed, np.ones_like(allowed), None):
            drawn, log_probs = np.zeros((12, *actions.shape), actions.dtype), np.zeros(12, np.float32)
            streams, steps = np.arange(12, dtype=np.uint64) * np.uint64(2**50 + 1), np.zeros(12, np.int64)
            policy.actor_spec()().act(obs, streams, steps, drawn, log_probs, masks, alive=alive)
            found += [drawn, log_probs]
        return found

    for found in compiled_and_by_torch(policy, make):
        taken = np.take_along_axis(allowed, found[0].reshape(12, -1) + firsts, -1)
        assert taken[alive].all() and not found[0][~alive].any()
        np.testing.assert_equal(found[2:4], found[4:])
    # Of the first agent, whose policy is "a".
    if alive[0]:
        [outputs] = policies["a"](torch.from_numpy(obs[:1]), torch.zeros(1, dtype=torch.int64))
        parts = outputs.masked_fill(~torch.from_numpy(allowed[0]), -torch.inf).split(actions.nvec.tolist())
        chances = [
            torch.log_softmax(part, 0)[draw] for part, draw in zip(parts, found[0][0].ravel(), strict=True)
        ]
        assert found[1][0] == pytest.approx(float(sum(chances)), abs=1e-4)


def middle(obs, agents):
    return np.zeros(len(obs), np.int64)


def published(policy, learning):
    weights = np.zeros(sum(policy.policies[name].actor_nbytes for name in learning) // 4, np.float32)
    end = 0
    for name in sorted(learning):
        size = policy.policies[name].actor_nbytes // 4
        policy.policies[name].actor_weights(weights[end : end + size])
        end += size
    return weights


def compiled_and_by_torch(policy, make):
    """Results of `make` for the actors of a policy, compiled where they can be, and by PyTorch."""
    found = [make(policy)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PolicyNetwork, "actor_architecture", lambda self: None)
        return [*found, make(policy)]


def expected_of(policy, obs):
    """The likeliest draws for rows, and their log-probabilities, by PyTorch's own distributions."""
    draws, log_probs = [], []
    for row, values in enumerate(torch.from_numpy(obs)):
        number = row % policy.num_agents
        net = policy.networks[policy.names[number]]
        [outputs] = net(values[None], torch.tensor([number]))
        if net.log_std is not None:
            chosen = outputs
            chance = torch.distributions.Normal(outputs, net.log_std.exp()).log_prob(outputs).sum()
        else:
            parts = [torch.log_softmax(part, 0) for part in outputs.split(policy.actions.nvec.tolist())]
            chosen = torch.stack([part.argmax() for part in parts]).reshape(policy.actions.shape)
            chance = torch.stack([part.max() for part in parts]).sum()
        draws.append(chosen.numpy())
        log_probs.append(float(chance))
    return np.array(draws), np.array(log_probs)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    SPACES,
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
    rng = np.random.default_rng(seed)
    obs, alive = rng.normal(size=(12, 5)).astype(np.float32), rng.random(12) < 0.8
    streams, steps = rng.integers(2**63, size=12, dtype=np.uint64), np.zeros(12, np.int64)

    def make(policy):
        actor = pickle.loads(pickle.dumps(policy.actor_spec(["a"])))()
        actor.load(published(policy, ["a"]).data)
        found = []
        for greedy in (True, False):
            drawn, log_probs = np.ones((12, *actions.shape), actions.dtype), np.ones(12, np.float32)
            actor.act(obs, streams, steps, drawn, log_probs, greedy=greedy, alive=alive)
            found += [drawn, log_probs]
            assert not drawn[~alive].any() and not log_probs[~alive].any()
        for row in np.flatnonzero(alive)[:4]:
            alone = np.zeros_like(alive)
            alone[row] = True
            other, chance = np.ones_like(drawn), np.ones_like(log_probs)
            actor.act(obs, streams, steps, other, chance, alive=alone)
            np.testing.assert_allclose(other[row], drawn[row], atol=1e-5)
            np.testing.assert_allclose(chance[row], log_probs[row], atol=1e-5)
        return found

    draws, log_probs = expected_of(policy, obs)
    compiled, by_torch = compiled_and_by_torch(policy, make)
    np.testing.assert_allclose(compiled[0][alive], draws[alive], atol=1e-4)
    np.testing.assert_allclose(compiled[1][alive], log_probs[alive], atol=1e-4)
    for ours, theirs in zip(compiled, by_torch, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(SPACES, st.sampled_from(["relu", "elu"]), st.integers(0, 1000))
def test_a_team_acts_by_its_state_alone(space, activation, seed):
    """The likeliest actions are those of the networks, drawn ones have their distribution."""
    actions, count = Actions(ActionRows(space).flat_space), 6000
    policy = MultiAgentPolicy(
        ["a", "b"],
        {name: network(actions, seed + number, activation=activation) for number, name in enumerate("ab")},
        actions,
    )
    rng = np.random.default_rng(seed)
    obs = np.repeat(rng.normal(size=(1, 2, 5)).astype(np.float32), count, 0).reshape(-1, 5)
    best = actions.to_env(expected_of(policy, obs[:2])[0])
    for team in compiled_and_by_torch(policy, lambda policy: TeamPolicy(policy.state(), seed=seed)):
        found = team.act(obs, np.ones(len(obs), np.bool_)).reshape(count, 2, *actions.shape)
        np.testing.assert_allclose(found, np.broadcast_to(best, found.shape), atol=1e-4)
        np.testing.assert_allclose(team.predict(obs[:2])[0], found[0], atol=1e-5)
        drawn = team.act(obs, np.ones(len(obs), np.bool_), deterministic=False)
        for number, name in enumerate("ab"):
            net, own = policy.networks[name], drawn[number::2].reshape(count, -1)
            with torch.no_grad():
                [outputs] = net(torch.from_numpy(obs[number : number + 1]), torch.tensor([number]))
            if net.log_std is not None:
                samples = outputs + net.log_std.exp() * torch.randn(
                    (count, actions.size), generator=generator(1)
                )
                for pair in zip(own.T, actions.to_env(samples.numpy()).T, strict=True):
                    points = np.concatenate(pair)
                    ranks = [np.searchsorted(np.sort(each), points, side="right") for each in pair]
                    assert np.abs(np.subtract(*ranks)).max() < 0.06 * count
                continue
            for part, column in zip(outputs.split(actions.nvec.tolist()), own.T, strict=True):
                shares = np.bincount(column, minlength=len(part)) / count
                np.testing.assert_allclose(shares, torch.softmax(part, 0).numpy(), atol=0.04)


def test_policies_that_do_not_learn_keep_their_weights_and_rules_act():
    actions = Actions(Discrete(3))
    policy = MultiAgentPolicy(
        ["new", "old", "rule"],
        {"new": network(actions, 1), "old": network(actions, 2), "rule": middle},
        actions,
    )
    actor = policy.actor_spec(["new"])()
    assert actor.weights_nbytes == policy.policies["new"].actor_nbytes
    actor.load(np.zeros(actor.weights_nbytes // 4, np.float32).data)
    obs, alive = np.ones((3, 5), np.float32), np.ones(3, np.bool_)
    drawn, log_probs = np.ones(3, np.int64), np.ones(3, np.float32)
    actor.act(obs, np.zeros(3, np.uint64), np.zeros(3, np.int64), drawn, log_probs, greedy=True, alive=alive)
    [outputs] = policy.networks["old"](torch.ones(1, 5), torch.tensor([1]))
    assert drawn[1] == outputs.argmax() and drawn[2] == 0
    chance = float(torch.log_softmax(outputs, 0).max())
    assert log_probs[0] == pytest.approx(np.log(1 / 3)) and log_probs[1] == pytest.approx(chance)


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
    policy = MultiAgentPolicy(["a"] * 3, {"a": network(Actions(Discrete(3)), 3)}, Actions(Discrete(3)))
    with pytest.raises(ValueError, match="environments of 3 agents, got 4 observations"):
        TeamPolicy(policy.state()).act(np.ones((4, 5), np.float32), np.ones(4, np.bool_))
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
