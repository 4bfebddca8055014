"""Compiled gradient steps of PQN against those of PyTorch along its loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from test_pqn import NUM_ACTIONS, OBS_DIM, PLAIN, pqn_of, random_fragment

from fastrl._native._rust import PpoUpdate
from fastrl.algorithms.pqn import PQN, Minibatch
from fastrl.algorithms.pqn_settings import PQNConfig
from fastrl.algorithms.protocol import Problem
from fastrl.utils.timer import Stopwatch


def both(fragment: Any, updates: int = 1, **config: Any) -> list[PQN]:
    """Learners after so many updates, compiled and of PyTorch, with the same weights before."""
    learners = [
        pqn_of(fragment.obs.shape[1], update_backend=each, **config) for each in ("compiled", "torch")
    ]
    with torch.no_grad():
        # Gains, shifts and biases are not those of a fresh network.
        noise = torch.randn(len(learners[0].parameters), generator=torch.Generator().manual_seed(1))
        for each in learners:
            each.parameters.add_(0.3 * noise)
    for each in learners:
        for _ in range(updates):
            each.update([fragment], Stopwatch())
    return learners


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_steps=st.integers(2, 12),
    rows=st.integers(1, 20),
    hidden=st.lists(st.integers(3, 20), max_size=2),
    layer_norm=st.booleans(),
    activation=st.sampled_from(["relu", "tanh"]),
    huber=st.sampled_from([None, 0.5]),
    normalize_obs=st.booleans(),
    masks=st.booleans(),
    munchausen=st.sampled_from([None, 0.9]),
)
def test_a_step_is_that_of_pytorch(
    seed: int, num_steps: int, rows: int, hidden: list[int], masks: bool, **options: Any
) -> None:
    fragment = random_fragment(num_steps, rows, seed, masks=masks)
    config = {"hidden": tuple(hidden), "action_masks": masks, "num_steps": num_steps, **options}
    compiled, plain = both(fragment, max_grad_norm=None, **config)
    assert compiled.compiled is not None and plain.compiled is None
    np.testing.assert_allclose(compiled.rollout.returns, plain.rollout.returns, rtol=1e-4, atol=1e-4)
    # After one step the first moment is a tenth of the gradient.
    mine, expected = (each.state_dict()["optimizer"]["adam"]["exp_avg"] for each in (compiled, plain))
    torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-4 * (1 + float(expected.abs().max())))
    metrics = [each.metrics() for each in (compiled, plain)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_updates_are_those_of_pytorch(layer_norm: bool) -> None:
    options = {"num_epochs": 2, "minibatch_size": 30, "max_grad_norm": 0.5, "layer_norm": layer_norm}
    compiled, plain = both(random_fragment(10, 10), 5, **options)
    torch.testing.assert_close(compiled.parameters, plain.parameters, rtol=1e-3, atol=1e-4)
    assert compiled.updates == plain.updates == 40
    assert compiled.metrics() == pytest.approx(plain.metrics(), rel=1e-3)
    # Either resumes what the other has saved.
    plain.load_state_dict(compiled.state_dict())
    for each in (compiled, plain):
        each.update([random_fragment(10, 10, 7)], Stopwatch())
    torch.testing.assert_close(compiled.parameters, plain.parameters, rtol=1e-3, atol=1e-4)


def test_results_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for threads in (1, 2, 3, 16):
        monkeypatch.setattr("fastrl.algorithms.compiled_pqn.threads", lambda threads=threads: threads)
        # So many rows that 16 threads pay.
        learner = pqn_of(200, hidden=(64, 64), update_backend="compiled", minibatch_size=6000)
        learner.update([random_fragment(30, 200)], Stopwatch())
        found.append((learner.parameters.detach(), learner.metrics()["loss"]))
    assert all(torch.equal(parameters, found[0][0]) and loss == found[0][1] for parameters, loss in found)


class Other(PQN):
    """A loss that the compiled steps are not of."""

    def loss(self, batch: Minibatch) -> Any:
        return super().loss(batch)


def test_they_are_used_where_they_are_those_of_the_loss() -> None:
    assert pqn_of().update_backend == "compiled" and pqn_of().remarks() == []
    other = Other(PQNConfig(**PLAIN), Problem(Box(-1, 1, (OBS_DIM,)), Discrete(NUM_ACTIONS), 3, 100))
    assert other.remarks() == ["PyTorch takes the gradient steps: compiled ones are for PQN's own loss"]
    assert pqn_of(memory="gru").compiled is None
    pooled = PQNConfig(**(PLAIN | {"encoder": "rows", "normalize_obs": False, "layer_norm": False}))
    assert PQN(pooled, Problem(Box(-1, 1, (2, OBS_DIM)), Discrete(NUM_ACTIONS), 3, 100)).compiled is None
    with pytest.raises(ValueError, match="update_backend compiled is for perceptrons of vectors"):
        pqn_of(memory="gru", update_backend="compiled")


def test_one_action_is_valued() -> None:
    compiled, plain = both(random_fragment(5, 3), num_actions=4)
    assert compiled.compiled is not None
    single = pqn_of(num_actions=1, update_backend="compiled")
    obs = torch.randn(6, OBS_DIM, generator=torch.Generator().manual_seed(0))
    assert single.compiled is not None
    torch.testing.assert_close(single.compiled.estimates(obs), single.network(obs), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(compiled.compiled.estimates(obs), compiled.network(obs), rtol=1e-5, atol=1e-5)
    assert plain.compiled is None


def arguments(samples: int = 4) -> dict[str, Any]:
    """Arguments of `learn_values` of a linear critic of two numbers and three actions."""
    return {
        **{name: np.zeros(9, np.float32) for name in ("parameters", "mean", "square")},
        "obs": np.zeros((samples, 2), np.float32),
        "groups": np.arange(samples),
        "actions": np.zeros(samples, np.int64),
        "returns": np.ones(samples, np.float32),
        "order": np.arange(samples)[None],
        "steps": 0,
        "minibatches": 1,
        "huber": 1.0,
        "max_grad_norm": 1.0,
        "learning_rate": 0.1,
        "epsilon": 1e-5,
        "num_threads": 1,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": np.array([0, 1, 2, 3])}, "actions: expected numbers from 0 to 2, got 3"),
        ({"groups": np.array([0, 1, 2, 4])}, "groups: expected numbers from 0 to 3, got 4"),
        ({"order": np.array([[0, 1, 2, 4]])}, "order: expected numbers from 0 to 3, got 4"),
        ({"returns": np.zeros(3, np.float32)}, "returns: expected"),
        ({"huber": 0.0}, "huber: expected a number above 0, got 0"),
        ({"minibatches": 5}, "minibatches: expected 1 to 4, got 5"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    update = PpoUpdate(obs_dim=2, hidden=[], activation="relu", networks="critic", critic_outputs=3)
    loss, q, error, norm, steps = update.learn_values(**arguments())
    assert (loss, q, error, steps) == (0.5, 0.0, 1.0, 1) and norm > 0
    with pytest.raises(ValueError, match=message):
        update.learn_values(**(arguments() | change))


def test_networks_that_have_none_are_refused() -> None:
    actor = PpoUpdate(obs_dim=2, hidden=[], activation="relu", networks="actor", nvec=[3])
    with pytest.raises(ValueError, match="learn_values: expected networks='critic'"):
        actor.learn_values(**arguments())
    with pytest.raises(ValueError, match="bf16: expected False with layer_norm"):
        PpoUpdate(obs_dim=2, hidden=[4], activation="relu", nvec=[3], layer_norm=True, bf16=True)
