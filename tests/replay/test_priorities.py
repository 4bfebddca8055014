"""fastrl._native._priorities: sums and minima against numpy, over magnitudes from 1e-300 to 1e300."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl._native._priorities import Priorities

values = st.one_of(
    st.just(0.0),
    st.floats(0, 10),
    st.floats(1e-300, 1e300),
    st.builds(lambda exponent: 10.0**exponent, st.integers(-300, 300)),
    st.just(5e-324),
)


def put(priorities, indices, new):
    priorities.set(np.array(indices, np.int64), np.array(new, np.float64))


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(1, 700))
def test_is_what_numpy_says(data, capacity):
    priorities, model = Priorities(capacity), np.zeros(capacity)
    for _ in range(data.draw(st.integers(1, 6))):
        batch = data.draw(st.lists(st.tuples(st.integers(0, capacity - 1), values), max_size=30))
        put(priorities, [i for i, _ in batch], [value for _, value in batch])
        for i, value in batch:
            model[i] = value
        assert np.array_equal(priorities.get(np.arange(capacity)), model)
        assert priorities.total == pytest.approx(model.sum(), rel=1e-12, abs=0)
        assert (priorities.total > 0) == (model > 0).any()
        assert priorities.minimum == min(model[model > 0], default=np.inf)
        shares = data.draw(st.lists(st.floats(0, 1, exclude_max=True), max_size=10))
        shares = np.array([*shares, 0.0, np.nextafter(1, 0)])
        if model.any():
            found = priorities.find(shares)
            assert ((found >= 0) & (found < capacity)).all()
            assert (model[found] > 0).all()
            # Its part of the sum, up to rounding.
            ends = np.cumsum(model)
            total, at = ends[-1], shares * ends[-1]
            assert (at <= ends[found] + 1e-12 * total).all()
            assert (at >= ends[found] - model[found] - 1e-12 * total).all()
        else:
            with pytest.raises(ValueError, match="nothing to find"):
                priorities.find(shares)


def test_float32_sums_would_find_what_is_not_there():
    """Ten million tiny ones behind large ones: no share leads past the end or to a priority of 0."""
    priorities = Priorities(100_003)
    at = np.arange(0, 100_000, 2)
    priorities.set(at, np.where(at % 1000, 1e-9, 1e7))
    found = priorities.find(np.append(np.linspace(0, 1, 50_000, endpoint=False), np.nextafter(1, 0)))
    assert found.max() < 100_000
    assert (found % 2 == 0).all()


def test_sums_do_not_drift():
    priorities = Priorities(1000)
    rng = np.random.default_rng(1)
    for _ in range(2000):
        priorities.set(rng.integers(0, 1000, 64), rng.random(64) * 10.0 ** rng.integers(-9, 9))
    priorities.set(np.arange(1000), np.full(1000, 0.125))
    assert priorities.total == 125


def test_is_proportional():
    priorities = Priorities(50)
    weights = np.arange(50.0) ** 2
    priorities.set(np.arange(50), weights)
    counts = np.bincount(priorities.find(np.random.default_rng(2).random(200_000)), minlength=50)
    expected = weights / weights.sum() * 200_000
    chi_square = ((counts - expected)[1:] ** 2 / expected[1:]).sum()
    assert counts[0] == 0
    assert chi_square < 85  # 48 degrees of freedom: 99.9% is 84


def test_of_an_index_that_comes_twice_the_last_value_holds():
    priorities = Priorities(20)
    put(priorities, [3, 4, 3, 3], [1, 2, 5, 7])
    assert priorities.get(np.array([3, 4])).tolist() == [7, 2]
    assert priorities.total == 9


@pytest.mark.parametrize(
    ("indices", "new", "error"),
    [
        ([0, 20], [1.0, 1.0], IndexError),
        ([0, -1], [1.0, 1.0], IndexError),
        ([0, 1], [1.0, np.nan], ValueError),
        ([0, 1], [1.0, np.inf], ValueError),
        ([0, 1], [1.0, -1e-9], ValueError),
        ([0, 1], [1.0, 1.7e308], ValueError),
        ([0, 1], [1.0], ValueError),
        ([[0, 1]], [[1.0, 1.0]], ValueError),
        ([0.0, 1.0], [1.0, 1.0], TypeError),
        ([0, 1], [1, 1], TypeError),
    ],
)
def test_bad_input_changes_nothing(indices, new, error):
    priorities = Priorities(20)
    put(priorities, [0, 1], [3, 4])
    with pytest.raises(error):
        priorities.set(np.array(indices), np.array(new))
    assert priorities.total == 7
    assert priorities.get(np.array([0, 1])).tolist() == [3, 4]


def test_bad_arguments():
    for capacity, error in [(0, ValueError), (-1, ValueError), (1.5, TypeError), (1 << 62, ValueError)]:
        with pytest.raises(error):
            Priorities(capacity)
    priorities = Priorities(3)
    put(priorities, [0], [1])
    for shares in ([1.0], [-0.1], [np.nan]):
        with pytest.raises(ValueError, match="shares"):
            priorities.find(np.array(shares))
    with pytest.raises(TypeError):
        priorities.find(np.array([0]))
    with pytest.raises(ValueError, match="contiguous"):
        priorities.find(np.zeros(4)[::2])
    with pytest.raises(IndexError):
        priorities.get(np.array([3]))
