# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Grouping equal rows of arrays. The manual is ``fastrl/_native/_rows.pyi``."""

import numpy as np

cimport numpy as cnp
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from _arrays cimport data_of, output_of

cnp.import_array()

cdef object INT64 = np.dtype(np.int64)


def group_rows(rows, groups):
    if not isinstance(rows, np.ndarray):
        raise TypeError(f"rows must be a numpy array, got {type(rows).__name__}")
    if rows.dtype.hasobject:
        raise TypeError("rows must hold numbers, got objects")
    if rows.ndim != 2 or rows.size == 0:
        raise ValueError(f"rows must have shape [M, K] with M and K at least 1, got {list(rows.shape)}")
    cdef Py_ssize_t count = len(rows), width = rows.dtype.itemsize * rows.shape[1]
    cdef const unsigned char* data = <const unsigned char*>data_of(rows, "rows", rows.dtype, rows.shape)
    cdef int64_t* group = <int64_t*>output_of(groups, "groups", INT64, (count,))
    if np.may_share_memory(rows, groups):
        raise ValueError("groups must not share memory with rows")
    first = np.empty(count, np.int64)
    cdef int64_t* first_row = <int64_t*>cnp.PyArray_DATA(first)
    # Open addressing in a table of at least twice as many slots as rows; a slot holds a group or -1.
    cdef Py_ssize_t slots = 16
    while slots < 2 * count:
        slots *= 2
    cdef int64_t* table = <int64_t*>malloc(slots * sizeof(int64_t))
    if table == NULL:
        raise MemoryError(f"no memory for a table of {slots} slots")
    cdef Py_ssize_t found
    with nogil:
        memset(table, 0xFF, slots * sizeof(int64_t))
        found = _group(data, count, width, table, slots - 1, group, first_row)
        free(table)
    return first[:found].copy()


cdef Py_ssize_t _group(
    const unsigned char* data,
    Py_ssize_t count,
    Py_ssize_t width,
    int64_t* table,
    uint64_t mask,
    int64_t* group,
    int64_t* first_row,
) noexcept nogil:
    cdef Py_ssize_t i, found = 0
    cdef uint64_t slot
    cdef const unsigned char* row
    for i in range(count):
        row = data + i * width
        slot = _hash(row, width) & mask
        while table[slot] >= 0 and memcmp(row, data + first_row[table[slot]] * width, width) != 0:
            slot = (slot + 1) & mask
        if table[slot] < 0:
            table[slot] = found
            first_row[found] = i
            found += 1
        group[i] = table[slot]
    return found


cdef inline uint64_t _hash(const unsigned char* row, Py_ssize_t width) noexcept nogil:
    """Multiplies and mixes words of 8 bytes, in two chains that the CPU works on at once."""
    cdef uint64_t a = 0x9E3779B97F4A7C15, b = 0xC2B2AE3D27D4EB4F, word = 0, other = 0
    cdef Py_ssize_t at = 0
    while at + 16 <= width:
        memcpy(&word, row + at, 8)
        memcpy(&other, row + at + 8, 8)
        a = (a ^ word) * 0xFF51AFD7ED558CCDULL
        b = (b ^ other) * 0xC4CEB9FE1A85EC53ULL
        a ^= a >> 32
        b ^= b >> 32
        at += 16
    while at < width:
        word = 0
        memcpy(&word, row + at, min(8, width - at))
        a = (a ^ word) * 0xFF51AFD7ED558CCDULL
        a ^= a >> 32
        at += 8
    a = (a ^ b) * 0xC4CEB9FE1A85EC53ULL
    return a ^ (a >> 32)
