"""Distances of orders."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Order = Sequence[int]


def kendall_distances(orders: ArrayLike, others: ArrayLike) -> NDArray[np.float64]:
    """Numbers of pairs that two orders order differently, for each of one list with each of another.

    Args:
        orders: int [n, k]; each row has 0 to k - 1 in an order, the first one first.
        others: int [m, k].

    Returns:
        float64 [n, m], whole numbers from 0 (equal) to k (k - 1) / 2 (reversed).

    Raises:
        ValueError: a row is not an order.
    """
    signs, other_signs = _pair_signs(orders), _pair_signs(others)
    if signs.shape[1] != other_signs.shape[1]:
        raise ValueError("orders should be of equally many items")
    # Of signs +1 and -1, agreeing pairs less disagreeing ones.
    return (signs.shape[1] - signs @ other_signs.T) / 2


def _pair_signs(orders: ArrayLike) -> NDArray[np.float64]:
    """Signs of pairs by which of the two comes first: +1 or -1, float64 [n, k (k - 1) / 2]."""
    rows = np.asarray(orders, np.int64)
    if rows.ndim != 2 or not (np.sort(rows, axis=1) == np.arange(rows.shape[1])).all():
        raise ValueError("orders should be rows that have 0 to k - 1 once each")
    places = np.argsort(rows, axis=1)
    first, second = np.triu_indices(rows.shape[1], k=1)
    return np.sign(places[:, second] - places[:, first]).astype(np.float64)
