import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.distributions import MASKED, mask_logits, sample_actions
from fastrl.networks.normalization import RunningNorm
from fastrl.networks.parameters import flatten_parameters, load_weights

LARGEST_UNIFORM = 1 - 2**-24


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class TestActorCritic:
    @pytest.mark.parametrize("hidden", [(), (64, 64), (128, 64, 32)])
    @pytest.mark.parametrize("activation", ["tanh", "relu"])
    def test_shapes(self, hidden, activation):
        network = ActorCritic(5, 7, hidden, activation)
        obs = torch.randn(3, 5)
        logits, values = network(obs)
        assert logits.shape == (3, 7)
        assert values.shape == (3,)
        torch.testing.assert_close(network.outputs(obs), logits)
        torch.testing.assert_close(network.value(obs), values)

    def test_last_layers_stay_in_float32(self):
        network, obs = ActorCritic(5, 7, (8,), generator=seeded()), torch.randn(3, 5)
        with torch.autocast("cpu", torch.bfloat16):
            outputs, values = network(obs)
        assert outputs.dtype == values.dtype == torch.float32
        assert not torch.equal(outputs, network(obs)[0])

    def test_starts_orthogonal_with_zero_biases(self):
        network = ActorCritic(5, 7, (8,), generator=seeded())
        first = network.actor[0].weight
        torch.testing.assert_close(first.T @ first, 2 * torch.eye(5))
        last = network.actor[-1].weight
        torch.testing.assert_close(last @ last.T, 0.01**2 * torch.eye(7))
        torch.testing.assert_close(network.critic[-1].weight.norm(), torch.tensor(1.0))
        assert not any(p.any() for name, p in network.named_parameters() if name.endswith("bias"))

    def test_weights_come_from_the_generator_alone(self):
        before = torch.random.get_rng_state()
        a, b, c = (ActorCritic(5, 7, generator=seeded(seed)) for seed in (1, 1, 2))
        assert torch.equal(torch.random.get_rng_state(), before)
        assert torch.equal(a.actor[0].weight, b.actor[0].weight)
        assert not torch.equal(a.actor[0].weight, c.actor[0].weight)

    @pytest.mark.parametrize("normalize_obs", [False, True])
    def test_state_makes_the_same_network(self, normalize_obs):
        network = ActorCritic(5, 7, (9, 8), "relu", normalize_obs=normalize_obs)
        if normalize_obs:
            network.obs_norm.update(3 + 2 * torch.randn(50, 5))
        before = torch.random.get_rng_state()
        copy = ActorCritic.from_state(network.state())
        assert torch.equal(torch.random.get_rng_state(), before)
        obs = torch.randn(4, 5)
        assert torch.equal(copy.outputs(obs), network.outputs(obs))
        assert torch.equal(copy.value(obs), network.value(obs))

    def test_refuses_weights_that_are_not_finite(self):
        state = ActorCritic(5, 7).state()
        state["weights"]["critic.1.bias"][1] = torch.nan
        with pytest.raises(ValueError, match=r"weights 'critic.1.bias' are not finite"):
            ActorCritic.from_state(state)

    def test_refuses_weights_of_another_network(self):
        state = ActorCritic(5, 7).state()
        with pytest.raises(ValueError, match=r"'actor.0.weight' must have shape \[64, 5\], got \[64, 6\]"):
            ActorCritic.from_state({**state, "weights": ActorCritic(6, 7).state()["weights"]})
        with pytest.raises(ValueError, match="weights do not fit the network"):
            ActorCritic.from_state(
                {**state, "weights": ActorCritic(5, 7, continuous=True).state()["weights"]}
            )
        with pytest.raises(
            ValueError, match="a network of 2 hidden layers, of or for 9,608 numbers, is claimed"
        ):
            ActorCritic.from_state({**state, "weights": ActorCritic(5, 7, (64,)).state()["weights"]})

    @pytest.mark.parametrize("arguments", [(0, 7, (64,)), (5, 0, (64,)), (5, 7, (64, 0)), (5, 7, (-1,))])
    def test_refuses_empty_layers(self, arguments):
        with pytest.raises(ValueError, match="must be at least 1"):
            ActorCritic(*arguments)


class TestFlattenParameters:
    def test_one_vector_holds_parameters_and_gradients(self):
        network = ActorCritic(5, 7, (9,), generator=seeded())
        obs = torch.randn(4, 5)
        logits, values = network(obs)
        expected = torch.autograd.grad(logits.sum() + values.sum(), list(network.parameters()))
        vector = flatten_parameters(network)
        assert vector.numel() == sum(p.numel() for p in network.parameters())
        torch.testing.assert_close(network(obs), (logits, values))
        for _ in range(2):
            vector.grad.zero_()
            logits, values = network(obs)
            (logits.sum() + values.sum()).backward()
            torch.testing.assert_close(vector.grad, nn.utils.parameters_to_vector(expected))

    def test_they_stay_connected(self):
        network = ActorCritic(5, 7, (9,), generator=seeded())
        vector = flatten_parameters(network)
        load_weights(network, ActorCritic(5, 7, (9,), generator=seeded(1)).state_dict())
        torch.testing.assert_close(vector.data, nn.utils.parameters_to_vector(network.parameters()))
        with torch.no_grad():
            vector.zero_()
        assert not any(p.any() for p in network.parameters())


@st.composite
def masked_logits(draw):
    """Logits [B, A] and masks with at least one allowed action a row."""
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, max_side=10))
    logits = draw(hnp.arrays(np.float32, shape, elements=st.floats(-50, 50, width=32)))
    mask = draw(hnp.arrays(np.bool_, shape))
    mask[np.arange(shape[0]), draw(hnp.arrays(np.int64, shape[0], elements=st.integers(0, shape[1] - 1)))] = (
        True
    )
    return torch.from_numpy(logits), torch.from_numpy(mask)


class TestSampleActions:
    @settings(deadline=None)
    @given(masked_logits(), st.sampled_from([0.0, 2.0**-24, 0.5, LARGEST_UNIFORM]))
    def test_masked_actions_are_never_drawn(self, logits_and_mask, uniform):
        logits, mask = logits_and_mask
        actions, log_probs = sample_actions(mask_logits(logits, mask), torch.full((len(logits), 1), uniform))
        assert mask.gather(1, actions.unsqueeze(1)).all()
        assert (log_probs <= 0).all()

    @settings(deadline=None)
    @given(masked_logits(), st.floats(0, LARGEST_UNIFORM, width=32))
    def test_log_probabilities_are_those_of_the_softmax(self, logits_and_mask, uniform):
        logits = mask_logits(*logits_and_mask)
        actions, log_probs = sample_actions(logits, torch.full((len(logits), 1), uniform))
        expected = torch.distributions.Categorical(logits=logits).log_prob(actions)
        torch.testing.assert_close(log_probs, expected, rtol=1e-5, atol=1e-5)

    @settings(deadline=None)
    @given(masked_logits())
    def test_evenly_spaced_numbers_give_the_exact_frequencies(self, logits_and_mask):
        logits = mask_logits(*logits_and_mask)
        points = 4096
        uniforms = (torch.arange(points) + 0.5) / points
        for row in logits:
            actions, _ = sample_actions(row.expand(points, -1), uniforms.unsqueeze(1))
            frequencies = torch.bincount(actions, minlength=len(row)) / points
            assert (frequencies - row.softmax(-1)).abs().max() <= 1.5 / points

    def test_the_largest_draw_stays_below_any_total(self):
        """Sums of many float32 probabilities, drawn at the upper end: the last action, never one past it."""
        logits = torch.randn(20_000, 145, generator=seeded())
        actions, _ = sample_actions(logits, torch.full((len(logits), 1), LARGEST_UNIFORM))
        assert actions.max() == 144

    def test_nan_logits_give_nan_and_a_valid_action(self):
        actions, log_probs = sample_actions(torch.full((2, 3), torch.nan), torch.full((2, 1), 0.5))
        assert log_probs.isnan().all()
        assert ((actions >= 0) & (actions < 3)).all()

    def test_masks_leave_probability_exactly_0(self):
        logits = mask_logits(torch.tensor([[1.0, 80.0, 2.0]]), torch.tensor([[True, False, True]]))
        assert logits[0, 1] == MASKED
        torch.testing.assert_close(
            logits.softmax(-1)[0], torch.tensor([0.26894, 0, 0.73106]), rtol=1e-4, atol=0
        )


class TestRunningNorm:
    @pytest.mark.slow
    @settings(deadline=None)
    @given(st.lists(st.integers(1, 20), min_size=1, max_size=5))
    def test_batches_add_up_to_the_statistics_of_all(self, sizes):
        rng = np.random.default_rng(0)
        batches = [rng.normal(100, [1, 20], (size, 2)) for size in sizes]
        norm = RunningNorm(2)
        for batch in batches:
            norm.update(torch.from_numpy(batch))
        everything = np.concatenate(batches)
        np.testing.assert_allclose(norm.mean, everything.mean(0), rtol=1e-12)
        np.testing.assert_allclose(norm.var, everything.var(0), rtol=1e-9, atol=1e-9)

    def test_whitens_and_clips(self):
        norm = RunningNorm(1, clip=2.0)
        norm.update(torch.tensor([[1.0], [3.0]]))
        out = norm(torch.tensor([[1.0], [2.0], [3.0], [100.0], [-100.0]]))
        torch.testing.assert_close(
            out, torch.tensor([[-1.0], [0.0], [1.0], [2.0], [-2.0]]), rtol=1e-5, atol=1e-5
        )

    def test_is_the_identity_at_first(self):
        x = torch.tensor([[0.5, -3.0]])
        torch.testing.assert_close(RunningNorm(2)(x), x)

    def test_statistics_are_part_of_the_state(self):
        norm, copy = RunningNorm(2), RunningNorm(2)
        norm.update(torch.randn(10, 2))
        copy.load_state_dict(norm.state_dict())
        x = torch.randn(3, 2)
        assert torch.equal(copy(x), norm(x))
