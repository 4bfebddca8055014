"""A network that learns: its Adam against PyTorch's, its clipping, the order of samples."""

import copy

import gymnasium
import pytest
import torch

from fastrl.algorithms.flat_adam import FlatAdam, minibatches
from fastrl.networks.action_space import Actions
from fastrl.networks.kinds import LOG_STD_RANGE
from fastrl.networks.multi_agent import PolicyNetwork


def actor(seed=0, **options):
    actions = Actions(gymnasium.spaces.Box(-1, 1, (2,)))
    return PolicyNetwork(3, actions, hidden=(5,), generator=torch.Generator().manual_seed(seed), **options)


def test_adam_is_that_of_pytorch():
    network = actor()
    theirs = torch.nn.Parameter(torch.nn.utils.parameters_to_vector(network.parameters()).detach().clone())
    reference = torch.optim.Adam([theirs], lr=0.1, eps=1e-5)
    trained = FlatAdam(network)
    rng = torch.Generator().manual_seed(1)
    for step in range(20):
        gradient = torch.randn(len(theirs), generator=rng) * 10.0 ** (step % 4 - 2)
        trained.gradient.copy_(gradient)
        theirs.grad = gradient.clone()
        expected = torch.nn.utils.clip_grad_norm_([theirs], 1.0)
        reference.param_groups[0]["lr"] = rate = 0.1 / (step + 1)
        reference.step()
        torch.testing.assert_close(trained.step(rate, 1.0), expected)
        torch.testing.assert_close(trained.vector.data, theirs.data)
        assert not trained.gradient.any()
    assert torch.equal(torch.nn.utils.parameters_to_vector(network.parameters()), trained.vector)


def test_the_deviation_stays_in_its_range():
    trained = FlatAdam(actor())
    for sign, bound in ((-1, LOG_STD_RANGE[1]), (1, LOG_STD_RANGE[0])):
        for _ in range(100):
            trained.network.log_std.grad.fill_(sign)
            trained.step(1.0, 1.0)
        assert trained.network.log_std.tolist() == [bound, bound]


def test_resumes_to_the_bit():
    trained = FlatAdam(actor())
    trained.gradient.fill_(0.1)
    trained.step(0.1, 1.0)
    saved = copy.deepcopy(trained.state_dict())
    other = FlatAdam(actor(seed=7))
    other.load_state_dict(saved)
    for each in (trained, other):
        each.gradient.fill_(-0.2)
        each.step(0.1, 1.0)
    assert torch.equal(trained.vector, other.vector)


def test_parts_have_each_sample_once_and_are_equal():
    generator = torch.Generator().manual_seed(0)
    samples = torch.arange(100, 177)
    split = list(minibatches(samples, 20, generator))
    assert [len(part) for part in split] == [20, 19, 19, 19]
    assert sorted(torch.cat(split).tolist()) == samples.tolist()
    assert torch.cat(list(minibatches(samples, 20, generator))).tolist() != torch.cat(split).tolist()
    assert list(minibatches(samples[:0], 20, generator)) == []


@pytest.mark.parametrize("name", ["mean", "square", "weights"])
def test_refuses_the_state_of_another_network(name):
    trained = FlatAdam(actor())
    state = FlatAdam(actor(num_ids=2)).state_dict()
    with pytest.raises((ValueError, RuntimeError)):
        trained.load_state_dict({**trained.state_dict(), name: state[name]})
