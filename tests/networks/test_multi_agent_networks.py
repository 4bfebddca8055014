"""Networks of many agents: initialisation, gradients, heads, and who acts how."""

import io

import gymnasium
import numpy as np
import pytest
import torch
from multi_agent_run import acted

from fastrl.envs.rows import ObsRows
from fastrl.networks.action_space import Actions
from fastrl.networks.distributions import gaussian_log_probs
from fastrl.networks.multi_agent import CentralCritic, Critic, MultiAgentPolicy, PolicyNetwork

DISCRETE = Actions(gymnasium.spaces.Discrete(4))
BOX = Actions(gymnasium.spaces.Box(np.array([-1, 0], np.float32), np.array([1, 10], np.float32)))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def actor(actions=DISCRETE, seed=0, **options):
    return PolicyNetwork(3, actions, **{"hidden": (8, 6), "generator": generator(seed), **options})


IMAGE = ObsRows(gymnasium.spaces.Box(0, 255, (4, 3), np.uint8))


class TestImages:
    """Networks for images, whose numbers an MLP takes as they are."""

    def test_an_mlp_has_no_other_layers_than_its_own(self):
        options = {"hidden": (8,), "obs": IMAGE.state(), "encoder": "mlp", "generator": generator()}
        network = PolicyNetwork(IMAGE.size, DISCRETE, **options)
        assert [tuple(weights.shape) for weights in network.parameters()] == [(8, 12), (8,), (4, 8), (4,)]
        rows = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, IMAGE.size), np.uint8))
        plain = PolicyNetwork(IMAGE.size, DISCRETE, hidden=(8,), generator=generator())
        agents = torch.zeros(5, dtype=torch.int64)
        torch.testing.assert_close(network(rows, agents), plain(rows / 255, agents))

    @pytest.mark.parametrize("encoder", ["mlp", "nature"])
    def test_all_layers_have_gradients(self, encoder):
        image = ObsRows(gymnasium.spaces.Box(0, 255, (10, 8, 3), np.uint8))
        options = {"hidden": (8,), "obs": image.state(), "encoder": encoder, "generator": generator()}
        critic = CentralCritic(
            image.size, 2, activation="tanh", init="orthogonal", normalize_obs=True, **options
        )
        rows = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 2, image.size), np.uint8))
        alive = torch.tensor([[True, True], [True, False], [False, True]])
        critic(rows, alive).square().sum().backward()
        assert all(weights.grad is not None and weights.grad.any() for weights in critic.parameters())


class TestActor:
    def test_gaussian_log_probs(self):
        means, log_std, draws = torch.randn(3, 5, 2, generator=generator()).unbind()
        expected = torch.distributions.Normal(means, log_std[0].exp()).log_prob(draws).sum(-1)
        torch.testing.assert_close(gaussian_log_probs(means, log_std[0], draws), expected)

    def test_ids_tell_agents_apart(self):
        network = actor(num_ids=2)
        obs = torch.ones(2, 3)
        with torch.no_grad():
            same, other = network(obs, torch.tensor([0, 0])), network(obs, torch.tensor([0, 1]))
        torch.testing.assert_close(same[0], same[1])
        assert not torch.isclose(other[0], other[1]).any()

    @pytest.mark.parametrize("actions", [DISCRETE, BOX])
    def test_state_is_enough(self, actions):
        network = actor(actions, normalize_obs=True, num_ids=3, activation="elu", initial_log_std=-0.7)
        network.observe(torch.randn(50, 3, generator=generator()) * 3 + 1)
        buffer = io.BytesIO()
        torch.save(network.state(), buffer)
        buffer.seek(0)
        other = PolicyNetwork.from_state(torch.load(buffer, weights_only=True))
        obs, agents = torch.randn(4, 3, generator=generator()), torch.tensor([0, 1, 2, 0])
        with torch.no_grad():
            assert torch.equal(network(obs, agents), other(obs, agents))
        assert other.state().keys() == network.state().keys()

    @pytest.mark.parametrize(
        "changes",
        [{"hidden": [10**7, 10**7]}, {"num_ids": 10**12}, {"obs_dim": 10**12, "normalize_obs": True}],
    )
    def test_claimed_sizes_are_compared_before_memory_is_allocated(self, changes):
        state = actor(DISCRETE).state()
        state["architecture"] = state["architecture"] | changes
        with pytest.raises(ValueError, match="is claimed, the weights are"):
            PolicyNetwork.from_state(state)

    def test_an_activation_that_there_is_not_is_refused(self):
        state = actor(DISCRETE).state()
        state["architecture"] = state["architecture"] | {"activation": -1}
        with pytest.raises(ValueError, match="activation should be one of"):
            PolicyNetwork.from_state(state)


class TestCritics:
    options = {  # noqa: RUF012
        "hidden": (8,),
        "activation": "relu",
        "init": "he",
        "generator": generator(),
    }

    @pytest.mark.parametrize("normalize_obs", [False, True])
    def test_central_sees_the_agents_that_are_alive_alone(self, normalize_obs):
        critic = CentralCritic(2, 3, normalize_obs=normalize_obs, **self.options)
        critic.observe(torch.randn(20, 2, generator=generator()) + 3)
        obs = torch.randn(4, 3, 2, generator=generator())
        alive = torch.tensor([[True, True, False]] * 4)
        changed_dead, changed_other = obs.clone(), obs.clone()
        changed_dead[:, 2] = torch.nan
        changed_other[:, 1] += 1
        with torch.no_grad():
            values = critic(obs, alive)
            assert values.shape == (4, 3)
            assert torch.equal(critic(changed_dead, alive), values)
            assert not torch.isclose(critic(changed_other, alive)[:, 0], values[:, 0]).any()
            assert not torch.isclose(critic(obs, alive | True)[:, 0], values[:, 0]).any()

    def test_own_sees_a_row(self):
        critic = Critic(2, num_ids=0, normalize_obs=False, **self.options)
        with torch.no_grad():
            obs = torch.randn(5, 2, generator=generator())
            values = critic(obs, torch.zeros(5, dtype=torch.int64))
            one = critic(obs[2:3], torch.zeros(1, dtype=torch.int64))
        assert values.shape == (5,)
        torch.testing.assert_close(values[2:3], one)


def nobody(obs, agents):
    raise AssertionError


class TestMultiAgentPolicy:
    def policy(self, actions=DISCRETE):
        return MultiAgentPolicy(["a", "b", "a"], {"a": actor(actions, 1), "b": actor(actions, 2)}, actions)

    def test_each_agent_follows_its_own(self):
        policy = self.policy(BOX)
        obs = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
        actions = acted(policy, obs, np.ones(6, np.bool_))
        with torch.no_grad():
            means = {
                name: net(torch.from_numpy(obs), torch.zeros(6, dtype=torch.int64)).numpy()
                for name, net in policy.networks.items()
            }
        expected = BOX.to_env(np.where(np.array([0, 1, 0] * 2)[:, None], means["b"], means["a"]))
        np.testing.assert_allclose(actions, expected, rtol=1e-5)

    @pytest.mark.parametrize("greedy", [True, False])
    @pytest.mark.parametrize("actions", [DISCRETE, BOX])
    def test_the_dead_do_not_matter(self, actions, greedy):
        policy = self.policy(actions)
        obs = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
        alive = np.array([1, 0, 0, 1, 1, 0], np.bool_)
        results = []
        for garbage in (0.0, np.nan):
            obs[~alive] = garbage
            results.append(acted(policy, obs, alive, greedy=greedy))
        np.testing.assert_array_equal(*results)
        nothing = actions.to_env(np.zeros((3, *actions.shape), actions.dtype))
        np.testing.assert_array_equal(results[0][~alive], nothing)

    def test_rules_get_their_rows_and_give_actions_of_the_environment(self):
        seen = []

        def rule(obs, agents):
            seen.append((obs.copy(), agents.copy()))
            return np.full((len(obs), 2), [0.5, 10], np.float32)

        policy = MultiAgentPolicy(["a", "r"], {"a": actor(BOX), "r": rule}, BOX)
        obs = np.arange(12, dtype=np.float32).reshape(4, 3)
        actions = acted(policy, obs, np.array([True, True, True, False]))
        assert seen[0][0].tolist() == [[3, 4, 5]] and seen[0][1].tolist() == [1]
        assert actions[1].tolist() == [0.5, 10] and actions[3].tolist() == BOX.to_env(np.zeros(2)).tolist()

    def test_state_makes_the_same_policy_and_loads_into_another(self):
        policy, rows = self.policy(BOX), (np.ones((3, 3), np.float32), np.ones(3, np.bool_))
        expected = acted(policy, *rows, greedy=False)
        other = MultiAgentPolicy.from_state(policy.state())
        np.testing.assert_array_equal(acted(other, *rows, greedy=False), expected)
        fresh = MultiAgentPolicy(["a", "b", "a"], {"a": actor(BOX, 8), "b": actor(BOX, 9)}, BOX)
        assert not np.array_equal(acted(fresh, *rows, greedy=False), expected)
        fresh.load_state(policy.state())
        np.testing.assert_array_equal(acted(fresh, *rows, greedy=False), expected)

    def test_rules_have_to_be_given_again(self):
        policy = MultiAgentPolicy(["a", "r"], {"a": actor(), "r": nobody}, DISCRETE)
        with pytest.raises(ValueError, match=r"there is none named \['r'\]"):
            MultiAgentPolicy.from_state(policy.state())
        assert MultiAgentPolicy.from_state(policy.state(), {"r": nobody}).policies["r"] is nobody

    def test_refuses_actors_of_other_actions(self):
        with pytest.raises(ValueError, match="policy 'a' chooses"):
            MultiAgentPolicy(["a"], {"a": actor(BOX)}, DISCRETE)

    def test_refuses_rules_that_give_something_else(self):
        policy = MultiAgentPolicy(["r"], {"r": lambda obs, agents: [[1]]}, DISCRETE)
        with pytest.raises(ValueError, match=r"'r' should give actions \[2\], gave \[1, 1\]"):
            acted(policy, np.ones((2, 3), np.float32), np.ones(2, np.bool_))

    def test_refuses_weights_of_another_policy(self):
        with pytest.raises(ValueError, match="no actor named 'a'"):
            MultiAgentPolicy(["z"], {"z": actor()}, DISCRETE).load_state(self.policy().state())
