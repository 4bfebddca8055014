"""fastrl.algorithms.dqn: targets and gradients against plain code, exact resume, acting, refusals."""

import dataclasses
import functools
import json
import math
from types import SimpleNamespace

import gymnasium
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from fastrl.algorithms.dqn import DQN
from fastrl.algorithms.dqn_loss import bootstrap, q_gradient, td_targets
from fastrl.algorithms.dqn_settings import PRESETS, DQNConfig
from fastrl.algorithms.protocol import Problem
from fastrl.envs.rows import ObsRows
from fastrl.networks.q_network import QNetwork
from fastrl.training.checkpoint import load_checkpoint, save_checkpoint
from fastrl.utils.timer import Stopwatch

VECTORS = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
IMAGES = gymnasium.spaces.Box(0, 255, (2, 10, 10), np.uint8)
ACTIONS = gymnasium.spaces.Discrete(3)
SMALL = {"hidden": (16, 8), "conv": ("4x3/1", "4x3/2"), "batch_size": 8}
WATCH = Stopwatch()
ALL = {"noisy": True, "batch_norm": True, "target_every": 2, "target_tau": 0.3}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config(**options):
    return DQNConfig(**(SMALL | options))


def problem(space=VECTORS, actions=ACTIONS, seed=0):
    return Problem(space, actions, num_envs=1, total_timesteps=1, seed=seed)


def learner(space=VECTORS, seed=0, **options):
    return DQN(config(**options), problem(space, seed=seed))


def observations(space, count, seed=0):
    rng = np.random.default_rng(seed)
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (count, *space.shape), np.uint8)
    return rng.normal(size=(count, *space.shape)).astype(np.float32)


def batch_of(space=VECTORS, count=8, seed=0, **fields):
    """Transitions as a sampler gives them, a third of them terminated."""
    rng = np.random.default_rng(seed)
    discounts = np.where(rng.random(count) < 1 / 3, 0, 0.9).astype(np.float32)
    arrays = {
        "obs": observations(space, count, 10 * seed + 1),
        "actions": rng.integers(0, 3, count),
        "rewards": rng.normal(size=count).astype(np.float32) * 3,
        "next_obs": observations(space, count, 10 * seed + 2),
        "discounts": discounts,
        "weights": rng.random(count).astype(np.float32),
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return SimpleNamespace(**(tensors | fields))


def part(batch, rows):
    return SimpleNamespace(**{name: tensor[rows] for name, tensor in vars(batch).items()})


def flatten(state, prefix=""):
    leaves = {}
    for key, value in state.items():
        path = f"{prefix}/{key}"
        leaves |= flatten(value, path) if isinstance(value, dict) else {path: value}
    return leaves


def assert_same_state(a, b):
    a, b = flatten(a), flatten(b)
    assert a.keys() == b.keys()
    for path, value in a.items():
        same = torch.equal(value, b[path]) if isinstance(value, torch.Tensor) else value == b[path]
        assert same, path


class TestTargets:
    """Reward -1 each step; the target network says 1 for the best action, whatever comes next."""

    @pytest.mark.parametrize("double", [False, True])
    @pytest.mark.parametrize(
        ("discount", "target"),
        [
            (0.9, -1 + 0.9),  # goes on, or was truncated: the value of what follows counts
            (0.0, -1.0),  # terminated: the true end
            (0.9**3, -1 + 0.9**3),  # three steps later
        ],
    )
    def test_with_a_known_answer(self, discount, target, double):
        dqn = learner(double=double, dueling=False, hidden=())
        with torch.no_grad():
            for network, values in ((dqn.target, [0.5, 1, -2]), (dqn.explorer.network, [5, 7, 6])):
                network.advantage[0].weight.zero_()
                network.advantage[0].bias.copy_(torch.tensor(values))
        batch = batch_of(
            rewards=torch.full((8,), -1.0),
            discounts=torch.full((8,), discount),
            actions=torch.zeros(8, dtype=torch.int64),
        )
        # The error of an action that is worth 5 by the online network.
        torch.testing.assert_close(dqn.update(batch, WATCH), torch.full((8,), 5 - target))

    def test_best_action_of_the_target_network(self):
        values = torch.tensor([[1.0, 3, 2], [-1, -3, -2]])
        assert bootstrap(values).tolist() == [3, -1]

    def test_double_takes_the_action_that_the_online_network_prefers(self):
        values = torch.tensor([[1.0, 3, 2], [-1, -3, -2]])
        online = torch.tensor([[9.0, 8, 9.5], [0, 1, 0]])
        assert bootstrap(values, online).tolist() == [2, -3]

    @given(
        st.integers(1, 6).flatmap(
            lambda n: st.tuples(*[hnp.arrays(np.float32, n, elements=st.floats(-9, 9, width=32))] * 3)
        )
    )
    def test_targets_are_the_sum(self, arrays):
        targets = td_targets(*map(torch.from_numpy, arrays))
        np.testing.assert_allclose(targets, arrays[0] + arrays[1] * arrays[2], rtol=1e-5, atol=1e-4)


class TestGradient:
    @settings(deadline=None)
    @given(st.integers(1, 6), st.integers(1, 4), st.sampled_from([None, 0.5, 1.0, 10.0]), st.data())
    def test_is_that_of_autograd(self, size, num_actions, huber, data):
        def floats(*shape):
            return torch.from_numpy(
                data.draw(hnp.arrays(np.float32, shape, elements=st.floats(-4, 4, width=32)))
            )

        values, targets, weights = floats(size, num_actions), floats(size), floats(size).abs()
        actions = torch.from_numpy(
            data.draw(hnp.arrays(np.int64, size, elements=st.integers(0, num_actions - 1)))
        )
        values.requires_grad_()
        chosen = values[torch.arange(size), actions]
        if huber is None:
            losses = (targets - chosen).square() / 2
        else:
            losses = nn.functional.huber_loss(chosen, targets, reduction="none", delta=huber)
        expected = (weights * losses).mean()
        (expected_gradient,) = torch.autograd.grad(expected, values)
        gradient, td, loss, q = q_gradient(values.detach(), actions, targets, weights, huber)
        torch.testing.assert_close(gradient, expected_gradient)
        torch.testing.assert_close(td, (targets - chosen).detach())
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(q, chosen.mean().detach())


class Plain:
    """The learner again, as one writes it down: automatic differentiation, torch's Adam, no flat vectors."""

    def __init__(self, dqn):
        self.config = dqn.config
        self.online = QNetwork.from_state(dqn.policy_state())
        self.target = QNetwork.from_state(dqn.policy_state())
        self.optimizer = torch.optim.Adam(
            self.online.parameters(), lr=self.config.learning_rate, eps=self.config.adam_eps
        )
        self.updates = 0

    def update(self, batch, watch):
        config, rows = self.config, torch.arange(len(batch.rewards))
        with torch.no_grad():
            after = self.target(batch.next_obs)
            chooser = self.online(batch.next_obs) if config.double else after
            targets = batch.rewards + batch.discounts * after[rows, chooser.argmax(1)]
        td = targets - self.online(batch.obs)[rows, batch.actions]
        if config.huber is None:
            losses = td**2 / 2
        else:
            large = td.abs() > config.huber
            losses = torch.where(large, config.huber * (td.abs() - config.huber / 2), td**2 / 2)
        self.optimizer.zero_grad()
        (losses * batch.weights).mean().backward()
        if config.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.online.parameters(), config.max_grad_norm)
        self.optimizer.step()
        self.updates += 1
        if self.updates % config.target_every == 0:
            for mine, theirs in zip(self.target.parameters(), self.online.parameters(), strict=True):
                mine.data = (1 - config.target_tau) * mine.data + config.target_tau * theirs.data
        return td.detach().abs()


class TestUpdate:
    @pytest.mark.parametrize("space", [VECTORS, IMAGES], ids=["vectors", "images"])
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"double": False},
            {"dueling": False},
            {"huber": None},
            {"huber": 0.2},
            {"max_grad_norm": 0.05},
            {"max_grad_norm": None},
            {"target_every": 3},
            {"target_every": 1, "target_tau": 0.1},
            {"target_every": 2, "target_tau": 0.5},
        ],
        ids=str,
    )
    def test_is_the_plain_one(self, space, options):
        dqn = learner(space, **({"learning_rate": 1e-2, "target_every": 1} | options))
        plain = Plain(dqn)
        for seed in range(7):
            batch = batch_of(space, seed=seed)
            torch.testing.assert_close(
                dqn.update(batch, WATCH), plain.update(batch, WATCH), rtol=1e-4, atol=1e-4
            )
        for ours, theirs in ((dqn.explorer.network, plain.online), (dqn.target, plain.target)):
            for name, weights in ours.state_dict().items():
                torch.testing.assert_close(weights, theirs.state_dict()[name], rtol=1e-3, atol=1e-4)
        assert dqn.updates == 7

    def test_target_network_moves_when_it_should(self):
        dqn = learner(target_every=3)
        first = dqn.target.state_dict()["trunk.1.weight"].clone()
        for seed in range(1, 7):
            before = dqn.target.state_dict()["trunk.1.weight"].clone()
            dqn.update(batch_of(seed=seed), WATCH)
            after = dqn.target.state_dict()["trunk.1.weight"]
            assert torch.equal(before, after) == (seed % 3 != 0)
        assert not torch.equal(first, after)
        assert torch.equal(after, dqn.explorer.network.state_dict()["trunk.1.weight"])

    def test_weights_of_zero_teach_nothing(self):
        dqn = learner()
        before = dqn.explorer.parameters.detach().clone()
        dqn.update(batch_of(weights=torch.zeros(8)), WATCH)
        assert torch.equal(dqn.explorer.parameters.detach(), before)
        dqn.update(batch_of(), WATCH)
        assert not torch.equal(dqn.explorer.parameters.detach(), before)

    def test_four_batches_of_two_are_one_of_eight(self):
        whole = learner(max_grad_norm=0.1)
        parts = learner(max_grad_norm=0.1, batch_size=2, accumulate=4)
        for seed in range(3):
            batch = batch_of(seed=seed)
            expected = whole.update(batch, WATCH)
            errors = [parts.update(part(batch, slice(i, i + 2)), WATCH) for i in range(0, 8, 2)]
            torch.testing.assert_close(torch.cat(errors), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(parts.explorer.parameters, whole.explorer.parameters, rtol=1e-4, atol=1e-5)
        assert parts.updates == whole.updates == 3
        ours, theirs = parts.metrics(), whole.metrics()
        assert (ours["batches"], ours["gradient_steps"]) == (12, 3)
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)

    def test_a_compiled_network_learns_the_same(self, monkeypatch):
        # Without the last stage of the compiler, which takes most of a minute.
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
        plain, compiled = learner(), learner(compile=True)
        for seed in range(3):
            batch = batch_of(seed=seed)
            torch.testing.assert_close(
                compiled.update(batch, WATCH), plain.update(batch, WATCH), rtol=1e-4, atol=1e-4
            )
        torch.testing.assert_close(
            compiled.explorer.parameters, plain.explorer.parameters, rtol=1e-4, atol=1e-5
        )

    @pytest.mark.parametrize("channels_last", ["on", "off"])
    def test_layout_of_images_does_not_matter(self, channels_last):
        plain, other = learner(IMAGES), learner(IMAGES, channels_last=channels_last)
        assert other.explorer.network.channels_last == other.target.channels_last == (channels_last == "on")
        assert not plain.explorer.network.channels_last
        for seed in range(3):
            batch = batch_of(IMAGES, seed=seed)
            torch.testing.assert_close(
                other.update(batch, WATCH), plain.update(batch, WATCH), rtol=1e-4, atol=1e-4
            )


class TestPrecision:
    @pytest.mark.parametrize("precision", ["bf16", "fp16"])
    @pytest.mark.parametrize("space", [VECTORS, IMAGES], ids=["vectors", "images"])
    @pytest.mark.parametrize("accumulate", [1, 2])
    def test_learns_about_the_same_in_half(self, precision, space, accumulate):
        exact = learner(space, accumulate=accumulate, max_grad_norm=None)
        half = learner(space, precision=precision, accumulate=accumulate, max_grad_norm=None)
        start = exact.explorer.parameters.detach().clone()
        for seed in range(4):
            batch = batch_of(space, seed=seed)
            for dqn in (exact, half):
                assert dqn.update(batch, WATCH).dtype == torch.float32
        assert half.explorer.parameters.dtype == torch.float32
        moves = [dqn.explorer.parameters.detach() - start for dqn in (exact, half)]
        assert not torch.equal(*moves)
        # Adam's first steps are signs of the gradient, of which small ones flip: that most agree is enough.
        assert torch.cosine_similarity(*moves, dim=0) > 0.8
        ours, theirs = half.metrics(), exact.metrics()
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.1)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.1)

    @pytest.mark.parametrize("precision", ["bf16", "fp16"])
    def test_every_weight_learns_in_half(self, precision):
        dqn = learner(precision=precision, learning_rate=1e-2)
        before = dqn.explorer.network.state_dict()
        before = {name: tensor.clone() for name, tensor in before.items()}
        for seed in range(4):
            dqn.update(batch_of(seed=seed), WATCH)
        for name, tensor in dqn.explorer.network.state_dict().items():
            assert not torch.equal(tensor, before[name]), name

    def test_a_gradient_that_overflows_is_left_out(self):
        dqn = learner(precision="fp16", huber=None, max_grad_norm=None)
        before = dqn.explorer.parameters.detach().clone()
        scale = dqn._optimizer._scaler.get_scale()
        dqn.update(batch_of(rewards=torch.full((8,), 3e4)), WATCH)
        assert torch.equal(dqn.explorer.parameters.detach(), before)
        assert dqn._optimizer._scaler.get_scale() < scale
        assert dqn.metrics()["grad_norm"] == 0

    def test_cpus_use_float32_unless_told(self):
        ours, theirs = learner(), learner(precision="fp32")
        for dqn in (ours, theirs):
            dqn.update(batch_of(), WATCH)
        assert torch.equal(ours.explorer.parameters, theirs.explorer.parameters)


class TestBatchNorm:
    def test_targets_do_not_depend_on_the_rest_of_the_batch(self):
        """With the batch's statistics, the errors of the first half would change with the second."""
        dqn = learner(batch_norm=True, dueling=False)
        for seed in range(3):
            dqn.update(batch_of(seed=seed), WATCH)
        batch = batch_of(count=8)
        others = batch_of(count=8, seed=9)
        mixed = SimpleNamespace(**vars(batch))
        mixed.next_obs = torch.cat([batch.next_obs[:4], 5 * others.next_obs[4:]])
        state = save_and_load(dqn.state_dict())
        expected = dqn.update(batch, WATCH)
        dqn.load_state_dict(state)
        torch.testing.assert_close(dqn.update(mixed, WATCH)[:4], expected[:4])

    def test_learning_uses_the_statistics_of_the_batch_and_moves_the_running_ones(self):
        dqn = learner(batch_norm=True)
        norm = dqn.explorer.network.trunk[2]
        assert isinstance(norm, nn.BatchNorm1d)
        features = dqn.explorer.network.trunk[1](batch_of().obs).detach()
        dqn.update(batch_of(), WATCH)
        torch.testing.assert_close(norm.running_mean, 0.1 * features.mean(0))
        assert not dqn.explorer.network.training

    def test_acting_moves_nothing_and_depends_on_no_neighbour(self):
        dqn = learner(batch_norm=True)
        for seed in range(5):
            dqn.update(batch_of(seed=seed), WATCH)
        before = save_and_load(dqn.policy_state())
        obs = observations(VECTORS, 32)
        together = dqn.explorer.greedy(obs)
        assert together.tolist() == [dqn.explorer.greedy(row[None])[0] for row in obs]
        assert_same_state(save_and_load(dqn.policy_state()), before)

    @pytest.mark.parametrize("tau", [1.0, 0.25])
    def test_the_target_follows_statistics_too(self, tau):
        dqn = learner(batch_norm=True, target_every=1, target_tau=tau)
        before = dqn.target.state_dict()["trunk.2.running_mean"].clone()
        dqn.update(batch_of(), WATCH)
        online = dqn.explorer.network.state_dict()["trunk.2.running_mean"]
        target = dqn.target.state_dict()["trunk.2.running_mean"]
        torch.testing.assert_close(target, before + tau * (online - before))
        assert online.any()


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
            network.register_forward_hook(lambda *_, name=name: draws.append(f"use {name}"))
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


def save_and_load(state):
    """A deep copy, as a checkpoint would make it: tensors, and everything else through JSON."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        assert all(isinstance(key, str) for key in state)
        return {key: save_and_load(value) for key, value in state.items()}
    return json.loads(json.dumps(state))


class TestResume:
    @pytest.mark.parametrize(
        "options",
        [{}, ALL, ALL | {"accumulate": 3}, {"precision": "fp16"}, {"prioritized": True, "huber": None}],
        ids=str,
    )
    @pytest.mark.parametrize("stop_after", [0, 1, 4])
    def test_to_the_bit(self, options, stop_after):
        def go_on(dqn, first):
            rows = []
            for seed in range(first, first + 5):
                obs = observations(VECTORS, 20, seed)
                rows += [dqn.explorer.act(obs, 0.3).tolist(), dqn.update(batch_of(seed=seed), WATCH).tolist()]
            return [*rows, dqn.metrics()]

        whole = learner(**options)
        for seed in range(stop_after):
            whole.explorer.act(observations(VECTORS, 20), 0.5)
            whole.update(batch_of(seed=seed), WATCH)
        saved = save_and_load(whole.state_dict())
        rows = go_on(whole, stop_after)

        other = learner(seed=8, **options)
        go_on(other, 50)  # a run that has diverged
        other.update(batch_of(), WATCH)
        other.load_state_dict(saved)
        assert_same_state(save_and_load(other.state_dict()), saved)
        assert go_on(other, stop_after) == rows
        assert_same_state(other.state_dict(), whole.state_dict())

    def test_through_a_checkpoint_file(self, tmp_path):
        dqn = learner(IMAGES, **ALL)
        dqn.update(batch_of(IMAGES), WATCH)
        save_checkpoint(tmp_path / "x.safetensors", dqn.state_dict())
        other = learner(IMAGES, seed=3, **ALL)
        other.load_state_dict(load_checkpoint(tmp_path / "x.safetensors"))
        batch = batch_of(IMAGES, seed=4)
        assert torch.equal(other.update(batch, WATCH), dqn.update(batch, WATCH))

    def test_same_seed_same_parameters_and_another_seed_others(self):
        vectors = []
        for seed in (1, 1, 2):
            dqn = learner(seed=seed, noisy=True)
            dqn.update(batch_of(), WATCH)
            vectors.append(dqn.explorer.parameters.detach())
        assert torch.equal(vectors[0], vectors[1])
        assert not torch.equal(vectors[0], vectors[2])

    def test_global_random_state_is_neither_read_nor_written(self):
        torch_before, numpy_before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        dqn = learner(**ALL)
        dqn.explorer.act(observations(VECTORS, 4), 0.5)
        dqn.update(batch_of(), WATCH)
        assert torch.equal(torch.random.get_rng_state(), torch_before)
        assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002

    def test_policy_state_is_enough_for_inference(self):
        dqn = learner(IMAGES)
        network = QNetwork.from_state(save_and_load(dqn.policy_state()))
        obs = observations(IMAGES, 10)
        assert network(torch.from_numpy(obs)).argmax(1).tolist() == dqn.explorer.greedy(obs).tolist()

    def test_refuses_the_state_of_another_network(self):
        saved = learner(hidden=(32,)).state_dict()
        with pytest.raises(ValueError, match=r"saved network is \{.*\[32\].*\}, this run's is \{.*\[16, 8\]"):
            learner().load_state_dict(saved)

    def test_refuses_weights_that_are_not_finite(self):
        saved = save_and_load(learner().state_dict())
        saved["explorer"]["network"]["weights"]["trunk.1.bias"][0] = torch.inf
        with pytest.raises(ValueError, match="not finite"):
            learner().load_state_dict(saved)


class TestMetrics:
    def test_are_means_since_the_last_call(self):
        dqn, other = learner(learning_rate=0.0), learner(learning_rate=0.0)
        rows = []
        for seed in range(3):
            errors = dqn.update(batch_of(seed=seed), WATCH)
            row = dqn.metrics()
            assert row["td_error"] == pytest.approx(errors.mean().item(), rel=1e-5)
            assert (row["batches"], row["gradient_steps"]) == (1, 1)
            rows.append(row)
            other.update(batch_of(seed=seed), WATCH)
        together = other.metrics()
        assert (together["batches"], together["gradient_steps"]) == (3, 3)
        for name in ("loss", "q", "td_error", "grad_norm"):
            mean = np.mean([row[name] for row in rows])
            assert together[name] == pytest.approx(mean, rel=1e-5), name

    def test_without_updates_there_are_none(self):
        row = learner().metrics()
        assert (row["batches"], row["gradient_steps"]) == (0, 0)
        assert all(math.isnan(value) for value in (row["loss"], row["q"], row["td_error"], row["grad_norm"]))

    @pytest.mark.parametrize("field", ["rewards", "obs", "next_obs"])
    def test_refuse_what_is_not_finite(self, field):
        dqn = learner()
        batch = batch_of()
        getattr(batch, field).view(-1)[:2] = torch.nan
        batch.discounts[:] = 0.9
        dqn.update(batch, WATCH)
        with pytest.raises(FloatingPointError, match=r"loss is not finite .* after 1 gradient steps"):
            dqn.metrics()


class TestSchedules:
    def test_linear_in_environment_steps(self):
        dqn = learner(epsilon=0.8, final_epsilon=0.2, epsilon_steps=100, beta_steps=10, prioritized=True)
        epsilon, beta = dqn.exploration(), dqn.replay_spec().prioritized.beta
        assert [epsilon(s) for s in (0, 50, 100, 1000)] == pytest.approx([0.8, 0.5, 0.2, 0.2])
        assert [beta(s) for s in (0, 5, 10, 11)] == pytest.approx([0.4, 0.7, 1, 1])

    def test_of_no_length(self):
        assert learner(epsilon_steps=0).exploration()(0) == pytest.approx(0.01)


class TestConfig:
    def test_presets(self):
        large = DQNConfig(**PRESETS["large-batch"])
        assert large.batch_size * large.accumulate == 2048
        both = DQNConfig(**PRESETS["atari"], **PRESETS["large-batch"])
        assert both.prioritized and both.accumulate == 4
        for preset in PRESETS.values():
            DQNConfig(**preset)

    @pytest.mark.parametrize(
        "option",
        [
            {"gamma": 1.1},
            {"n_step": 0},
            {"epsilon": -0.1},
            {"alpha": -1},
            {"target_every": 0},
            {"target_tau": 0},
            {"target_tau": 1.1},
            {"huber": 0},
            {"learning_rate": float("nan")},
            {"max_grad_norm": 0},
            {"batch_size": 0},
            {"accumulate": 0},
            {"conv": ("32x8",)},
            {"hidden": (0,)},
            {"precision": "fp8"},
            {"channels_last": "maybe"},
            {"batch_norm": True, "batch_size": 1},
            {"lerning_rate": 1e-3},
        ],
        ids=str,
    )
    def test_refuses_options_that_make_no_sense(self, option):
        with pytest.raises(ValidationError):
            DQNConfig(**option)

    def test_cannot_be_changed(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            DQNConfig().gamma = 0.5

    @pytest.mark.parametrize(
        ("space", "kind"),
        [
            (gymnasium.spaces.Box(0, 1, (3, 4), np.float32), "q"),
            (gymnasium.spaces.Box(0, 1, (3,), np.float64), "q"),
            (gymnasium.spaces.Discrete(4), "q"),
            (IMAGES, "q"),
            (gymnasium.spaces.Box(0, 255, (9, 9), np.uint8), "q"),
            (gymnasium.spaces.Box(0, 255, (9, 9, 3), np.uint8), "encoded_q"),
            (gymnasium.spaces.Dict(a=IMAGES, b=VECTORS), "encoded_q"),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("noisy", [False, True])
    def test_learns_from_rows_of_all_observations(self, space, kind, noisy):
        dqn = learner(space, noisy=noisy)
        rows = ObsRows(space)
        space.seed(0)
        obs = np.zeros((16, rows.size), rows.dtype)
        for row in obs:
            rows.write(space.sample(), row)
        batch = batch_of(obs=torch.from_numpy(obs[:8]), next_obs=torch.from_numpy(obs[8:]))
        before = dqn.explorer.parameters.detach().clone()
        assert dqn.update(batch, WATCH).isfinite().all()
        assert not torch.equal(dqn.explorer.parameters.detach(), before)
        state = save_and_load(dqn.policy_state())
        assert state["kind"] == kind
        actor = DQN.make_actor(state, space, ACTIONS)
        actions = np.full(8, -1)
        nothing = np.zeros(8, np.uint64), np.zeros(8, np.int64), actions, np.zeros(8, np.float32)
        actor.act(batch.obs.numpy(), *nothing, greedy=True)
        dqn.explorer.network.clear_noise()
        assert actions.tolist() == dqn.explorer.network(batch.obs).argmax(1).tolist()
        with pytest.raises(
            ValueError, match=r"the policy takes .* numbers for 3 actions, the environment has"
        ):
            DQN.make_actor(state, space, gymnasium.spaces.Discrete(4))

    @pytest.mark.parametrize(
        ("space", "options", "message"),
        [
            (VECTORS, {"encoder": "impala"}, "the encoder impala is for images"),
            (IMAGES, {"encoder": "impala", "batch_norm": True}, "batch_norm is for vectors"),
            (VECTORS, {"network": "no_such:Net"}, "network no_such:Net: No module named"),
        ],
    )
    def test_refuses_networks_that_do_not_suit(self, space, options, message):
        with pytest.raises(ValueError, match=message):
            learner(space, **options)

    def test_values_only_allowed_actions(self):
        values = torch.tensor([[1.0, 3.0, 2.0]] * 3)
        masks = torch.tensor([[True, True, True], [True, False, True], [False, False, False]])
        # With none allowed nothing is known, and all are.
        assert bootstrap(values, None, masks).tolist() == [3, 2, 3]
        assert bootstrap(values, -values, masks).tolist() == [1, 1, 1]
        dqn, wide = learner(action_masks=True), batch_of()
        all_allowed = torch.ones(8, 3)
        masked = {name: torch.cat([getattr(wide, name), all_allowed], 1) for name in ("obs", "next_obs")}
        plain = learner()
        assert torch.equal(dqn.update(batch_of(**masked), WATCH), plain.update(wide, WATCH))

    @pytest.mark.parametrize(
        "space",
        [gymnasium.spaces.Box(0, 1, (2,), np.float32), gymnasium.spaces.Discrete(3, start=1)],
        ids=str,
    )
    def test_refuses_actions_it_cannot_handle(self, space):
        with pytest.raises(ValueError, match="Discrete action space that starts at 0"):
            DQN(config(), problem(actions=space))

    def test_refuses_images_that_are_too_small_for_the_network(self):
        with pytest.raises(ValueError, match="set conv to smaller ones"):
            DQN(DQNConfig(), problem(IMAGES))

    def test_scale_of_pixels_is_the_spaces(self):
        binary = gymnasium.spaces.Box(0, 1, (2, 10, 10), np.uint8)
        assert learner(binary).explorer.network.obs_scale == 1
        assert learner(IMAGES).explorer.network.obs_scale == 1 / 255
        assert learner(VECTORS).explorer.network.obs_scale == 1
