import pytest
import torch

from fastrl.networks.acting_network import PolicyNet, network_type


class Constant(PolicyNet):
    """The least that a network has."""

    kind = "constant"


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
