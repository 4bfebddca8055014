"""fastrl.algorithms.dqn with fastrl.replay learns known values, and fails to with known defects."""

import dataclasses

import gymnasium
import numpy as np
import pytest
import torch
from dqn_cases import choose

from fastrl.algorithms.dqn import DQN
from fastrl.algorithms.dqn_settings import DQNConfig
from fastrl.algorithms.protocol import Problem
from fastrl.replay import PrioritizedSampler, Replay, UniformSampler
from fastrl.replay.prefetch import Prefetcher
from fastrl.utils.timer import Stopwatch

pytestmark = pytest.mark.learning

STATES, GAMMA = 6, 0.9
TAKE, NEXT, WAIT = range(3)


class Chain:
    """A row of states. TAKE ends the episode with 0.3. NEXT moves to the next state, and from the last one ends
    the episode with 1. WAIT stays. After ``limit`` steps the episode is cut off, which is no end of the task: what
    follows is worth what it is worth. Episodes begin anywhere."""

    limit = 3

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.state, self.steps = int(self.rng.integers(STATES)), 0

    def observe(self):
        return np.eye(STATES, dtype=np.float32)[self.state]

    def step(self, action):
        self.steps += 1
        terminated = action == TAKE or (action == NEXT and self.state == STATES - 1)
        reward = 0.3 if action == TAKE else float(terminated)
        if action == NEXT and not terminated:
            self.state += 1
        return self.observe(), reward, terminated, self.steps == self.limit and not terminated


def optimal_values():
    """The optimal values by hand, [STATES, 3]: NEXT is best in the states that are near enough to the final reward."""
    best = np.maximum(GAMMA ** (STATES - 1 - np.arange(STATES)), 0.3)
    go_on = np.append(GAMMA * best[1:], 1.0)
    return np.stack([np.full(STATES, 0.3), go_on, GAMMA * best], 1)


CONFIG = DQNConfig(
    gamma=GAMMA,
    n_step=1,
    hidden=(32,),
    batch_size=64,
    learning_rate=3e-3,
    target_every=25,
    epsilon=1.0,
    final_epsilon=1.0,
)


def largest_error(config, steps=2_000, prefetch=False, change=lambda batch: None):
    """Learns from random actions; returns the largest final error of the values.

    Args:
        change: done to each batch.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    env = Chain(seed=1)
    obs_space = gymnasium.spaces.Box(0, 1, (STATES,), np.float32)
    problem = Problem(obs_space, gymnasium.spaces.Discrete(3), num_envs=1, total_timesteps=steps, seed=2)
    dqn, watch = DQN(config, problem), Stopwatch()
    actor, weights = dqn.actor_spec()(), bytearray(dqn.weights_nbytes)
    replay = Replay(2_000, (STATES,), np.float32)
    options = {"n_step": config.n_step, "gamma": config.gamma, "seed": 3}
    if config.prioritized:
        sampler = PrioritizedSampler(replay, config.batch_size, alpha=config.alpha, **options)
    else:
        sampler = UniformSampler(replay, config.batch_size, **options)
    source = Prefetcher(sampler) if prefetch else sampler
    for step in range(steps):
        obs = env.observe()
        dqn.steps = step
        dqn.write_weights(weights)
        actor.load(weights)
        action = choose(actor, obs[None], step)[0]
        after, reward, terminated, truncated = env.step(action)
        replay.add(obs, action, reward, after, terminated, truncated)
        if terminated or truncated:
            env.reset()
        if step >= 500:
            batch = source.sample()
            change(batch)
            errors = dqn.update(batch, watch)
            if config.prioritized:
                source.update_priorities(batch.indices, errors)
    if prefetch:
        source.close()
    dqn.network.clear_noise()
    with torch.no_grad():
        values = dqn.network(torch.eye(STATES))
    torch.set_num_threads(threads)
    return np.abs(values.numpy() - optimal_values()).max()


GOOD, BAD = 0.06, 0.15


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"double": False, "dueling": False},
        {"target_every": 1, "target_tau": 0.05},
        {"prioritized": True},
        {"quantiles": 8},
        {"batch_size": 16, "accumulate": 4, "learning_rate": 8e-3},
        {"huber": None, "precision": "bf16"},
    ],
    ids=str,
)
def test_finds_the_optimal_values(options):
    assert largest_error(dataclasses.replace(CONFIG, **options)) < GOOD


def test_finds_them_with_noise_only():
    config = dataclasses.replace(CONFIG, noisy=True, noisy_sigma=1.0)
    assert largest_error(config) < 2 * GOOD


def test_finds_them_with_prefetched_batches():
    assert largest_error(CONFIG, prefetch=True) < GOOD


class TestBrokenLearnersFail:
    """The tests above fail for learners with known defects."""

    def test_no_bootstrap(self):
        assert largest_error(CONFIG, change=lambda batch: batch.discounts.zero_()) > BAD

    def test_bootstrap_at_the_true_end(self):
        assert largest_error(CONFIG, change=lambda batch: batch.discounts.fill_(GAMMA)) > BAD

    def test_no_bootstrap_at_truncations(self):
        def change(batch):
            batch.discounts[batch.truncated] = 0

        assert largest_error(CONFIG, change=change) > BAD

    def test_a_target_network_that_is_never_updated(self):
        assert largest_error(dataclasses.replace(CONFIG, target_every=10**9)) > BAD

    def test_actions_of_other_transitions(self):
        assert largest_error(CONFIG, change=lambda batch: batch.actions.copy_(batch.actions.roll(1))) > BAD

    def test_next_observations_that_are_the_current_ones(self):
        assert largest_error(CONFIG, change=lambda batch: batch.next_obs.copy_(batch.obs)) > BAD
