"""Compiled gradient steps of DQN against those of PyTorch along its loss."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from dqn_cases import IMAGES, WATCH, batch_of, learner, problem
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st
from several import together

from fastrl._native._rust import QSteps
from fastrl.algorithms.dqn import DQN
from fastrl.algorithms.dqn_settings import DQNConfig

WIDTHS = st.lists(st.integers(1, 9), max_size=3).map(tuple)


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_gradients_are_those_of_the_loss(data: Any) -> None:
    options: dict[str, Any] = {
        "hidden": data.draw(WIDTHS),
        "dueling": data.draw(st.booleans()),
        "double": data.draw(st.booleans()),
        "huber": data.draw(st.sampled_from([None, 0.5, 3.0])),
        "margin_coef": data.draw(st.sampled_from([0.0, 0.7])),
        "accumulate": 100,  # the gradient stays there
    }
    seed, size = data.draw(st.integers(0, 99)), data.draw(st.integers(1, 9) | st.integers(120, 300))
    compiled, plain = (learner(seed=seed, **options, update_backend=each) for each in ("auto", "torch"))
    assert compiled.compiled is not None and plain.compiled is None
    fields: dict[str, Any] = {"num_second": data.draw(st.integers(0, size))}
    if data.draw(st.booleans()):
        masks = torch.rand(size, 3, generator=torch.Generator().manual_seed(seed)) < 0.6
        masks[:, 0] |= ~masks.any(1)
        fields["next_masks"] = masks
    batch = batch_of(count=size, seed=seed, **fields)
    with torch.no_grad():
        for each in (compiled, plain):
            each.parameters.mul_(3)  # outputs far from 0
            for parameter in each.target.parameters():
                parameter.mul_(2)
    errors = [each.update(batch, WATCH) for each in (compiled, plain)]
    torch.testing.assert_close(*errors, rtol=1e-5, atol=1e-5)
    mine, expected = (each.parameters.grad for each in (compiled, plain))
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6 * (1 + float(expected.abs().max())))
    metrics = [each.metrics() for each in (compiled, plain)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-5, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize("max_grad_norm", [None, 0.01])
def test_twenty_steps_are_those_of_pytorch(max_grad_norm: float | None) -> None:
    config = {"target_every": 2, "target_tau": 0.5, "learning_rate": 1e-3, "max_grad_norm": max_grad_norm}
    both = [learner(update_backend=each, **config) for each in ("compiled", "torch")]
    for seed in range(20):
        errors = [each.update(batch_of(seed=seed), WATCH) for each in both]
        torch.testing.assert_close(*errors, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(both[0].parameters, both[1].parameters, rtol=1e-3, atol=1e-5)
    for mine, expected in zip(both[0].target.parameters(), both[1].target.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-5)
    metrics = [each.metrics() for each in both]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-3)
    restored = learner(update_backend="compiled", **config, seed=5)
    restored.load_state_dict(both[0].state_dict())
    for each in (both[0], restored):
        each.update(batch_of(seed=9), WATCH)
    assert torch.equal(both[0].parameters, restored.parameters)


def test_bytes_are_scaled() -> None:
    space = Box(0, 255, (5,), np.uint8)
    batch = batch_of(space)
    compiled, plain = (learner(space, update_backend=each, accumulate=9) for each in ("compiled", "torch"))
    torch.testing.assert_close(compiled.update(batch, WATCH), plain.update(batch, WATCH))
    torch.testing.assert_close(compiled.parameters.grad, plain.parameters.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_gradients_in_bf16_are_about_those_in_fp32(dueling: bool, seed: int) -> None:
    # Large errors count linearly, so that those of values, which rounding changes, do not matter.
    batch, hidden = batch_of(count=131, seed=seed), (64, 33)
    batch.rewards.fill_(50)
    options: Any = {"dueling": dueling, "hidden": hidden, "accumulate": 9, "huber": 1.0}
    half, exact = (learner(**options, precision=each) for each in ("bf16", "fp32"))
    assert half.compiled is not None and exact.compiled is not None
    for each in (half, exact):
        each.update(batch, WATCH)
    found, expected = half.parameters.grad, exact.parameters.grad
    # As of SAC and TD3: four products of factors that rounding changes by 2^-9 of them at most, and as much again for
    # units that it moves to the other side of ReLU's kink.
    assert 1e-4 < float((found - expected).norm() / expected.norm()) < 16 * 2**-9


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("dueling", [False, True])
def test_results_do_not_depend_on_threads(
    dueling: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for threads in (1, 2, 3, 16):
        monkeypatch.setattr("fastrl.algorithms.compiled_q.threads", lambda threads=threads: threads)
        each = learner(hidden=(64, 64), dueling=dueling, precision=precision, update_backend="compiled")
        # So many rows that 16 threads pay.
        errors = each.update(batch_of(count=6011), WATCH)
        found.append((errors, each.parameters.detach(), each.metrics()["loss"]))
    for errors, parameters, loss in found[1:]:
        assert (
            torch.equal(errors, found[0][0]) and torch.equal(parameters, found[0][1]) and loss == found[0][2]
        )


@settings(deadline=None, max_examples=15)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    rows=st.sampled_from([7, 300]),
    accumulate=st.integers(1, 3),
    num_threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_several_steps_in_one_call_are_those_of_as_many_calls(
    counts: list[int], rows: int, accumulate: int, num_threads: int, seed: int
) -> None:
    config: dict[str, Any] = {"hidden": (64, 64), "accumulate": accumulate, "target_every": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastrl.algorithms.compiled_q.threads", lambda: num_threads)
        pair = [learner(seed=seed, **config) for _ in range(2)]
    for count in counts:
        batches = [batch_of(count=rows, seed=seed + i) for i in range(count)]
        errors = pair[0].update(together(batches), WATCH)
        assert torch.equal(errors, torch.cat([pair[1].update(each, WATCH) for each in batches]))
    for each in (pair[0], pair[1]):
        assert each.updates == sum(counts) // accumulate
    for mine, other in zip(
        pair[0].state_dict()["target"].values(), pair[1].state_dict()["target"].values(), strict=True
    ):
        assert torch.equal(mine, other)
    assert torch.equal(pair[0].parameters, pair[1].parameters)
    assert torch.equal(pair[0].parameters.grad, pair[1].parameters.grad)
    assert pair[0].metrics() == pytest.approx(pair[1].metrics(), rel=0, abs=0, nan_ok=True)


class Other(DQN):
    """A loss that the compiled steps are not of."""

    def loss(self, batch: Any) -> Any:
        return super().loss(batch)


def test_they_are_used_where_they_are_those_of_the_loss() -> None:
    assert learner().compiled is not None and learner(update_backend="torch").remarks() == []
    other = Other(DQNConfig(), problem())
    assert other.compiled is None
    assert other.remarks() == ["PyTorch takes the gradient steps: compiled ones are for DQN's own loss"]
    for options in ({"noisy": True}, {"batch_norm": True}, {"quantiles": 3}, {"precision": "fp16"}):
        assert learner(**options).compiled is None
        with pytest.raises(ValueError, match="compiled is for perceptrons of vectors in fp32 or bf16"):
            learner(**options, update_backend="compiled")
    assert learner(IMAGES).compiled is None


def arrays(size: int = 4) -> dict[str, Any]:
    """Arguments of `step` of a linear network on two numbers with three actions."""
    zeros = functools.partial(np.zeros, dtype=np.float32)
    return {
        "online": (zeros(9), zeros(9), zeros(9), zeros(())),
        "sums": zeros(4),
        **{name: zeros(9) for name in ("target", "gradient")},
        **{name: zeros(size) for name in ("td_errors", "rewards", "discounts", "weights")},
        **{name: zeros((size, 2)) for name in ("obs", "next_obs")},
        "actions": np.zeros(size, np.int64),
        "double": True,
        "huber": 1.0,
        "learning_rate": 0.1,
        "epsilon": 1e-5,
        "steps": [True],
        "taus": [None],
    }


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("online", (np.zeros(8, np.float32),) * 4, r"online: expected .* shape \(9,\)"),
        ("rewards", np.zeros(0, np.float32), "rewards: expected those of a transition at least"),
        ("obs", np.zeros((4, 2)), "obs: expected .* float32"),
        ("actions", np.array([0, 1, 3, 2]), "actions: expected numbers from 0 to 2, got 3"),
        ("actions", np.array([0, 1, -1, 2]), "actions: expected numbers from 0 to 2, got -1"),
        ("next_masks", np.zeros((4, 2), bool), r"next_masks: expected .* shape \(4, 3\)"),
        ("demonstrations", 5, "demonstrations: expected 0 to 4, got 5"),
        ("steps", [], "steps: expected an item for each minibatch"),
        ("steps", [True] * 2, "taus: expected as many as steps, 2, got 1"),
        ("huber", 0.0, "huber: expected a number above 0, got 0"),
    ],
)
def test_wrong_arguments_are_refused(name: str, value: Any, match: str) -> None:
    steps, given = QSteps(obs_dim=2, hidden=[], actions=3), arrays()
    steps.step(**given)
    assert steps.num_parameters == 9 and given["online"][3] == 1 and not given["sums"].any()
    with pytest.raises((ValueError, TypeError), match=match):
        steps.step(**{**given, name: value})
    with pytest.raises(ValueError, match="share memory"):
        steps.step(**{**given, "gradient": given["online"][0]})


@pytest.mark.parametrize("options", [{"hidden": [0]}, {"obs_dim": 2**17}, {"actions": 0}])
def test_widths_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected widths of 1 to 65536"):
        QSteps(**({"obs_dim": 2, "hidden": [4], "actions": 3} | options))
