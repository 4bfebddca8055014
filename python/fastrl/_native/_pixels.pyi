"""Frames of games, made small and grey, compiled (source: ``cython/_pixels.pyx``)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

@disjoint_base
class Shrinker:
    """Turns frames into small grey ones, with scratch memory of its own: one thread at a time.

    Each pixel of the result is the mean over the area of the frame that it covers, rounded, as OpenCV's
    INTER_AREA has it where it shrinks (at most 1 apart: OpenCV rounds twice). Colours become grey first, by
    the luma of ITU-R BT.601 in the fixed point of OpenCV's COLOR_RGB2GRAY, to the bit. A frame of the
    result's own shape is only made grey. The GIL is released.

    Args:
        shape: (H, W) of the frames.
        out_shape: (h, w) of the results; where it is larger, pixels are repeated, blended at their edges.

    Raises:
        TypeError, ValueError: a shape that is none; each side may be from 1 to 32768.
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
            previous: the frame before, of either form: of both the brighter grey counts, pixel by pixel, which
                shows what old consoles drew in every other frame only (Mnih et al. 2015).

        Raises:
            TypeError: not an array of uint8.
            ValueError: another shape, or ``out`` is read-only or not C-contiguous.
        """
