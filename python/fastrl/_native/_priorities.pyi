"""Sums and minima of many priorities (Schaul et al., "Prioritized Experience Replay", 2016, appendix B.2.1).

A tree whose nodes have eight children, one cache line, in float64; a parent is always summed anew, so nothing drifts.
"""

from typing import Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

@disjoint_base
class Priorities:
    """``capacity`` priorities, all 0 at first: no item.

    ValueError: a capacity below 1.
    """

    def __new__(cls, capacity: int) -> Self: ...
    def __len__(self) -> int: ...
    def set(self, indices: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Sets priorities [N] at indices [N]; of an index that comes twice, the last value holds. 0 takes an item out.

        TypeError: a wrong dtype. ValueError: a wrong shape, a value that is negative, infinite or NaN,
        or so large that the sum of ``capacity`` of them is no float64. IndexError: an index out of range.
        Nothing has changed then.
        """

    def get(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Priorities [N] at indices [N]. IndexError: out of range."""

    @property
    def total(self) -> float:
        """Their sum."""

    @property
    def minimum(self) -> float:
        """The smallest above 0; infinity if there is none."""

    def find(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """The items int64 [N] in whose part of the total each share [N], from 0 up to 1, falls.

        Never one of priority 0. ValueError: a share out of range, or all priorities are 0.
        """
