# cython: language_level=3
"""The memory and the lock of the storage of ``_replay.pyx``, which its samplers share, and their random generator.

Each environment has a ring of rows. Positions count the rows ever written to a ring, from 0; the row at position p lies
in slot p % ring_size. Every ring keeps these invariants:

- It holds the rows at positions head - ring_size (or 0) to head - 1.
- A row, except for the newest, is an end row or a step whose next observation is that of the following row.
- ``starts`` is the list, oldest first, of the slots of the steps that can be sampled: those whose frames (their own and
  the stack - 1 older ones, if their episode has so many) are all in the ring.
- ``ages`` counts the rows of its episode before each row, at most MAX_AGE. Only differences up to stack matter.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_mutexattr_t:
        pass
    int PTHREAD_MUTEX_RECURSIVE
    int pthread_mutexattr_init(pthread_mutexattr_t*)
    int pthread_mutexattr_settype(pthread_mutexattr_t*, int)
    int pthread_mutexattr_destroy(pthread_mutexattr_t*)
    int pthread_mutex_init(pthread_mutex_t*, const pthread_mutexattr_t*)
    int pthread_mutex_destroy(pthread_mutex_t*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_trylock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_atfork(void (*)() noexcept nogil, void (*)() noexcept nogil, void (*)() noexcept nogil)


cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <string.h>
    #define FASTRL_PREFETCH(at) __builtin_prefetch((at), 0, 3)
    #define FASTRL_PREFETCH_WRITE(at) __builtin_prefetch((at), 1, 3)
    /* Without a call for few bytes: most fields are small, and their sizes are known only at run time. */
    static inline void fastrl_copy(char *to, const char *from, int64_t size) {
        if (size == 8) memcpy(to, from, 8);
        else if (size == 4) memcpy(to, from, 4);
        else if (size == 16) memcpy(to, from, 16);
        else memcpy(to, from, (size_t)size);
    }
    static inline void fastrl_clear(char *to, int64_t size) {
        for (; size >= 8; size -= 8, to += 8) memset(to, 0, 8);
        for (; size > 0; size--, to++) *to = 0;
    }
    static inline int fastrl_same(const char *a, const char *b, int64_t size) {
        if (size > 64) return memcmp(a, b, (size_t)size) == 0;
        for (; size >= 8; size -= 8, a += 8, b += 8) if (memcmp(a, b, 8) != 0) return 0;
        for (; size > 0; size--, a++, b++) if (*a != *b) return 0;
        return 1;
    }
    /* The high half of a product of 64-bit numbers. */
    static inline uint64_t fastrl_high(uint64_t a, uint64_t b, uint64_t *low) {
        unsigned __int128 product = (unsigned __int128)a * b;
        *low = (uint64_t)product;
        return (uint64_t)(product >> 64);
    }
    """
    void prefetch "FASTRL_PREFETCH"(const void*)
    void prefetch_write "FASTRL_PREFETCH_WRITE"(const void*)
    void copy_bytes "fastrl_copy"(char*, const char*, int64_t)
    void clear_bytes "fastrl_clear"(char*, int64_t)
    bint same_bytes "fastrl_same"(const char*, const char*, int64_t)
    uint64_t high_product "fastrl_high"(uint64_t, uint64_t, uint64_t*)


cdef enum:
    MAX_AGE = 255
    CACHE_LINE = 64
    MAX_EXTRA = 16

# The state of the newest row of a ring.
cdef enum:
    CLOSED = 0  # there is none, or it is the last row of its episode
    PROVISIONAL = 1  # an end row, which becomes a step if the next step has its observation
    PENDING = 2  # a step whose next observation is not known yet


cdef struct Ring:
    int64_t head  # rows ever written
    int64_t cursor  # head % ring_size
    int64_t first  # entries ever removed from starts
    int64_t last  # entries ever added to starts
    int64_t state


cdef struct Field:
    int64_t at  # offset in a row, bytes
    int64_t size  # bytes


cdef struct Rings:
    Ring* ring  # one for each environment
    char* rows
    uint8_t* ages
    uint32_t* starts  # circular too, ring_size entries for each ring
    int64_t* ends  # first and last of each ring, modulo ring_size
    int64_t num_envs
    int64_t ring_size  # rows
    int64_t stride  # bytes of a row
    int64_t stack
    int64_t repeat  # frames before the first of an episode: 0: zeros, 1: the first frame
    int64_t slot_bits  # an index is generation << slot_bits | ring * ring_size + slot
    int64_t lost  # steps whose next observation never came
    int64_t extras  # number of extra fields
    int64_t final_masks  # whether last observations have masks
    Field obs
    Field action
    Field reward
    Field terminated
    Field truncated
    Field end
    Field env
    Field mask  # of size 0: there are no masks
    Field[MAX_EXTRA] extra
    pthread_mutex_t mutex
    const int64_t* forks  # number of forks since the module was imported
    int64_t made_after  # that number when this object was made


cdef inline int check_here(const Rings* rings) except -1:
    """Refuses to work in a forked child: a thread that the child lacks may hold the lock, and large storage is shared
    with the parent."""
    if rings.forks[0] != rings.made_after:
        raise RuntimeError(
            "this replay belongs to the parent process, of which this one is a forked child: make one here, or load"
            " what the parent has saved"
        )
    return 0


cdef inline char* row_at(const Rings* rings, int64_t slot) noexcept nogil:
    """The row in a slot, counted over all rings."""
    return rings.rows + slot * rings.stride


cdef inline uint8_t flag(const char* row, Field field) noexcept nogil:
    return row[field.at] != 0


cdef inline int64_t position_of(const Rings* rings, const Ring* ring, int64_t slot) noexcept nogil:
    """The position of the row in a slot of the ring."""
    cdef int64_t position = ring.head - ring.cursor + slot
    return position if slot < ring.cursor else position - rings.ring_size


cdef inline int64_t total_starts(const Rings* rings) noexcept nogil:
    cdef int64_t total = 0, i
    for i in range(rings.num_envs):
        total += rings.ring[i].last - rings.ring[i].first
    return total


# xoshiro256++ of Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2021.
cdef struct Generator:
    uint64_t[4] state


cdef inline uint64_t next_bits(Generator* self) noexcept nogil:
    cdef uint64_t* s = self.state
    cdef uint64_t total = s[0] + s[3]
    cdef uint64_t result = ((total << 23) | (total >> 41)) + s[0]
    cdef uint64_t shifted = s[1] << 17
    s[2] ^= s[0]
    s[3] ^= s[1]
    s[1] ^= s[2]
    s[0] ^= s[3]
    s[2] ^= shifted
    s[3] = (s[3] << 45) | (s[3] >> 19)
    return result


cdef inline uint64_t below(Generator* self, uint64_t bound) noexcept nogil:
    """A number from 0 to bound - 1, exactly uniform: Lemire, "Fast random integer generation in an interval", 2019."""
    cdef uint64_t low = 0, threshold
    cdef uint64_t result = high_product(next_bits(self), bound, &low)
    if low < bound:
        threshold = (0 - bound) % bound
        while low < threshold:
            result = high_product(next_bits(self), bound, &low)
    return result


cdef inline double fraction(Generator* self) noexcept nogil:
    """A number from [0, 1), 53 bits, uniform."""
    return (next_bits(self) >> 11) * (1.0 / 9007199254740992.0)


cdef inline void seed_generator(Generator* self, uint64_t seed) noexcept nogil:
    """Fills the state with splitmix64, as the authors of xoshiro advise."""
    cdef uint64_t mixed
    cdef int i
    for i in range(4):
        seed += 0x9E3779B97F4A7C15ULL
        mixed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9ULL
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL
        self.state[i] = mixed ^ (mixed >> 31)
