"""Compiled gradients of SAC, TD3 and IQL against automatic differentiation of the losses."""

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sac import BOX, IMAGE, OBS, OWN, WATCH, batch_of

from fastrl._native._rust import OffPolicyGradients
from fastrl.algorithms.iql import IQL, IQLConfig
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.sac import SAC
from fastrl.algorithms.sac_settings import SACConfig, TD3Config
from fastrl.algorithms.td3 import TD3

CHOICES = Discrete(4)
LEARNERS: dict[str, tuple[Any, Any]] = {
    "sac": (SAC, SACConfig),
    "td3": (TD3, TD3Config),
    "iql": (IQL, IQLConfig),
}
WIDTHS = st.lists(st.integers(1, 9), max_size=3).map(tuple)


def learner(name: str, actions: Any, obs: Any = OBS, seed: int = 0, **config: Any) -> Any:
    algorithm, config_type = LEARNERS[name]
    return algorithm(config_type(**config), Problem(obs, actions, 1, 100, seed=seed))


def networks(algorithm: Any) -> list[torch.Tensor]:
    extra = [algorithm.log_temperature] if isinstance(algorithm, SAC) else []
    return [each for network in algorithm.networks() for each in network.parameters()] + extra


def gradients_of(algorithm: Any) -> list[torch.Tensor]:
    """The gradients that there are, which become zeros."""
    found = [each.grad.clone() for each in networks(algorithm)]
    for each in networks(algorithm):
        each.grad.zero_()
    return found


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.data())
@pytest.mark.parametrize(
    ("name", "actions"),
    [("sac", BOX), ("sac", CHOICES), ("td3", BOX), ("iql", BOX), ("iql", CHOICES)],
    ids=str,
)
def test_they_are_those_of_the_losses(name: str, actions: Any, data: Any) -> None:
    config: dict[str, Any] = {"hidden": data.draw(WIDTHS), "critics": data.draw(st.integers(1, 4))}
    if name != "iql":
        config["target_critics"] = data.draw(st.integers(1, config["critics"]))
    if name == "sac":
        config["policy_value"] = data.draw(st.sampled_from(["min", "mean"]))
        config["entropy_backup"] = data.draw(st.booleans())
        config["temperature"] = data.draw(st.sampled_from([0.0, 0.2, 1.0]))
        config["learn_temperature"] = config["temperature"] > 0 and data.draw(st.booleans())
    if name == "iql":
        config |= {"beta": data.draw(st.floats(0, 5)), "max_weight": data.draw(st.sampled_from([1.1, 100.0]))}
    masks = data.draw(st.booleans()) and actions is CHOICES
    if actions is CHOICES:
        config["action_masks"] = masks
    algorithm = learner(name, actions, seed=data.draw(st.integers(0, 9)), **config)
    with torch.no_grad():
        for network in algorithm.networks():
            for each in network.parameters():
                each.mul_(3)  # outputs far from 0
    # Rows go through the networks in chunks of 128.
    rows, seed = data.draw(st.integers(1, 9) | st.integers(120, 300)), data.draw(st.integers(0, 1000))
    experience = batch_of(OBS, actions, rows, seed, masks=4 if masks else 0)
    if masks:
        experience.masks[torch.arange(rows), experience.actions] = True
    compare(algorithm, algorithm.minibatch(experience, True), data.draw(st.sampled_from([1.0, 0.3])))


def compare(algorithm: Any, batch: Any, weight: float) -> None:
    """Compares the compiled losses of a minibatch, and their gradients, with those of PyTorch."""
    for loss in ("critic_loss", "policy_loss"):
        with torch.no_grad():
            compiled = getattr(algorithm.gradients, loss)(batch, weight)
        found = gradients_of(algorithm)
        plain = getattr(algorithm, loss)(batch)
        learned = algorithm.critics.parameters() if loss == "critic_loss" else networks(algorithm)
        skipped = set() if loss == "critic_loss" else set(algorithm.critics.parameters())
        torch.autograd.backward(
            plain.total * weight, inputs=[each for each in learned if each not in skipped]
        )
        torch.testing.assert_close(compiled.metrics(), plain.metrics(), rtol=1e-5, atol=1e-5)
        for mine, expected in zip(found, gradients_of(algorithm), strict=True):
            torch.testing.assert_close(
                mine, expected, rtol=1e-5, atol=1e-5 * (1 + float(expected.abs().max()))
            )


@pytest.mark.parametrize(
    ("name", "actions"),
    [("sac", BOX), ("sac", CHOICES), ("td3", BOX), ("iql", BOX), ("iql", CHOICES)],
    ids=str,
)
def test_they_are_those_of_one_minibatch(name: str, actions: Any) -> None:
    algorithm = learner(name, actions, hidden=(8, 12))
    compare(algorithm, algorithm.minibatch(batch_of(OBS, actions, 130), True), 1.0)


@pytest.mark.parametrize("name", LEARNERS)
def test_they_are_used_of_the_losses_that_they_are_of(name: str) -> None:
    algorithm, config_type = LEARNERS[name]
    assert learner(name, BOX).gradients is not None

    class Other(algorithm):  # type: ignore[misc, valid-type]
        def policy_loss(self, batch: Any) -> Any:
            return super().policy_loss(batch)

    other = Other(config_type(), Problem(OBS, BOX, 1, 100))
    assert other.gradients is None
    assert other.remarks() == [
        f"PyTorch takes the gradient steps: compiled ones are for {name.upper()}'s own policy_loss"
    ]
    assert learner(name, BOX, update_backend="torch").gradients is None
    with pytest.raises(ValueError, match="update_backend compiled is for perceptrons of vectors in fp32"):
        learner(name, BOX, precision="bf16", update_backend="compiled")
    for config in ({"layer_norm": True}, {"precision": "bf16"}, OWN):
        assert learner(name, BOX, **config).gradients is None
    assert learner(name, BOX, IMAGE).gradients is None


@pytest.mark.parametrize("name", LEARNERS)
def test_updates_with_and_without_them_agree(name: str) -> None:
    compiled, plain = (learner(name, BOX, hidden=(8, 8), critics=3, learning_rate=1e-4) for _ in range(2))
    plain.gradients = None
    for seed in range(6):
        errors = [each.update(batch_of(seed=seed), WATCH) for each in (compiled, plain)]
        torch.testing.assert_close(*errors)
    for mine, expected in zip(networks(compiled), networks(plain), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
    metrics = [each.metrics() for each in (compiled, plain)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4) and all(map(math.isfinite, metrics[0].values()))


def arrays(critics: int = 2, rows: int = 4) -> dict[str, Any]:
    """Arguments of `critic_loss` of SAC with one number of actions and linear networks on two numbers."""
    zeros = functools.partial(np.zeros, dtype=np.float32)
    return {
        "critics": zeros(4 * critics),
        "gradient": zeros(4 * critics),
        "td_errors": zeros(rows),
        "obs": zeros((rows, 2)),
        "next_obs": zeros((rows, 2)),
        "actions": zeros((rows, 1)),
        "rewards": zeros(rows),
        "discounts": zeros(rows),
        "asked": [0, 1],
        "policy": zeros(6),
        "targets": zeros(4 * critics),
        "next_noise": zeros((rows, 1)),
    }


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("critics", np.zeros(7, np.float32), r"critics: expected .* shape \(8,\)"),
        ("obs", np.zeros((4, 2)), "obs: expected .* float32"),
        ("asked", [0, 2], r"asked: expected numbers of critics from 0 to 1, got \[0, 2\]"),
        ("asked", [], "asked: expected numbers of critics"),
        ("policy", None, "policy: expected an array"),
        ("next_noise", np.zeros((3, 1), np.float32), r"next_noise: expected .* shape \(4, 1\)"),
    ],
)
def test_wrong_arrays_are_refused(name: str, value: Any, match: str) -> None:
    gradients = OffPolicyGradients("sac", obs_dim=2, hidden=[], critics=2, numbers=1)
    assert gradients.num_parameters == (6, 8, 3)
    given = arrays()
    assert gradients.critic_loss(**given) == (0.0, 0.0)
    with pytest.raises((ValueError, TypeError), match=match):
        gradients.critic_loss(**{**given, name: value})


def test_memory_that_is_written_is_not_shared() -> None:
    gradients, given = OffPolicyGradients("sac", obs_dim=2, hidden=[], critics=2, numbers=1), arrays()
    with pytest.raises(ValueError, match="share memory"):
        gradients.critic_loss(**{**given, "gradient": given["critics"]})


def test_choices_that_are_not_there_are_refused() -> None:
    gradients, given = OffPolicyGradients("iql", obs_dim=2, hidden=[], critics=1, choices=3), arrays()
    given |= {"critics": np.zeros(9, np.float32), "gradient": np.zeros(9, np.float32), "policy": None}
    given |= {"value": np.zeros(3, np.float32), "actions": np.array([0, 1, 3, 2])}
    with pytest.raises(ValueError, match="actions: expected numbers from 0 to 2, got 3"):
        gradients.critic_loss(**given)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"algorithm": "ddpg"}, "algorithm: expected 'sac', 'td3' or 'iql', got 'ddpg'"),
        ({"numbers": 0}, "numbers, choices"),
        ({"choices": 2}, "numbers, choices"),
        ({"algorithm": "td3", "numbers": 0, "choices": 2}, "numbers, choices"),
        ({"hidden": [0]}, "widths of 1 to"),
        ({"obs_dim": 2**17}, "widths of 1 to"),
        ({"critics": 0}, "critics: expected 1 to 1024, got 0"),
    ],
)
def test_shapes_out_of_range_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        OffPolicyGradients(
            **({"algorithm": "sac", "obs_dim": 2, "hidden": [4], "critics": 2, "numbers": 1} | options)
        )
