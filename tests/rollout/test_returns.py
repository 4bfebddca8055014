"""fastrl._native._returns against plain loops."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_returns import (
    slow_discounted_returns,
    slow_gae,
    slow_lambda_returns,
    slow_vtrace,
)

from fastrl._native import _returns


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
def test_gae_matches_the_plain_loop(arrays, gamma, gae_lambda):
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
    return arguments["advantages"]


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
    expected = call(**arrays)
    for array in arrays.values():
        array.flags.writeable = False
    np.testing.assert_array_equal(call(**arrays), expected)


@pytest.mark.parametrize("name", ["gamma", "gae_lambda"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_refuses_discounts_outside_0_to_1(name, value):
    with pytest.raises(ValueError, match=rf"{name} must lie in \[0, 1\]"):
        call(**{name: value})


def without(arrays, *names):
    return {name: array for name, array in arrays.items() if name not in names}


def check(arrays, results, expected):
    """Relative to the largest number in the sums, of which rounding to float32 keeps 24 bits."""
    scale = max(1.0, *(np.abs(array).max() for array in expected))
    for result, right in zip(results, expected, strict=True):
        assert result.dtype == np.float32
        assert np.abs(result - right).max() <= 1e-6 * scale


def untouched(function):
    """Calls it with inputs that must be the same afterwards."""

    def call_with(arrays, out, **options):
        before = {name: array.copy() for name, array in arrays.items()}
        function(**arrays, **out, **options)
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, before[name])

    return call_with


FRACTIONS = st.floats(0, 1)


class TestDiscountedReturns:
    @given(rollouts(), FRACTIONS)
    def test_match_the_plain_loop(self, arrays, gamma):
        out = without(outputs(*arrays["rewards"].shape), "advantages")
        untouched(_returns.discounted_returns)(without(arrays, "values"), out, gamma=gamma)
        check(arrays, [out["returns"]], [slow_discounted_returns(arrays, gamma)])

    def test_known_answer(self):
        """Reward -1 a step. Environment 0 ends after two steps, 1 is cut off there at a value of 10, 2 goes on
        to a value of 20."""
        terminations, truncations = np.zeros((2, 3, 3), bool)
        terminations[1, 0] = truncations[1, 1] = True
        returns = np.empty((3, 3), np.float32)
        _returns.discounted_returns(
            np.full((3, 3), -1, np.float32),
            terminations,
            truncations,
            np.full((3, 3), 10, np.float32),
            np.full(3, 20, np.float32),
            returns,
            gamma=0.5,
        )
        last = -1 + 0.5 * 20
        expected = [[-1.5, -1.5 + 0.25 * 10, -1.75 + 0.125 * 20], [-1, -1 + 0.5 * 10, -1.5 + 0.25 * 20]]
        np.testing.assert_allclose(returns, [*expected, [last] * 3], rtol=1e-6)


class TestLambdaReturns:
    @given(rollouts(), FRACTIONS, FRACTIONS)
    def test_returns_of_gae_are_the_definition(self, arrays, gamma, gae_lambda):
        out = outputs(*arrays["rewards"].shape)
        untouched(_returns.gae)(arrays, out, gamma=gamma, gae_lambda=gae_lambda)
        check(arrays, [out["returns"]], [slow_lambda_returns(arrays, gamma, gae_lambda)])

    def test_with_lambda_1_they_are_discounted_returns(self):
        arrays, out, returns = rollout(20, 3), outputs(20, 3), np.empty((20, 3), np.float32)
        _returns.gae(**arrays, **out, gamma=0.9, gae_lambda=1.0)
        _returns.discounted_returns(**without(arrays, "values"), returns=returns, gamma=0.9)
        np.testing.assert_allclose(out["returns"], returns, rtol=1e-5, atol=1e-5)


class TestVtrace:
    @given(
        rollouts(),
        st.data(),
        FRACTIONS,
        st.floats(0.1, 3),
        st.floats(0.1, 1),
        FRACTIONS,
    )
    def test_is_the_sum_of_the_paper(self, arrays, data, gamma, rho_clip, share, trace_lambda):
        shape = arrays["rewards"].shape
        arrays["log_ratios"] = data.draw(hnp.arrays(np.float32, shape, elements=st.floats(-3, 3, width=32)))
        options = {
            "gamma": gamma,
            "rho_clip": rho_clip,
            "c_clip": share * rho_clip,
            "trace_lambda": trace_lambda,
        }
        out = outputs(*shape)
        untouched(_returns.vtrace)(arrays, out, **options)
        # In float32 the largest of the sums' terms may be larger than all of the results.
        terms = 300 * max(1, rho_clip)
        expected = slow_vtrace(arrays, **options)
        for result, right in zip((out["advantages"], out["returns"]), expected, strict=True):
            assert np.abs(result - right).max() <= 1e-6 * max(terms, np.abs(right).max())

    def test_of_the_same_policy_has_the_returns_of_gae(self):
        arrays, out, expected = rollout(50, 7), outputs(50, 7), outputs(50, 7)
        _returns.vtrace(np.zeros((50, 7), np.float32), **arrays, **out, gamma=0.9, trace_lambda=0.7)
        _returns.gae(**arrays, **expected, gamma=0.9, gae_lambda=0.7)
        np.testing.assert_allclose(out["returns"], expected["returns"], rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        ("ratio", "rho"), [(0.25, 0.25), (1.0, 1.0), (2.0, 1.5), (np.inf, 1.5), (0.0, 0.0)]
    )
    @pytest.mark.parametrize(
        ("terminated", "truncated", "target"),
        [(True, False, -1), (False, True, -1 + 0.9 * 2), (False, False, -1 + 0.9 * 3)],
    )
    def test_known_answer(self, ratio, rho, terminated, truncated, target):
        """One step, reward -1, value 1: both results are the clipped ratio times target - value. Where the
        rollout ends the value of what follows is 2 if cut off, 3 if it goes on."""
        one = np.ones((1, 1), np.float32)
        out = outputs(1, 1)
        with np.errstate(divide="ignore"):
            log_ratios = np.log(np.full((1, 1), ratio, np.float32))
        _returns.vtrace(
            log_ratios,
            -one,
            one,
            one == terminated,
            one == truncated,
            2 * one,
            3 * one[0],
            **out,
            gamma=0.9,
            rho_clip=1.5,
        )
        np.testing.assert_allclose(out["advantages"], rho * (target - 1), rtol=1e-6)
        np.testing.assert_allclose(out["returns"], 1 + rho * (target - 1), rtol=1e-6)

    @pytest.mark.parametrize(
        "clips", [(0.0, 0.0), (1.0, 1.1), (-1.0, -1.0), (float("nan"), 1.0), (1.0, float("nan"))]
    )
    def test_refuses_clips_that_make_no_sense(self, clips):
        rho_clip, c_clip = clips
        with pytest.raises(ValueError, match="0 < c_clip <= rho_clip"):
            _returns.vtrace(
                np.zeros((4, 3), np.float32),
                **rollout(4, 3),
                **outputs(4, 3),
                gamma=0.9,
                rho_clip=rho_clip,
                c_clip=c_clip,
            )

    def test_an_infinite_rho_clip_is_none(self):
        log_ratios, out = np.full((4, 3), np.log(5), np.float32), outputs(4, 3)
        arrays = rollout(4, 3)
        _returns.vtrace(log_ratios, **arrays, **out, gamma=0.9, rho_clip=np.inf, c_clip=1.0)
        expected = slow_vtrace(arrays | {"log_ratios": log_ratios}, 0.9, np.inf, 1.0, 1.0)
        np.testing.assert_allclose(out["returns"], expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("discounted_returns", {}),
        ("vtrace", {}),
    ],
)
def test_other_long_sums_keep_their_digits(name, numbers):
    """All are those of GAE with lambda 1, in which float32 would be off by 1e-4 and more."""
    arrays, expected = rollout(10_000, 1), outputs(10_000, 1)
    for end in ("terminations", "truncations"):
        arrays[end][:] = False
    _returns.gae(**arrays, **expected, gamma=1.0, gae_lambda=1.0)
    arrays["log_ratios"] = np.zeros((10_000, 1), np.float32)
    names, outs, _ = OTHERS[name]
    out = {key: np.empty((10_000, 1), np.float32) for key in outs}
    arrays = without(arrays, *({"values", "log_ratios"} - set(names)))
    getattr(_returns, name)(**arrays, **out, gamma=1.0, **numbers)
    np.testing.assert_allclose(out["returns"], expected["returns"], rtol=1e-6, atol=1e-5)


# Name: its inputs beside rewards, ends and values of ends; its outputs; its numbers.
OTHERS = {
    "discounted_returns": ([], ["returns"], {"gamma": 0.9}),
    "vtrace": (["values", "log_ratios"], ["advantages", "returns"], {"gamma": 0.9, "trace_lambda": 0.8}),
}


def arguments_of(name, num_steps=4, num_envs=3):
    inputs, outs, numbers = OTHERS[name]
    arrays = rollout(num_steps, num_envs)
    arrays["log_ratios"] = arrays["values"] / 2
    unused = {"values", "log_ratios"} - set(inputs)
    out = {n: np.full((num_steps, num_envs), np.nan, np.float32) for n in outs}
    return without(arrays, *unused), out, numbers


def call_other(name, **changes):
    arrays, out, numbers = arguments_of(name)
    getattr(_returns, name)(**(arrays | out | numbers | changes))


EACH_ARRAY = [
    (name, array) for name in OTHERS for array in {**arguments_of(name)[0], **arguments_of(name)[1]}
]


class TestOthersRefuse:
    @pytest.mark.parametrize(("name", "array"), EACH_ARRAY)
    def test_what_does_not_fit(self, name, array):
        arrays, out, _ = arguments_of(name)
        good = (arrays | out)[array]
        with pytest.raises(TypeError, match=f"{array} must be a numpy array, got list"):
            call_other(name, **{array: good.tolist()})
        for dtype in (np.float64, np.int32, np.dtype(">f4"), object):
            with pytest.raises(TypeError, match=f"{array} must have dtype"):
                call_other(name, **{array: np.zeros(good.shape, dtype)})
        for shape in [(5, 3), (4, 4), (12,), (4, 3, 1), (0, 3), ()]:
            with pytest.raises(ValueError, match="must have shape"):
                call_other(name, **{array: np.zeros(shape, good.dtype)})
        with pytest.raises(ValueError, match=f"{array} must be C-contiguous"):
            call_other(name, **{array: np.repeat(good, 2, axis=0)[::2]})
        unaligned = np.zeros(good.nbytes + 1, np.uint8)[1:].view(good.dtype).reshape(good.shape)
        if good.dtype != np.bool_:
            with pytest.raises(ValueError, match=f"{array} must be aligned"):
                call_other(name, **{array: unaligned})

    @pytest.mark.parametrize("name", OTHERS)
    def test_outputs_that_are_inputs_or_read_only(self, name):
        arrays, out, _ = arguments_of(name)
        for output in out:
            frozen = np.zeros((4, 3), np.float32)
            frozen.flags.writeable = False
            with pytest.raises(ValueError, match=f"{output} is written to and must not be read-only"):
                call_other(name, **{output: frozen})
            for array in arrays:
                if arrays[array].dtype == np.float32 and arrays[array].ndim == 2:
                    with pytest.raises(ValueError, match=f"{output} must not share memory with {array}"):
                        call_other(name, **{output: arrays[array], array: arrays[array]})

    @pytest.mark.parametrize(
        ("name", "number"),
        [(name, number) for name in OTHERS for number in OTHERS[name][2]],
    )
    @pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
    def test_numbers_outside_0_to_1(self, name, number, value):
        with pytest.raises(ValueError, match=rf"{number} must lie in \[0, 1\]"):
            call_other(name, **{number: value})

    def test_one_array_for_both_outputs_of_vtrace(self):
        array = np.zeros((4, 3), np.float32)
        with pytest.raises(ValueError, match="returns must not share memory with advantages"):
            call_other("vtrace", advantages=array, returns=array)


@pytest.mark.parametrize("name", OTHERS)
def test_others_ignore_values_that_must_not_be_read(name):
    arrays, out, numbers = arguments_of(name, 20, 7)
    ended = arrays["terminations"] | arrays["truncations"]
    arrays["final_values"][~arrays["truncations"] | arrays["terminations"]] = np.nan
    arrays["last_values"][ended[-1]] = np.nan
    getattr(_returns, name)(**arrays, **out, **numbers)
    assert all(np.isfinite(array).all() for array in out.values())


@pytest.mark.parametrize("name", OTHERS)
def test_others_write_every_element_and_take_read_only_inputs(name):
    arrays, out, numbers = arguments_of(name, 1, 1)
    for array in arrays.values():
        array.flags.writeable = False
    getattr(_returns, name)(**arrays, **out, **numbers)
    assert all(np.isfinite(array).all() for array in out.values())
