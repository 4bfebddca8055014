"""The explorer of fastrl.algorithms.dqn: noisy networks, random actions, and weights that actors take over."""

import numpy as np
import pytest
import torch
from dqn_cases import IMAGES, VECTORS, WATCH, batch_of, learner, observations


class TestNoisy:
    def test_explores_without_epsilon(self):
        dqn = learner(noisy=True, noisy_sigma=3.0)
        obs = np.repeat(observations(VECTORS, 1), 4, 0)
        seen = {tuple(dqn.explorer.act(obs)) for _ in range(50)}
        assert len(seen) > 1
        # One draw for all of a call: neighbours of the same observation act alike.
        assert all(len(set(actions)) == 1 for actions in seen)

    def test_evaluates_without_noise(self):
        dqn = learner(noisy=True, noisy_sigma=3.0)
        obs = observations(VECTORS, 20)
        first = dqn.explorer.greedy(obs)
        for _ in range(10):
            dqn.explorer.act(obs)
            assert dqn.explorer.greedy(obs).tolist() == first.tolist()

    def test_is_drawn_for_each_batch(self):
        dqn = learner(noisy=True, learning_rate=0.0)
        errors = [dqn.update(batch_of(), WATCH) for _ in range(3)]
        assert not torch.equal(errors[0], errors[1])
        assert not torch.equal(errors[1], errors[2])

    @pytest.mark.parametrize("double", [False, True])
    def test_is_drawn_for_each_use(self, double, monkeypatch):
        """For the target, for what chooses its actions, and for what learns: none shares its noise."""
        dqn = learner(noisy=True, double=double)
        draws = []
        for name, network in (("target", dqn.target), ("online", dqn.explorer.network)):
            monkeypatch.setattr(network, "draw_noise", lambda _, name=name: draws.append(name))
            network.trunk.register_forward_hook(lambda *_, name=name: draws.append(f"use {name}"))
        dqn.update(batch_of(), WATCH)
        uses = [i for i, entry in enumerate(draws) if entry.startswith("use")]
        assert len(uses) == 2 + double
        for i in uses:
            # Since the use before there was a draw of the same network.
            name = draws[i].removeprefix("use ")
            earlier = max((k for k in uses if k < i and draws[k] == draws[i]), default=0)
            assert name in draws[earlier:i]

    def test_noise_of_the_target_is_its_own(self):
        dqn = learner(noisy=True)
        dqn.update(batch_of(), WATCH)
        online, target = (net.advantage[0].noise_in for net in (dqn.explorer.network, dqn.target))
        assert online.any() and target.any()
        assert not torch.equal(online, target)

    def test_epsilon_is_zero(self):
        assert learner(noisy=True).exploration()(0) == 0


class TestExploration:
    def test_a_share_of_actions_is_random(self):
        dqn = learner(hidden=())
        obs = np.repeat(observations(VECTORS, 1), 6000, 0)
        best = dqn.explorer.greedy(obs[:1])[0]
        counts = np.bincount(dqn.explorer.act(obs, 0.3), minlength=3) / 6000
        # A third of the random actions is the best one.
        expected = np.full(3, 0.1)
        expected[best] = 0.8
        np.testing.assert_allclose(counts, expected, atol=0.02)

    def test_always_and_never(self):
        dqn = learner()
        obs = observations(VECTORS, 300)
        assert dqn.explorer.act(obs, 0.0).tolist() == dqn.explorer.greedy(obs).tolist()
        counts = np.bincount(dqn.explorer.act(obs, 1.0), minlength=3)
        assert counts.min() > 60

    def test_one_epsilon_for_each(self):
        dqn = learner()
        obs = observations(VECTORS, 600)
        epsilon = np.repeat([0.0, 1.0], 300)
        same = dqn.explorer.act(obs, epsilon) == dqn.explorer.greedy(obs)
        assert same[:300].all()
        assert 0.2 < same[300:].mean() < 0.5

    def test_actions_are_int64_and_of_any_device(self):
        dqn = learner()
        for epsilon in (0.0, 0.5, 1.0):
            actions = dqn.explorer.act(torch.from_numpy(observations(VECTORS, 4)), epsilon)
            assert isinstance(actions, np.ndarray)
            assert actions.dtype == np.int64 and actions.shape == (4,)

    def test_read_only_observations_are_welcome(self):
        obs = observations(VECTORS, 4)
        obs.flags.writeable = False
        assert learner().explorer.act(obs, 0.1).shape == (4,)

    def test_seeds(self):
        obs = observations(VECTORS, 50)
        a, b, c = (learner().explorer_spec()(seed).act(obs, 0.9).tolist() for seed in (1, 1, 2))
        assert a == b != c

    @pytest.mark.parametrize(
        ("obs", "error", "message"),
        [
            ([[0.0] * 5], TypeError, "numpy array or a tensor, got list"),
            (np.zeros((2, 5)), TypeError, "should be float32, got float64"),
            (np.zeros((2, 5), np.uint8), TypeError, "should be float32, got uint8"),
            (np.zeros((2, 4), np.float32), ValueError, r"\[N, 5\], got \[2, 4\]"),
            (np.zeros(5, np.float32), ValueError, r"for one observation pass obs\[None\]"),
            (np.array(1, np.float32), ValueError, r"\[N, 5\], got \[\]"),
            (np.full((1, 5), np.nan, np.float32), FloatingPointError, "NaN or infinity"),
        ],
    )
    def test_refuses_other_observations(self, obs, error, message):
        with pytest.raises(error, match=message):
            learner().explorer.act(obs)
        with pytest.raises(error, match=message):
            learner().explorer.greedy(obs)


class TestWeights:
    @pytest.mark.parametrize("space", [VECTORS, IMAGES], ids=["vectors", "images"])
    @pytest.mark.parametrize("options", [{}, {"noisy": True}, {"batch_norm": True}], ids=str)
    def test_an_actor_takes_over_the_policy(self, space, options):
        dqn = learner(space, **options)
        for seed in range(5):
            dqn.update(batch_of(space, seed=seed), WATCH)
        actor = dqn.explorer_spec()(77)
        obs = observations(space, 64)
        values = dqn.explorer.network(torch.from_numpy(obs))
        assert actor.weights_nbytes == dqn.explorer.weights_nbytes
        buffer = bytearray(dqn.explorer.weights_nbytes)
        dqn.explorer.write_weights(memoryview(buffer))
        actor.load(bytes(buffer))
        dqn.explorer.network.clear_noise()
        values = dqn.explorer.network(torch.from_numpy(obs))
        assert torch.equal(actor.network(torch.from_numpy(obs)), values)
        assert actor.greedy(obs).tolist() == dqn.explorer.greedy(obs).tolist()

    def test_learns_after_loading_weights(self):
        dqn, other = learner(), learner(seed=1)
        buffer = np.zeros(dqn.explorer.weights_nbytes, np.uint8)
        other.explorer.write_weights(buffer)
        dqn.explorer.load(buffer)
        for learning in (dqn, other):
            learning.target.load_state_dict(other.explorer.network.state_dict())
            learning.update(batch_of(), WATCH)
        assert torch.equal(dqn.explorer.parameters, other.explorer.parameters)

    def test_anywhere_in_memory(self):
        dqn = learner()
        buffer = np.zeros(dqn.explorer.weights_nbytes + 1, np.uint8)[1:]
        dqn.explorer.write_weights(buffer)
        actor = dqn.explorer_spec()(5)
        actor.load(buffer)
        assert torch.equal(actor.parameters, dqn.explorer.parameters)

    def test_refuses_other_buffers(self):
        dqn = learner()
        with pytest.raises(
            ValueError, match=rf"{dqn.explorer.weights_nbytes} bytes of weights, the buffer 12"
        ):
            dqn.explorer.write_weights(bytearray(12))
        with pytest.raises(ValueError, match="the buffer 12"):
            dqn.explorer_spec()(0).load(bytes(12))
        with pytest.raises(ValueError, match="read-only"):
            dqn.explorer.write_weights(bytes(dqn.explorer.weights_nbytes))
