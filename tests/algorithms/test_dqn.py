"""fastrl.algorithms.dqn: targets and gradients against plain code, exact resume, acting, refusals."""

import dataclasses
import functools
import itertools
import json
import math
from types import SimpleNamespace

import gymnasium
import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from dqn_cases import (
    ACTIONS,
    ALL,
    IMAGES,
    VECTORS,
    WATCH,
    act,
    batch_of,
    config,
    learner,
    observations,
    part,
    problem,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from small_runs import assert_same_state
from torch import nn

from fastrl.algorithms.dqn import DQN
from fastrl.algorithms.dqn_loss import bootstrap, q_losses, quantile_losses, td_targets
from fastrl.algorithms.dqn_settings import DQNConfig
from fastrl.envs.rows import ObsRows
from fastrl.networks.q_network import QNetwork
from fastrl.runs.checkpoint import load_checkpoint, save_checkpoint


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
            for network, values in ((dqn.target, [0.5, 1, -2]), (dqn.network, [5, 7, 6])):
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

    @pytest.mark.slow
    @given(
        st.integers(1, 6).flatmap(
            lambda n: st.tuples(*[hnp.arrays(np.float32, n, elements=st.floats(-9, 9, width=32))] * 3)
        )
    )
    def test_targets_are_the_sum(self, arrays):
        targets = td_targets(*map(torch.from_numpy, arrays))
        np.testing.assert_allclose(targets, arrays[0] + arrays[1] * arrays[2], rtol=1e-5, atol=1e-4)


class TestLosses:
    @pytest.mark.parametrize("huber", [None, 0.5, 1.0, 10.0])
    def test_large_errors_count_linearly(self, huber):
        values = torch.zeros(4)
        targets = torch.tensor([0.25, -0.5, 2.0, -20.0])
        edge = np.inf if huber is None else huber
        expected = [x * x / 2 if abs(x) <= edge else edge * (abs(x) - edge / 2) for x in targets.tolist()]
        torch.testing.assert_close(q_losses(values, targets, huber), torch.tensor(expected))

    @pytest.mark.slow
    @settings(deadline=None)
    @given(st.integers(1, 4), st.integers(1, 5), st.sampled_from([0.5, 1.0, 10.0]), st.data())
    def test_of_quantiles_is_that_of_a_slow_model(self, size, count, huber, data):
        def floats(*shape):
            return torch.from_numpy(
                data.draw(hnp.arrays(np.float32, shape, elements=st.floats(-4, 4, width=32)))
            )

        quantiles, targets = floats(size, count).requires_grad_(), floats(size, count)
        expected = torch.zeros(size)
        for row, i, j in itertools.product(range(size), range(count), range(count)):
            quantile, target = quantiles[row, i], targets[row, j]
            rank = (2 * i + 1) / (2 * count)
            side = 1 - rank if target < quantile else rank
            loss = side * nn.functional.huber_loss(quantile, target, delta=huber) / count**2
            expected = expected + loss * nn.functional.one_hot(torch.tensor(row), size)
        found = quantile_losses(quantiles, targets, huber)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(each.sum(), quantiles)[0] for each in (found, expected)]
        torch.testing.assert_close(*gradients)

    def test_quantiles_of_a_coin_are_those_of_its_sides(self):
        """Rewards of 0 and 1 after one action: quantiles below 1/2 become 0, the others 1."""
        quantiles = torch.full((1, 4), 0.3)
        rewards = torch.arange(16) % 2
        targets = td_targets(rewards.float(), torch.zeros(16), torch.ones(16, 4))
        for _ in range(300):
            quantiles.requires_grad_()
            loss = quantile_losses(quantiles.expand(16, 4), targets, huber=0.01).mean()
            (gradient,) = torch.autograd.grad(loss, quantiles)
            quantiles = quantiles.detach() - 16 * gradient
        torch.testing.assert_close(quantiles.flatten(), torch.tensor([0.0, 0, 1, 1]), atol=0.02, rtol=0)


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
            best = (self.online(batch.next_obs) if config.double else after).argmax(1)
            if config.quantiles:
                after = self.target.estimates(batch.next_obs)
                targets = batch.rewards[:, None] + batch.discounts[:, None] * after[rows, best]
            else:
                targets = batch.rewards + batch.discounts * after[rows, best]
        values = self.online.estimates(batch.obs)[rows, batch.actions]
        td = targets[:, None] - values[:, :, None] if config.quantiles else targets - values
        if config.huber is None:
            losses = td**2 / 2
        else:
            large = td.abs() > config.huber
            losses = torch.where(large, config.huber * (td.abs() - config.huber / 2), td**2 / 2)
        if config.quantiles:
            ranks = torch.linspace(0, 1, 2 * config.quantiles + 1)[1::2, None]
            losses = (torch.where(td < 0, 1 - ranks, ranks) * losses).mean((1, 2))
            td = td.mean((1, 2))
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
            {"quantiles": 5},
            {"quantiles": 4, "double": False, "dueling": False, "huber": 0.2},
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
        for ours, theirs in ((dqn.network, plain.online), (dqn.target, plain.target)):
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
        assert torch.equal(after, dqn.network.state_dict()["trunk.1.weight"])

    def test_weights_of_zero_teach_nothing(self):
        dqn = learner()
        before = dqn.parameters.detach().clone()
        dqn.update(batch_of(weights=torch.zeros(8)), WATCH)
        assert torch.equal(dqn.parameters.detach(), before)
        dqn.update(batch_of(), WATCH)
        assert not torch.equal(dqn.parameters.detach(), before)

    def test_four_batches_of_two_are_one_of_eight(self):
        whole = learner(max_grad_norm=0.1)
        parts = learner(max_grad_norm=0.1, batch_size=2, accumulate=4)
        for seed in range(3):
            batch = batch_of(seed=seed)
            expected = whole.update(batch, WATCH)
            errors = [parts.update(part(batch, slice(i, i + 2)), WATCH) for i in range(0, 8, 2)]
            torch.testing.assert_close(torch.cat(errors), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(parts.parameters, whole.parameters, rtol=1e-4, atol=1e-5)
        assert parts.updates == whole.updates == 3
        ours, theirs = parts.metrics(), whole.metrics()
        assert (ours["batches"], ours["gradient_steps"]) == (12, 3)
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)

    @pytest.mark.slow
    def test_a_compiled_network_learns_the_same(self, monkeypatch):
        # Without the last stage of the compiler, which takes most of a minute.
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
        plain, compiled = learner(), learner(compile=True)
        for seed in range(3):
            batch = batch_of(seed=seed)
            torch.testing.assert_close(
                compiled.update(batch, WATCH), plain.update(batch, WATCH), rtol=1e-4, atol=1e-4
            )
        torch.testing.assert_close(compiled.parameters, plain.parameters, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("channels_last", ["on", "off"])
    def test_layout_of_images_does_not_matter(self, channels_last):
        plain, other = learner(IMAGES), learner(IMAGES, channels_last=channels_last)
        assert other.network.channels_last == other.target.channels_last == (channels_last == "on")
        assert not plain.network.channels_last
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
        start = exact.parameters.detach().clone()
        for seed in range(4):
            batch = batch_of(space, seed=seed)
            for dqn in (exact, half):
                assert dqn.update(batch, WATCH).dtype == torch.float32
        assert half.parameters.dtype == torch.float32
        moves = [dqn.parameters.detach() - start for dqn in (exact, half)]
        assert not torch.equal(*moves)
        # Adam's first steps are signs of the gradient, of which small ones flip: that most agree is enough.
        assert torch.cosine_similarity(*moves, dim=0) > 0.8
        ours, theirs = half.metrics(), exact.metrics()
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.1)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.1)

    @pytest.mark.parametrize("precision", ["bf16", "fp16"])
    def test_every_weight_learns_in_half(self, precision):
        dqn = learner(precision=precision, learning_rate=1e-2)
        before = dqn.network.state_dict()
        before = {name: tensor.clone() for name, tensor in before.items()}
        for seed in range(4):
            dqn.update(batch_of(seed=seed), WATCH)
        for name, tensor in dqn.network.state_dict().items():
            assert not torch.equal(tensor, before[name]), name

    def test_a_gradient_that_overflows_is_left_out(self):
        dqn = learner(precision="fp16", huber=None, max_grad_norm=None)
        before = dqn.parameters.detach().clone()
        scale = dqn.state_dict()["optimizer"]["scaler"]["scale"]
        dqn.update(batch_of(rewards=torch.full((8,), 3e4)), WATCH)
        assert torch.equal(dqn.parameters.detach(), before)
        assert dqn.state_dict()["optimizer"]["scaler"]["scale"] < scale
        assert dqn.metrics()["grad_norm"] == 0

    def test_cpus_use_float32_unless_told(self):
        ours, theirs = learner(), learner(precision="fp32")
        for dqn in (ours, theirs):
            dqn.update(batch_of(), WATCH)
        assert torch.equal(ours.parameters, theirs.parameters)


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
        norm = dqn.network.trunk[2]
        assert isinstance(norm, nn.BatchNorm1d)
        features = dqn.network.trunk[1](batch_of().obs).detach()
        dqn.update(batch_of(), WATCH)
        torch.testing.assert_close(norm.running_mean, 0.1 * features.mean(0))
        assert not dqn.network.training

    def test_acting_moves_nothing_and_depends_on_no_neighbour(self):
        dqn = learner(batch_norm=True)
        for seed in range(5):
            dqn.update(batch_of(seed=seed), WATCH)
        before = save_and_load(dqn.policy_state())
        obs = observations(VECTORS, 32)
        together = act(dqn, obs)
        assert together.tolist() == [act(dqn, row[None])[0] for row in obs]
        assert_same_state(save_and_load(dqn.policy_state()), before)

    @pytest.mark.parametrize("tau", [1.0, 0.25])
    def test_the_target_follows_statistics_too(self, tau):
        dqn = learner(batch_norm=True, target_every=1, target_tau=tau)
        before = dqn.target.state_dict()["trunk.2.running_mean"].clone()
        dqn.update(batch_of(), WATCH)
        online = dqn.network.state_dict()["trunk.2.running_mean"]
        target = dqn.target.state_dict()["trunk.2.running_mean"]
        torch.testing.assert_close(target, before + tau * (online - before))
        assert online.any()


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
        [
            {},
            ALL,
            ALL | {"accumulate": 3, "quantiles": 5},
            {"precision": "fp16"},
            {"prioritized": True, "huber": None},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("stop_after", [0, 1, 4])
    def test_to_the_bit(self, options, stop_after):
        def go_on(dqn, first):
            rows = []
            for seed in range(first, first + 5):
                weights = np.zeros(dqn.weights_nbytes, np.uint8)
                dqn.write_weights(weights)
                rows += [weights.tolist(), dqn.update(batch_of(seed=seed), WATCH).tolist()]
            return [*rows, dqn.metrics()]

        whole = learner(**options)
        for seed in range(stop_after):
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
            vectors.append(dqn.parameters.detach())
        assert torch.equal(vectors[0], vectors[1])
        assert not torch.equal(vectors[0], vectors[2])

    def test_global_random_state_is_neither_read_nor_written(self):
        torch_before, numpy_before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        dqn = learner(**ALL)
        act(dqn, observations(VECTORS, 4), 0.5)
        dqn.update(batch_of(), WATCH)
        assert torch.equal(torch.random.get_rng_state(), torch_before)
        assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002

    def test_policy_state_is_enough_for_inference(self):
        dqn = learner(IMAGES)
        network = QNetwork.from_state(save_and_load(dqn.policy_state()))
        obs = observations(IMAGES, 10)
        assert network(torch.from_numpy(obs)).argmax(1).tolist() == act(dqn, obs).tolist()

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

    def test_the_margin_of_demonstrations_ends(self):
        """It pulls at the start of the run, and no longer at its end."""
        plain = learner(max_grad_norm=None)
        plain.update(batch_of(), WATCH)
        for steps, is_plain in ((0, False), (1, True)):
            dqn = learner(max_grad_norm=None, margin_coef=1.0, final_margin_coef=0.0)
            dqn.steps = steps
            dqn.update(batch_of(num_second=4), WATCH)
            assert torch.equal(dqn.parameters, plain.parameters) == is_plain

    def test_of_no_length(self):
        assert learner(epsilon_steps=0).exploration()(0) == pytest.approx(0.01)


class TestConfig:
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
            {"quantiles": 8, "huber": None},
            {"quantiles": 8, "network": "module:Network"},
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
    @pytest.mark.parametrize(
        "options", [{}, {"noisy": True}, {"quantiles": 5}, {"quantiles": 5, "noisy": True, "dueling": False}]
    )
    def test_learns_from_rows_of_all_observations(self, space, kind, options):
        dqn = learner(space, **options)
        rows = ObsRows(space)
        space.seed(0)
        obs = np.zeros((16, rows.size), rows.dtype)
        for row in obs:
            rows.write(space.sample(), row)
        batch = batch_of(obs=torch.from_numpy(obs[:8]), next_obs=torch.from_numpy(obs[8:]))
        before = dqn.parameters.detach().clone()
        assert dqn.update(batch, WATCH).isfinite().all()
        assert not torch.equal(dqn.parameters.detach(), before)
        state = save_and_load(dqn.policy_state())
        assert state["kind"] == kind
        actor = DQN.make_actor(state, space, ACTIONS)
        actions = np.full(8, -1)
        nothing = np.zeros(8, np.uint64), np.zeros(8, np.int64), actions, np.zeros(8, np.float32)
        actor.act(batch.obs.numpy(), *nothing, greedy=True)
        dqn.network.clear_noise()
        assert actions.tolist() == dqn.network(batch.obs).argmax(1).tolist()
        with pytest.raises(
            ValueError, match=r"the policy takes .* numbers for 3 actions, the environment has"
        ):
            DQN.make_actor(state, space, gymnasium.spaces.Discrete(4))

    @pytest.mark.parametrize(
        ("space", "options", "message"),
        [
            (VECTORS, {"encoder": "impala"}, "the encoder impala is for images"),
            (VECTORS, {"encoder": "rows"}, "the encoder rows is for tables"),
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
        # After a termination nothing need be allowed.
        rewards, discounts = torch.full((3,), 7.0), torch.tensor([1.0, 1.0, 0.0])

        def targets(*estimates):
            return td_targets(rewards, discounts, bootstrap(*estimates, masks)).tolist()

        assert targets(values, None) == [10, 9, 7]
        assert targets(values, -values) == [8, 8, 7]
        quantiles = torch.stack([values - 1, values + 1], -1)
        assert targets(quantiles, None) == [[9, 11], [8, 10], [7, 7]]

    @pytest.mark.parametrize("options", [{}, {"double": True}, {"quantiles": 3}], ids=str)
    def test_all_allowed_is_as_without_masks_and_after_a_termination_masks_do_not_count(self, options):
        plain = batch_of()
        all_allowed = torch.ones(8, 3, dtype=torch.bool)
        masks = all_allowed & (plain.discounts > 0)[:, None]
        assert masks.any() and not masks.all()
        errors = [
            learner(action_masks=True, **options).update(batch, WATCH)
            for batch in (plain, *(batch_of(masks=all_allowed, next_masks=m) for m in (all_allowed, masks)))
        ]
        assert torch.equal(errors[0], errors[1]) and torch.equal(errors[0], errors[2])

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
        assert learner(binary).network.obs_scale == 1
        assert learner(IMAGES).network.obs_scale == 1 / 255
        assert learner(VECTORS).network.obs_scale == 1
