"""Compiled gradient steps in bf16 of PPO, of many agents and of behaviour cloning."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from bfloat16 import round_hidden_layers
from test_compiled_imitation import WATCH, batch_of, gradient_and_parts
from test_compiled_imitation import learner as cloner
from test_compiled_networks import learned, optimizers
from test_compiled_networks import learner as learner_of_many
from test_compiled_update import fill, learner
from torch import Tensor

from fastrl.algorithms.ppo import Minibatch
from fastrl.algorithms.protocol import DatasetBatch

SIZES = [((64, 64), 128), ((33, 7), 128), ((9,), 1), ((), 8)]
# Where gradients are differentiable: a ratio at the end of the range would count or not, by rounding.
WHOLE = {"clip_range": 1e6, "max_grad_norm": 1e9, "normalize_advantages": "none", "minibatch_size": 1000}


def gradient_of(model: Any, rows: slice = slice(None)) -> Tensor:
    """That of PPO's loss in some rows of the rollout of a learner whose policy is in float64."""
    policy, rollout = model.policy, model.rollout
    names = ("actions", "log_probs", "advantages", "returns", "values")
    samples: Any = {name: rollout.flat(name)[rows] for name in names}
    samples |= {name: each.double() for name, each in samples.items() if each.is_floating_point()}
    obs = rollout.flat("obs")[rows].double()
    values, outputs = policy.value(obs), policy.outputs(obs)
    batch = Minibatch(obs, torch.arange(len(obs)), **samples, outputs=outputs, new_values=values)
    gradients = torch.autograd.grad(model.loss(batch).total, list(policy.parameters()))
    return torch.cat([each.flatten() for each in gradients])


def log_probs_of(model: Any) -> Tensor:
    """Log-probabilities of the rollout's actions by a policy in float64 [S]."""
    rollout, policy = model.rollout, model.policy
    with torch.no_grad():
        outputs = policy.outputs(rollout.flat("obs")[: len(rollout)].double())
        found, _ = model.log_probs_and_entropy(outputs, policy.log_std, rollout.flat("actions").double())
    return found


def compiled_gradient(algorithm: Any) -> Tensor:
    """After one step from zero Adam's first moment is a tenth of the gradient."""
    moment: Tensor = algorithm.state_dict()["optimizer"]["adam"]["exp_avg"]
    return moment.double() * 10


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "box"])
@pytest.mark.parametrize(("hidden", "rows"), SIZES)
def test_gradients_against_float64(hidden: tuple[int, ...], rows: int, kind: str, activation: str) -> None:
    """Rounding to bfloat16 changes a number by 2^-9 of it at most. On the way to a gradient each number passes four
    products in hidden layers: two forward, one back, one with the inputs. Each has two rounded factors: 8 * 2^-9 of the
    norm of a row's gradient, and as much again for errors V - R and ratios that are smaller than their parts. A model
    that rounds the same numbers has the same gradients. But where a number lies between two of bfloat16 its last bit of
    float32 decides: that is 2^-8 of it, in one row of 128.
    """
    options = {"num_steps": rows, "num_envs": 1, "num_epochs": 1, "learning_rate": 0.0, **WHOLE}
    ppo, exact, model = (
        learner(backend, kind, hidden=hidden, activation=activation, precision="bf16", **options)
        for backend in ("compiled", "torch", "torch")
    )
    for each in (ppo, exact, model):
        # Logits are about 1.
        each.policy.actor[-1].weight.data *= 50
    fill(ppo)
    ppo.learn(WATCH)
    for each in (exact, model):
        each.rollout, each.entropy_coef = copy.deepcopy(ppo.rollout), ppo.entropy_coef
        each.policy.double()
    round_hidden_layers(model.policy.actor), round_hidden_layers(model.policy.critic)
    if kind == "box":
        # Ratios are of policies that both are rounded.
        model.rollout.flat("log_probs").add_(log_probs_of(model) - log_probs_of(exact))
    of_rows = [gradient_of(exact, slice(i, i + 1)).norm() for i in range(rows)]
    scale, found = float(np.mean(of_rows)), compiled_gradient(ppo)
    error = float((found - gradient_of(exact)).norm()) / scale
    assert error < 16 * 2**-9
    assert float((found - gradient_of(model)).norm()) / scale < 2 * 2**-8 / 128
    assert (error > 1e-4) == bool(hidden)


@pytest.mark.parametrize(
    ("kind", "highest"),
    [("discrete", (8 * 2**-9) ** 2 / 2), ("multi_discrete", (8 * 2**-9) ** 2 / 2), ("box", 1e-5)],
)
def test_a_policy_that_acted_in_fp32_is_about_the_one_that_learns(kind: str, highest: float) -> None:
    """Before the first step ratios of probabilities are next to 1: rounding changes a logit of about 1 by 8 * 2^-9 of
    it at most, and the divergence is half the square of that. Of a mean it is as much of a deviation, here 0.01: ratios
    would be beyond the clip range if log-probabilities were those of the policy that acted."""
    options = {"hidden": (64, 64), "num_epochs": 1, "minibatch_size": 1000, "initial_log_std": -4.6}
    ppo = learner("compiled", kind, precision="bf16", **options)
    ppo.policy.actor[-1].weight.data *= 50
    fill(ppo)
    acted = learner("torch", kind, **options)
    acted.policy.load_state_dict(ppo.policy.state_dict())
    acted.rollout = ppo.rollout
    if kind == "box":
        obs = ppo.rollout.flat("obs")[: len(ppo.rollout)]
        noise = torch.randn((len(obs), 3), generator=torch.Generator().manual_seed(0))
        means = acted.policy.outputs(obs).detach()
        ppo.rollout.flat("actions").copy_(means + 0.01 * noise)
    ppo.rollout.log_probs[:] = acted.log_probs()
    metrics = ppo.learn(WATCH)
    assert metrics.gradient_steps == 1 and metrics.clip_fraction == 0
    assert abs(metrics.approx_kl) < highest


@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.parametrize(("hidden", "rows"), SIZES)
def test_gradients_of_cloning_against_float64(hidden: tuple[int, ...], rows: int, kind: str) -> None:
    """The bounds of a policy alone."""
    bc, model = (
        cloner(backend, kind, hidden=hidden, precision="bf16", max_grad_norm=None)
        for backend in ("compiled", "torch")
    )
    for each in (bc, model):
        each.policy.actor[-1].weight.data *= 50
    batch = batch_of(kind, rows)
    exact, _ = gradient_and_parts(model, batch)
    of_rows = [
        gradient_and_parts(model, DatasetBatch(batch.obs[i : i + 1], batch.actions[i : i + 1]))[0].norm()
        for i in range(rows)
    ]
    bc.update(batch, WATCH)
    scale, found = float(np.mean(of_rows)), compiled_gradient(bc)
    error = float((found - exact).norm()) / scale
    assert error < 16 * 2**-9
    assert (error > 1e-4) == bool(hidden)


@pytest.mark.parametrize("name", ["ippo", "mappo"])
@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_many_agents_learn_with_rounded_factors(name: str, kind: str) -> None:
    """By compiled steps and by PyTorch, which rounds sums of hidden layers, too: Adam's mean of gradients is about that
    of fp32."""
    options = {"learning_rate": 1e-4, "num_epochs": 2, "critic_epochs": 2, "activation": "tanh"}
    fp32, compiled, torchs = (
        learner_of_many(backend, name, kind, precision=precision, **options)
        for backend, precision in (("compiled", "fp32"), ("compiled", "bf16"), ("torch", "bf16"))
    )
    assert torchs.remarks() == compiled.remarks() == []
    found = [learned(each, updates=1)[0] for each in (fp32, compiled, torchs)]
    for name in found[0]:
        assert found[1][name] == pytest.approx(found[0][name], rel=0.05, abs=0.01)
        assert found[2][name] == pytest.approx(found[0][name], rel=0.05, abs=0.01)
    for exact, *others in zip(*map(optimizers, (fp32, compiled, torchs)), strict=True):
        for other in others:
            error = float((other.mean - exact.mean).norm() / exact.mean.norm())
            assert 1e-4 < error < 16 * 2**-9
