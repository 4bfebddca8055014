"""Grouping equal rows of arrays, compiled (source: ``cython/_rows.pyx``)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

def group_rows(rows: NDArray[Any], groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers the distinct rows of an array in one pass with a hash table. The GIL is released.

    Rows are equal if and only if their bytes are, so 0.0 and -0.0 differ.

    Args:
        rows: [M, K], C-contiguous, of any type but object.
        groups: int64 [M], C-contiguous, overwritten with the number of each row's group: 0 for the first row and those
            equal to it, 1 for the next distinct row, and so on.

    Returns:
        int64 [G], the index of the first row of each group, ascending: ``rows[first][groups]`` is ``rows``.

    Raises:
        TypeError: not an array, or another dtype.
        ValueError: another shape, an empty array, not C-contiguous, or ``groups`` is read-only or overlaps ``rows``.
    """
