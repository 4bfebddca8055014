"""CrossQ: its losses against plain code, statistics, resuming, acting."""

import copy
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from small_runs import assert_same_state
from torch import Tensor

from fastrl.algorithms.crossq import CrossQ
from fastrl.algorithms.off_policy_loss import squashed
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.sac_settings import CrossQConfig
from fastrl.networks.acting_network import saved_actor
from fastrl.utils.timer import Stopwatch

OBS = Box(-1, 1, (3,), np.float32)
IMAGE = Box(0, 255, (12, 12, 3), np.uint8)
BOX = Box(np.float32([-2, 3]), np.float32([0.1, 3.4]))
SMALL = {"hidden": (12, 10), "policy_hidden": (8, 8), "batch_size": 6, "renorm_momentum": 0.2}
WATCH = Stopwatch()
EPSILON = 1e-3


def learner(obs: Any = OBS, seed: int = 0, **config: Any) -> CrossQ:
    return CrossQ(CrossQConfig(**(SMALL | config)), Problem(obs, BOX, 1, 100, seed=seed))


def batch_of(obs: Any = OBS, seed: int = 0, count: int = 6) -> SimpleNamespace:
    """Transitions as a sampler gives them, a third of them terminated."""
    generator = torch.Generator().manual_seed(seed)

    def rows() -> Tensor:
        if obs.dtype == np.uint8:
            return torch.randint(0, 256, (count, *obs.shape), generator=generator, dtype=torch.uint8)
        return torch.randn((count, *obs.shape), generator=generator)

    return SimpleNamespace(
        obs=rows(),
        next_obs=rows() * 2 if obs is OBS else rows(),
        actions=2 * torch.rand((count, 2), generator=generator) - 1,
        rewards=torch.randn(count, generator=generator),
        discounts=0.9 * (torch.rand(count, generator=generator) > 1 / 3),
        masks=None,
        next_masks=None,
    )


def plain(body: Any, x: Tensor, *, of_batch: bool) -> Tensor:
    """Outputs [E, B, outputs] of an ensemble before the warm-up has ended, by the statistics of the batch or the
    running ones."""
    weights, outputs = dict(body.state_dict(keep_vars=True)), []
    for member in range(body.count):
        own = {name: each[member] for name, each in weights.items() if each.dim()}
        h = x
        for i in range(len(body.sizes) - 1):
            mean, std = own[f"renorm_{i}.mean"], own[f"renorm_{i}.std"]
            if of_batch:
                mean, std = h.mean(0), (h.var(0, correction=0) + EPSILON).sqrt()
            h = (h - mean) / std * own[f"renorm_{i}.scale"] + own[f"renorm_{i}.shift"]
            h = h @ own[f"weight_{i}"] + own[f"bias_{i}"]
            h = h.relu() if i < len(body.sizes) - 2 else h
        outputs.append(h)
    return torch.stack(outputs)


def test_losses_are_those_of_plain_code() -> None:
    crossq = learner(temperature=0.7, critics=3)
    for seed in range(4):
        crossq.update(batch_of(seed=seed), WATCH)
    crossq.log_temperature.data.fill_(math.log(0.7))
    batch = crossq.minibatch(batch_of(), True)
    outputs = plain(crossq.policy.body, batch.next_obs, of_batch=False)[0]
    next_a, next_log_pi, _ = squashed(outputs, batch.next_noise)
    pairs = torch.cat([torch.cat([batch.obs, batch.actions], 1), torch.cat([batch.next_obs, next_a], 1)])
    q, next_q = plain(crossq.critics.body, pairs, of_batch=True).squeeze(-1).split(6, 1)
    # Next values are not learned, but the statistics, which they share, are.
    y = batch.rewards + batch.discounts * (next_q.amin(0) - 0.7 * next_log_pi)
    errors = q - y.detach()
    expected = sum(each.square().mean() for each in errors) / 2
    found = crossq.critic_loss(batch)
    torch.testing.assert_close(found.total, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.td_errors, errors.abs().mean(0).detach(), rtol=1e-4, atol=1e-5)
    learned = list(crossq.critics.parameters())
    for one, other in zip(
        torch.autograd.grad(found.total, learned), torch.autograd.grad(expected, learned), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)

    a, log_pi, _ = squashed(plain(crossq.policy.body, batch.obs, of_batch=True)[0], batch.noise)
    values = plain(crossq.critics.body, torch.cat([batch.obs, a], 1), of_batch=False).squeeze(-1)
    expected = (0.7 * log_pi - values.amin(0)).mean()
    temperature_loss = math.log(0.7) * (-log_pi.mean().detach() + 2)
    torch.testing.assert_close(
        crossq.policy_loss(batch).total, expected + temperature_loss, rtol=1e-4, atol=1e-5
    )


def test_statistics_are_of_one_pass_of_critics_and_policy() -> None:
    crossq = learner(policy_every=3)
    assert not hasattr(crossq, "targets") and "targets" not in crossq.state_dict()
    seen = []
    for seed in range(6):
        crossq.update(batch_of(seed=seed), WATCH)
        seen.append([int(network.body.renorms[-1].steps) for network in (crossq.critics, crossq.policy)])
    # The policy learns after each third step of the critics.
    assert seen == [[1, 0], [2, 0], [3, 1], [4, 1], [5, 1], [6, 2]]
    # Reading values and acting leave the statistics as they are.
    before = copy.deepcopy(crossq.state_dict())
    distribution = torch.distributions.Normal(0, 1)
    crossq.critic_values(torch.randn(4, 3), distribution)
    assert_same_state(crossq.state_dict(), before)


def test_the_first_momentum_of_adam_is_that_of_the_settings() -> None:
    """After one step the mean of gradients is (1 - beta1) times the gradient."""
    for beta1 in (0.0, 0.5):
        crossq = learner(adam_beta1=beta1, policy_every=1)
        batch = crossq.minibatch(batch_of(), True)
        gradient = torch.autograd.grad(crossq.critic_loss(batch).total, [*crossq.critics.parameters()])
        again = learner(adam_beta1=beta1, policy_every=1)
        again.update(batch_of(), WATCH)
        mean = again.state_dict()["critic_optimizer"]["adam"]["exp_avg"]
        expected = (1 - beta1) * torch.cat([each.flatten() for each in gradient])
        torch.testing.assert_close(mean, expected, rtol=1e-3, atol=1e-5)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "vectors": (OBS, {}),
    "after the warm-up": (OBS, {"renorm_warmup": 2}),
    "images": (IMAGE, {"precision": "bf16"}),
    "own": (OBS, {"network": "own_networks:Features", "network_options": ("width=12",)}),
}


@pytest.mark.parametrize("case", CASES)
def test_learning_resumes_to_the_bit(case: str) -> None:
    obs, config = CASES[case]
    config = {"policy_every": 2, **config}
    batches = [batch_of(obs, seed=seed) for seed in range(5)]
    straight = learner(obs, **config)
    start = copy.deepcopy(straight.state_dict())
    for batch in batches:
        assert straight.update(batch, WATCH).shape == (6,)
    first, second = learner(obs, **config), learner(obs, seed=5, **config)
    for batch in batches[:3]:
        first.update(batch, WATCH)
    state = copy.deepcopy(first.state_dict())
    second.check_state(second.config, state)
    second.load_state_dict(state)
    for batch in batches[3:]:
        second.update(batch, WATCH)
    after = straight.state_dict()
    assert_same_state(second.state_dict(), after)
    # Each parameter and each statistic has moved.
    pairs = [(start["critics"], after["critics"]), (start["policy"]["weights"], after["policy"]["weights"])]
    for old, new in pairs:
        assert [name for name in old if torch.equal(old[name], new[name])] == []
    metrics = straight.metrics()
    assert metrics["gradient_steps"] == 5 and all(map(math.isfinite, metrics.values()))


@pytest.mark.parametrize("obs", [OBS, IMAGE], ids=["compiled", "torch"])
def test_actors_use_running_statistics(obs: Any) -> None:
    crossq = learner(obs, policy_every=1)
    for seed in range(5):
        crossq.update(batch_of(obs, seed=seed), WATCH)
    rows = batch_of(obs, seed=9).obs.flatten(1)
    with torch.no_grad():
        expected = crossq.policy(rows)[:, :2].tanh()
    actor = crossq.actor_spec()()
    buffer = bytearray(crossq.weights_nbytes)
    crossq.write_weights(buffer)
    actor.load(bytes(buffer))
    for each in (actor, saved_actor(crossq.policy_state(), obs, BOX)):
        actions, log_probs = np.zeros((6, 2), np.float32), np.zeros(6, np.float32)
        streams, steps = np.arange(6, dtype=np.uint64), np.zeros(6, np.int64)
        each.act(rows.numpy(), streams, steps, actions, log_probs, greedy=True)
        np.testing.assert_allclose(actions, expected, atol=1e-5)


def test_a_temperature_of_0_is_fixed() -> None:
    with pytest.raises(ValueError, match="a temperature of 0 cannot be learned"):
        CrossQConfig(temperature=0)
