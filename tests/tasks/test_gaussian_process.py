from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrl.tasks.workflow.gaussian_process import MallowsKernel, PermutationGP
from fastrl.tasks.workflow.orders import kendall_distances

ORDERS = list(permutations(range(5)))


def slow_distance(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return sum(
        (a.index(i) < a.index(j)) != (b.index(i) < b.index(j)) for i, j in combinations(range(len(a)), 2)
    )


@given(st.integers(1, 7).flatmap(lambda k: st.tuples(st.permutations(range(k)), st.permutations(range(k)))))
def test_distance_is_the_number_of_discordant_pairs(pair: tuple[list[int], list[int]]) -> None:
    a, b = map(tuple, pair)
    assert kendall_distances([a], [b]).tolist() == [[slow_distance(a, b)]]


def test_distances_of_all_orders() -> None:
    distances = kendall_distances(ORDERS, ORDERS)
    assert distances.shape == (120, 120)
    assert (distances == distances.T).all()
    assert (distances.diagonal() == 0).all()
    assert kendall_distances([range(5)], [[4, 3, 2, 1, 0]]) == 10


@pytest.mark.parametrize("bad", [[[0, 1, 1]], [[1, 2, 3]], [0, 1, 2], [[0, 1, 3]]])
def test_rows_that_are_not_orders_are_refused(bad: list[object]) -> None:
    with pytest.raises(ValueError, match="orders should be"):
        kendall_distances(bad, [[0, 1, 2]])
    with pytest.raises(ValueError, match="equally many"):
        kendall_distances([[0, 1]], [[0, 1, 2]])


@pytest.mark.parametrize("length_scale", [0.3, 1.0, 3.0, 30.0])
def test_the_kernel_is_positive_definite_on_all_orders(length_scale: float) -> None:
    values = MallowsKernel(length_scale)(ORDERS)
    expected = np.exp([[-slow_distance(a, b) / length_scale for b in ORDERS] for a in ORDERS])
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    assert np.linalg.eigvalsh(values).min() > 0
    np.testing.assert_array_equal(MallowsKernel(length_scale).diag(np.array(ORDERS)), values.diagonal())


@pytest.mark.parametrize("length_scale", [0.5, 3.0, 20.0])
def test_the_gradient_is_that_of_finite_differences(length_scale: float) -> None:
    kernel = MallowsKernel(length_scale)
    values, gradient = kernel(ORDERS[::7], eval_gradient=True)
    np.testing.assert_array_equal(values, kernel(ORDERS[::7]))
    step = 1e-5
    up, down = (kernel.clone_with_theta(kernel.theta + sign * step)(ORDERS[::7]) for sign in (1, -1))
    np.testing.assert_allclose(gradient[:, :, 0], (up - down) / (2 * step), rtol=1e-5, atol=1e-9)


def draw(rng: np.random.Generator, orders: list[tuple[int, ...]], length_scale: float) -> np.ndarray:
    """A function from the prior with deviation 1."""
    distances = np.array([[slow_distance(a, b) for b in orders] for a in orders])
    return np.linalg.cholesky(np.exp(-distances / length_scale)) @ rng.standard_normal(len(orders))


def test_the_posterior_is_the_closed_form() -> None:
    rng = np.random.default_rng(1)
    seen = [ORDERS[i] for i in rng.choice(120, 25, replace=False)]
    errors = rng.uniform(0.5, 2.0, 25)
    values = -60 + 10 * draw(rng, seen, 4.0) + errors * rng.standard_normal(25)
    model = PermutationGP().fit(seen, values, errors)
    mean, deviation = model.predict(ORDERS)

    def covariance(a: list[tuple[int, ...]], b: list[tuple[int, ...]]) -> np.ndarray:
        distances = np.array([[slow_distance(x, y) for y in b] for x in a])
        return model.signal**2 * np.exp(-distances / model.length_scale)

    noisy = covariance(seen, seen) + np.diag(errors**2 + model.noise**2)
    across = covariance(ORDERS, seen)
    expected = values.mean() + across @ np.linalg.solve(noisy, values - values.mean())
    variance = model.signal**2 - (across * np.linalg.solve(noisy, across.T).T).sum(1)
    np.testing.assert_allclose(mean, expected, rtol=1e-6)
    np.testing.assert_allclose(deviation, np.sqrt(variance), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("length_scale", [1.5, 4.0])
def test_the_fit_finds_the_length_scale_of_the_prior(length_scale: float) -> None:
    rng = np.random.default_rng(7)
    found = []
    for _ in range(4):
        values = 5 * draw(rng, ORDERS, length_scale) + 0.5 * rng.standard_normal(120)
        found.append(PermutationGP().fit(ORDERS, values, np.full(120, 0.5)).length_scale)
    assert 0.6 < np.exp(np.mean(np.log(found))) / length_scale < 1.6


def test_the_noise_beyond_the_known_errors_is_fitted() -> None:
    rng = np.random.default_rng(3)
    orders = ORDERS * 2
    values = np.tile(5 * draw(rng, ORDERS, 4.0), 2) + 2.0 * rng.standard_normal(240)
    assert PermutationGP().fit(orders, values, np.zeros(240)).noise == pytest.approx(2.0, rel=0.25)
    assert PermutationGP().fit(orders, values, np.full(240, 2.0)).noise < 1.0


def test_one_value_is_enough_for_a_fit() -> None:
    for values, errors in (([3.0], [0.0]), ([3.0, 3.0], [1.0, 1.0])):
        mean, deviation = PermutationGP().fit(ORDERS[: len(values)], values, errors).predict(ORDERS)
        assert mean[0] == pytest.approx(3.0)
        assert np.isfinite(mean).all() and np.isfinite(deviation).all()
    with pytest.raises(ValueError, match="finite"):
        PermutationGP().fit(ORDERS[:1], [float("nan")], [1.0])
    with pytest.raises(ValueError, match="at least one"):
        PermutationGP().fit([], [], [])
