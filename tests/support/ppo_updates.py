"""Learners of PPO with rollouts of random numbers, and their comparison."""

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.utils.timer import Stopwatch

SPACES = {
    "discrete": Discrete(5),
    "wide": Discrete(37),
    "multi_discrete": MultiDiscrete([3, 1, 4]),
    "multi_discrete of one": MultiDiscrete([4]),
    "box": Box(-1, 1, (3,), np.float32),
}


def learner(backend, kind="discrete", *, obs_dim=6, num_envs=3, total_timesteps=10_000, **config):
    config = {"num_steps": 11, "minibatch_size": 9, "hidden": (16, 12), "learning_rate": 3e-3} | config
    problem = Problem(
        Box(-np.inf, np.inf, (obs_dim,), np.float32), SPACES[kind], num_envs, total_timesteps, seed=3
    )
    return PPO(PPOConfig(update_backend=backend, **config), problem)


def numbers(*shape):
    return Box(-np.inf, np.inf, shape, np.float32)


def table_learner(backend, *, rows=5, width=4, beside=0, actions=17, encoder="pointer", **config):
    """A learner of tables, with some actions on each row.

    Args:
        beside: further numbers of an observation.
        actions: number of them, or their kind.
    """
    config = {"num_steps": 11, "minibatch_size": 9, "hidden": (16, 12), "learning_rate": 3e-3} | config
    obs_space = numbers(rows, width)
    if beside:
        obs_space = Dict({"a table": obs_space, "more": numbers(beside)})
    space = SPACES[actions] if isinstance(actions, str) else Discrete(actions)
    problem = Problem(obs_space, space, 3, 10_000, seed=3)
    return PPO(PPOConfig(update_backend=backend, encoder=encoder, normalize_obs=False, **config), problem)


def draw_tables(rng, shape, rows, distinct):
    """Tables [..., rows * width] of rows that differ, or of so many; a part of them is empty."""
    shape = (*shape[:-1], rows, shape[-1] // rows)
    tables = rng.normal(size=shape)
    if distinct is not None:
        tables = rng.normal(size=(distinct, shape[-1]))[rng.integers(0, distinct, shape[:-1])]
    return (tables * (rng.random((*shape[:-1], 1)) < 0.7)).reshape(*shape[:-2], -1)


def fill(ppo, seed=0, distinct=None):
    """Fills the rollout with numbers; only so many observations, or rows of tables, differ. Log-probabilities are
    nearly the policy's: some ratios are within the clip range and some are not."""
    rng, rollout = np.random.default_rng(seed), ppo.rollout
    obs = rng.normal(size=rollout.obs.shape).astype(np.float32)
    if ppo.config.encoder in ("pointer", "rows"):
        rows, width = ppo.policy.obs_rows.parts[0].shape
        obs[..., : rows * width] = draw_tables(rng, (*obs.shape[:2], rows * width), rows, distinct)
    elif distinct is not None:
        pool = rng.normal(size=(distinct, obs.shape[-1])).astype(np.float32)
        obs = pool[rng.integers(0, distinct, obs.shape[:2])]
    rollout.obs[:] = obs
    for array in (rollout.rewards, rollout.values):
        array[:] = rng.normal(size=array.shape)
    rollout.terminations[:] = rng.random(rollout.terminations.shape) < 0.1
    space = ppo.actions.space
    if isinstance(space, Box):
        rollout.actions[:] = rng.normal(size=rollout.actions.shape)
    else:
        choices = space.nvec if isinstance(space, MultiDiscrete) else space.n
        rollout.actions[:] = rng.integers(0, choices, rollout.actions.shape)
    if rollout.masks is not None:
        rollout.masks[:] = rng.random(rollout.masks.shape) < 0.6
        starts = np.cumsum([0, *ppo.actions.nvec[:-1]])
        taken = rollout.actions.reshape(*rollout.actions.shape[:2], -1)
        np.put_along_axis(rollout.masks[:-1], taken + starts, True, -1)
    rollout.find_groups()
    rollout.log_probs[:] = ppo.log_probs() + 0.2 * rng.normal(size=rollout.log_probs.shape)
    ppo.steps += len(rollout)


def learn(ppo, updates=2, **filling):
    """Metrics of some updates; the second has statistics of observations and moments of Adam."""
    metrics = []
    for seed in range(updates):
        fill(ppo, seed, **filling)
        metrics.append(ppo.learn(Stopwatch()))
    return metrics


def leaves(state):
    return {
        f"{key}/{inner}": value
        for key, inside in state.items()
        for inner, value in (leaves(inside) if isinstance(inside, dict) else {"": inside}).items()
    }


def assert_close(a, b, **tolerance):
    """Their states, moments and generators included."""
    a, b = leaves(a.state_dict()), leaves(b.state_dict())
    assert a.keys() == b.keys()
    for name, value in a.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(
                value, b[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance
            )
        else:
            assert value == b[name], name


def assert_same(a, b):
    assert_close(a, b, rtol=0, atol=0)


def assert_close_metrics(a, b):
    for one, other in zip(a, b, strict=True):
        one, other = vars(one), vars(other)
        assert one.pop("gradient_steps") == other.pop("gradient_steps")
        np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-4, atol=2e-5)
