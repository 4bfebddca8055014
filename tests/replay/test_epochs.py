"""Epochs draw each item once, in orders that a slow model gives, too; rows are copied from parts as from one array."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastrl._native._epochs import EpochSampler, RowParts

WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mixed(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


def slow_order(items: list[int], seed: int, epoch: int) -> list[int]:
    """The order of an epoch, in plain Python."""
    state = mixed((mixed((seed + GOLDEN) & WORD) + epoch) & WORD)
    order = list(items)
    for i in range(len(order) - 1, 0, -1):
        while True:
            state = (state + GOLDEN) & WORD
            product = mixed(state) * (i + 1)
            if product & WORD >= 2**64 % (i + 1):
                break
        j = product >> 64
        order[i], order[j] = order[j], order[i]
    return order


def drawn_from(sampler: EpochSampler, size: int) -> list[int]:
    out = np.empty(size, np.int64)
    return out[: sampler.draw(out)].tolist()


@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=60),
    st.integers(0, WORD),
    st.lists(st.integers(1, 25), min_size=1, max_size=30),
)
def test_each_epoch_has_each_item_once_in_the_order_of_the_slow_model(
    items: list[int], seed: int, sizes: list[int]
) -> None:
    sampler = EpochSampler(np.array(items), seed=seed)
    found: dict[int, list[int]] = {}
    for size in sizes:
        epoch, position = sampler.epoch, sampler.position
        part = drawn_from(sampler, size)
        assert len(part) == min(size, len(items) - position)
        found.setdefault(epoch, []).extend(part)
    for epoch, order in found.items():
        assert order == slow_order(items, seed, epoch)[: len(order)]
        if epoch < sampler.epoch:
            assert Counter(order) == Counter(items)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 100))
def test_a_place_is_found_again(count: int, size: int, steps: int) -> None:
    sampler = EpochSampler(np.arange(count), seed=3)
    for _ in range(steps % 12):
        drawn_from(sampler, size)
    other = EpochSampler(np.arange(count), seed=3)
    other.seek(sampler.epoch, sampler.position)
    assert [drawn_from(sampler, size) for _ in range(9)] == [drawn_from(other, size) for _ in range(9)]


def test_all_orders_are_as_likely() -> None:
    sampler = EpochSampler(np.arange(4), seed=5)
    counts = Counter(tuple(drawn_from(sampler, 4)) for _ in range(24_000))
    assert set(counts) == set(permutations(range(4)))
    # A deviation of 31.6 is that of chance.
    assert max(abs(count - 1000) for count in counts.values()) < 150


def test_bad_arguments_of_a_sampler_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one entry"):
        EpochSampler(np.empty(0, np.int64), seed=0)
    with pytest.raises(TypeError, match="dtype int64"):
        EpochSampler(np.zeros(3, np.int32), seed=0)
    with pytest.raises(ValueError, match="position from 0 to 2"):
        EpochSampler(np.arange(3), seed=0).seek(0, 3)
    with pytest.raises(ValueError, match="seed must be"):
        EpochSampler(np.arange(3), seed=-1)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=9), st.data())
def test_rows_of_parts_are_those_of_one_array(lengths: list[int], data: st.DataObject) -> None:
    generator = np.random.default_rng(len(lengths))
    parts = [generator.integers(0, 255, (length, 3, 2)).astype(np.uint8) for length in lengths]
    whole = np.concatenate(parts)
    rows = RowParts(parts)
    assert (len(rows), rows.shape, rows.dtype) == (len(whole), (3, 2), whole.dtype)
    if not len(whole):
        return
    places = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=20)), np.int64)
    out = np.empty((len(places), 3, 2), np.uint8)
    rows.take_into(places, out)
    np.testing.assert_array_equal(out, whole[places])


def test_bad_rows_are_refused_and_nothing_is_copied() -> None:
    rows = RowParts([np.ones((2, 3), np.float32), np.ones((1, 3), np.float32)])
    out = np.zeros((2, 3), np.float32)
    with pytest.raises(IndexError, match="from 0 to 2, got 3"):
        rows.take_into(np.array([1, 3]), out)
    assert not out.any()
    with pytest.raises(ValueError, match=r"shape \[2, 3\]"):
        rows.take_into(np.array([1, 2]), np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match="parts\\[1\\] must have shape"):
        RowParts([np.ones((2, 3)), np.ones((2, 4))])
