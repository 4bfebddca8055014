"""fastrl._returns against the obvious loop."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrl import _returns


def slow_gae(rewards, values, terminations, truncations, final_values, last_values, gamma, gae_lambda):
    """One environment and one step at a time, in float64."""
    num_steps, num_envs = rewards.shape
    advantages = np.zeros((num_steps, num_envs))
    for i in range(num_envs):
        advantage_after = 0.0
        value_after = float(last_values[i])
        for t in reversed(range(num_steps)):
            if terminations[t, i]:
                value_after, advantage_after = 0.0, 0.0
            elif truncations[t, i]:
                value_after, advantage_after = float(final_values[t, i]), 0.0
            delta = float(rewards[t, i]) + gamma * value_after - float(values[t, i])
            advantage_after = delta + gamma * gae_lambda * advantage_after
            advantages[t, i] = advantage_after
            value_after = float(values[t, i])
    return advantages, advantages + values


def rollout(num_steps, num_envs, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "rewards": rng.normal(size=(num_steps, num_envs)).astype(np.float32),
        "values": rng.normal(size=(num_steps, num_envs)).astype(np.float32),
        "terminations": rng.random((num_steps, num_envs)) < 0.2,
        "truncations": rng.random((num_steps, num_envs)) < 0.2,
        "final_values": rng.normal(size=(num_steps, num_envs)).astype(np.float32),
        "last_values": rng.normal(size=num_envs).astype(np.float32),
    }


def outputs(num_steps, num_envs):
    return {name: np.full((num_steps, num_envs), np.nan, np.float32) for name in ("advantages", "returns")}


@st.composite
def rollouts(draw):
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, max_side=12))
    numbers = st.floats(-100, 100, width=32)
    return {
        "rewards": draw(hnp.arrays(np.float32, shape, elements=numbers)),
        "values": draw(hnp.arrays(np.float32, shape, elements=numbers)),
        "terminations": draw(hnp.arrays(np.bool_, shape)),
        "truncations": draw(hnp.arrays(np.bool_, shape)),
        "final_values": draw(hnp.arrays(np.float32, shape, elements=numbers)),
        "last_values": draw(hnp.arrays(np.float32, shape[1], elements=numbers)),
    }


@given(rollouts(), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_obvious_loop(arrays, gamma, gae_lambda):
    before = {name: array.copy() for name, array in arrays.items()}
    out = outputs(*arrays["rewards"].shape)
    _returns.gae(**arrays, **out, gamma=gamma, gae_lambda=gae_lambda)
    advantages, returns = slow_gae(**arrays, gamma=gamma, gae_lambda=gae_lambda)
    # Relative to the largest number in the sums, of which rounding to float32 keeps 24 bits.
    scale = max(1.0, np.abs(advantages).max(), np.abs(returns).max())
    assert np.abs(out["advantages"] - advantages).max() <= 1e-6 * scale
    assert np.abs(out["returns"] - returns).max() <= 1e-6 * scale
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name])


def test_a_long_sum_keeps_its_digits():
    """float32 sums of 10,000 steps would be off by 1e-4 and more."""
    num_steps = 10_000
    arrays = rollout(num_steps, 1) | {
        "terminations": np.zeros((num_steps, 1), bool),
        "truncations": np.zeros((num_steps, 1), bool),
    }
    out = outputs(num_steps, 1)
    _returns.gae(**arrays, **out, gamma=1.0, gae_lambda=1.0)
    advantages, _ = slow_gae(**arrays, gamma=1.0, gae_lambda=1.0)
    np.testing.assert_allclose(out["advantages"], advantages, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("terminated", "truncated", "target"),
    [
        (False, False, -1 + 0.9 * 1),  # goes on: the value after the step
        (True, False, -1),  # the true end
        (False, True, -1 + 0.9 * 1),  # cut off: as if it went on, with the value of the true last observation
        (True, True, -1),
    ],
)
def test_truncation_with_a_known_answer(terminated, truncated, target):
    """Reward -1 each step, value 1, lambda 0. Values that must not be read are 100."""
    shape = (3, 2)
    values = np.ones(shape, np.float32)
    terminations, truncations = np.zeros(shape, bool), np.zeros(shape, bool)
    final_values = np.full(shape, 100, np.float32)
    terminations[1], truncations[1] = terminated, truncated
    if truncated and not terminated:
        final_values[1] = 1
        values[2] = 100  # the next episode's first value
    out = outputs(*shape)
    _returns.gae(
        np.full(shape, -1, np.float32),
        values,
        terminations,
        truncations,
        final_values,
        np.ones(2, np.float32),
        **out,
        gamma=0.9,
        gae_lambda=0.0,
    )
    np.testing.assert_allclose(out["returns"][1], target, rtol=1e-6)
    np.testing.assert_allclose(out["advantages"][1], target - 1, rtol=1e-6)


def test_values_that_must_not_be_read_may_be_nan():
    arrays = rollout(20, 7)
    bootstrapped = arrays["truncations"] & ~arrays["terminations"]
    arrays["final_values"][~bootstrapped] = np.nan
    arrays["last_values"][(arrays["terminations"] | arrays["truncations"])[-1]] = np.nan
    out = outputs(20, 7)
    _returns.gae(**arrays, **out, gamma=0.99, gae_lambda=0.95)
    assert np.isfinite(out["advantages"]).all()
    assert np.isfinite(out["returns"]).all()


ARRAYS = [
    "rewards",
    "values",
    "terminations",
    "truncations",
    "final_values",
    "last_values",
    "advantages",
    "returns",
]


def call(**changes):
    arguments = rollout(4, 3) | outputs(4, 3) | {"gamma": 0.99, "gae_lambda": 0.95} | changes
    _returns.gae(**arguments)


@pytest.mark.parametrize("name", ARRAYS)
class TestRefuses:
    def test_lists(self, name):
        with pytest.raises(TypeError, match=f"{name} must be a numpy array, got list"):
            call(**{name: [[1.0, 2.0]]})

    @pytest.mark.parametrize("dtype", [np.float64, np.int32, np.dtype(">f4"), object])
    def test_other_dtypes(self, name, dtype):
        array = np.zeros((rollout(4, 3) | outputs(4, 3))[name].shape, dtype)
        with pytest.raises(TypeError, match=f"{name} must have dtype"):
            call(**{name: array})

    @pytest.mark.parametrize("shape", [(4, 4), (3, 4), (12,), (4, 3, 1), (0, 3), ()])
    def test_other_shapes(self, name, shape):
        array = np.zeros(shape, (rollout(4, 3) | outputs(4, 3))[name].dtype)
        # Rewards say what the shape is, so that another one is found in the next array.
        with pytest.raises(ValueError, match="must have shape"):
            call(**{name: array})

    def test_strides(self, name):
        array = (rollout(4, 3) | outputs(4, 3))[name]
        with pytest.raises(ValueError, match=f"{name} must be C-contiguous"):
            call(**{name: np.repeat(array, 2, axis=0)[::2]})


@pytest.mark.parametrize("name", ["advantages", "returns"])
def test_refuses_read_only_outputs(name):
    array = np.zeros((4, 3), np.float32)
    array.flags.writeable = False
    with pytest.raises(ValueError, match=f"{name} is written to and must not be read-only"):
        call(**{name: array})


@pytest.mark.parametrize("name", ["rewards", "values", "final_values"])
def test_refuses_an_output_that_is_an_input(name):
    array = np.zeros((4, 3), np.float32)
    with pytest.raises(ValueError, match=f"advantages must not share memory with {name}"):
        call(**{name: array, "advantages": array})


def test_refuses_one_array_for_both_outputs():
    array = np.zeros((4, 3), np.float32)
    with pytest.raises(ValueError, match="returns must not share memory with advantages"):
        call(advantages=array, returns=array)


def test_read_only_inputs_are_welcome():
    arrays = rollout(4, 3)
    for array in arrays.values():
        array.flags.writeable = False
    call(**arrays)


@pytest.mark.parametrize("name", ["gamma", "gae_lambda"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_refuses_discounts_outside_0_to_1(name, value):
    with pytest.raises(ValueError, match=rf"{name} must lie in \[0, 1\]"):
        call(**{name: value})
