# cython: language_level=3
"""Trees of the sums and of the minima of float64 priorities (Schaul et al., "Prioritized Experience Replay", 2016,
appendix B.2.1). Each node has eight children, which fill a cache line.

A parent is always computed from all of its children, so sums do not drift. An empty leaf has the value 0, a stored
priority of 0 the value SMALLEST. Both are infinity in the tree of minima.
"""

from libc.math cimport INFINITY
from libc.stdint cimport int64_t

from _replay_rings cimport prefetch


cdef extern from * nogil:
    """
    #define FASTRL_SMALLEST 1e-300
    """
    const double SMALLEST "FASTRL_SMALLEST"


cdef enum:
    FAN = 8
    MAX_LEVELS = 12


cdef struct Tree:
    double* sums
    double* minima
    int64_t capacity
    int64_t levels
    int64_t[MAX_LEVELS] start  # index of the first value of each level; the leaves are level 0


cdef inline int64_t lay_out(Tree* tree, int64_t capacity) noexcept nogil:
    """Lays out the levels one after the other. Returns their number of values, or -1 if there would be too many."""
    cdef int64_t size = capacity, total = 0
    tree.capacity, tree.levels = capacity, 0
    while tree.levels < MAX_LEVELS:
        size = (size + FAN - 1) // FAN * FAN
        tree.start[tree.levels] = total
        tree.levels += 1
        total += size
        if size == FAN:
            return total
        size //= FAN
    return -1


cdef inline double total_of(const Tree* tree) noexcept nogil:
    cdef double total = 0
    cdef int i
    for i in range(FAN):
        total += tree.sums[tree.start[tree.levels - 1] + i]
    return total


cdef inline double minimum_of(const Tree* tree) noexcept nogil:
    """The least priority above 0; infinity if there is none."""
    cdef double least = INFINITY
    cdef int i
    for i in range(FAN):
        least = min(least, tree.minima[tree.start[tree.levels - 1] + i])
    return least


cdef inline void set_leaf(Tree* tree, int64_t leaf, double value) noexcept nogil:
    """Sets a leaf without its parents: call `refresh` for them."""
    tree.sums[leaf] = value
    tree.minima[leaf] = value if value > SMALLEST else INFINITY


cdef inline void refresh(Tree* tree, const int64_t* leaves, int64_t count) noexcept nogil:
    """Computes the parents of changed leaves, level by level, so that the cache misses of a level overlap."""
    cdef int64_t level, i, node, below, above, width = FAN
    cdef double total, least
    cdef const double* sums
    cdef const double* minima
    cdef int j
    for level in range(tree.levels - 1):
        below, above = tree.start[level], tree.start[level + 1]
        for i in range(count):
            if i + 8 < count:
                node = leaves[i + 8] // width
                prefetch(&tree.sums[below + node * FAN])
                prefetch(&tree.minima[below + node * FAN])
            node = leaves[i] // width
            sums, minima = &tree.sums[below + node * FAN], &tree.minima[below + node * FAN]
            total, least = 0, INFINITY
            for j in range(FAN):
                total += sums[j]
                least = minima[j] if minima[j] < least else least
            tree.sums[above + node] = total
            tree.minima[above + node] = least
        width *= FAN


cdef inline void find_leaves(const Tree* tree, double* rest, int64_t* at, int64_t count) noexcept nogil:
    """Finds for each ``rest``, from 0 to the total, the leaf whose part of the cumulative sum contains it; never a leaf
    of priority 0.

    All go down level by level, so that the cache misses of a level overlap. ``rest`` is overwritten.
    """
    cdef int64_t level, i, node, child, last
    cdef const double* sums
    cdef int j
    for i in range(count):
        at[i] = 0
    for level in range(tree.levels - 1, -1, -1):
        for i in range(count):
            if i + 8 < count:
                prefetch(&tree.sums[tree.start[level] + at[i + 8] * FAN])
            node = at[i] * FAN
            sums = &tree.sums[tree.start[level] + node]
            last = child = -1
            for j in range(FAN):
                if sums[j] > 0:
                    last = j
                    if rest[i] < sums[j]:
                        child = j
                        break
                    rest[i] -= sums[j]
            if child < 0:
                # Rounding made the sum larger than its parts together: the end of the last part that is not 0.
                child = last
                rest[i] = sums[last]
            at[i] = node + child
