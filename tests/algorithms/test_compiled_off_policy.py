"""Compiled gradient steps of SAC, TD3 and IQL against those of PyTorch along the losses."""

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from bfloat16 import RoundedProduct
from gymnasium.spaces import Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from several import together
from test_sac import BOX, IMAGE, OBS, OWN, WATCH, batch_of
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from fastrl._native._rust import OffPolicySteps
from fastrl.algorithms.iql import IQL, IQLConfig
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.sac import SAC
from fastrl.algorithms.sac_settings import SACConfig, TD3Config
from fastrl.algorithms.td3 import TD3

CHOICES = Discrete(4)
KINDS = [("sac", BOX), ("sac", CHOICES), ("td3", BOX), ("iql", BOX), ("iql", CHOICES)]
LEARNERS: dict[str, tuple[Any, Any]] = {
    "sac": (SAC, SACConfig),
    "td3": (TD3, TD3Config),
    "iql": (IQL, IQLConfig),
}
WIDTHS = st.lists(st.integers(1, 9), max_size=3).map(tuple)


def learner(name: str, actions: Any, obs: Any = OBS, seed: int = 0, **config: Any) -> Any:
    algorithm, config_type = LEARNERS[name]
    return algorithm(config_type(**config), Problem(obs, actions, 1, 100, seed=seed))


def both(name: str, actions: Any, **config: Any) -> tuple[Any, Any]:
    """A compiled learner, and one of PyTorch that is the same."""
    pair = [learner(name, actions, update_backend=each, **config) for each in ("compiled", "torch")]
    with torch.no_grad():
        for algorithm in pair:
            for network in algorithm.networks():
                for each in network.parameters():
                    each.mul_(3)  # outputs far from 0
    return pair[0], pair[1]


def tensors(state: dict[str, Any], name: str = "") -> dict[str, torch.Tensor]:
    """The tensors of a nested state, by their names."""
    found = {}
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            found[f"{name}{key}"] = value
        elif isinstance(value, dict):
            found |= tensors(value, f"{name}{key}.")
    return found


def compare(compiled: Any, plain: Any, experience: Any) -> None:
    """Compares a first step at a learning rate of 0, after which moments say what the gradients were."""
    errors = [each.update(experience, WATCH) for each in (compiled, plain)]
    torch.testing.assert_close(*errors, rtol=1e-5, atol=1e-5)
    metrics = [each.metrics() for each in (compiled, plain)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-5, abs=1e-5, nan_ok=True)
    mine, expected = (tensors(each.state_dict()) for each in (compiled, plain))
    assert mine.keys() == expected.keys()
    for name, tensor in mine.items():
        scale = float(expected[name].abs().max())
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6 * (1 + scale))


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.data())
@pytest.mark.parametrize(("name", "actions"), KINDS, ids=str)
def test_gradients_are_those_of_the_losses(name: str, actions: Any, data: Any) -> None:
    config: dict[str, Any] = {"hidden": data.draw(WIDTHS), "critics": data.draw(st.integers(1, 4))}
    if name != "iql":
        config["target_critics"] = data.draw(st.integers(1, config["critics"]))
        config["policy_every"] = data.draw(st.sampled_from([1, 1, 2]))
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
    config["tau"] = data.draw(st.sampled_from([0.005, 0.7, 1.0]))
    pair = both(name, actions, seed=data.draw(st.integers(0, 9)), learning_rate=0.0, **config)
    # Rows go through the networks in blocks of 128.
    rows, seed = data.draw(st.integers(1, 9) | st.integers(120, 300)), data.draw(st.integers(0, 1000))
    experience = batch_of(OBS, actions, rows, seed, masks=4 if masks else 0)
    if masks:
        experience.masks[torch.arange(rows), experience.actions] = True
    compare(*pair, experience)


@pytest.mark.parametrize(("name", "actions"), KINDS, ids=str)
def test_gradients_of_one_minibatch(name: str, actions: Any) -> None:
    every = {} if name == "iql" else {"policy_every": 1}
    compare(*both(name, actions, hidden=(8, 12), learning_rate=0.0, **every), batch_of(OBS, actions, 130))


@pytest.mark.parametrize("name", LEARNERS)
def test_they_are_for_the_losses_that_they_are_of(name: str) -> None:
    algorithm, config_type = LEARNERS[name]
    assert learner(name, BOX).compiled is not None

    class Other(algorithm):  # type: ignore[misc, valid-type]
        def policy_loss(self, batch: Any) -> Any:
            return super().policy_loss(batch)

    other = Other(config_type(), Problem(OBS, BOX, 1, 100))
    assert other.compiled is None
    assert other.remarks() == [
        f"PyTorch takes the gradient steps: compiled ones are for {name.upper()}'s own policy_loss"
    ]
    assert learner(name, BOX, update_backend="torch").compiled is None
    with pytest.raises(ValueError, match="update_backend compiled is for perceptrons of vectors, without"):
        learner(name, BOX, layer_norm=True, update_backend="compiled")
    assert learner(name, BOX, precision="bf16").compiled is not None
    for config in ({"layer_norm": True}, OWN):
        assert learner(name, BOX, **config).compiled is None
    assert learner(name, BOX, IMAGE).compiled is None


@pytest.mark.parametrize(("name", "actions"), KINDS, ids=str)
def test_twenty_steps_are_those_of_pytorch(name: str, actions: Any) -> None:
    compiled, plain = both(name, actions, hidden=(16, 8), critics=3, learning_rate=1e-4, tau=0.05)
    for seed in range(20):
        batch = batch_of(OBS, actions, 40, seed)
        torch.testing.assert_close(
            *(each.update(batch, WATCH) for each in (compiled, plain)), rtol=1e-3, atol=1e-4
        )
    mine, expected = (tensors(each.state_dict()) for each in (compiled, plain))
    for key, tensor in mine.items():
        torch.testing.assert_close(
            tensor, expected[key], rtol=1e-3, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}"
        )
    metrics = [each.metrics() for each in (compiled, plain)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4) and all(map(math.isfinite, metrics[0].values()))


def outputs_of(sizes: tuple[int, ...], count: int, vector: Tensor, x: Tensor, rounds: bool) -> Tensor:
    """Outputs [E, B, outputs] of the perceptrons of an ensemble of E, with the parameters of a vector."""
    x, rest = x.expand(count, *x.shape), vector
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        ends = np.cumsum([count * inputs * outputs, count * outputs]).tolist()
        weight, bias, rest = rest.tensor_split(ends)
        weight, is_last = weight.view(count, inputs, outputs), i == len(sizes) - 2
        product = RoundedProduct.apply(x, weight, i == 0) if rounds and not is_last else x @ weight
        x = product + bias.view(count, 1, outputs)
        x = x if is_last else x.relu()
    return x


def gradients_of_td3(algorithm: Any, batch: Any, rows: slice, rounds: bool = False) -> list[Tensor]:
    """Gradients of the losses of critics and policy in float64, where no next observation counts."""
    q, pi = (parameters_to_vector(each.parameters()) for each in (algorithm.critics, algorithm.policy))
    q, pi = (each.detach().double().requires_grad_() for each in (q, pi))
    obs, taken, rewards = (each[rows].double() for each in (batch.obs, batch.actions, batch.rewards))
    of_critics, of_policy = ((start, *algorithm.config.hidden, end) for start, end in ((5, 1), (3, 2)))
    errors = outputs_of(of_critics, 2, q, torch.cat([obs, taken], 1), rounds)[..., 0] - rewards
    actions = outputs_of(of_policy, 1, pi, obs, rounds)[0].tanh()
    value = outputs_of(of_critics, 2, q.detach(), torch.cat([obs, actions], 1), rounds)[0].mean()
    return [*torch.autograd.grad(errors.square().mean(1).sum() / 2, q), *torch.autograd.grad(-value, pi)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("hidden", "rows"), [((64, 64), 256), ((33, 7), 128), ((9,), 1), ((), 8)])
def test_gradients_against_float64(precision: Any, hidden: tuple[int, ...], rows: int) -> None:
    """Rounding to bfloat16 changes a number by 2^-9 of it at most. On the way to a gradient each number passes four
    products in hidden layers: two forward, one back, one with the inputs. Each has two rounded factors: 8 * 2^-9 of the
    norm of a row's gradient, and as much again for errors Q - r that are smaller than Q. A model that rounds the same
    numbers has the same gradients.
    """
    algorithm = learner("td3", BOX, hidden=hidden, precision=precision, policy_every=1, learning_rate=0.0)
    batch = batch_of(OBS, BOX, rows)
    batch.discounts.zero_()
    exact = gradients_of_td3(algorithm, batch, slice(None))
    model = gradients_of_td3(algorithm, batch, slice(None), rounds=precision == "bf16")
    of_rows = [gradients_of_td3(algorithm, batch, slice(i, i + 1)) for i in range(rows)]
    algorithm.update(batch, WATCH)
    state = algorithm.state_dict()
    for i, name in enumerate(("critic_optimizer", "policy_optimizer")):
        # After one step from zero Adam's first moment is a tenth of the gradient.
        found = state[name]["adam"]["exp_avg"].double() * 10
        scale = float(np.mean([each[i].norm() for each in of_rows]))
        error = float((found - exact[i]).norm()) / scale
        assert error < (16 * 2**-9 if precision == "bf16" else 1e-5)
        # Rows are a power of two in number, so that it does not matter where a mean divides by it.
        assert float((found - model[i]).norm()) / scale < 1e-6
        assert precision == "fp32" or not hidden or error > 1e-4


@pytest.mark.parametrize("name", LEARNERS)
def test_both_take_turns(name: str) -> None:
    compiled, plain = both(name, BOX, hidden=(8,))
    for seed in range(4):
        compiled.update(batch_of(seed=seed), WATCH)
    plain.load_state_dict(compiled.state_dict())
    resumed = learner(name, BOX, hidden=(8,), update_backend="compiled", seed=1)
    resumed.load_state_dict(compiled.state_dict())
    for seed in range(4, 8):
        for each in (compiled, plain, resumed):
            each.update(batch_of(seed=seed), WATCH)
    mine, expected, again = (tensors(each.state_dict()) for each in (compiled, plain, resumed))
    for key, tensor in mine.items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-3, atol=1e-5)
        assert torch.equal(tensor, again[key]), key


@settings(deadline=None, max_examples=10)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    rows=st.sampled_from([7, 300]),
    precision=st.sampled_from(["fp32", "bf16"]),
    num_threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
@pytest.mark.parametrize(("name", "actions"), KINDS, ids=str)
def test_several_steps_in_one_call_are_those_of_as_many_calls(
    name: str, actions: Any, counts: list[int], rows: int, precision: str, num_threads: int, seed: int
) -> None:
    masks = 4 if actions is CHOICES else 0
    config: dict[str, Any] = {"hidden": (64, 64), "precision": precision, "critics": 3}
    if name != "iql":
        config |= {"target_critics": 2 + seed % 2, "policy_every": 1 + seed % 3}
    if masks:
        config["action_masks"] = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastrl.algorithms.compiled_off_policy.threads", lambda: num_threads)
        pair = [learner(name, actions, seed=seed, **config) for _ in range(2)]
    for count in counts:
        batches = [batch_of(OBS, actions, rows, seed + i, masks=masks) for i in range(count)]
        if masks:
            for each in batches:
                each.masks[torch.arange(rows), each.actions] = True
        errors = pair[0].update(together(batches), WATCH)
        assert torch.equal(errors, torch.cat([pair[1].update(each, WATCH) for each in batches]))
    state, expected = (each.state_dict() for each in pair)
    assert state["updates"] == expected["updates"] == sum(counts)
    assert state["summed"] == expected["summed"]
    for key, tensor in tensors(state).items():
        assert torch.equal(tensor, tensors(expected)[key]), key


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("name", "actions"), KINDS, ids=str)
def test_results_do_not_depend_on_threads(
    name: str, actions: Any, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for threads in (1, 2, 3, 16):
        monkeypatch.setattr("fastrl.algorithms.compiled_off_policy.threads", lambda threads=threads: threads)
        algorithm = learner(name, actions, hidden=(64, 64), precision=precision, update_backend="compiled")
        # So many rows that 16 threads pay.
        for seed in range(2):
            algorithm.update(batch_of(OBS, actions, 4003, seed), WATCH)
        states.append(tensors(algorithm.state_dict()))
    for state in states[1:]:
        for key, tensor in states[0].items():
            assert torch.equal(tensor, state[key]), key


def arguments(critics: int = 2, rows: int = 4) -> dict[str, Any]:
    """Arguments of `step` of SAC with one number of actions and linear networks on two numbers."""
    zeros = functools.partial(np.zeros, dtype=np.float32)
    return {
        "critics": (*(zeros(4 * critics) for _ in range(3)), zeros(())),
        "policy": (*(zeros(7) for _ in range(3)), zeros(())),
        "targets": zeros(4 * critics),
        "sums": zeros(6),
        "td_errors": zeros(rows),
        "obs": zeros((rows, 2)),
        "next_obs": zeros((rows, 2)),
        "actions": zeros((rows, 1)),
        "rewards": zeros(rows),
        "discounts": zeros(rows),
        "target_critics": [0, 1],
        "noise": 1,
        "next_noise": 2,
        "learning_rate": 0.1,
        "learns_policy": [True],
    }


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("critics", (np.zeros(7, np.float32),) * 4, r"critics: expected .* shape \(8,\)"),
        ("critics", (np.zeros(8, np.float32),) * 4, r"critics: expected .* shape \(\)"),
        ("critics", (np.zeros(8, np.float32),), "expected a sequence of length 4"),
        ("obs", np.zeros((4, 2)), "obs: expected .* float32"),
        ("rewards", np.zeros(0, np.float32), "rewards: expected those of a transition at least"),
        (
            "target_critics",
            [0, 2],
            r"target_critics: expected numbers of critics from 0 to 1, as many for .* \[0, 2\]",
        ),
        ("target_critics", [], "target_critics: expected numbers of critics"),
        ("learns_policy", [], "learns_policy: expected an item for each minibatch"),
        ("learns_policy", [True] * 3, "in each, got 3 items and 4 transitions"),
        ("learns_policy", [True] * 4, "as many for each minibatch"),
        ("next_noise", None, "next_noise: expected a stream"),
        ("noise", None, "noise: expected a stream"),
    ],
)
def test_wrong_arrays_are_refused(name: str, value: Any, match: str) -> None:
    steps, given = OffPolicySteps("sac", obs_dim=2, hidden=[], critics=2, numbers=1), arguments()
    assert steps.num_parameters == (8, 7)
    steps.step(**given)
    assert given["critics"][3] == given["policy"][3] == 1 and given["sums"][5] == 1
    with pytest.raises((ValueError, TypeError), match=match):
        steps.step(**{**given, name: value})


def test_memory_that_is_written_is_not_shared() -> None:
    steps, given = OffPolicySteps("sac", obs_dim=2, hidden=[], critics=2, numbers=1), arguments()
    with pytest.raises(ValueError, match="share memory"):
        steps.step(**{**given, "targets": given["critics"][0]})


def test_choices_that_are_not_there_are_refused() -> None:
    steps, given = OffPolicySteps("iql", obs_dim=2, hidden=[], critics=1, choices=3), arguments()
    zeros = functools.partial(np.zeros, dtype=np.float32)
    given |= {"critics": (zeros(9), zeros(9), zeros(9), zeros(())), "targets": zeros(9), "sums": zeros(7)}
    given |= {"policy": (zeros(12), zeros(12), zeros(12), zeros(())), "actions": np.array([0, 1, 3, 2])}
    with pytest.raises(ValueError, match="actions: expected numbers from 0 to 2, got 3"):
        steps.step(**given)


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
        ({"target_noise_clip": -1.0}, "target_noise_clip: expected a number from 0 on, got -1"),
    ],
)
def test_shapes_out_of_range_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        OffPolicySteps(
            **({"algorithm": "sac", "obs_dim": 2, "hidden": [4], "critics": 2, "numbers": 1} | options)
        )
