"""Exploration of fastrl.algorithms.dqn: noisy networks, random actions, and the weights that actors take."""

import functools

import numpy as np
import pytest
import torch
from dqn_cases import IMAGES, VECTORS, WATCH, act, batch_of, choose, learner, observations

from fastrl.networks.epsilon_greedy import EpsilonGreedyActor


def acts(dqn, obs, step=0, first=0):
    """`choose` by the learner's actor, which gets its weights as in workers."""
    weights, actor = np.zeros(dqn.weights_nbytes, np.uint8), dqn.actor_spec()()
    dqn.write_weights(weights)
    actor.load(weights)
    return choose(actor, obs, step, first)


class TestNoisy:
    def test_explores_without_epsilon(self):
        dqn = learner(noisy=True, noisy_sigma=3.0)
        obs = np.repeat(observations(VECTORS, 1), 4, 0)
        seen = {tuple(acts(dqn, obs)) for _ in range(50)}
        assert len(seen) > 1
        # The noise is that of the weights: neighbours of the same observation act alike.
        assert all(len(set(actions)) == 1 for actions in seen)

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
        for name, network in (("target", dqn.target), ("online", dqn.network)):
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
        online, target = (net.advantage[0].noise_in for net in (dqn.network, dqn.target))
        assert online.any() and target.any()
        assert not torch.equal(online, target)

    def test_epsilon_is_zero(self):
        assert learner(noisy=True).exploration()(0) == 0


class TestExploration:
    def test_a_share_of_actions_is_random(self):
        dqn = learner(hidden=())
        obs = np.repeat(observations(VECTORS, 1), 6000, 0)
        best = act(dqn, obs[:1])[0]
        counts = np.bincount(act(dqn, obs, 0.3), minlength=3) / 6000
        # A third of the random actions is the best one.
        expected = np.full(3, 0.1)
        expected[best] = 0.8
        np.testing.assert_allclose(counts, expected, atol=0.02)

    def test_always_and_never(self):
        dqn = learner()
        obs = observations(VECTORS, 300)
        values = dqn.network(torch.from_numpy(obs))
        assert act(dqn, obs).tolist() == values.argmax(1).tolist()
        counts = np.bincount(act(dqn, obs, 1.0), minlength=3)
        assert counts.min() > 60

    def test_the_schedule_goes_by_steps(self):
        dqn = learner(epsilon=1.0, final_epsilon=0.0, epsilon_steps=100)
        obs = observations(VECTORS, 300)
        assert acts(dqn, obs).tolist() != act(dqn, obs).tolist()
        dqn.steps = 100
        assert acts(dqn, obs).tolist() == act(dqn, obs).tolist()

    def test_spread_differs_between_episodes(self):
        """With u of an episode, its share of random actions is epsilon ** (1 + spread * u)."""
        dqn = learner(hidden=(), epsilon=0.5, final_epsilon=0.5, epsilon_spread=7.0)
        obs = np.repeat(observations(VECTORS, 1), 400, 0)
        best = act(dqn, obs[:1])[0]
        # Two thirds of the random actions are others than the best one.
        shares = 1.5 * np.mean([acts(dqn, obs, step) != best for step in range(300)], axis=0)
        u = np.log(np.sort(shares)[[80, 200, 320]]) / np.log(0.5) / 7 - 1 / 7
        np.testing.assert_allclose(u, [0.8, 0.5, 0.2], atol=0.1)

    def test_read_only_observations_are_welcome(self):
        obs = observations(IMAGES, 4)
        obs.flags.writeable = False
        assert acts(learner(IMAGES), obs).shape == (4,)

    def test_actions_are_those_of_streams_and_steps(self):
        dqn, obs = learner(), np.repeat(observations(VECTORS, 1), 50, 0)
        drawn = functools.partial(acts, dqn, obs)
        assert drawn(3).tolist() == drawn(3).tolist() != drawn(4).tolist()
        assert drawn(3).tolist() != drawn(3, 50).tolist()


class TestWeights:
    @pytest.mark.parametrize("space", [VECTORS, IMAGES], ids=["vectors", "images"])
    @pytest.mark.parametrize("options", [{}, {"noisy": True}, {"batch_norm": True}], ids=str)
    def test_an_actor_takes_over_the_policy(self, space, options):
        dqn = learner(space, epsilon=0.0, final_epsilon=0.0, **options)
        for seed in range(5):
            dqn.update(batch_of(space, seed=seed), WATCH)
        obs = observations(space, 64)
        actions = acts(dqn, obs)
        # With the noise that was written last.
        assert actions.tolist() == dqn.network(torch.from_numpy(obs)).argmax(1).tolist()

    def test_anywhere_in_memory(self):
        dqn = learner()
        buffer = np.zeros(dqn.weights_nbytes + 1, np.uint8)[1:]
        dqn.write_weights(buffer)
        actor = dqn.actor_spec()()
        assert isinstance(actor, EpsilonGreedyActor)
        actor.load(buffer)

    def test_refuses_other_buffers(self):
        dqn = learner()
        with pytest.raises(
            ValueError, match=rf"expected float32 \[{dqn.weights_nbytes // 4 - 1}\], got float32 \[2\]"
        ):
            dqn.write_weights(bytearray(12))
        with pytest.raises(ValueError, match="bytes, got 12"):
            dqn.actor_spec()().load(bytes(12))
        with pytest.raises(ValueError, match="read-only"):
            dqn.write_weights(bytes(dqn.weights_nbytes))
