# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Shrinking and greying frames of games. The manual is ``fastrl/_native/_pixels.pyi``."""

import numpy as np

cimport numpy as cnp
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from _arrays cimport output_of

cnp.import_array()

cdef object UINT8 = np.dtype(np.uint8)

# Luma of ITU-R BT.601 in the fixed point of OpenCV's COLOR_RGB2GRAY; the sum is 2**15.
cdef enum:
    RED = 9798
    GREEN = 19235
    BLUE = 3735
    SHIFT = 15


cdef class Shrinker:
    cdef readonly tuple shape
    cdef readonly tuple out_shape
    cdef Py_ssize_t height, width, out_height, out_width
    # The grey frame, and one row of it after the vertical pass.
    cdef uint8_t* grey
    cdef float* row
    # For each row and column of the output: its first pixel, and the weights of its taps.
    cdef Py_ssize_t* row_at
    cdef Py_ssize_t* column_at
    cdef float* row_weights
    cdef float* column_weights
    cdef Py_ssize_t row_taps, column_taps

    def __cinit__(self, shape, out_shape=(84, 84)):
        self.shape, self.out_shape = _size(shape, "shape"), _size(out_shape, "out_shape")
        self.height, self.width = self.shape
        self.out_height, self.out_width = self.out_shape
        self.row_taps = _taps(self.height, self.out_height)
        self.column_taps = _taps(self.width, self.out_width)
        self.grey = <uint8_t*>malloc(self.height * self.width)
        # Longer than a row, because its last taps, of weight 0, may lie beyond its end.
        self.row = <float*>malloc((self.width + self.column_taps) * sizeof(float))
        self.row_at = <Py_ssize_t*>malloc(self.out_height * sizeof(Py_ssize_t))
        self.column_at = <Py_ssize_t*>malloc(self.out_width * sizeof(Py_ssize_t))
        self.row_weights = <float*>malloc(self.out_height * self.row_taps * sizeof(float))
        self.column_weights = <float*>malloc(self.out_width * self.column_taps * sizeof(float))
        if (self.grey == NULL or self.row == NULL or self.row_at == NULL or self.column_at == NULL
                or self.row_weights == NULL or self.column_weights == NULL):
            raise MemoryError(f"no memory to shrink frames of {list(self.shape)} to {list(self.out_shape)}")
        memset(self.row, 0, (self.width + self.column_taps) * sizeof(float))
        _areas(self.height, self.out_height, self.row_taps, self.row_at, self.row_weights)
        _areas(self.width, self.out_width, self.column_taps, self.column_at, self.column_weights)

    def __dealloc__(self):
        free(self.grey)
        free(self.row)
        free(self.row_at)
        free(self.column_at)
        free(self.row_weights)
        free(self.column_weights)

    def __reduce__(self):
        return Shrinker, (self.shape, self.out_shape)

    def shrink(self, frame, out, previous=None):
        self._check(frame, "frame")
        if previous is not None:
            self._check(previous, "previous")
        cdef uint8_t* result = <uint8_t*>output_of(out, "out", UINT8, self.out_shape)
        self._read(frame, False)
        if previous is not None:
            self._read(previous, True)
        with nogil:
            if self.height == self.out_height and self.width == self.out_width:
                memcpy(result, self.grey, self.height * self.width)
            else:
                self._resize(result)

    def _check(self, frame, name):
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8:
            raise TypeError(f"{name} must be a numpy array of uint8, got {getattr(frame, 'dtype', type(frame).__name__)}")
        if frame.shape != self.shape and frame.shape != (*self.shape, 3):
            raise ValueError(
                f"{name} must have shape {list(self.shape)} or {[*self.shape, 3]}, got {list(frame.shape)}"
            )

    cdef _read(self, frame, bint brighter):
        """Writes a frame to ``grey``; with ``brighter`` only the pixels that are brighter than those before."""
        cdef const uint8_t[:, :] flat
        cdef const uint8_t[:, :, :] colours
        cdef Py_ssize_t width = self.width, x, y, step, red, green, blue
        cdef uint8_t* target = self.grey
        cdef const uint8_t* source
        cdef uint8_t value
        if frame.ndim == 2:
            flat = frame
            step = flat.strides[1]
            with nogil:
                for y in range(self.height):
                    source = &flat[y, 0]
                    if step == 1:
                        _take(target, source, width, brighter)
                    else:
                        for x in range(width):
                            value = source[x * step]
                            target[x] = max(target[x], value) if brighter else value
                    target += width
            return
        colours = frame
        step, red = colours.strides[1], 0
        green, blue = colours.strides[2], 2 * colours.strides[2]
        with nogil:
            for y in range(self.height):
                source = &colours[y, 0, 0]
                for x in range(width):
                    value = (
                        source[x * step + red] * RED + source[x * step + green] * GREEN
                        + source[x * step + blue] * BLUE + (1 << (SHIFT - 1))
                    ) >> SHIFT
                    target[x] = max(target[x], value) if brighter else value
                target += width

    cdef void _resize(self, uint8_t* out) noexcept nogil:
        cdef Py_ssize_t width = self.width, i, j, k, x
        cdef const uint8_t* source
        cdef const float* weights
        cdef float weight, total
        for i in range(self.out_height):
            weights = self.row_weights + i * self.row_taps
            for k in range(self.row_taps):
                weight = weights[k]
                if k and weight == 0:
                    break
                source = self.grey + (self.row_at[i] + k) * width
                if k == 0:
                    for x in range(width):
                        self.row[x] = weight * source[x]
                else:
                    for x in range(width):
                        self.row[x] += weight * source[x]
            for j in range(self.out_width):
                weights = self.column_weights + j * self.column_taps
                total = 0.5
                for k in range(self.column_taps):
                    total += weights[k] * self.row[self.column_at[j] + k]
                out[j] = <uint8_t>total
            out += self.out_width


cdef void _take(uint8_t* target, const uint8_t* source, Py_ssize_t count, bint brighter) noexcept nogil:
    cdef Py_ssize_t x
    if not brighter:
        memcpy(target, source, count)
        return
    for x in range(count):
        target[x] = source[x] if source[x] > target[x] else target[x]


cdef Py_ssize_t _taps(Py_ssize_t size, Py_ssize_t out_size):
    """The largest number of input pixels that one output pixel overlaps."""
    return min(size, size // out_size + 2)


cdef void _areas(Py_ssize_t size, Py_ssize_t out_size, Py_ssize_t taps, Py_ssize_t* at, float* weights) noexcept:
    """The share of output pixel i that each input pixel covers; i spans [i, i + 1) * size / out_size."""
    cdef double scale = <double>size / out_size, start, end, share
    cdef Py_ssize_t i, k, first
    for i in range(out_size):
        # In integers, because (i * size) / out_size may round down to another first pixel.
        first = i * size // out_size
        start, end = i * scale, (i + 1) * scale
        at[i] = first
        for k in range(taps):
            share = (min(end, <double>(first + k + 1)) - max(start, <double>(first + k))) / scale
            weights[i * taps + k] = share if share > 1e-9 and first + k < size else 0


def _size(size, name):
    try:
        height, width = size
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be (height, width), got {size!r}") from None
    if not all(isinstance(side, int | np.integer) for side in (height, width)):
        raise TypeError(f"{name} must be two integers, got {size!r}")
    if not (1 <= height <= 1 << 15 and 1 <= width <= 1 << 15):
        raise ValueError(f"{name} must be from 1 to {1 << 15} each way, got {size!r}")
    return int(height), int(width)
