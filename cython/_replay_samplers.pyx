# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Samplers that copy from the storage of ``_replay.pyx`` into the caller's arrays. The manual is ``fastrl/_native/_replay_samplers.pyi``."""

import numpy as np

cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport INFINITY, isfinite, pow
from libc.string cimport memcpy, memset

from _arrays cimport data_of, output_of
from _priority_tree cimport *
from _replay_rings cimport *

cnp.import_array()

cdef object FLOAT32 = np.dtype(np.float32)
cdef object FLOAT64 = np.dtype(np.float64)
cdef object INT64 = np.dtype(np.int64)
cdef object BOOL = np.dtype(np.bool_)


cdef struct Batch:
    char* obs
    char* action
    float* reward
    char* next_obs
    float* discount
    uint8_t* terminated
    uint8_t* truncated
    int64_t* index
    float* weight
    char* mask  # NULL: rows have none
    char* next_mask  # NULL: last observations have none
    char* extra[MAX_EXTRA]


cdef class Uniform:
    cdef object storage
    cdef Rings* rings
    cdef Py_ssize_t batch_size
    cdef Py_ssize_t n_step
    cdef double gamma
    cdef Generator generator
    cdef cnp.ndarray slots
    cdef cnp.ndarray table
    cdef cnp.ndarray ends
    cdef int64_t* slot
    cdef int64_t table_size

    def __cinit__(self, storage, Py_ssize_t batch_size, Py_ssize_t n_step, double gamma, uint64_t seed, *args):
        if batch_size < 1 or n_step < 1:
            raise ValueError(f"batch_size and n_step must be at least 1, got {batch_size} and {n_step}")
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be from 0 to 1, got {gamma}")
        self.storage = storage
        self.rings = <Rings*>PyCapsule_GetPointer(storage._handle(), b"fastrl.Rings")
        self.batch_size, self.n_step, self.gamma = batch_size, n_step, gamma
        seed_generator(&self.generator, seed)
        self.slots = np.zeros(batch_size, np.int64)
        self.slot = <int64_t*>cnp.PyArray_DATA(self.slots)
        self.table_size = 1 << (4 * batch_size).bit_length()
        self.table = np.zeros(self.table_size, np.int64)
        self.ends = np.zeros(self.rings.num_envs, np.int64)

    @property
    def generator_state(self):
        return [self.generator.state[i] for i in range(4)]

    @generator_state.setter
    def generator_state(self, words):
        words = [int(word) for word in words]
        if len(words) != 4 or not all(0 <= word < 1 << 64 for word in words) or not any(words):
            raise ValueError(f"a generator's state is four 64-bit words, not all 0, got {words}")
        for i in range(4):
            self.generator.state[i] = words[i]

    def sample(self, dict arrays, bint replacement):
        cdef Batch batch
        cdef int64_t there
        _point(&batch, self.rings, arrays, self.storage, self.batch_size)
        check_here(self.rings)
        with nogil:
            pthread_mutex_lock(&self.rings.mutex)
            there = total_starts(self.rings)
            if there > 0 and (replacement or there >= self.batch_size):
                self._draw(there, replacement)
                _gather(self.rings, &batch, self.slot, self.batch_size, self.n_step, self.gamma)
            pthread_mutex_unlock(&self.rings.mutex)
        _check_enough(there, self.batch_size, replacement)

    cdef void _draw(self, int64_t there, bint replacement) noexcept nogil:
        """Draws slots of transitions, all with equal probability."""
        cdef Rings* rings = self.rings
        cdef int64_t* ends = <int64_t*>cnp.PyArray_DATA(self.ends)
        cdef int64_t* table = <int64_t*>cnp.PyArray_DATA(self.table)
        cdef int64_t i, number, total = 0, low, high, middle, ring
        for i in range(rings.num_envs):
            total += rings.ring[i].last - rings.ring[i].first
            ends[i] = total
        if not replacement:
            memset(table, 0, self.table_size * sizeof(int64_t))
        for i in range(self.batch_size):
            if replacement:
                number = <int64_t>below(&self.generator, there)
            else:
                # Floyd's sampling without replacement (Bentley, "Programming Pearls", 1987): one number each.
                number = <int64_t>below(&self.generator, there - self.batch_size + i + 1)
                if not _insert(table, self.table_size, number):
                    number = there - self.batch_size + i
                    _insert(table, self.table_size, number)
            low, high = 0, rings.num_envs - 1
            while low < high:
                middle = (low + high) // 2
                if number < ends[middle]:
                    high = middle
                else:
                    low = middle + 1
            ring = low
            number -= ends[ring] - (rings.ring[ring].last - rings.ring[ring].first)
            # An index into starts, which is read in the next loop, once its cache line has arrived.
            self.slot[i] = ring * rings.ring_size + (rings.ring[ring].first + number) % rings.ring_size
            prefetch(&rings.starts[self.slot[i]])
        for i in range(self.batch_size):
            ring = self.slot[i] // rings.ring_size
            self.slot[i] = ring * rings.ring_size + rings.starts[self.slot[i]]
            _fetch_row(rings, self.slot[i])


cdef class Prioritized(Uniform):
    cdef Tree tree
    cdef cnp.ndarray sums
    cdef cnp.ndarray minima
    cdef cnp.ndarray mirror
    cdef cnp.ndarray counts
    cdef cnp.ndarray rests
    cdef double alpha
    cdef public double beta
    cdef bint by_buffer
    cdef double highest
    cdef readonly int64_t stale

    def __cinit__(self, storage, Py_ssize_t batch_size, Py_ssize_t n_step, double gamma, uint64_t seed,
                  double alpha, double beta, bint by_buffer):
        if not 0 <= alpha < INFINITY or not 0 <= beta < INFINITY:
            raise ValueError(f"alpha and beta must be finite and not negative, got {alpha} and {beta}")
        cdef int64_t slots = self.rings.num_envs * self.rings.ring_size
        total = lay_out(&self.tree, slots)
        self.sums, self.minima = _aligned(total, 0.0), _aligned(total, np.inf)
        self.tree.sums = <double*>cnp.PyArray_DATA(self.sums)
        self.tree.minima = <double*>cnp.PyArray_DATA(self.minima)
        # A copy of the storage's starts: the transitions in the tree.
        self.mirror = np.zeros(slots, np.uint32)
        self.counts = np.zeros((self.rings.num_envs, 2), np.int64)
        self.rests = np.zeros(batch_size, np.float64)
        self.alpha, self.beta, self.by_buffer = alpha, beta, by_buffer
        self.highest, self.stale = 1.0, 0

    def sample(self, dict arrays, bint replacement):
        cdef Batch batch
        cdef int64_t there
        if not replacement:
            raise ValueError("prioritized batches are drawn with replacement")
        if not 0 <= self.beta < INFINITY:
            raise ValueError(f"beta must be finite and not negative, got {self.beta}")
        _point(&batch, self.rings, arrays, self.storage, self.batch_size)
        check_here(self.rings)
        with nogil:
            pthread_mutex_lock(&self.rings.mutex)
            self._follow()
            there = total_starts(self.rings)
            if there > 0:
                self._draw_by_priority(there, batch.weight)
                _gather(self.rings, &batch, self.slot, self.batch_size, self.n_step, self.gamma)
            pthread_mutex_unlock(&self.rings.mutex)
        _check_enough(there, self.batch_size, True)

    cdef void _draw_by_priority(self, int64_t there, float* weight) noexcept nogil:
        cdef Rings* rings = self.rings
        cdef double* rest = <double*>cnp.PyArray_DATA(self.rests)
        cdef double total = total_of(&self.tree), least = INFINITY, share, smallest
        cdef int64_t i, size = self.batch_size
        for i in range(size):
            # Stratified: one number from each of batch_size equal parts of the sum.
            rest[i] = (i + fraction(&self.generator)) / size * total
        find_leaves(&self.tree, rest, self.slot, size)
        for i in range(size):
            _fetch_row(rings, self.slot[i])
            share = self.tree.sums[self.slot[i]]
            rest[i] = share
            least = share if share < least else least
        if self.by_buffer:
            # If all priorities are 0, all are equally probable.
            smallest = minimum_of(&self.tree)
            least = smallest if smallest < INFINITY else least
        # (N P(i))^-beta divided by its maximum, that of the least priority: N and the sum cancel.
        for i in range(size):
            weight[i] = <float>min(pow(rest[i] / least, -self.beta), 1.0)

    cdef void _follow(self) noexcept nogil:
        """Updates the tree: removes transitions that were overwritten since the last call, and adds new ones."""
        cdef Rings* rings = self.rings
        cdef uint32_t* mirror = <uint32_t*>cnp.PyArray_DATA(self.mirror)
        cdef int64_t* known = <int64_t*>cnp.PyArray_DATA(self.counts)
        cdef int64_t[256] changed
        cdef int64_t i, k, base, count, slot
        cdef Ring* ring
        for i in range(rings.num_envs):
            ring, base, count = &rings.ring[i], i * rings.ring_size, 0
            for k in range(known[2 * i], min(ring.first, known[2 * i + 1])):
                slot = base + mirror[base + k % rings.ring_size]
                set_leaf(&self.tree, slot, 0)
                count = self._note(changed, count, slot)
            for k in range(max(known[2 * i + 1], ring.first), ring.last):
                mirror[base + k % rings.ring_size] = rings.starts[base + k % rings.ring_size]
                slot = base + mirror[base + k % rings.ring_size]
                set_leaf(&self.tree, slot, self.highest)
                count = self._note(changed, count, slot)
            refresh(&self.tree, changed, count)
            known[2 * i], known[2 * i + 1] = ring.first, ring.last

    cdef inline int64_t _note(self, int64_t* changed, int64_t count, int64_t slot) noexcept nogil:
        changed[count] = slot
        count += 1
        if count == 256:
            refresh(&self.tree, changed, count)
            count = 0
        return count

    def update(self, indices, priorities):
        cdef const int64_t* index = <const int64_t*>data_of(indices, "indices", INT64, (-1,))
        cdef Py_ssize_t i, count = len(indices)
        cdef const double* priority = <const double*>data_of(priorities, "priorities", FLOAT64, (count,))
        cdef int64_t slots = self.rings.num_envs * self.rings.ring_size, mask = (1 << self.rings.slot_bits) - 1
        for i in range(count):
            if not isfinite(priority[i]) or priority[i] < 0:
                raise ValueError(f"priorities must be finite and not negative, got {priority[i]} at {i}")
            if index[i] < 0 or (index[i] & mask) >= slots:
                raise IndexError(f"indices must be of a batch that this sampler gave, got {index[i]} at {i}")
        changed_array = np.empty(count, np.int64)
        cdef int64_t* changed = <int64_t*>cnp.PyArray_DATA(changed_array)
        check_here(self.rings)
        with nogil:
            pthread_mutex_lock(&self.rings.mutex)
            self._follow()
            self._set(index, priority, changed, count)
            pthread_mutex_unlock(&self.rings.mutex)

    cdef void _set(self, const int64_t* index, const double* priority, int64_t* changed, int64_t count) noexcept nogil:
        cdef Rings* rings = self.rings
        cdef int64_t i, slot, position, ring, kept = 0, mask = (1 << rings.slot_bits) - 1
        cdef double value
        for i in range(count):
            slot = index[i] & mask
            ring = slot // rings.ring_size
            position = position_of(rings, &rings.ring[ring], slot % rings.ring_size)
            if position // rings.ring_size != index[i] >> rings.slot_bits or not self.tree.sums[slot] > 0:
                self.stale += 1
                continue
            # A leaf of priority 0 would count as empty, so priorities have a least value; a greatest one keeps the sum
            # finite.
            value = min(max(pow(priority[i], self.alpha), SMALLEST), LARGEST)
            self.highest = max(self.highest, value)
            set_leaf(&self.tree, slot, value)
            changed[kept] = slot
            kept += 1
        refresh(&self.tree, changed, kept)

    def state(self):
        self.storage._acquire()
        try:
            with nogil:
                self._follow()
            return {"highest": self.highest, "stale": self.stale, "priorities": self.sums[: self.tree.capacity].copy()}
        finally:
            self.storage._release()

    def set_state(self, double highest, int64_t stale, priorities):
        cdef const double* value = <const double*>data_of(priorities, "priorities", FLOAT64, (self.tree.capacity,))
        good = np.isfinite(priorities) & (priorities >= 0) & (priorities <= LARGEST)
        if not good.all() or not 0 < highest <= LARGEST or stale < 0:
            raise ValueError("the saved priorities are damaged")
        everything = np.arange(self.tree.capacity)
        cdef const int64_t* leaf = <const int64_t*>cnp.PyArray_DATA(everything)
        cdef int64_t i
        self.storage._acquire()
        try:
            with nogil:
                self._follow()
            if not ((priorities > 0) == (self.sums[: self.tree.capacity] > 0)).all():
                raise ValueError("the saved priorities belong to another storage, or to another moment of this one")
            self.highest, self.stale = highest, stale
            for i in range(self.tree.capacity):
                set_leaf(&self.tree, i, value[i])
            refresh(&self.tree, leaf, self.tree.capacity)
        finally:
            self.storage._release()


cdef class Sequences(Uniform):
    cdef Py_ssize_t burn_in
    cdef Py_ssize_t steps

    def __cinit__(self, storage, Py_ssize_t batch_size, Py_ssize_t n_step, double gamma, uint64_t seed,
                  Py_ssize_t length, Py_ssize_t burn_in):
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        if not 0 <= burn_in <= MAX_AGE:
            raise ValueError(f"burn_in must be from 0 to {MAX_AGE}, got {burn_in}")
        self.burn_in, self.steps = burn_in, burn_in + length

    def sample(self, dict arrays, bint replacement):
        cdef Py_ssize_t i, size = self.batch_size
        cdef int64_t there
        cdef char* out[9]
        cdef char* extra[MAX_EXTRA]
        dtype, steps = self.storage.dtype, (size, self.steps)
        stack = (self.storage.stack,) if self.storage.stack > 1 else ()
        out[0] = output_of(arrays["obs"], "obs", dtype["obs"].base, (size, self.steps + 1, *stack, *dtype["obs"].shape))
        out[1] = output_of(arrays["actions"], "actions", dtype["action"].base, (*steps, *dtype["action"].shape))
        out[2] = output_of(arrays["rewards"], "rewards", FLOAT32, steps)
        out[3] = output_of(arrays["terminated"], "terminated", BOOL, steps)
        out[4] = output_of(arrays["truncated"], "truncated", BOOL, steps)
        out[5] = output_of(arrays["mask"], "mask", BOOL, steps)
        out[6] = output_of(arrays["learn"], "learn", BOOL, steps)
        out[7] = output_of(arrays["indices"], "indices", INT64, (size,))
        masks = (size, self.steps + self.storage.final_masks, self.storage.num_masked)
        out[8] = output_of(arrays["action_masks"], "action_masks", BOOL, masks) if self.storage.num_masked else NULL
        for i, name in enumerate(self.storage.extra):
            extra[i] = output_of(arrays[name], name, dtype[name].base, (*steps, *dtype[name].shape))
        check_here(self.rings)
        with nogil:
            pthread_mutex_lock(&self.rings.mutex)
            there = total_starts(self.rings)
            if there > 0 and (replacement or there >= size):
                self._draw(there, replacement)
                for i in range(size):
                    self._copy(out, extra, i)
            pthread_mutex_unlock(&self.rings.mutex)
        _check_enough(there, size, replacement)

    cdef void _copy(self, char** out, char** extra, int64_t i) noexcept nogil:
        """Copies the steps around the one drawn that its episode and the ring have; the rest becomes 0."""
        cdef Rings* rings = self.rings
        cdef int64_t number = self.slot[i] // rings.ring_size, base = number * rings.ring_size
        cdef int64_t slot = self.slot[i] - base, position = position_of(rings, &rings.ring[number], slot)
        cdef int64_t oldest = rings.ring[number].head - rings.ring_size, newest = rings.ring[number].head - 1
        cdef int64_t before = min(self.burn_in, <int64_t>rings.ages[base + slot]), first, count, t, at, j
        cdef int64_t step = i * self.steps, size = rings.obs.size * rings.stack, limit
        cdef char* obs = out[0] + i * (self.steps + 1) * size
        cdef char* masks = out[8] + i * (self.steps + rings.final_masks) * rings.mask.size
        cdef const char* row
        (<int64_t*>out[7])[i] = (position // rings.ring_size) << rings.slot_bits | self.slot[i]
        while before > 0:
            first = position - before
            if first >= oldest and first - min(
                <int64_t>rings.ages[base + first % rings.ring_size], rings.stack - 1
            ) >= oldest:
                break
            before -= 1
        first, count, limit = position - before, 0, self.steps - (self.burn_in - before)
        while count < limit and first + count < newest:
            at = (first + count) % rings.ring_size
            row = row_at(rings, base + at)
            if flag(row, rings.end):
                break
            t = step + count
            _stack(rings, base, at, obs + count * size)
            memcpy(out[1] + t * rings.action.size, row + rings.action.at, rings.action.size)
            memcpy(out[2] + t * sizeof(float), row + rings.reward.at, sizeof(float))
            out[3][t], out[4][t] = flag(row, rings.terminated), flag(row, rings.truncated)
            out[5][t], out[6][t] = 1, count >= before
            if rings.mask.size:
                memcpy(masks + count * rings.mask.size, row + rings.mask.at, rings.mask.size)
            for j in range(rings.extras):
                memcpy(extra[j] + t * rings.extra[j].size, row + rings.extra[j].at, rings.extra[j].size)
            count += 1
            if out[3][t] or out[4][t]:
                break
        at = (first + count) % rings.ring_size
        _stack(rings, base, at, obs + count * size)
        limit = self.steps - count
        if rings.final_masks:
            memcpy(masks + count * rings.mask.size, row_at(rings, base + at) + rings.mask.at, rings.mask.size)
        if rings.mask.size:
            memset(masks + (count + rings.final_masks) * rings.mask.size, 0, limit * rings.mask.size)
        memset(obs + (count + 1) * size, 0, limit * size)
        memset(out[1] + (step + count) * rings.action.size, 0, limit * rings.action.size)
        memset(out[2] + (step + count) * sizeof(float), 0, limit * sizeof(float))
        for j in range(3, 7):
            memset(out[j] + step + count, 0, limit)
        for j in range(rings.extras):
            memset(extra[j] + (step + count) * rings.extra[j].size, 0, limit * rings.extra[j].size)


cdef enum:
    FUTURE = 0
    FINAL = 1
    EPISODE = 2


cdef class Hindsight(Uniform):
    cdef cnp.ndarray begins
    cdef cnp.ndarray counts
    cdef int strategy
    cdef Py_ssize_t relabelled
    cdef int64_t achieved
    cdef int64_t desired
    cdef int64_t goal

    def __cinit__(self, storage, Py_ssize_t batch_size, Py_ssize_t n_step, double gamma, uint64_t seed,
                  int strategy, Py_ssize_t relabelled, Py_ssize_t achieved, Py_ssize_t desired, Py_ssize_t goal):
        shape = storage.dtype["obs"].shape
        if storage.stack != 1 or len(shape) != 1:
            raise ValueError(f"hindsight needs observations that are vectors, got {list(shape)}, stack {storage.stack}")
        if n_step != 1:
            raise ValueError(f"hindsight needs n_step 1, got {n_step}")
        if not FUTURE <= strategy <= EPISODE or not 0 <= relabelled <= batch_size:
            raise ValueError(f"no such strategy or share: {strategy}, {relabelled} of {batch_size}")
        if goal < 1 or min(achieved, desired) < 0 or max(achieved, desired) + goal > shape[0]:
            raise ValueError(f"goals of {goal} at {achieved} and {desired} do not lie in observations of {shape[0]}")
        itemsize = storage.dtype["obs"].base.itemsize
        self.achieved, self.desired, self.goal = achieved * itemsize, desired * itemsize, goal * itemsize
        self.strategy, self.relabelled = strategy, relabelled
        # For each ring the positions at which its episodes begin, oldest first, in a circular array; and three counts:
        # rows seen, positions ever removed and ever added.
        self.begins = np.zeros((self.rings.num_envs, self.rings.ring_size), np.int64)
        self.counts = np.zeros((self.rings.num_envs, 3), np.int64)

    def sample(self, dict arrays, bint replacement):
        cdef Batch batch
        cdef Py_ssize_t i
        cdef int64_t there
        _point(&batch, self.rings, arrays, self.storage, self.batch_size)
        check_here(self.rings)
        with nogil:
            pthread_mutex_lock(&self.rings.mutex)
            there = total_starts(self.rings)
            if there > 0 and (replacement or there >= self.batch_size):
                self._follow()
                self._draw(there, replacement)
                _gather(self.rings, &batch, self.slot, self.batch_size, 1, self.gamma)
                for i in range(self.relabelled):
                    self._relabel(&batch, i)
            pthread_mutex_unlock(&self.rings.mutex)
        _check_enough(there, self.batch_size, replacement)

    cdef void _follow(self) noexcept nogil:
        """Adds the episodes that began since the last call, and removes those that were overwritten."""
        cdef Rings* rings = self.rings
        cdef int64_t* begins = <int64_t*>cnp.PyArray_DATA(self.begins)
        cdef int64_t* known = <int64_t*>cnp.PyArray_DATA(self.counts)
        cdef int64_t i, position, base, oldest
        for i in range(rings.num_envs):
            base, oldest = i * rings.ring_size, rings.ring[i].head - rings.ring_size
            while known[1] < known[2] and begins[base + known[1] % rings.ring_size] < oldest:
                known[1] += 1
            for position in range(max(known[0], oldest), rings.ring[i].head):
                if rings.ages[base + position % rings.ring_size] == 0:
                    begins[base + known[2] % rings.ring_size] = position
                    known[2] += 1
            known[0] = rings.ring[i].head
            known += 3

    cdef void _relabel(self, const Batch* batch, int64_t i) noexcept nogil:
        """Replaces the goal by one that was achieved after this step, or anywhere in its episode."""
        cdef Rings* rings = self.rings
        cdef int64_t ring = self.slot[i] // rings.ring_size, base = ring * rings.ring_size
        cdef const int64_t* begins = <const int64_t*>cnp.PyArray_DATA(self.begins) + base
        cdef const int64_t* known = <const int64_t*>cnp.PyArray_DATA(self.counts) + 3 * ring
        cdef int64_t position = position_of(rings, &rings.ring[ring], self.slot[i] - base)
        cdef int64_t low = known[1], high = known[2], middle, first, last, chosen
        # A binary search for the first episode that begins after this step.
        while low < high:
            middle = (low + high) // 2
            if begins[middle % rings.ring_size] > position:
                high = middle
            else:
                low = middle + 1
        last = begins[low % rings.ring_size] - 1 if low < known[2] else rings.ring[ring].head - 1
        if self.strategy == FINAL:
            chosen = last
        else:
            first = position
            if self.strategy == EPISODE:
                # If the beginning of the episode has been overwritten, its oldest row.
                first = max(rings.ring[ring].head - rings.ring_size, <int64_t>0)
                if low > known[1]:
                    first = begins[(low - 1) % rings.ring_size]
            chosen = first + 1 + <int64_t>below(&self.generator, last - first)
        cdef const char* goal = row_at(rings, base + chosen % rings.ring_size) + rings.obs.at + self.achieved
        memcpy(batch.obs + i * rings.obs.size + self.desired, goal, self.goal)
        memcpy(batch.next_obs + i * rings.obs.size + self.desired, goal, self.goal)


cdef double LARGEST = 1e290


cdef inline void _fetch_row(const Rings* rings, int64_t slot) noexcept nogil:
    """Prefetches the first cache lines of a transition, whose two rows are neighbours."""
    cdef const char* row = row_at(rings, slot)
    cdef int64_t at, size = 2 * rings.stride
    prefetch(&rings.ages[slot])
    at = 0
    while at < size and at < 1024:
        prefetch(row + at)
        at += CACHE_LINE


cdef void _gather(
    const Rings* rings, const Batch* batch, const int64_t* slots, int64_t count, int64_t n_step, double gamma
) noexcept nogil:
    """Copies the transitions that start in these slots."""
    cdef int64_t i, j, base, slot, next_slot, position, steps, ring, size = rings.obs.size * rings.stack
    cdef const char* row
    cdef const char* next_row
    cdef double total, discount
    cdef float reward
    for i in range(count):
        ring = slots[i] // rings.ring_size
        base = ring * rings.ring_size
        slot = slots[i] - base
        row = row_at(rings, base + slot)
        position = position_of(rings, &rings.ring[ring], slot)
        batch.index[i] = (position // rings.ring_size) << rings.slot_bits | slots[i]
        _stack(rings, base, slot, batch.obs + i * size)
        memcpy(batch.action + i * rings.action.size, row + rings.action.at, rings.action.size)
        for j in range(rings.extras):
            memcpy(batch.extra[j] + i * rings.extra[j].size, row + rings.extra[j].at, rings.extra[j].size)
        if batch.mask != NULL:
            memcpy(batch.mask + i * rings.mask.size, row + rings.mask.at, rings.mask.size)
        total, discount, steps = 0, 1, 0
        while True:
            memcpy(&reward, row + rings.reward.at, sizeof(float))
            total += discount * reward
            discount *= gamma
            steps += 1
            next_slot = slot + steps
            if next_slot >= rings.ring_size:
                next_slot -= rings.ring_size
            next_row = row_at(rings, base + next_slot)
            # The next row is a step of the same episode unless it is an end row. The observation after the newest row
            # is not known yet.
            if (steps == n_step or flag(row, rings.terminated) or flag(row, rings.truncated)
                    or flag(next_row, rings.end) or position + steps == rings.ring[ring].head - 1):
                break
            row = next_row
        batch.reward[i] = <float>total
        batch.terminated[i], batch.truncated[i] = flag(row, rings.terminated), flag(row, rings.truncated)
        batch.discount[i] = 0 if batch.terminated[i] else <float>discount
        _stack(rings, base, next_slot, batch.next_obs + i * size)
        if batch.next_mask != NULL:
            memcpy(batch.next_mask + i * rings.mask.size, next_row + rings.mask.at, rings.mask.size)


cdef inline void _stack(const Rings* rings, int64_t base, int64_t slot, char* out) noexcept nogil:
    """Copies the observation in a slot, after the older frames of its stack."""
    cdef int64_t size = rings.obs.size, older, at, first
    cdef int64_t age = rings.ages[base + slot]
    if rings.stack == 1:
        memcpy(out, row_at(rings, base + slot) + rings.obs.at, size)
        return
    for older in range(rings.stack - 1, -1, -1):
        if older > age:
            if not rings.repeat:
                memset(out, 0, size)
                out += size
                continue
            at = slot - age
        else:
            at = slot - older
        if at < 0:
            at += rings.ring_size
        memcpy(out, row_at(rings, base + at) + rings.obs.at, size)
        out += size


cdef inline bint _insert(int64_t* table, int64_t size, int64_t number) noexcept nogil:
    """Inserts into a hash table with open addressing, which holds numbers plus one. False if it was there before."""
    cdef int64_t at = <int64_t>((<uint64_t>number * 0x9E3779B97F4A7C15ULL) >> 20) & (size - 1)
    while table[at] != 0:
        if table[at] == number + 1:
            return False
        at = (at + 1) & (size - 1)
    table[at] = number + 1
    return True


def _check_enough(there, wanted, replacement):
    if there == 0:
        raise ValueError("the storage holds no transition yet: a step can be sampled once its next observation is known")
    if not replacement and there < wanted:
        raise ValueError(f"cannot draw {wanted} transitions without replacement from {there}")


cdef _point(Batch* batch, const Rings* rings, dict arrays, storage, Py_ssize_t size):
    """Checks the caller's arrays and points to them."""
    dtype = storage.dtype
    obs = (size, *((storage.stack,) if storage.stack > 1 else ()), *dtype["obs"].shape)
    batch.obs = output_of(arrays["obs"], "obs", dtype["obs"].base, obs)
    batch.action = output_of(arrays["actions"], "actions", dtype["action"].base, (size, *dtype["action"].shape))
    batch.reward = <float*>output_of(arrays["rewards"], "rewards", FLOAT32, (size,))
    batch.next_obs = output_of(arrays["next_obs"], "next_obs", dtype["obs"].base, obs)
    batch.discount = <float*>output_of(arrays["discounts"], "discounts", FLOAT32, (size,))
    batch.terminated = <uint8_t*>output_of(arrays["terminated"], "terminated", BOOL, (size,))
    batch.truncated = <uint8_t*>output_of(arrays["truncated"], "truncated", BOOL, (size,))
    batch.index = <int64_t*>output_of(arrays["indices"], "indices", INT64, (size,))
    batch.weight = <float*>output_of(arrays["weights"], "weights", FLOAT32, (size,))
    masks = (size, storage.num_masked)
    batch.mask = output_of(arrays["masks"], "masks", BOOL, masks) if storage.num_masked else NULL
    batch.next_mask = output_of(arrays["next_masks"], "next_masks", BOOL, masks) if storage.final_masks else NULL
    for i, name in enumerate(storage.extra):
        batch.extra[i] = output_of(arrays[name], name, dtype[name].base, (size, *dtype[name].shape))


def _aligned(count, value):
    raw = np.full(count + FAN, value)
    skip = -(raw.ctypes.data // 8) % FAN
    return raw[skip : skip + count]
