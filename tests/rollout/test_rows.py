"""fastrl._native._rows against numpy.unique."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrl._native import _rows

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, max_side=40)


def check(rows):
    before = rows.copy()
    groups = np.full(len(rows), -1)
    first = _rows.group_rows(rows, groups)
    np.testing.assert_array_equal(rows, before)
    np.testing.assert_array_equal(rows[first][groups], rows)
    assert len(first) == len(np.unique(rows, axis=0))
    # Numbered by first appearance.
    assert (np.diff(first) > 0).all()
    np.testing.assert_array_equal(groups[first], np.arange(len(first)))


@given(hnp.arrays(np.uint8, SHAPES, elements=st.integers(0, 1)))
def test_few_different_bytes(rows):
    check(rows)


@given(hnp.arrays(np.float32, SHAPES, elements=st.sampled_from([0.0, 1.0, 2.0])))
def test_few_different_floats(rows):
    check(rows)


@given(hnp.arrays(np.int64, SHAPES))
def test_any_integers(rows):
    check(rows)


@pytest.mark.parametrize("width", [1, 3, 7, 8, 9, 15, 16, 17, 208])
def test_every_byte_counts(width):
    """Rows that differ in one bit alone."""
    rows = np.zeros((8 * width + 1, width), np.uint8)
    for bit in range(8 * width):
        rows[bit + 1, bit // 8] = 1 << bit % 8
    check(rows)


def test_many_rows():
    rng = np.random.default_rng(0)
    check(rng.integers(2, size=(20_000, 52)).astype(np.float32))
    check((rng.random((20_000, 52)) < 0.02).astype(np.float32))
    check(np.arange(20_000).reshape(-1, 1))


def test_zeros_of_either_sign_differ_and_equal_nans_do_not():
    groups = np.empty(4, np.int64)
    first = _rows.group_rows(np.array([[0.0], [-0.0], [np.nan], [np.nan]]), groups)
    assert groups.tolist() == [0, 1, 2, 2]
    assert first.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("rows", "groups", "error", "message"),
    [
        ([[1]], np.empty(1, np.int64), TypeError, "rows must be a numpy array, got list"),
        (np.array([[None]]), np.empty(1, np.int64), TypeError, "got objects"),
        (np.zeros(3), np.empty(3, np.int64), ValueError, r"shape \[M, K\] .* got \[3\]"),
        (np.zeros((0, 3)), np.empty(0, np.int64), ValueError, r"got \[0, 3\]"),
        (np.zeros((3, 0)), np.empty(3, np.int64), ValueError, r"got \[3, 0\]"),
        (np.zeros((3, 4))[:, ::2], np.empty(3, np.int64), ValueError, "rows must be C-contiguous"),
        (
            np.zeros((3, 2)),
            np.empty(3, np.int32),
            TypeError,
            "groups must have dtype int64, got int32",
        ),
        (np.zeros((3, 2)), [0, 0, 0], TypeError, "groups must be a numpy array, got list"),
        (np.zeros((3, 2)), np.empty(4, np.int64), ValueError, r"groups must have shape \[3\], got \[4\]"),
        (np.zeros((3, 2)), np.empty(6, np.int64)[::2], ValueError, "groups must be C-contiguous"),
    ],
)
def test_refuses(rows, groups, error, message):
    with pytest.raises(error, match=message):
        _rows.group_rows(rows, groups)


def test_refuses_read_only_and_overlapping_outputs():
    groups = np.empty(3, np.int64)
    with pytest.raises(ValueError, match="must not share memory"):
        _rows.group_rows(groups.reshape(3, 1), groups)
    groups.flags.writeable = False
    with pytest.raises(ValueError, match="must not be read-only"):
        _rows.group_rows(np.zeros((3, 1)), groups)
