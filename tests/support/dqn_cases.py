"""Small problems, learners and minibatches for tests of DQN."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import torch

from fastrl.algorithms.dqn import DQN
from fastrl.algorithms.dqn_settings import DQNConfig
from fastrl.algorithms.protocol import Problem
from fastrl.networks.action_space import Actions
from fastrl.utils.timer import Stopwatch

VECTORS = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
IMAGES = gymnasium.spaces.Box(0, 255, (2, 10, 10), np.uint8)
ACTIONS = gymnasium.spaces.Discrete(3)
SMALL = {"hidden": (16, 8), "conv": ("4x3/1", "4x3/2"), "batch_size": 8}
WATCH = Stopwatch()
ALL = {"noisy": True, "batch_norm": True, "target_every": 2, "target_tau": 0.3}


def config(**options):
    return DQNConfig(**(SMALL | options))


def problem(space=VECTORS, actions=ACTIONS, seed=0):
    return Problem(space, actions, num_envs=1, total_timesteps=1, seed=seed)


def learner(space=VECTORS, seed=0, **options):
    return DQN(config(**options), problem(space, seed=seed))


def observations(space, count, seed=0):
    rng = np.random.default_rng(seed)
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (count, *space.shape), np.uint8)
    return rng.normal(size=(count, *space.shape)).astype(np.float32)


def act(dqn, obs, epsilon=0.0):
    """Actions int64 [N] of a learner as it is now, each at the start of an episode of its own."""
    return choose(
        dqn.network.loaded_actor(
            Actions(gymnasium.spaces.Discrete(dqn.network.num_actions)), {"epsilon": epsilon}
        ),
        obs,
    )


def choose(actor, obs, step=0, first=0):
    """Actions int64 [N] at a step of episodes whose streams are `first`, `first` + 1 and so on."""
    actions, log_probs = np.zeros(len(obs), np.int64), np.zeros(len(obs), np.float32)
    streams, steps = np.arange(first, first + len(obs), dtype=np.uint64), np.full(len(obs), step)
    actor.act(obs.reshape(len(obs), -1), streams, steps, actions, log_probs)
    return actions


def batch_of(space=VECTORS, count=8, seed=0, **fields):
    """Transitions as a sampler gives them, a third of them terminated."""
    rng = np.random.default_rng(seed)
    discounts = np.where(rng.random(count) < 1 / 3, 0, 0.9).astype(np.float32)
    arrays = {
        "obs": observations(space, count, 10 * seed + 1),
        "actions": rng.integers(0, 3, count),
        "rewards": rng.normal(size=count).astype(np.float32) * 3,
        "next_obs": observations(space, count, 10 * seed + 2),
        "discounts": discounts,
        "weights": rng.random(count).astype(np.float32),
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return SimpleNamespace(**({"masks": None, "next_masks": None} | tensors | fields))


def part(batch, rows):
    tensors = {name: None if tensor is None else tensor[rows] for name, tensor in vars(batch).items()}
    return SimpleNamespace(**tensors)
