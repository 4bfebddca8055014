"""Compiled returns and advantages against numpy. Run: ``pytest benches/bench_returns.py -s``."""

import functools
import inspect
import time

import numpy as np
import pytest

from fastrl._native import _returns
from results import Case
from rounds import measure_in_turns

SHAPES = [(128, 8), (100, 256), (100, 1024), (16, 4096)]
REPEATS = 20


# The same in plain numpy: a loop over time, whole rows at once.


def after(arrays, t, continues):
    """The value after row t."""
    return (
        np.where(arrays["truncations"][t], arrays["final_values"][t], continues) * ~arrays["terminations"][t]
    )


def next_values(arrays, t):
    return arrays["last_values"] if t == len(arrays["rewards"]) - 1 else arrays["values"][t + 1]


def numpy_gae(arrays, advantages, returns, gamma, gae_lambda):
    rewards, values = arrays["rewards"], arrays["values"]
    running = np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        continues = ~(arrays["terminations"][t] | arrays["truncations"][t])
        delta = rewards[t] + gamma * after(arrays, t, next_values(arrays, t)) - values[t]
        running = delta + gamma * gae_lambda * continues * running
        advantages[t] = running
    np.add(advantages, values, out=returns)


def numpy_discounted_returns(arrays, returns, gamma):
    running = arrays["last_values"].astype(np.float64)
    for t in reversed(range(len(arrays["rewards"]))):
        running = arrays["rewards"][t] + gamma * after(arrays, t, running)
        returns[t] = running


def numpy_vtrace(arrays, advantages, returns, gamma):
    rewards, values = arrays["rewards"], arrays["values"]
    ratios = np.exp(arrays["log_ratios"].astype(np.float64))
    clipped = np.minimum(ratios, 1)
    running = np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        correction = ~(arrays["terminations"][t] | arrays["truncations"][t]) * running
        follows = after(arrays, t, next_values(arrays, t))
        advantages[t] = clipped[t] * (rewards[t] + gamma * (follows + correction) - values[t])
        delta = clipped[t] * (rewards[t] + gamma * follows - values[t])
        running = delta + gamma * clipped[t] * correction
        returns[t] = running + values[t]


FUNCTIONS = {
    "gae": (numpy_gae, {"gamma": 0.99, "gae_lambda": 0.95}),
    "discounted_returns": (numpy_discounted_returns, {"gamma": 0.99}),
    "vtrace": (numpy_vtrace, {"gamma": 0.99}),
}


def rollout(shape):
    rng = np.random.default_rng(0)
    return {
        "rewards": rng.normal(size=shape).astype(np.float32),
        "values": rng.normal(size=shape).astype(np.float32),
        "log_ratios": rng.normal(size=shape).astype(np.float32) / 3,
        "terminations": rng.random(shape) < 0.01,
        "truncations": rng.random(shape) < 0.01,
        "final_values": rng.normal(size=shape).astype(np.float32),
        "last_values": rng.normal(size=shape[1]).astype(np.float32),
    }


def steps_per_second(function, size):
    start = time.perf_counter()
    function()
    return size / (time.perf_counter() - start)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_against_numpy(name, record):
    slow, numbers = FUNCTIONS[name]
    fast = getattr(_returns, name)
    cases = []
    for shape in SHAPES:
        everything = rollout(shape)
        arrays = {key: everything[key] for key in inspect.signature(fast).parameters if key in everything}
        names = [key for key in ("advantages", "returns") if key in inspect.signature(fast).parameters]
        expected, results = ({key: np.empty(shape, np.float32) for key in names} for _ in range(2))
        calls = {
            "fastrl": functools.partial(fast, **arrays, **results, **numbers),
            "numpy": functools.partial(slow, everything, **expected, **numbers),
        }
        measures = {
            each: functools.partial(steps_per_second, call, shape[0] * shape[1])
            for each, call in calls.items()
        }
        rates = measure_in_turns(measures, REPEATS)
        for key in names:
            np.testing.assert_allclose(results[key], expected[key], rtol=1e-4, atol=1e-4)
        cases.append(Case(f"{name}, {shape[0]} steps of {shape[1]} environments", rates))
    record("Returns and advantages", "steps/s", cases, ["fastrl"])
