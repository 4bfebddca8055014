"""The compiled gradient steps of behaviour cloning against automatic differentiation of its loss."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import differences

from fastrl._native._rust import PpoUpdate
from fastrl.algorithms.bc import BC, BCConfig
from fastrl.algorithms.imitation_loss import imitation_loss, loss_for
from fastrl.algorithms.imitation_settings import MABCConfig
from fastrl.algorithms.mabc import MABC
from fastrl.algorithms.protocol import DatasetBatch, Problem
from fastrl.utils.timer import Stopwatch

SPACES: dict[str, Space[Any]] = {
    "discrete": Discrete(5),
    "wide": Discrete(37),
    "multi_discrete": MultiDiscrete([3, 1, 4]),
    "multi_discrete of one": MultiDiscrete([4]),
    "box": Box(-1, 1, (3,), np.float32),
}
WATCH = Stopwatch()


def problem_of(kind: str, obs_dim: int, **more: Any) -> Problem:
    return Problem(Box(-np.inf, np.inf, (obs_dim,), np.float32), SPACES[kind], 1, 10_000, seed=3, **more)


def learner(backend: str, kind: str = "discrete", obs_dim: int = 6, **config: Any) -> BC:
    options: dict[str, Any] = {"hidden": (16, 12), "update_backend": backend, "validation": 0.0, **config}
    return BC(BCConfig(**options), problem_of(kind, obs_dim))


def batch_of(kind: str, size: int = 40, obs_dim: int = 6, seed: int = 0) -> DatasetBatch:
    """Observations, and actions that depend on them."""
    rng, space = np.random.default_rng(seed), SPACES[kind]
    obs = rng.normal(size=(size, obs_dim)).astype(np.float32)
    agents = torch.from_numpy(rng.integers(0, 3, size))
    if isinstance(space, Box):
        actions = np.tanh(obs.sum(1, keepdims=True)) + 0.3 * rng.normal(size=(size, *space.shape))
        return DatasetBatch(torch.from_numpy(obs), torch.from_numpy(actions.astype(np.float32)), None, agents)
    places = np.abs(obs).sum(1).astype(np.int64)
    choices: Any = space.n if isinstance(space, Discrete) else space.nvec  # type: ignore[attr-defined]
    actions = places % choices if isinstance(space, Discrete) else places[:, None] % choices
    return DatasetBatch(torch.from_numpy(obs), torch.from_numpy(actions), None, agents)


def gradient_and_parts(bc: BC, batch: DatasetBatch) -> tuple[torch.Tensor, list[float]]:
    """Those of the loss in float64, the gradient of all parameters as one vector."""
    policy, config = copy.deepcopy(bc.policy).double(), bc.config
    loss = imitation_loss(
        policy.outputs(batch.obs.double()),
        policy.log_std,
        batch.actions.double() if bc.actions.is_box else batch.actions,
        name=loss_for(config.loss, bc.actions),
        nvec=tuple(bc.actions.nvec.tolist()),
        label_smoothing=config.label_smoothing,
        entropy_coef=config.entropy_coef,
    )
    loss.total.backward()  # type: ignore[no-untyped-call]
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in policy.parameters()]
    return torch.cat([each.flatten() for each in gradients]), loss.metrics().tolist()


@pytest.mark.parametrize("kind", SPACES)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_they_are_along_the_gradient_of_the_loss(kind: str, data: Any) -> None:
    is_box = isinstance(SPACES[kind], Box)
    obs_dim, size = data.draw(st.integers(1, 19)), data.draw(st.integers(1, 9) | st.integers(100, 300))
    options = {
        "hidden": data.draw(st.lists(st.integers(1, 40), max_size=3).map(tuple)),
        "activation": data.draw(st.sampled_from(["tanh", "relu"])),
        "loss": data.draw(st.sampled_from(["auto", "mse"] if is_box else ["auto"])),
        "label_smoothing": 0.0 if is_box else data.draw(st.sampled_from([0.0, 0.2])),
        "entropy_coef": data.draw(st.sampled_from([0.0, 0.1])),
        "max_grad_norm": None,
    }
    bc, batch = learner("compiled", kind, obs_dim, **options), batch_of(kind, size, obs_dim)
    with torch.no_grad():
        for parameter in bc.policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(size)))
    expected, parts = gradient_and_parts(bc, batch)
    bc.update(batch, WATCH)
    # After one step from zero Adam's first moment is a tenth of the gradient.
    found = bc.state_dict()["optimizer"]["adam"]["exp_avg"].double() * 10
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    metrics = bc.metrics()
    score = "mean_square_error" if is_box else "accuracy"
    assert metrics["grad_norm"] == pytest.approx(float(expected.norm()), rel=1e-5)
    assert [metrics["loss"], metrics[score]] == pytest.approx(parts[:2], rel=1e-5, abs=1e-6)
    if "entropy" in metrics:
        assert metrics["entropy"] == pytest.approx(parts[2], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("max_grad_norm", [0.1, None])
def test_a_policy_learns_what_it_learns_with_pytorch(kind: str, max_grad_norm: float | None) -> None:
    options = {"normalize_obs": True, "learning_rate": 3e-3, "max_grad_norm": max_grad_norm}
    both = [learner(each, kind, **options) for each in ("compiled", "torch")]
    losses = []
    for bc in both:
        bc.prepare([batch_of(kind, 500)])
        for seed in range(100):
            bc.update(batch_of(kind, seed=seed), WATCH)
        losses.append(bc.validate([batch_of(kind, 500, seed=1000)]))
    assert losses[0] == pytest.approx(losses[1], rel=2e-3, abs=2e-3)
    assert both[0].metrics() == pytest.approx(both[1].metrics(), rel=2e-3, abs=2e-3)
    first = learner("torch", kind, **options).validate([batch_of(kind, 500, seed=1000)])
    assert losses[0]["loss"] < first["loss"]


def test_deviations_stay_above_their_bound() -> None:
    bc = learner("compiled", "box", min_log_std=-0.5, learning_rate=0.5)
    for _ in range(20):
        bc.update(batch_of("box"), WATCH)
    assert bc.policy.log_std is not None and bc.policy.log_std.tolist() == [-0.5] * 3


def test_one_backend_resumes_what_the_other_saved() -> None:
    whole, first = learner("compiled"), learner("compiled")
    for seed in range(3):
        for bc in (whole, first):
            bc.update(batch_of("discrete", seed=seed), WATCH)
    then_compiled, then_torch = learner("compiled"), learner("torch")
    for bc in (then_compiled, then_torch):
        bc.load_state_dict(copy.deepcopy(first.state_dict()))
    for bc in (whole, then_compiled, then_torch):
        bc.update(batch_of("discrete", seed=7), WATCH)
    assert differences(whole.state_dict(), then_compiled.state_dict()) == []
    for name, weights in whole.policy.state_dict().items():
        torch.testing.assert_close(then_torch.policy.state_dict()[name], weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_the_number_of_threads_does_not_matter(
    kind: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for threads in (1, 2, 3, 16):
        monkeypatch.setattr("fastrl.algorithms.compiled_imitation.threads", lambda threads=threads: threads)
        bc = learner("compiled", kind, hidden=(128, 128), precision=precision)
        for seed in range(3):
            bc.update(batch_of(kind, 1000, seed=seed), WATCH)
        states.append(bc.state_dict())
    for other in states[1:]:
        assert differences(states[0], other) == []


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("share", [True, False])
def test_policies_of_many_agents(kind: str, share: bool) -> None:
    problem, states = problem_of(kind, 6, num_agents=3), []
    for backend in ("compiled", "torch"):
        config = {"hidden": (16, 12), "validation": 0.0, "learning_rate": 3e-3, "normalize_obs": True}
        mabc = MABC(MABCConfig(share=share, agent_ids=share, update_backend=backend, **config), problem)  # type: ignore[arg-type]
        mabc.prepare([batch_of(kind, 500)])
        for seed in range(20):
            mabc.update(batch_of(kind, seed=seed), WATCH)
        states.append((mabc.metrics(), mabc.state_dict()["actors"]))
    (metrics, actors), (expected, others) = states
    assert metrics == pytest.approx(expected, rel=1e-3, abs=1e-3)
    for name, actor in actors.items():
        assert actor["steps"] == others[name]["steps"] == 20
        for key, weights in actor["weights"].items():
            torch.testing.assert_close(others[name]["weights"][key], weights, rtol=1e-3, atol=1e-3)


class Other(BC):
    """A loss that the compiled steps are not of."""

    def loss(self, batch: Any) -> Any:
        return super().loss(batch)


def test_they_are_taken_where_they_are_those_of_the_loss() -> None:
    assert learner("auto").remarks() == learner("torch").remarks() == []
    for options in ({"layer_norm": True}, {"memory": "gru"}, {"dropout": 0.1}, {"precision": "fp16"}):
        [remark] = learner("auto", **options).remarks()
        assert remark.startswith(
            "PyTorch takes the gradient steps: compiled ones are for separate perceptrons"
        )
        with pytest.raises(ValueError, match="update_backend compiled is for separate perceptrons"):
            learner("compiled", **options)
    [remark] = Other(BCConfig(), problem_of("discrete", 6)).remarks()
    assert remark == "PyTorch takes the gradient steps: compiled ones are for BC's own loss"
    elu = MABCConfig(activation="elu", update_backend="compiled")
    with pytest.raises(ValueError, match="update_backend compiled is for separate perceptrons"):
        MABC(elu, problem_of("discrete", 6, num_agents=2))


def arrays(size: int = 4) -> dict[str, Any]:
    """Arguments of `imitate` of a linear network on two numbers with three actions."""
    return {
        **{name: np.zeros(9, np.float32) for name in ("parameters", "mean", "square")},
        "obs": np.zeros((size, 2), np.float32),
        "actions": np.zeros(size, np.int64),
        "steps": 0,
        "squared": False,
        "label_smoothing": 0.0,
        "entropy_coef": 0.0,
        "max_grad_norm": 1.0,
        "learning_rate": 1e-3,
        "num_threads": 1,
    }


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"parameters": np.zeros(8, np.float32)}, r"parameters: expected .* shape \(9,\)"),
        ({"obs": np.zeros((4, 2))}, "obs: expected .* float32"),
        ({"actions": np.array([0, 1, 3, 2])}, "actions: expected numbers from 0 to 2, got 3"),
        ({"actions": np.array([0, 1, -1, 2])}, "actions: expected numbers from 0 to 2, got -1"),
        (
            {"obs": np.zeros((0, 2), np.float32), "actions": np.zeros(0, np.int64)},
            "expected orders of 0 samples",
        ),
        ({"label_smoothing": 1.5}, "label_smoothing: expected a number from 0 to 1, got 1.5"),
        ({"label_smoothing": float("nan")}, "label_smoothing: expected a number from 0 to 1, got NaN"),
    ],
)
def test_wrong_arguments_are_refused(changes: dict[str, Any], match: str) -> None:
    update, given = PpoUpdate(obs_dim=2, hidden=[], activation="relu", nvec=[3], networks="actor"), arrays()
    with pytest.raises((ValueError, TypeError), match=match):
        update.imitate(**(given | changes))
    assert not given["parameters"].any()
    with pytest.raises(ValueError, match="share memory"):
        update.imitate(**(given | {"mean": given["square"]}))
    both = PpoUpdate(obs_dim=2, hidden=[], activation="relu", nvec=[3])
    with pytest.raises(ValueError, match="imitate: expected networks='actor'"):
        both.imitate(**given)
