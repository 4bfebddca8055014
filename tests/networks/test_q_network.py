"""fastrl.networks.q_network: sizes, initial weights, noise, BatchNorm, dueling."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from fastrl.networks.encoders import Convolution
from fastrl.networks.kinds import NATURE, parse_conv
from fastrl.networks.parameters import flatten_parameters
from fastrl.networks.perceptron import Linear
from fastrl.networks.q_network import NoisyLinear, QNetwork


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def network(obs_shape=(4,), num_actions=3, **options):
    return QNetwork(obs_shape, num_actions, **({"hidden": (16, 8), "generator": generator()} | options))


def normal(*shape):
    return torch.randn(shape, generator=generator(1))


class TestSizes:
    def test_nature(self):
        parameters = network((4, 84, 84), 6, conv=NATURE, hidden=(512,)).parameters()
        convolutions = (4 * 8 * 8 + 1) * 32 + (32 * 4 * 4 + 1) * 64 + (64 * 3 * 3 + 1) * 64
        assert sum(p.numel() for p in parameters) == convolutions + (7 * 7 * 64 + 1) * 512 + 513 * 6

    def test_dueling_has_the_last_hidden_layer_twice(self):
        parameters = network((4,), 3, hidden=(16, 8), dueling=True).parameters()
        assert sum(p.numel() for p in parameters) == 5 * 16 + 2 * 17 * 8 + 9 * 3 + 9 * 1

    @pytest.mark.parametrize("hidden", [(), (5,), (5, 6, 7)])
    @pytest.mark.parametrize("dueling", [False, True])
    @pytest.mark.parametrize("noisy", [False, True])
    @pytest.mark.parametrize("batch_norm", [False, True])
    @pytest.mark.parametrize(
        ("obs_shape", "conv"), [((4,), ()), ((2, 10, 10), ("8x3/1", "4x3/2")), ((2, 3, 3), ())]
    )
    def test_values_of_all_actions(self, obs_shape, conv, hidden, dueling, noisy, batch_norm):
        net = network(
            obs_shape, conv=conv, hidden=hidden, dueling=dueling, noisy=noisy, batch_norm=batch_norm
        )
        values = net(normal(5, *obs_shape))
        assert values.shape == (5, 3)
        assert values.isfinite().all()

    @pytest.mark.parametrize("layer", ["32x8", "32/8", "0x8/4", "32x8/0", "32x8/4 ", "-1x8/4", "axb/c", ""])
    def test_refuses_other_ways_to_write_a_convolution(self, layer):
        with pytest.raises(ValueError, match="should be CHANNELSxKERNEL/STRIDE"):
            parse_conv(layer)

    def test_refuses_an_image_that_is_too_small(self):
        with pytest.raises(
            ValueError, match=r"64x4/2 has a kernel of 4x4, but what reaches it is 1x1.*16x3/1"
        ):
            network((4, 10, 10), conv=NATURE)

    def test_an_image_that_just_fits(self):
        assert network((4, 36, 36), conv=NATURE)(normal(2, 4, 36, 36)).shape == (2, 3)
        with pytest.raises(ValueError, match="64x3/1 has a kernel"):
            network((4, 35, 36), conv=NATURE)

    @pytest.mark.parametrize(
        ("obs_shape", "options", "message"),
        [
            ((4, 5), {}, r"\[D\] or, for images, \[C, H, W\]"),
            ((4,), {"conv": NATURE}, "convolutions need images"),
            ((0,), {}, "at least 1"),
            ((4,), {"hidden": (0,)}, "at least 1"),
        ],
    )
    def test_refuses_what_makes_no_sense(self, obs_shape, options, message):
        with pytest.raises(ValueError, match=message):
            network(obs_shape, **options)


class TestInitialWeights:
    def test_of_he(self):
        net = network((8, 20, 20), 400, conv=("200x5/2",), hidden=(300,))
        layers = [layer for layer in net.modules() if isinstance(layer, Convolution | Linear)]
        assert len(layers) == 3
        for layer, variance in zip(layers, (2 / 200, 2 / (200 * 8 * 8), 1 / 300), strict=True):
            assert layer.weight.mean().item() == pytest.approx(0, abs=0.02 * math.sqrt(variance))
            assert layer.weight.var().item() == pytest.approx(variance, rel=0.03)
            assert not layer.bias.any()

    def test_keep_the_size_of_what_goes_through(self):
        """The point of He's variance: with half of it values would shrink by a thousand in 10 layers."""
        values = network((64,), 500, hidden=(256,) * 10)(normal(200, 64))
        assert 0.3 < values.square().mean().item() < 3

    def test_come_from_the_generator_alone(self):
        before = torch.random.get_rng_state()
        a, b, c = (network(noisy=noisy, generator=generator(s)) for noisy, s in ((1, 1), (1, 1), (1, 2)))
        assert torch.equal(torch.random.get_rng_state(), before)
        x = normal(2, 4)
        assert torch.equal(a(x), b(x))
        assert not torch.equal(a(x), c(x))


class TestDueling:
    def test_is_value_plus_advantage_less_its_mean(self):
        net = network(dueling=True)
        x = normal(5, 4)
        features = net.trunk(x)
        value, advantage = net.value(features), net.advantage(features)
        torch.testing.assert_close(net(x), value + advantage - advantage.mean(1, keepdim=True))
        torch.testing.assert_close(net(x).mean(1), value.squeeze(1))

    def test_a_plain_network_has_no_value(self):
        assert network(dueling=False).value is None


class TestNoise:
    def test_is_that_of_the_paper(self):
        """With the weights' noise written out, as in equations 10 and 11."""
        layer = NoisyLinear(6, 4, generator=generator())
        layer.noise_in.copy_(normal(6))
        layer.noise_out.copy_(normal(4))
        x = normal(3, 6)
        weight = layer.weight + layer.weight_sigma * torch.outer(layer.noise_out, layer.noise_in)
        bias = layer.bias + layer.bias_sigma * layer.noise_out
        torch.testing.assert_close(layer(x), x @ weight.T + bias)

    def test_initial_weights_are_those_of_the_paper(self):
        layer = NoisyLinear(400, 300, sigma=0.5, generator=generator())
        assert layer.weight.abs().max() <= 1 / 20
        assert layer.weight.var().item() == pytest.approx(1 / 400 / 3, rel=0.03)
        assert layer.bias.abs().max() <= 1 / 20
        assert (layer.weight_sigma == 0.5 / 20).all()
        assert (layer.bias_sigma == 0.5 / 20).all()

    def test_drawn_noise_is_a_signed_root_of_normals(self):
        net = network((1000,), 1000, hidden=(), noisy=True)
        net.draw_noise(generator(5))
        layer = net.advantage[0]
        for noise in (layer.noise_in, layer.noise_out):
            # E |x| of a normal variable is sqrt(2 / pi), and so is the mean square of its signed root.
            assert noise.square().mean().item() == pytest.approx(math.sqrt(2 / math.pi), rel=0.1)
            assert abs(noise.mean().item()) < 0.1
        assert not torch.equal(layer.noise_in, layer.noise_out)

    def test_changes_values_until_it_is_cleared(self):
        net, x, draws = network(noisy=True), normal(2, 4), generator(5)
        mean = net(x)
        seen = []
        for _ in range(3):
            net.draw_noise(draws)
            seen.append(net(x))
        assert not torch.equal(seen[0], seen[1])
        assert not torch.equal(seen[1], seen[2])
        net.clear_noise()
        assert torch.equal(net(x), mean)

    def test_every_weight_and_deviation_gets_a_gradient(self):
        net = network(noisy=True, dueling=True)
        net.draw_noise(generator(5))
        net(normal(64, 4)).square().sum().backward()
        assert all(p.grad.any() for p in net.parameters())

    def test_without_noise_nothing_is_drawn(self):
        draws = generator(5)
        before = draws.get_state()
        network(noisy=False).draw_noise(draws)
        assert torch.equal(draws.get_state(), before)


class TestBatchNorm:
    def test_layers_before_it_have_no_bias(self):
        net = network((2, 6, 6), conv=("8x3/1",), hidden=(16,), dueling=True, batch_norm=True)
        layers = [layer for layer in net.modules() if isinstance(layer, Convolution | Linear)]
        assert [layer.bias is not None for layer in layers] == [False, False, True, False, True]
        assert sum(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in net.modules()) == 3

    def test_noisy_layers_before_it_have_no_bias_either(self):
        net = network(noisy=True, batch_norm=True, hidden=(16,))
        layers = [layer for layer in net.modules() if isinstance(layer, NoisyLinear)]
        assert [layer.bias is not None for layer in layers] == [False, True]
        assert [layer.bias_sigma is not None for layer in layers] == [False, True]

    def test_statistics_move_in_training_only(self):
        net, x = network(batch_norm=True), normal(32, 4) * 3 + 1
        before = [statistics.clone() for statistics in net.buffers()]
        net.eval()(x)
        assert all(map(torch.equal, net.buffers(), before))
        net.train()(x)
        assert all((new != old).all() for new, old in zip(net.buffers(), before, strict=True))


class TestObservations:
    def test_pixels_are_scaled(self):
        pixels = torch.randint(0, 256, (3, 2, 8, 8), dtype=torch.uint8, generator=generator())
        options = {"conv": ("4x3/2",), "hidden": (8,)}
        scaled = network((2, 8, 8), obs_scale=1 / 255, **options)
        plain = network((2, 8, 8), **options)
        torch.testing.assert_close(scaled(pixels), plain(pixels / 255))
        assert not torch.allclose(scaled(pixels), plain(pixels))

    def test_layout_in_memory_does_not_matter(self):
        net, x = network((3, 12, 12), conv=("8x3/1", "8x3/2")), normal(4, 3, 12, 12)
        expected = net(x)
        net.channels_last = True
        torch.testing.assert_close(net(x), expected)

    def test_vectors_have_no_layout(self):
        net = network()
        net.channels_last = True
        assert net(normal(2, 4)).shape == (2, 3)


class TestState:
    def test_is_enough_to_build_the_network(self):
        net = network((2, 6, 6), conv=("4x3/1",), dueling=True, noisy=True, batch_norm=True, obs_scale=0.5)
        net(normal(8, 2, 6, 6))  # moves the statistics
        state = net.state()
        architecture = json.loads(json.dumps(state["architecture"]))
        before = torch.random.get_rng_state()
        other = QNetwork.from_state(
            {"architecture": architecture, "weights": copy.deepcopy(state["weights"])}
        )
        assert torch.equal(torch.random.get_rng_state(), before)
        x = normal(3, 2, 6, 6)
        assert torch.equal(other(x), net.eval()(x))

    def test_holds_no_noise(self):
        assert not any("noise" in name for name in network(noisy=True).state()["weights"])

    def test_refuses_weights_of_another_network(self):
        state = network().state()
        state["weights"] = network(hidden=(50,)).state()["weights"]
        with pytest.raises(ValueError, match="do not fit the network"):
            QNetwork.from_state(state)

    @pytest.mark.parametrize(
        "changes",
        [
            {"hidden": [10**7, 10**7]},
            {"num_actions": 10**12},
            {"obs_shape": [4, 10**6, 10**6]},
            {"conv": ["1000000x8/1"]},
            {"hidden": [1] * 10**6},
        ],
    )
    def test_claimed_sizes_are_compared_before_memory_is_allocated(self, changes):
        state = network((4, 40, 40), 3, conv=NATURE).state()
        state["architecture"] = state["architecture"] | changes
        with pytest.raises(ValueError, match="is claimed, the weights are"):
            QNetwork.from_state(state)

    def test_a_frozen_copy_goes_its_own_way(self):
        net, x = network(batch_norm=True), normal(2, 4)
        flatten_parameters(net)
        frozen = net.frozen_copy()
        assert not frozen.training
        assert not any(p.requires_grad for p in frozen.parameters())
        expected = frozen(x)
        np.testing.assert_array_equal(expected, net.eval()(x).detach())
        with torch.no_grad():
            for p in net.parameters():
                p.add_(1)
        assert torch.equal(frozen(x), expected)
