"""Environment steps a second in cooperative driving on one core, autoresets: ``pytest benches/bench_coop.py -s``."""

import time

import numpy as np
import pytest

from fastrl.envs import make_multi
from results import Case

NUM_ENVS = 64
AGENTS = 15
STEPS = 40
REPEATS = 8


def idle(obs, rng):
    return np.ones(len(obs), np.int64)


def random(obs, rng):
    return rng.integers(5, size=len(obs))


def careful(obs, rng):
    """Keeps its distance: on the highway all agents live to the end, so that every row costs what it can cost."""
    speed, lanes = obs[:, 2] * 40, obs.shape[1] - 61
    seen = obs[:, 5 + lanes :].reshape(len(obs), 8, 7)
    dx, dy, dvx = seen[..., 1] * 150, seen[..., 2] * 12, seen[..., 3] * 40
    ahead = (seen[..., 0] == 1) & (np.abs(dy) < 3) & (dx > 0)
    blocked = (ahead & (dx < 10 + 0.8 * speed[:, None] + 2 * np.maximum(-dvx, 0))).any(axis=1)
    return np.where(blocked, 4, np.where(speed < 22.5, 3, 1))


def measure(env_id, policy):
    """Environment steps per CPU-second in some repeats, and the mean number of agents that acted."""
    env = make_multi(env_id, NUM_ENVS, max_agents=AGENTS, num_threads=1)
    size = NUM_ENVS * AGENTS
    obs, final_obs = np.zeros((2, size, env.single_observation_space.shape[0]), np.float32)
    rewards = np.zeros(size, np.float32)
    terminations, truncations, alive = np.zeros((3, size), np.bool_)
    rng = np.random.default_rng(0)
    env.reset_into(obs, alive, seed=0)
    seconds, acted = [], 0
    for _ in range(REPEATS):
        seconds_used = 0.0
        for _ in range(STEPS):
            actions = policy(obs, rng)
            acted += int(alive.sum())
            start = time.thread_time()
            env.step_into(actions, obs, rewards, terminations, truncations, alive, final_obs)
            seconds_used += time.thread_time() - start
        seconds.append(seconds_used)
    env.close()
    return [NUM_ENVS * STEPS / each for each in seconds], acted / (REPEATS * STEPS * NUM_ENVS)


@pytest.mark.parametrize("env_id", ["fastrl/coop-highway-v0", "fastrl/coop-merge-v0"])
def test_steps_of_environments(env_id, record):
    measured = {policy.__name__: measure(env_id, policy) for policy in (careful, idle, random)}
    rates = {f"fastrl, {name} policy": speeds for name, (speeds, _) in measured.items()}
    acting = ", ".join(f"{acted:.1f} ({name})" for name, (_, acted) in measured.items())
    record(
        "Cooperative driving",
        "environment steps/s",
        [Case(f"{env_id}, {NUM_ENVS} environments", rates)],
        list(rates),
        about=f"One core; of {AGENTS} agents in each environment, those that act are {acting} on average.",
    )
