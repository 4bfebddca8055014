"""Shrinking and greying frames of games, compiled (source: ``cython/_pixels.pyx``)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

@disjoint_base
class Shrinker:
    """Converts frames to small grey ones. It has scratch memory, so one thread may use it at a time.

    Colours become grey first, by the luma of ITU-R BT.601 in fixed point, to the bit as OpenCV's COLOR_RGB2GRAY. Each
    pixel of the result is then the rounded mean over the area that it covers, as OpenCV's INTER_AREA when it shrinks
    (they differ by at most 1, because OpenCV rounds twice). A frame of the result's shape is only made grey. The GIL is
    released.

    Args:
        shape: (H, W) of the frames.
        out_shape: (h, w) of the results; if it is larger, pixels are repeated and blended at their edges.

    Raises:
        TypeError, ValueError: not a shape; each side may be from 1 to 32768.
    """

    shape: tuple[int, int]
    out_shape: tuple[int, int]

    def __new__(cls, shape: tuple[int, int], out_shape: tuple[int, int] = (84, 84)) -> Shrinker: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
    def shrink(
        self, frame: NDArray[np.uint8], out: NDArray[np.uint8], previous: NDArray[np.uint8] | None = None
    ) -> None:
        """Writes the small grey version of a frame.

        Args:
            frame: uint8 [H, W], or RGB [H, W, 3]; any strides.
            out: uint8 [h, w], C-contiguous, overwritten.
            previous: the frame before, of either form. The result then has the brighter of both greys at each pixel, to
                show objects that old consoles drew only in every other frame (Mnih et al. 2015).

        Raises:
            TypeError: not an array of uint8.
            ValueError: another shape, or ``out`` is read-only or not C-contiguous.
        """
