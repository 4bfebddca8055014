"""Memory of the C library's heap."""

import contextlib
import ctypes

# Names of glibc's malloc.h: smaller blocks come from the heap, and so much free memory stays at its end.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1


def keep_freed_memory() -> None:
    """Stops glibc from returning the memory of each minibatch and fragment to the system.

    Fetching it again, and clearing it, would cost a quarter of an update, and most of a copy of frames. Larger blocks
    than 32 MiB, the most that glibc allows here, are returned. Elsewhere this has no effect.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 2**25)
        mallopt(_M_TRIM_THRESHOLD, 2**30)
