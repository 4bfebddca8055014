"""Perceptrons: initialisation, dropout."""

import math

import pytest
import torch

from fastrl.networks.perceptron import Perceptron


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class TestPerceptron:
    def test_orthogonal(self):
        net = Perceptron([16, 16, 4], "relu", "orthogonal", 0.01, generator())
        weight = net[0].weight
        torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(16))
        last = net[1].weight
        torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(4))

    def test_he(self):
        weight = Perceptron([400, 500, 1], "relu", "he", 1.0, generator())[0].weight
        assert weight.std().item() == pytest.approx(math.sqrt(2 / 400), rel=0.01)

    def test_xavier(self):
        weight = Perceptron([400, 500, 1], "relu", "xavier", 1.0, generator())[0].weight
        assert weight.abs().max().item() == pytest.approx(math.sqrt(6 / 900), rel=0.01)

    def test_biases_are_zero_and_the_generator_decides(self):
        a, b, c = (Perceptron([3, 4, 2], "relu", "he", 1.0, generator(seed)) for seed in (1, 1, 2))
        assert not a[0].bias.any()
        assert torch.equal(a[0].weight, b[0].weight)
        assert not torch.equal(a[0].weight, c[0].weight)

    def test_global_generator_is_left_alone(self):
        before = torch.random.get_rng_state()
        Perceptron([3, 4, 2], "relu", "orthogonal", 1.0, generator()).dropout_masks(2, 0.5, generator())
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_refuses_no_width(self):
        with pytest.raises(ValueError, match=r"at least 1, got \[3, 0, 2\]"):
            Perceptron([3, 0, 2], "relu", "he", 1.0, generator())


class TestDropout:
    @pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
    @pytest.mark.parametrize("rate", [0.0, 0.4])
    @pytest.mark.parametrize("sizes", [(3, 2), (3, 7, 5, 2)])
    def test_is_after_each_hidden_layer(self, activation, rate, sizes):
        net = Perceptron(sizes, activation, "he", 1.0, generator())
        x = torch.randn(9, 3, generator=generator(1))
        drops = net.dropout_masks(9, rate, generator(3)) if rate else []
        plain = x
        for i, layer in enumerate(net):
            plain = layer(plain)
            if i < len(net) - 1:
                plain = {"relu": torch.relu, "tanh": torch.tanh, "elu": torch.nn.functional.elu}[activation](
                    plain
                )
                plain = plain * drops[i] if drops else plain
        assert torch.equal(net(x, drops), plain)

    def test_dropout_keeps_the_mean(self):
        masks = Perceptron([3, 1000, 10, 2], "relu", "he", 1.0, generator()).dropout_masks(
            500, 0.25, generator()
        )
        assert [tuple(mask.shape) for mask in masks] == [(500, 1000), (500, 10)]
        assert sorted(masks[0].unique().tolist()) == pytest.approx([0, 4 / 3])
        assert masks[0].mean().item() == pytest.approx(1, abs=0.01)
