import copy

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from fastrl.envs.rows import ObsRows
from fastrl.networks import policy_network
from fastrl.networks.acting_network import saved_network
from fastrl.networks.own_network import sample_rows
from fastrl.networks.parameters import claimed_numbers
from fastrl.networks.policy_network import EncodedPolicy

MIXED = ObsRows(Dict({"picture": Box(0, 255, (7, 7, 3), np.uint8), "number": Discrete(4)}))
VECTOR = ObsRows(Box(-1, 1, (5,), np.float32))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def network_of(obs_rows=MIXED, **options):
    return EncodedPolicy(obs_rows.state(), 3, generator=seeded(), hidden=(16,), **options).eval()


@pytest.mark.parametrize("obs_rows", [MIXED, VECTOR], ids=["mixed", "vector"])
@pytest.mark.parametrize("shared", [False, True])
class TestEncodedPolicy:
    def test_outputs_and_value_are_those_of_a_whole_pass(self, obs_rows, shared):
        network = network_of(obs_rows, shared_trunk=shared)
        rows = sample_rows(obs_rows, 4)
        outputs, values = network(rows)
        assert (outputs.shape, values.shape) == ((4, 3), (4,))
        torch.testing.assert_close(network.outputs(rows), outputs)
        torch.testing.assert_close(network.value(rows), values)

    def test_last_layers_stay_in_float32(self, obs_rows, shared):
        network, rows = network_of(obs_rows, shared_trunk=shared), sample_rows(obs_rows, 4)
        with torch.autocast("cpu", torch.bfloat16):
            outputs, values = network(rows)
            assert outputs.dtype == values.dtype == torch.float32
            assert torch.equal(network.outputs(rows), outputs)
            assert torch.equal(network.value(rows), values)

    def test_shared_layers(self, obs_rows, shared):
        """The value's gradient reaches the policy's features only where they are shared."""
        network = network_of(obs_rows, shared_trunk=shared)
        network.value(sample_rows(obs_rows, 4)).sum().backward()
        reached = [parameter.grad is not None for parameter in network.actor_trunk.parameters()]
        assert all(reached) if shared else not any(reached)

    @pytest.mark.parametrize("options", [{}, {"dropout": 0.5}, {"encoder": "mlp"}])
    def test_passes_in_parts_have_the_same_gradients(self, obs_rows, shared, options, monkeypatch):
        """As parts that are computed once, with the same dropout."""
        network, once = (network_of(obs_rows, shared_trunk=shared, **options).train() for _ in range(2))
        rows, weights = sample_rows(obs_rows, 11), torch.randn(11, 4, generator=seeded())
        parts = rows.split(3) if network.decoder.images else [rows]
        torch.manual_seed(0)
        expected = [torch.cat(found) for found in zip(*map(once, parts), strict=True)]
        monkeypatch.setitem(policy_network.PASS_ROWS, "cpu", 6)
        torch.manual_seed(0)
        found = network(rows)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
        torch.rand(5)  # what is computed again draws as at first, in the mode that learners have left by then
        network.eval()
        for outputs, values in (found, expected):
            (outputs * weights[:, :3]).sum().add((values * weights[:, 3]).sum()).backward()
        for one, other in zip(network.parameters(), once.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)

    @pytest.mark.parametrize("continuous", [False, True])
    def test_state_makes_the_same_network(self, obs_rows, shared, continuous):
        network = network_of(
            obs_rows,
            shared_trunk=shared,
            continuous=continuous,
            normalize_obs=True,
            layer_norm=True,
            encoder="impala",
        )
        network.update_statistics(sample_rows(obs_rows, 9))
        before = torch.random.get_rng_state()
        again = saved_network(copy.deepcopy(network.state())).eval()
        assert torch.equal(torch.random.get_rng_state(), before)
        rows = sample_rows(obs_rows, 4)
        for one, other in zip(network(rows), again(rows), strict=True):
            assert torch.equal(one, other)
        assert (again.log_std is None) != continuous


class TestDropout:
    def test_it_is_on_in_train_mode_alone(self):
        network = network_of(dropout=0.5)
        rows = sample_rows(MIXED, 4)
        assert network.has_noise
        assert torch.equal(network(rows)[1], network(rows)[1])
        network.train()
        assert not torch.equal(network(rows)[1], network(rows)[1])


class TestRefuses:
    def refused(self, match, **changes):
        state = network_of().state()
        state["architecture"] |= changes
        with pytest.raises(ValueError, match=match):
            saved_network(state)

    def test_more_layers_than_weights(self):
        self.refused("a network of 1000000 hidden layers", hidden=[1] * 1_000_000)

    def test_wider_layers_than_weights(self):
        self.refused("is claimed, the weights are", hidden=[10**12])

    def test_images_that_would_not_fit_into_memory(self):
        obs = copy.deepcopy(MIXED.state())
        obs["spaces"][1]["shape"] = [10**6, 10**6, 3]
        self.refused("for 3,000,000,000,001 numbers, is claimed", obs=obs)

    def test_other_weights(self):
        self.refused("weights do not fit the network", memory="gru", memory_size=1)

    def test_weights_that_are_not_finite(self):
        state = copy.deepcopy(network_of().state())
        state["weights"]["actor.weight"][0, 0] = np.nan
        with pytest.raises(ValueError, match=r"'actor\.weight' are not finite"):
            saved_network(state)

    def test_unknown_kinds(self):
        with pytest.raises(ValueError, match="networks of the kind 'quantum' are not known"):
            saved_network({**network_of().state(), "kind": "quantum"})


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_observations_may_have_more_parts_than_the_network_has_weights(shared_trunk):
    space = Dict({f"part {i}": Discrete(2) for i in range(30)})
    network = EncodedPolicy(
        ObsRows(space).state(), 3, hidden=(), shared_trunk=shared_trunk, generator=seeded()
    )
    assert saved_network(network.state()).obs_rows.size == 60


def test_counts_claimed_numbers():
    assert claimed_numbers(MIXED.state()) == 7 * 7 * 3 + 1
    with pytest.raises(ValueError, match="is claimed"):
        claimed_numbers({"kind": "box", "shape": [-1, 3]})
