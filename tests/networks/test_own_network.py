import copy

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, Tuple

from fastrl.envs.rows import ObsRows
from fastrl.networks.acting_network import saved_network
from fastrl.networks.action_space import Actions
from fastrl.networks.own_network import OwnPolicy, check_own_network, own_path, sample_rows

VECTOR = ObsRows(Box(-1, 1, (5,), np.float32))


def policy_of(name="Net", obs_rows=VECTOR, actions=None, seed=0, **options):
    actions = actions or Discrete(2)
    generator = torch.Generator().manual_seed(seed)
    return OwnPolicy(
        f"own_networks:{name}", options, obs_rows.state(), Actions(actions).state(), generator=generator
    )


class TestOwnPolicy:
    def test_gives_what_the_module_gives(self):
        policy = policy_of(width=8).eval()
        rows = torch.randn(3, 5)
        outputs, values = policy(rows)
        expected = policy.own.module(rows)
        assert torch.equal(outputs, expected[0])
        assert torch.equal(values, expected[1])
        assert policy.own.module.policy.weight.shape == (2, 8)
        assert policy.log_std is None

    def test_continuous_actions_have_a_deviation(self):
        policy = policy_of(actions=Box(-1, 1, (3,), np.float32))
        assert policy.log_std.shape == (3,)

    def test_weights_come_from_the_generator_alone(self):
        before = torch.random.get_rng_state()
        first, again, other = (policy_of(seed=seed).own.module.policy.weight for seed in (1, 1, 2))
        assert torch.equal(torch.random.get_rng_state(), before)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_state_makes_the_same_network(self):
        policy = policy_of(width=8).eval()
        state = copy.deepcopy(policy.state())
        assert own_path(state) == "own_networks:Net"
        again = saved_network(state).eval()
        rows = torch.randn(3, 5)
        assert torch.equal(policy(rows)[0], again(rows)[0])

    def test_observations_have_the_form_of_their_space(self):
        from space_envs import Cards

        env = Cards()
        obs_rows = ObsRows(env.observation_space)
        policy = policy_of("DictNet", obs_rows, Discrete(4))
        obs, _ = env.reset(seed=0)
        row = np.zeros((1, obs_rows.size), obs_rows.dtype)
        obs_rows.write(obs, row[0])
        decoded = policy.own.observation(torch.from_numpy(row))
        assert decoded.keys() == {"picture", "number", "noise"}
        np.testing.assert_array_equal(decoded["picture"][0], obs["picture"])
        np.testing.assert_array_equal(decoded["noise"][0], obs["noise"])
        assert decoded["number"][0].argmax() == obs["number"]

    def test_tuples(self):
        obs_rows = ObsRows(Tuple([Discrete(3), Box(-1, 1, (2, 2), np.float32)]))
        policy = policy_of("Pair", obs_rows)
        first, second = policy.own.observation(sample_rows(obs_rows, 2))
        assert (first.shape, second.shape) == ((2, 3), (2, 2, 2))


class TestRefuses:
    @pytest.mark.parametrize(
        ("name", "match"),
        [
            ("Missing", "network own_networks:Missing: module 'own_networks' has no attribute 'Missing'"),
            ("NOT_A_MODULE", "should be a subclass of torch.nn.Module, got 3"),
            (
                "Column",
                r"\(float32 \[3, 2\], float32 \[3\]\) .*it returned \(float32 \[3, 2\], float32 \[3, 1\]\); squeeze",
            ),
            ("Alone", r"it returned float32 \[3, 2\]"),
            ("Infinite", "forward\\(\\) gave NaN or infinity as values"),
            ("Raises", r"forward\(float32 \[1, 5\]\) raised RuntimeError: .*mat1 and mat2"),
            ("Double", "its parameter scale is torch.float64, expected torch.float32"),
            ("Fixed", "it has no parameters to learn"),
        ],
    )
    def test_modules_that_do_not_fit(self, name, match):
        with pytest.raises(ValueError, match=match) as refused:
            policy_of(name)
        assert "\n" not in str(refused.value)

    def test_options_that_it_does_not_take(self):
        with pytest.raises(
            ValueError, match=r"Net\(obs_space, action_space, widht=...\) raised TypeError: .*widht"
        ):
            policy_of(widht=3)

    @pytest.mark.parametrize("path", ["own_networks", "no_such_module:Net"])
    def test_paths(self, path):
        with pytest.raises(ValueError, match="network"):
            OwnPolicy(path, {}, VECTOR.state(), Actions(Discrete(2)).state())

    def test_files_that_name_another_network_than_their_settings(self):
        state = policy_of().state()
        check_own_network("own_networks:Net", {}, state)
        for path in (None, "own_networks:Other"):
            with pytest.raises(ValueError, match="the saved policy has the network own_networks:Net"):
                check_own_network(path, {}, state)
        with pytest.raises(ValueError, match=r"has the options \{\}, the settings have \{'width': 3\}"):
            check_own_network("own_networks:Net", {"width": 3}, state)
