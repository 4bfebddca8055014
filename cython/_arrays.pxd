# cython: language_level=3
"""Checks of the caller's arrays. A module that uses them calls `cnp.import_array()` first."""

cimport numpy as cnp


cdef inline char* data_of(object array, object name, object dtype, tuple shape) except NULL:
    """The first element of an array with this dtype and shape, in which -1 is any length; C-contiguous and aligned.

    Raises:
        TypeError: no array, or one of another dtype.
        ValueError: another shape or layout in memory.
    """
    cdef Py_ssize_t i, length
    cdef bint fits
    if not cnp.PyArray_Check(array):
        raise TypeError(f"{name} must be a numpy array, got {type(array).__name__}")
    # Most callers pass the very descriptor; to compare two takes much longer.
    if <void*>cnp.PyArray_DESCR(array) != <void*>dtype and array.dtype != dtype:
        raise TypeError(f"{name} must have dtype {dtype}, got {array.dtype}")
    fits = cnp.PyArray_NDIM(array) == len(shape)
    if fits:
        for i in range(len(shape)):
            length = shape[i]
            if length != -1 and cnp.PyArray_DIM(array, i) != length:
                fits = False
    if not fits:
        wanted = ", ".join(["N" if length == -1 else str(length) for length in shape])
        raise ValueError(f"{name} must have shape [{wanted}], got {list(array.shape)}")
    if not cnp.PyArray_IS_C_CONTIGUOUS(array):
        raise ValueError(f"{name} must be C-contiguous; pass numpy.ascontiguousarray({name})")
    if not cnp.PyArray_ISALIGNED(array):
        raise ValueError(f"{name} must be aligned in memory; pass a copy")
    return cnp.PyArray_BYTES(array)


cdef inline char* output_of(object array, object name, object dtype, tuple shape) except NULL:
    """`data_of` an array that is written to.

    Raises:
        TypeError, ValueError: as `data_of`; ValueError also for an array that is read-only.
    """
    cdef char* data = data_of(array, name, dtype, shape)
    if not cnp.PyArray_ISWRITEABLE(array):
        raise ValueError(f"{name} is written to and must not be read-only")
    return data
