import pytest
import torch
from torch import nn

from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.networks.acting_network import PolicyNet, network_type, saved_network
from fastrl.networks.own_network import check_network


class Constant(PolicyNet):
    """The least that a network has."""

    kind = "constant"


class Linear(PolicyNet):
    """A network without hidden layers."""

    kind = "linear"

    def __init__(self, width, *, generator=None):
        super().__init__()
        self.layer = nn.Linear(width, 2)

    def forward(self, rows):
        return self.layer(rows), rows.sum(1)


@pytest.mark.parametrize(
    "kind",
    ["actor_critic", "agent", "constant", "encoded", "encoded_q", "off_policy_actor", "own", "own_q", "q"],
)
def test_a_network_is_found_by_its_kind(kind):
    assert network_type({"kind": kind}).kind == kind


def test_perceptrons_of_older_versions_name_no_kind():
    assert network_type({}).kind == "actor_critic"


def test_a_network_without_a_memory_has_no_sequences():
    with pytest.raises(NotImplementedError, match="Constant has no memory"):
        Constant().sequences(torch.zeros(2, 3), torch.tensor([2]), torch.zeros(2, 0))


def test_a_network_needs_no_hidden_layers_to_be_saved():
    network, rows = Linear(3), torch.ones(4, 3)
    state = network.state()
    check_network(PPOConfig(), state)
    assert torch.equal(saved_network(state).outputs(rows), network.outputs(rows))
