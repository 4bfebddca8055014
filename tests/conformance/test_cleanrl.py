"""Settings converted as ``docs/guides/from-cleanrl.md`` says learn what CleanRL's files learn: beside a plain loop with
the losses of its ``ppo.py``, ``ppo_continuous_action.py`` and ``dqn.py``, from equal weights and experience come equal
parameters after several updates, up to rounding."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from dqn_cases import ACTIONS, VECTORS, batch_of
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from fastrl.algorithms.dqn import DQN
from fastrl.algorithms.dqn_settings import DQNConfig
from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.parameters import generator_of
from fastrl.rollout.fragment import Fragment
from fastrl.utils.timer import Stopwatch

SEED = 5
OBS = Box(-np.inf, np.inf, (4,), np.float32)
STEPS, ENVS, UPDATES, EPOCHS, MINIBATCH = 16, 3, 4, 3, 12
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, NORM, RATE = 0.97, 0.9, 0.1, 0.02, 0.7, 0.3, 1e-3
WATCH = Stopwatch()


pytestmark = pytest.mark.usefixtures("one_thread")


def distribution(network: ActorCritic, obs: Tensor) -> torch.distributions.Distribution:
    outputs = network.outputs(obs)
    if network.log_std is None:
        return torch.distributions.Categorical(logits=outputs)
    return torch.distributions.Independent(torch.distributions.Normal(outputs, network.log_std.exp()), 1)


@torch.no_grad()
def played(network: ActorCritic, seed: int) -> Fragment:
    """Steps in an environment of random observations and rewards, where a sixth of the steps are the last ones."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    obs = rng.normal(size=(STEPS + 1, ENVS, *OBS.shape)).astype(np.float32)
    chosen = distribution(network, torch.from_numpy(obs[:-1]))
    actions = chosen.sample()
    nothing = np.zeros(0, np.int64)
    return Fragment(
        obs=obs,
        actions=actions.numpy(),
        log_probs=chosen.log_prob(actions).numpy(),
        rewards=rng.normal(size=(STEPS, ENVS)).astype(np.float32),
        terminations=rng.random((STEPS, ENVS)) < 1 / 6,
        truncations=np.zeros((STEPS, ENVS), np.bool_),
        final_obs=obs[:-1],
        version=1,
        env_indices=np.arange(ENVS),
        returns=np.zeros(0),
        lengths=nothing,
        episodes=nothing.reshape(0, 2),
    )


def advantages_of(fragment: Fragment, values: Tensor) -> Tensor:
    """Generalised advantage estimates, float32 [T, N]; nothing is bootstrapped where an episode ended."""
    rewards = torch.from_numpy(fragment.rewards)
    goes_on = 1 - torch.from_numpy(fragment.terminations | fragment.truncations).float()
    found, carried = torch.zeros_like(rewards), torch.zeros(ENVS)
    for t in range(STEPS - 1, -1, -1):
        error = rewards[t] + GAMMA * goes_on[t] * values[t + 1] - values[t]
        found[t] = carried = error + GAMMA * LAMBDA * goes_on[t] * carried
    return found


def plain_update(
    network: ActorCritic, adam: torch.optim.Optimizer, fragment: Fragment, shuffling: torch.Generator
) -> None:
    obs = torch.from_numpy(fragment.obs)
    with torch.no_grad():
        old_values = network.value(obs)
    advantages = advantages_of(fragment, old_values)
    returns = (advantages + old_values[:-1]).flatten()
    advantages, old_values, obs = advantages.flatten(), old_values[:-1].flatten(), obs[:-1].flatten(0, 1)
    actions = torch.from_numpy(fragment.actions).flatten(0, 1)
    old_log_probs = torch.from_numpy(fragment.log_probs).flatten()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(obs), generator=shuffling).split(MINIBATCH):
            policy, values = distribution(network, obs[rows]), network.value(obs[rows])
            ratios = (policy.log_prob(actions[rows]) - old_log_probs[rows]).exp()
            gains = advantages[rows]
            gains = (gains - gains.mean()) / (gains.std() + 1e-8)
            surrogate = torch.minimum(ratios * gains, ratios.clamp(1 - CLIP, 1 + CLIP) * gains).mean()
            moved = old_values[rows] + (values - old_values[rows]).clamp(-CLIP, CLIP)
            squares = torch.maximum((values - returns[rows]) ** 2, (moved - returns[rows]) ** 2)
            loss = -surrogate - ENTROPY * policy.entropy().mean() + VALUE * 0.5 * squares.mean()
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), NORM)
            adam.step()


def assert_equal(ours: nn.Module, theirs: nn.Module, before: nn.Module, atol: float) -> None:
    for own, other, start in zip(ours.parameters(), theirs.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(own.detach(), other.detach(), rtol=0, atol=atol)
        assert (own - start).abs().max() > 50 * atol


@pytest.mark.parametrize("backend", ["torch", "compiled"])
@pytest.mark.parametrize("actions", [Discrete(3), Box(-1, 1, (2,), np.float32)], ids=["discrete", "box"])
def test_ppo(actions: Any, backend: Any) -> None:
    config = PPOConfig(
        num_steps=STEPS,
        minibatch_size=MINIBATCH,
        num_epochs=EPOCHS,
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        clip_range=CLIP,
        value_clip=CLIP,
        value_coef=VALUE,
        entropy_coef=ENTROPY,
        final_entropy_coef=ENTROPY,
        learning_rate=RATE,
        final_learning_rate=0.0,
        max_grad_norm=NORM,
        normalize_returns=False,
        normalize_advantages="minibatch",
        hidden=(16, 16),
        activation="tanh",
        update_backend=backend,
    )
    ours = PPO(config, Problem(OBS, actions, ENVS, UPDATES * STEPS * ENVS, seed=SEED))
    assert isinstance(ours.policy, ActorCritic)
    before, theirs = copy.deepcopy(ours.policy), copy.deepcopy(ours.policy)
    for parameter in theirs.parameters():
        parameter.grad = None
    adam = torch.optim.Adam(theirs.parameters(), eps=1e-5)
    shuffling = generator_of(np.random.SeedSequence(SEED).spawn(3)[2])
    for update in range(UPDATES):
        fragment = played(theirs, update)
        adam.param_groups[0]["lr"] = RATE * (1 - update / UPDATES)
        plain_update(theirs, adam, fragment, shuffling)
        ours.update([fragment], WATCH)
    assert_equal(ours.policy, theirs, before, atol=2e-6)


def test_dqn() -> None:
    """CleanRL's loss is the mean square, twice fastrl's: Adam takes the same steps with half the epsilon."""
    config = DQNConfig(
        n_step=1,
        double=False,
        dueling=False,
        huber=None,
        max_grad_norm=None,
        adam_eps=0.5e-8,
        learning_rate=RATE,
        target_every=3,
        batch_size=8,
        hidden=(12, 8),
    )
    ours = DQN(config, Problem(VECTORS, ACTIONS, 1, 12, seed=SEED))
    network = ours.network
    before, theirs, target = (copy.deepcopy(network) for _ in range(3))
    for parameter in theirs.parameters():
        parameter.grad = None
    adam = torch.optim.Adam(theirs.parameters(), lr=RATE)
    for step in range(1, 13):
        batch: SimpleNamespace = batch_of(seed=step, weights=torch.ones(8))
        with torch.no_grad():
            targets = batch.rewards + batch.discounts * target(batch.next_obs).max(1).values
        values = theirs(batch.obs).gather(1, batch.actions.unsqueeze(1)).squeeze(1)
        adam.zero_grad()
        nn.functional.mse_loss(values, targets).backward()
        adam.step()
        if step % 3 == 0:
            target.load_state_dict(theirs.state_dict())
        ours.update(batch, WATCH)
    assert_equal(network, theirs, before, atol=2e-6)
    assert_equal(ours.target, target, before, atol=2e-6)
