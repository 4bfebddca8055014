import copy

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, Tuple

import fastrl
from fastrl.envs.rows import ObsRows
from fastrl.envs.spec import EnvSpec
from fastrl.networks.acting_network import saved_network
from fastrl.networks.action_space import Actions
from fastrl.networks.own_network import OwnPolicy, check_own_network, own_path, sample_rows
from fastrl.play.episodes import sampled_rows
from fastrl.runs.errors import TrainError

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
                r"forward\(float32 \[3, 5\]\) should return .* it returned .*, float32 \[3, 1\]\); squeeze",
            ),
            ("Alone", r"it returned float32 \[3, 2\]"),
            ("Raises", r"forward\(float32 \[1, 5\]\) raised RuntimeError: .*mat1 and mat2"),
            ("Double", "its parameter scale is torch.float64, expected torch.float32"),
            ("Fixed", "it has no parameters to learn"),
        ],
    )
    def test_modules_that_do_not_fit(self, name, match):
        with pytest.raises(ValueError, match=match) as refused:
            policy_of(name)
        assert "\n" not in str(refused.value)

    def test_outputs_that_are_not_finite_for_observations_of_the_environment(self):
        policy = policy_of("Present")
        obs = np.ones((3, 5), np.float32)
        policy.own.check_finite(obs)
        obs[1] = 0
        message = (
            r"forward\(float32 \[1, 5\]\) gave NaN or infinity as outputs .*, for this observation of the environment:"
            r" \[0, 0, 0, 0, 0\]"
        )
        with pytest.raises(ValueError, match=message):
            policy.own.check_finite(obs)

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


class Presence(gymnasium.Env):
    """Shows which of five things are there, always one at least; the second action may not be chosen."""

    observation_space = Box(0, 1, (5,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {"action_mask": np.array([True, False])}

    def _obs(self):
        obs = (self.np_random.random(5) < 0.5).astype(np.float32)
        obs[self.np_random.integers(5)] = 1
        return obs

    def step(self, action):
        assert action == 0, "a masked action"
        return self._obs(), 1.0, False, False, {"action_mask": np.array([True, False])}


class Gone(Presence):
    """Shows nothing after the first step."""

    def step(self, action):
        return np.zeros(5, np.float32), *super().step(action)[1:]


class TestObservationsOfTheEnvironment:
    def test_networks_are_tried_on_them(self):
        rows = sampled_rows(EnvSpec("test_own_network:Presence"), 1)
        assert rows.shape == (8, 5) and rows.any(1).all() and len(np.unique(rows, axis=0)) > 3
        settings = {"num_envs": 1, "num_steps": 8, "collector": "sequential", "eval_episodes": 0}
        fastrl.PPO(Presence, network="own_networks:Present", action_masks=True, **settings).learn(16)
        with pytest.raises(TrainError, match=r"gave NaN or infinity as outputs .*: \[0, 0, 0, 0, 0\]"):
            fastrl.PPO(Gone, network="own_networks:Present", action_masks=True, **settings)

    def test_dicts(self):
        rows = sampled_rows(EnvSpec("space_envs:Cards"), 2)
        assert rows.dtype == np.uint8 and len(rows) == 8

    def test_vector_environments(self):
        rows = sampled_rows(EnvSpec("gymnasium:make_vec", {"id": "CartPole-v1"}), 3)
        assert rows.shape == (3, 4)
