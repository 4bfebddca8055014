# cython: language_level=3
"""What the storage of ``_replay.pyx`` shares with those that read it: its memory, its lock, a generator.

One lane per environment, a ring of rows. Positions count the rows ever written to a lane, from 0; the row at
position p lies in slot p % per_lane. The invariants, of every lane:

- The rows there are the positions from head - per_lane (or 0) up to head - 1.
- A row before the newest one, if it is not an end row, is a step whose next observation is the following row.
- ``starts`` holds, oldest first, the slots of all such steps whose frames (their own and stack - 1 older ones,
  as far as their episode has them) are all still there: what may be sampled.
- ``ages`` counts the rows before each in its episode, at most MAX_AGE. Only differences up to stack matter.
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
    /* Of few bytes, without a call: most fields are small, and their sizes are known only here. */
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

# What the newest row of a lane waits for.
cdef enum:
    CLOSED = 0  # nothing: there is none, or it is the last of its episode
    PROVISIONAL = 1  # an end row that becomes a step if the next step begins with its observation
    PENDING = 2  # a step whose next observation has not come yet


cdef struct Lane:
    int64_t head  # rows ever written
    int64_t cursor  # head % per_lane
    int64_t first  # entries ever taken from this lane's starts, and ever put there
    int64_t last
    int64_t state


cdef struct Field:
    int64_t at  # bytes from the row's begin
    int64_t size  # bytes


cdef struct Lanes:
    Lane* lane
    char* rows
    uint8_t* ages
    uint32_t* starts  # a ring of per_lane for each lane
    int64_t* ends  # where in that ring its first and its next entry lie: first and last modulo per_lane
    int64_t lanes
    int64_t per_lane
    int64_t stride  # bytes of a row
    int64_t stack
    int64_t repeat  # frames before an episode: 0 zeros, 1 its first frame
    int64_t slot_bits  # an index is generation << slot_bits | lane * per_lane + slot
    int64_t lost
    int64_t extras
    Field obs
    Field action
    Field reward
    Field terminated
    Field truncated
    Field end
    Field env
    Field[MAX_EXTRA] extra
    pthread_mutex_t mutex
    const int64_t* forks  # that lie behind this process, and what they were when this was made
    int64_t made_after


cdef inline int check_here(const Lanes* lanes) except -1:
    """A forked child may have inherited the lock from a thread that it has not, and large storage is its parent's, too:
    neither is to be used there."""
    if lanes.forks[0] != lanes.made_after:
        raise RuntimeError(
            "this replay belongs to the parent process, of which this one is a forked child: make one here, or load"
            " what the parent has saved"
        )
    return 0


cdef inline char* row_at(const Lanes* lanes, int64_t slot) noexcept nogil:
    """``slot`` counts through all lanes."""
    return lanes.rows + slot * lanes.stride


cdef inline uint8_t flag(const char* row, Field field) noexcept nogil:
    return row[field.at] != 0


cdef inline int64_t position_of(const Lanes* lanes, const Lane* lane, int64_t slot) noexcept nogil:
    """Of the row that lies in a lane's slot."""
    cdef int64_t position = lane.head - lane.cursor + slot
    return position if slot < lane.cursor else position - lanes.per_lane


cdef inline int64_t total_starts(const Lanes* lanes) noexcept nogil:
    cdef int64_t total = 0, i
    for i in range(lanes.lanes):
        total += lanes.lane[i].last - lanes.lane[i].first
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
    """Uniform over 0 to bound - 1, exactly: Lemire, "Fast random integer generation in an interval", 2019."""
    cdef uint64_t low = 0, threshold
    cdef uint64_t result = high_product(next_bits(self), bound, &low)
    if low < bound:
        threshold = (0 - bound) % bound
        while low < threshold:
            result = high_product(next_bits(self), bound, &low)
    return result


cdef inline double fraction(Generator* self) noexcept nogil:
    """Uniform over [0, 1), 53 bits."""
    return (next_bits(self) >> 11) * (1.0 / 9007199254740992.0)


cdef inline void seed_generator(Generator* self, uint64_t seed) noexcept nogil:
    """splitmix64, as the authors of xoshiro say."""
    cdef uint64_t mixed
    cdef int i
    for i in range(4):
        seed += 0x9E3779B97F4A7C15ULL
        mixed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9ULL
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL
        self.state[i] = mixed ^ (mixed >> 31)
