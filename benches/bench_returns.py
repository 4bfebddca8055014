"""Compiled GAE against numpy. Run: ``pytest benches/bench_returns.py -s``."""

import statistics
import time

import numpy as np
import pytest

from fastrl import _returns


def numpy_gae(
    rewards,
    values,
    terminations,
    truncations,
    final_values,
    last_values,
    advantages,
    returns,
    gamma,
    gae_lambda,
):
    """As numpy users write it: a loop over time, whole rows at once."""
    running = np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        next_values = last_values if t == len(rewards) - 1 else values[t + 1]
        bootstrap = np.where(truncations[t], final_values[t], next_values) * ~terminations[t]
        goes_on = ~(terminations[t] | truncations[t])
        running = rewards[t] + gamma * bootstrap - values[t] + gamma * gae_lambda * goes_on * running
        advantages[t] = running
    np.add(advantages, values, out=returns)


def nanoseconds_per_step(function, arrays, repeats=20):
    size = arrays["rewards"].size
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        function(**arrays, gamma=0.99, gae_lambda=0.95)
        times.append((time.perf_counter_ns() - start) / size)
    return statistics.median(times)


@pytest.mark.parametrize(("num_steps", "num_envs"), [(128, 8), (100, 256), (100, 1024), (16, 4096)])
def test_gae_against_numpy(num_steps, num_envs):
    rng = np.random.default_rng(0)
    shape = (num_steps, num_envs)
    arrays = {
        "rewards": rng.normal(size=shape).astype(np.float32),
        "values": rng.normal(size=shape).astype(np.float32),
        "terminations": rng.random(shape) < 0.01,
        "truncations": rng.random(shape) < 0.01,
        "final_values": rng.normal(size=shape).astype(np.float32),
        "last_values": rng.normal(size=num_envs).astype(np.float32),
        "advantages": np.empty(shape, np.float32),
        "returns": np.empty(shape, np.float32),
    }
    slow = nanoseconds_per_step(numpy_gae, arrays)
    expected = arrays["advantages"].copy()
    fast = nanoseconds_per_step(_returns.gae, arrays)
    np.testing.assert_allclose(arrays["advantages"], expected, rtol=1e-4, atol=1e-4)
    print(
        f"\nGAE [{num_steps}, {num_envs}]: compiled {fast:.2f} ns/step, numpy {slow:.2f}, {slow / fast:.1f} x"
    )
