"""Epochs over a data set, and rows of arrays in parts, compiled (source: ``cython/_epochs.pyx``)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

@disjoint_base
class EpochSampler:
    """Draws items without replacement: each once an epoch, in a new order each epoch.

    The order of an epoch depends on the seed and the number of the epoch alone, and each order is as likely: it is
    Fisher and Yates' shuffle by SplitMix64, with Lemire's unbiased draws.

    Args:
        items: int64 [N], C-contiguous; copied. The orders take as much memory again.
        seed: from 0 to 2**64 - 1.

    Attributes:
        epoch: number of the epoch that the next item is of, from 0 on.
        position: items of it that have been drawn, from 0 to N - 1.

    Raises:
        TypeError: items are no numpy array of int64.
        ValueError: no items, or another seed.
    """

    @property
    def epoch(self) -> int: ...
    @property
    def position(self) -> int: ...
    def __init__(self, items: NDArray[np.int64], *, seed: int) -> None: ...
    def __len__(self) -> int:
        """Number of items, N."""

    def draw(self, out: NDArray[np.int64]) -> int:
        """Writes the next items, at most as many as there are left in the epoch.

        Args:
            out: int64 [B].

        Returns:
            How many.

        Raises:
            TypeError, ValueError: another array, or one that is read-only.
        """

    def seek(self, epoch: int, position: int) -> None:
        """Goes to a place: what is drawn next is what was drawn there.

        Raises:
            ValueError: there is no such place.
        """

@disjoint_base
class RowParts:
    """Arrays one after the other as one, of which rows are copied.

    Args:
        parts: arrays [n, ...] of one dtype without objects and of one shape but for the first axis; C-contiguous. They
            are kept, not copied, and may be mapped from files.

    Attributes:
        num_rows: of all parts.
        dtype, shape: of a row.

    Raises:
        TypeError, ValueError: other parts, or none.
        MemoryError
    """

    @property
    def num_rows(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def __init__(self, parts: Sequence[NDArray[Any]]) -> None: ...
    def __len__(self) -> int:
        """Number of rows."""

    def take_into(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copies rows. The GIL is released.

        Args:
            rows: int64 [B].
            out: [B, ...], of the parts' dtype; shares no memory with them.

        Raises:
            TypeError, ValueError: other arrays.
            IndexError: there is no such row; nothing is copied then.
        """
