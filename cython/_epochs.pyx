# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True, auto_pickle=False
"""Epochs over a data set, and rows of arrays in parts. The manual is ``fastrl/_native/_epochs.pyi``."""

import numpy as np

cimport numpy as cnp
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from _arrays cimport data_of, output_of

cnp.import_array()

cdef extern from *:
    ctypedef unsigned long long uint128_t "unsigned __int128"

cdef object INT64 = np.dtype(np.int64)


cdef inline uint64_t _mixed(uint64_t x) noexcept nogil:
    """The output function of SplitMix64 (Steele, Lea and Flood, 2014)."""
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


cdef inline uint64_t _next(uint64_t* state) noexcept nogil:
    state[0] += <uint64_t>0x9E3779B97F4A7C15
    return _mixed(state[0])


cdef inline uint64_t _below(uint64_t* state, uint64_t bound) noexcept nogil:
    """Uniform in [0, bound), nearly always without a division; draws that would make some numbers likelier are drawn
    again (Lemire, "Fast random integer generation in an interval", 2019)."""
    cdef uint128_t product = <uint128_t>_next(state) * bound
    cdef uint64_t surplus
    if <uint64_t>product < bound:
        # 2**64 modulo bound.
        surplus = (0 - bound) % bound
        while <uint64_t>product < surplus:
            product = <uint128_t>_next(state) * bound
    return <uint64_t>(product >> 64)


cdef class EpochSampler:
    cdef readonly Py_ssize_t epoch, position
    cdef object _items, _order
    cdef uint64_t _seed
    cdef bint _is_shuffled

    def __init__(self, items, *, seed):
        data_of(items, "items", INT64, (-1,))
        if not len(items):
            raise ValueError("items must have at least one entry, got none")
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed must be from 0 to 2**64 - 1, got {seed}")
        self._items = items.copy()
        self._order = np.empty_like(self._items)
        self._seed = seed
        self.seek(0, 0)

    def __len__(self):
        return len(self._items)

    def seek(self, Py_ssize_t epoch, Py_ssize_t position):
        if epoch < 0 or not 0 <= position < len(self._items):
            raise ValueError(
                f"epoch must be at least 0 and position from 0 to {len(self._items) - 1}, got {epoch} and {position}"
            )
        self.epoch, self.position, self._is_shuffled = epoch, position, False

    def draw(self, out):
        cdef Py_ssize_t left, count = len(out)
        cdef int64_t* target = <int64_t*>output_of(out, "out", INT64, (-1,))
        cdef const int64_t* order = <const int64_t*>cnp.PyArray_DATA(self._order)
        if not self._is_shuffled:
            self._shuffle()
        left = len(self._items) - self.position
        count = min(count, left)
        memcpy(target, order + self.position, count * sizeof(int64_t))
        self.position += count
        if count == left:
            self.epoch, self.position, self._is_shuffled = self.epoch + 1, 0, False
        return count

    cdef void _shuffle(self):
        """Fisher and Yates' shuffle of the items, from the last place down."""
        cdef Py_ssize_t i, j, count = len(self._items)
        cdef const int64_t* items = <const int64_t*>cnp.PyArray_DATA(self._items)
        cdef int64_t* order = <int64_t*>cnp.PyArray_DATA(self._order)
        cdef uint64_t state = _mixed(self._seed + <uint64_t>0x9E3779B97F4A7C15) + <uint64_t>self.epoch
        state = _mixed(state)
        with nogil:
            memcpy(order, items, count * sizeof(int64_t))
            for i in range(count - 1, 0, -1):
                j = <Py_ssize_t>_below(&state, <uint64_t>(i + 1))
                order[i], order[j] = order[j], order[i]
        self._is_shuffled = True


cdef class RowParts:
    cdef readonly Py_ssize_t num_rows
    cdef readonly object dtype
    cdef readonly tuple shape
    cdef object _parts
    cdef Py_ssize_t _width, _num_parts
    # Of each part its first row, and after the last one `num_rows`; and where its data lie.
    cdef Py_ssize_t* _firsts
    cdef const char** _data

    def __cinit__(self):
        self._firsts, self._data = NULL, NULL

    def __init__(self, parts):
        cdef Py_ssize_t i
        self._parts = list(parts)
        if not self._parts:
            raise ValueError("parts must have at least one array, got none")
        if self._data != NULL:
            raise ValueError("RowParts is made once")
        first = self._parts[0]
        if not isinstance(first, np.ndarray) or first.ndim < 1:
            raise TypeError("parts must be numpy arrays of at least one dimension")
        if first.dtype.hasobject:
            raise TypeError("parts must hold numbers, got objects")
        self.dtype, self.shape = first.dtype, first.shape[1:]
        self._num_parts = len(self._parts)
        self._firsts = <Py_ssize_t*>malloc((self._num_parts + 1) * sizeof(Py_ssize_t))
        self._data = <const char**>malloc(self._num_parts * sizeof(char*))
        if self._firsts == NULL or self._data == NULL:
            raise MemoryError(f"no memory for {self._num_parts} parts")
        self.num_rows = 0
        for i in range(self._num_parts):
            self._data[i] = data_of(self._parts[i], f"parts[{i}]", self.dtype, (-1, *self.shape))
            self._firsts[i] = self.num_rows
            self.num_rows += len(self._parts[i])
        self._firsts[self._num_parts] = self.num_rows
        self._width = self.dtype.itemsize
        for length in self.shape:
            self._width *= length

    def __dealloc__(self):
        free(self._firsts)
        free(self._data)

    def __len__(self):
        return self.num_rows

    def take_into(self, rows, out):
        cdef Py_ssize_t count = len(rows), i
        cdef const int64_t* row = <const int64_t*>data_of(rows, "rows", INT64, (-1,))
        cdef char* target = output_of(out, "out", self.dtype, (count, *self.shape))
        cdef bint fits = True
        with nogil:
            for i in range(count):
                if row[i] < 0 or row[i] >= self.num_rows:
                    fits = False
                    break
            if fits:
                self._take(row, count, target)
        if not fits:
            raise IndexError(f"rows must be from 0 to {self.num_rows - 1}, got {rows[i]}")

    cdef void _take(self, const int64_t* rows, Py_ssize_t count, char* target) noexcept nogil:
        cdef Py_ssize_t i, low, high, middle
        cdef Py_ssize_t width = self._width
        for i in range(count):
            low, high = 0, self._num_parts
            while high - low > 1:
                middle = (low + high) // 2
                if self._firsts[middle] <= rows[i]:
                    low = middle
                else:
                    high = middle
            memcpy(target + i * width, self._data[low] + (rows[i] - self._firsts[low]) * width, width)
