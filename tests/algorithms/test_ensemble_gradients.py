"""Gradients that are spelled out against automatic differentiation of the losses."""

import math
from typing import Any

import pytest
import torch
from gymnasium.spaces import Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sac import BOX, IMAGE, OBS, OWN, WATCH, batch_of

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
    rows, seed = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 1000))
    experience = batch_of(OBS, actions, rows, seed, masks=4 if masks else 0)
    if masks:
        experience.masks[torch.arange(rows), experience.actions] = True
    batch = algorithm.minibatch(experience, True)
    weight = data.draw(st.sampled_from([1.0, 0.3]))
    for loss in ("critic_loss", "policy_loss"):
        with torch.no_grad():
            spelled_out = getattr(algorithm.gradients, loss)(batch, weight)
        found = gradients_of(algorithm)
        plain = getattr(algorithm, loss)(batch)
        learned = algorithm.critics.parameters() if loss == "critic_loss" else networks(algorithm)
        skipped = set() if loss == "critic_loss" else set(algorithm.critics.parameters())
        torch.autograd.backward(
            plain.total * weight, inputs=[each for each in learned if each not in skipped]
        )
        torch.testing.assert_close(spelled_out.numbers(), plain.numbers(), rtol=1e-5, atol=1e-5)
        for mine, expected in zip(found, gradients_of(algorithm), strict=True):
            torch.testing.assert_close(
                mine, expected, rtol=1e-5, atol=1e-5 * (1 + float(expected.abs().max()))
            )


@pytest.mark.parametrize("name", LEARNERS)
def test_they_are_used_of_the_losses_that_they_are_of(name: str) -> None:
    algorithm, config_type = LEARNERS[name]
    assert learner(name, BOX).gradients is not None

    class Other(algorithm):  # type: ignore[misc, valid-type]
        def policy_loss(self, batch: Any) -> Any:
            return super().policy_loss(batch)

    assert Other(config_type(), Problem(OBS, BOX, 1, 100)).gradients is None
    for config in ({"layer_norm": True}, {"precision": "bf16"}, OWN):
        assert learner(name, BOX, **config).gradients is None
    assert learner(name, BOX, IMAGE).gradients is None


@pytest.mark.parametrize("name", LEARNERS)
def test_updates_with_and_without_them_agree(name: str) -> None:
    spelled_out, plain = (learner(name, BOX, hidden=(8, 8), critics=3, learning_rate=1e-4) for _ in range(2))
    plain.gradients = None
    for seed in range(6):
        errors = [each.update(batch_of(seed=seed), WATCH) for each in (spelled_out, plain)]
        torch.testing.assert_close(*errors)
    for mine, expected in zip(networks(spelled_out), networks(plain), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
    metrics = [each.metrics() for each in (spelled_out, plain)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4) and all(map(math.isfinite, metrics[0].values()))
