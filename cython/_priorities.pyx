# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Sums and minima of many priorities. The manual is ``fastrl/_priorities.pyi``, the tree ``_priority_tree.pxd``."""

import numpy as np

cimport numpy as cnp
from libc.float cimport DBL_MAX

from _priority_tree cimport *

cnp.import_array()


cdef class Priorities:
    cdef Tree tree
    cdef cnp.ndarray sums
    cdef cnp.ndarray minima

    def __cinit__(self, Py_ssize_t capacity):
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        total = lay_out(&self.tree, capacity)
        if total < 0:
            raise ValueError(f"capacity {capacity} is too large")
        self.sums, self.minima = _aligned(total, 0.0), _aligned(total, np.inf)
        self.tree.sums = <double*>cnp.PyArray_DATA(self.sums)
        self.tree.minima = <double*>cnp.PyArray_DATA(self.minima)

    def __len__(self):
        return self.tree.capacity

    def set(self, indices, values):
        cdef cnp.ndarray at = _vector(indices, np.int64, "indices", -1)
        cdef cnp.ndarray new = _vector(values, np.float64, "values", at.shape[0])
        if at.shape[0] and not (0 <= at.min() and at.max() < self.tree.capacity):
            raise IndexError(f"indices must be from 0 to {self.tree.capacity - 1}, got {at.min()} to {at.max()}")
        if not (np.isfinite(new) & (new >= 0)).all():
            raise ValueError("values must be finite and not negative")
        largest = DBL_MAX / 2 / self.tree.capacity
        if not (new <= largest).all():
            raise ValueError(f"values must be at most {largest:.3g}, so that their sum is finite")
        cdef Py_ssize_t i, count = at.shape[0]
        cdef const int64_t* where = <const int64_t*>cnp.PyArray_DATA(at)
        cdef const double* what = <const double*>cnp.PyArray_DATA(new)
        with nogil:
            for i in range(count):
                set_leaf(&self.tree, where[i], what[i])
            refresh(&self.tree, where, count)

    def get(self, indices):
        cdef cnp.ndarray at = _vector(indices, np.int64, "indices", -1)
        if at.shape[0] and not (0 <= at.min() and at.max() < self.tree.capacity):
            raise IndexError(f"indices must be from 0 to {self.tree.capacity - 1}, got {at.min()} to {at.max()}")
        return self.sums[at]

    @property
    def total(self):
        return total_of(&self.tree)

    @property
    def minimum(self):
        return minimum_of(&self.tree)

    def find(self, shares):
        cdef cnp.ndarray share = _vector(shares, np.float64, "shares", -1)
        if not ((share >= 0) & (share < 1)).all():
            raise ValueError("shares must be from 0 up to, not including, 1")
        if not total_of(&self.tree) > 0:
            raise ValueError("all priorities are 0: there is nothing to find")
        cdef Py_ssize_t i, count = share.shape[0]
        cdef cnp.ndarray found = np.empty(count, np.int64)
        cdef cnp.ndarray rest = np.multiply(share, total_of(&self.tree))
        cdef int64_t* at = <int64_t*>cnp.PyArray_DATA(found)
        cdef double* left = <double*>cnp.PyArray_DATA(rest)
        with nogil:
            find_leaves(&self.tree, left, at, count)
        return found


def _aligned(count, value):
    raw = np.full(count + FAN, value)
    skip = -(raw.ctypes.data // 8) % FAN
    return raw[skip : skip + count]


def _vector(array, dtype, name, length):
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        got = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"{name} must be a numpy array of {np.dtype(dtype)}, got {got}")
    if array.ndim != 1 or length not in (-1, array.shape[0]):
        raise ValueError(f"{name} must have shape [{'N' if length < 0 else length}], got {list(array.shape)}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous; pass numpy.ascontiguousarray({name})")
    return array
