"""Implicit Q-learning: losses against plain code, the best of recorded actions, resuming."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from test_sac import BOX, OBS, WATCH, acted, actor_of, batch_of

from fastrl.algorithms.iql import IQL, IQLConfig
from fastrl.algorithms.protocol import Problem


def learner(actions: Any = BOX, seed: int = 0, **config: Any) -> IQL:
    settings = IQLConfig(**({"hidden": (8, 8), "batch_size": 6} | config))
    return IQL(settings, Problem(OBS, actions, 1, 100, seed=seed))


@pytest.mark.parametrize("actions", [BOX, Discrete(4)], ids=["box", "discrete"])
def test_losses_are_those_of_plain_code(actions: Any) -> None:
    iql = learner(actions, expectile=0.8, beta=2.0, max_weight=1.5)
    batch, rows = iql.minibatch(batch_of(actions=actions), True), torch.arange(6)
    if isinstance(actions, Discrete):
        best = iql.targets(batch.obs)[:, rows, batch.actions].amin(0)
        costs = -torch.log_softmax(iql.policy(batch.obs), -1)[rows, batch.actions]
    else:
        best = iql.targets(batch.obs, batch.actions).amin(0)
        costs = (iql.policy(batch.obs).tanh() - batch.actions).square().sum(-1)
    # Some actions are to be better than the value, some worse.
    iql.value.body.bias_2.data += (best - iql.value(batch.obs)[0, :, 0].detach()).mean()
    values = iql.value(batch.obs)[0, :, 0]
    advantages = best - values
    assert (advantages > 0).any() and (advantages < 0).any()
    value_loss = ((0.8 - (advantages < 0).float()).abs() * advantages.square()).mean()
    weights = (2 * advantages.detach()).exp().clamp(max=1.5)
    loss = (weights * costs).mean()
    found = iql.policy_loss(batch)
    torch.testing.assert_close(found.total, loss + value_loss)
    torch.testing.assert_close(
        found.metrics(), torch.stack([loss, value_loss, values.mean(), weights.mean()]).detach()
    )
    torch.testing.assert_close(iql.next_values(batch), iql.value(batch.next_obs)[0, :, 0])


def recorded(actions: Any, rng: np.random.Generator, count: int = 64) -> SimpleNamespace:
    """Episodes of one step, three quarters of which play an action with reward 0, the others one with reward 1."""
    is_good = rng.random(count) < 0.25
    taken = (
        np.where(is_good, 2, 1)
        if isinstance(actions, Discrete)
        else np.where(is_good, 0.6, -0.4)[:, None].astype(np.float32)
    )
    obs = rng.normal(size=(count, 3)).astype(np.float32)
    arrays = {
        "obs": obs,
        "actions": taken,
        "rewards": is_good.astype(np.float32),
        "next_obs": obs,
        "discounts": np.zeros(count, np.float32),
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return SimpleNamespace(**tensors, masks=None, next_masks=None)


@pytest.mark.parametrize("beta", [0.0, 10.0])
@pytest.mark.parametrize("actions", [Discrete(4), Box(-1, 1, (1,))], ids=["discrete", "box"])
def test_the_best_recorded_action_is_imitated(actions: Any, beta: float) -> None:
    """With beta 0 it is behaviour cloning, which prefers the action that was recorded most often, or their mean."""
    iql = learner(actions, learning_rate=5e-3, tau=0.1, beta=beta, expectile=0.9)
    rng = np.random.default_rng(0)
    for _ in range(400):
        iql.update(recorded(actions, rng), WATCH)
    obs = rng.normal(size=(50, 3)).astype(np.float32)
    actor = actor_of(iql)
    if isinstance(actions, Discrete):
        chosen = np.zeros(50, np.int64)
        streams = np.arange(50, dtype=np.uint64)
        actor.act(obs, streams, np.zeros(50, np.int64), chosen, np.zeros(50, np.float32), greedy=True)
        assert (chosen == (2 if beta else 1)).mean() > 0.95
    else:
        chosen, _ = acted(actor, obs, 1, greedy=True)
        mean = np.float32(0.6 if beta else 0.6 * 0.25 - 0.4 * 0.75)
        assert abs(np.median(chosen) - mean) < 0.12


def test_a_resumed_learner_ends_with_the_same_parameters() -> None:
    one, other = learner(), learner(seed=5)
    batches = [batch_of(seed=seed) for seed in range(6)]
    for batch in batches[:3]:
        one.update(batch, WATCH)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for batch in batches[3:]:
        one.update(batch, WATCH)
        other.update(batch, WATCH)
    for network in ("value", "policy", "critics", "targets"):
        for mine, theirs in zip(
            getattr(one, network).parameters(), getattr(other, network).parameters(), strict=True
        ):
            assert torch.equal(mine, theirs)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="expectile"):
        IQLConfig(expectile=1.0)
    with pytest.raises(ValueError, match="network_options are for a network of your own"):
        IQLConfig(network_options=("a=1",))
