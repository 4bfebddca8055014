# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Draws from the storage of ``_replay.pyx`` into the caller's arrays. The manual is ``fastrl/_native/_replay_samplers.pyi``."""

import numpy as np

cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport INFINITY, isfinite, pow
from libc.string cimport memcpy, memset

from _arrays cimport data_of, output_of
from _priority_tree cimport *
from _replay_lanes cimport *

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
    char* extra[MAX_EXTRA]


cdef class Uniform:
    cdef object storage
    cdef Lanes* lanes
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
        self.lanes = <Lanes*>PyCapsule_GetPointer(storage._handle(), b"fastrl.Lanes")
        self.batch_size, self.n_step, self.gamma = batch_size, n_step, gamma
        seed_generator(&self.generator, seed)
        self.slots = np.zeros(batch_size, np.int64)
        self.slot = <int64_t*>cnp.PyArray_DATA(self.slots)
        self.table_size = 1 << (4 * batch_size).bit_length()
        self.table = np.zeros(self.table_size, np.int64)
        self.ends = np.zeros(self.lanes.lanes, np.int64)

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
        _point(&batch, self.lanes, arrays, self.storage, self.batch_size)
        check_here(self.lanes)
        with nogil:
            pthread_mutex_lock(&self.lanes.mutex)
            there = total_starts(self.lanes)
            if there > 0 and (replacement or there >= self.batch_size):
                self._draw(there, replacement)
                _gather(self.lanes, &batch, self.slot, self.batch_size, self.n_step, self.gamma)
            pthread_mutex_unlock(&self.lanes.mutex)
        _check_enough(there, self.batch_size, replacement)

    cdef void _draw(self, int64_t there, bint replacement) noexcept nogil:
        """Slots of transitions, each as likely as any other."""
        cdef Lanes* lanes = self.lanes
        cdef int64_t* ends = <int64_t*>cnp.PyArray_DATA(self.ends)
        cdef int64_t* table = <int64_t*>cnp.PyArray_DATA(self.table)
        cdef int64_t i, number, total = 0, low, high, middle, lane
        for i in range(lanes.lanes):
            total += lanes.lane[i].last - lanes.lane[i].first
            ends[i] = total
        if not replacement:
            memset(table, 0, self.table_size * sizeof(int64_t))
        for i in range(self.batch_size):
            if replacement:
                number = <int64_t>below(&self.generator, there)
            else:
                # Floyd's sample without replacement (Bentley, "Programming pearls", 1987): one draw for each.
                number = <int64_t>below(&self.generator, there - self.batch_size + i + 1)
                if not _insert(table, self.table_size, number):
                    number = there - self.batch_size + i
                    _insert(table, self.table_size, number)
            low, high = 0, lanes.lanes - 1
            while low < high:
                middle = (low + high) // 2
                if number < ends[middle]:
                    high = middle
                else:
                    low = middle + 1
            lane = low
            number -= ends[lane] - (lanes.lane[lane].last - lanes.lane[lane].first)
            # Which of the lane's: resolved below, when its line has come.
            self.slot[i] = lane * lanes.per_lane + (lanes.lane[lane].first + number) % lanes.per_lane
            prefetch(&lanes.starts[self.slot[i]])
        for i in range(self.batch_size):
            lane = self.slot[i] // lanes.per_lane
            self.slot[i] = lane * lanes.per_lane + lanes.starts[self.slot[i]]
            _fetch_row(lanes, self.slot[i])


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
        cdef int64_t slots = self.lanes.lanes * self.lanes.per_lane
        total = lay_out(&self.tree, slots)
        self.sums, self.minima = _aligned(total, 0.0), _aligned(total, np.inf)
        self.tree.sums = <double*>cnp.PyArray_DATA(self.sums)
        self.tree.minima = <double*>cnp.PyArray_DATA(self.minima)
        # The storage's starts as this sampler knows them: what it has in its tree.
        self.mirror = np.zeros(slots, np.uint32)
        self.counts = np.zeros((self.lanes.lanes, 2), np.int64)
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
        _point(&batch, self.lanes, arrays, self.storage, self.batch_size)
        check_here(self.lanes)
        with nogil:
            pthread_mutex_lock(&self.lanes.mutex)
            self._follow()
            there = total_starts(self.lanes)
            if there > 0:
                self._draw_by_priority(there, batch.weight)
                _gather(self.lanes, &batch, self.slot, self.batch_size, self.n_step, self.gamma)
            pthread_mutex_unlock(&self.lanes.mutex)
        _check_enough(there, self.batch_size, True)

    cdef void _draw_by_priority(self, int64_t there, float* weight) noexcept nogil:
        cdef Lanes* lanes = self.lanes
        cdef double* rest = <double*>cnp.PyArray_DATA(self.rests)
        cdef double total = total_of(&self.tree), least = INFINITY, share
        cdef int64_t i, size = self.batch_size
        for i in range(size):
            # One from each of equal parts of the sum.
            rest[i] = (i + fraction(&self.generator)) / size * total
        find_leaves(&self.tree, rest, self.slot, size)
        for i in range(size):
            _fetch_row(lanes, self.slot[i])
            share = self.tree.sums[self.slot[i]]
            rest[i] = share
            least = share if share < least else least
        if self.by_buffer:
            least = minimum_of(&self.tree)
        # (N P(i))^-beta over its maximum, which the least priority has: N and the sum cancel.
        for i in range(size):
            weight[i] = <float>pow(rest[i] / least, -self.beta)

    cdef void _follow(self) noexcept nogil:
        """Takes over what was written to the storage since the last time: what is gone, and what is new."""
        cdef Lanes* lanes = self.lanes
        cdef uint32_t* mirror = <uint32_t*>cnp.PyArray_DATA(self.mirror)
        cdef int64_t* known = <int64_t*>cnp.PyArray_DATA(self.counts)
        cdef int64_t[256] changed
        cdef int64_t i, k, base, count, slot
        cdef Lane* lane
        for i in range(lanes.lanes):
            lane, base, count = &lanes.lane[i], i * lanes.per_lane, 0
            for k in range(known[2 * i], min(lane.first, known[2 * i + 1])):
                slot = base + mirror[base + k % lanes.per_lane]
                set_leaf(&self.tree, slot, 0)
                count = self._note(changed, count, slot)
            for k in range(max(known[2 * i + 1], lane.first), lane.last):
                mirror[base + k % lanes.per_lane] = lanes.starts[base + k % lanes.per_lane]
                slot = base + mirror[base + k % lanes.per_lane]
                set_leaf(&self.tree, slot, self.highest)
                count = self._note(changed, count, slot)
            refresh(&self.tree, changed, count)
            known[2 * i], known[2 * i + 1] = lane.first, lane.last

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
        cdef int64_t slots = self.lanes.lanes * self.lanes.per_lane, mask = (1 << self.lanes.slot_bits) - 1
        for i in range(count):
            if not isfinite(priority[i]) or priority[i] < 0:
                raise ValueError(f"priorities must be finite and not negative, got {priority[i]} at {i}")
            if index[i] < 0 or (index[i] & mask) >= slots:
                raise IndexError(f"indices must be of a batch that this sampler gave, got {index[i]} at {i}")
        changed_array = np.empty(count, np.int64)
        cdef int64_t* changed = <int64_t*>cnp.PyArray_DATA(changed_array)
        check_here(self.lanes)
        with nogil:
            pthread_mutex_lock(&self.lanes.mutex)
            self._follow()
            self._set(index, priority, changed, count)
            pthread_mutex_unlock(&self.lanes.mutex)

    cdef void _set(self, const int64_t* index, const double* priority, int64_t* changed, int64_t count) noexcept nogil:
        cdef Lanes* lanes = self.lanes
        cdef int64_t i, slot, position, lane, kept = 0, mask = (1 << lanes.slot_bits) - 1
        cdef double value
        for i in range(count):
            slot = index[i] & mask
            lane = slot // lanes.per_lane
            position = position_of(lanes, &lanes.lane[lane], slot % lanes.per_lane)
            if position // lanes.per_lane != index[i] >> lanes.slot_bits or not self.tree.sums[slot] > 0:
                self.stale += 1
                continue
            # An item of priority 0 would be lost for good; it is as unlikely as a float64 allows. The sum stays finite.
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
        cdef char* out[8]
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
        for i, name in enumerate(self.storage.extra):
            extra[i] = output_of(arrays[name], name, dtype[name].base, (*steps, *dtype[name].shape))
        check_here(self.lanes)
        with nogil:
            pthread_mutex_lock(&self.lanes.mutex)
            there = total_starts(self.lanes)
            if there > 0 and (replacement or there >= size):
                self._draw(there, replacement)
                for i in range(size):
                    self._copy(out, extra, i)
            pthread_mutex_unlock(&self.lanes.mutex)
        _check_enough(there, size, replacement)

    cdef void _copy(self, char** out, char** extra, int64_t i) noexcept nogil:
        """The steps around the one drawn, as far as its episode and the ring have them; zeros after them."""
        cdef Lanes* lanes = self.lanes
        cdef int64_t number = self.slot[i] // lanes.per_lane, base = number * lanes.per_lane
        cdef int64_t slot = self.slot[i] - base, position = position_of(lanes, &lanes.lane[number], slot)
        cdef int64_t oldest = lanes.lane[number].head - lanes.per_lane, newest = lanes.lane[number].head - 1
        cdef int64_t before = min(self.burn_in, <int64_t>lanes.ages[base + slot]), first, count, t, at, j
        cdef int64_t step = i * self.steps, size = lanes.obs.size * lanes.stack, limit
        cdef char* obs = out[0] + i * (self.steps + 1) * size
        cdef const char* row
        (<int64_t*>out[7])[i] = (position // lanes.per_lane) << lanes.slot_bits | self.slot[i]
        while before > 0:
            first = position - before
            if first >= oldest and first - min(
                <int64_t>lanes.ages[base + first % lanes.per_lane], lanes.stack - 1
            ) >= oldest:
                break
            before -= 1
        first, count, limit = position - before, 0, self.steps - (self.burn_in - before)
        while count < limit and first + count < newest:
            at = (first + count) % lanes.per_lane
            row = row_at(lanes, base + at)
            if flag(row, lanes.end):
                break
            t = step + count
            _stack(lanes, base, at, obs + count * size)
            memcpy(out[1] + t * lanes.action.size, row + lanes.action.at, lanes.action.size)
            memcpy(out[2] + t * sizeof(float), row + lanes.reward.at, sizeof(float))
            out[3][t], out[4][t] = flag(row, lanes.terminated), flag(row, lanes.truncated)
            out[5][t], out[6][t] = 1, count >= before
            for j in range(lanes.extras):
                memcpy(extra[j] + t * lanes.extra[j].size, row + lanes.extra[j].at, lanes.extra[j].size)
            count += 1
            if out[3][t] or out[4][t]:
                break
        _stack(lanes, base, (first + count) % lanes.per_lane, obs + count * size)
        limit = self.steps - count
        memset(obs + (count + 1) * size, 0, limit * size)
        memset(out[1] + (step + count) * lanes.action.size, 0, limit * lanes.action.size)
        memset(out[2] + (step + count) * sizeof(float), 0, limit * sizeof(float))
        for j in range(3, 7):
            memset(out[j] + step + count, 0, limit)
        for j in range(lanes.extras):
            memset(extra[j] + (step + count) * lanes.extra[j].size, 0, limit * lanes.extra[j].size)


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
        # Where the episodes of each lane begin, oldest first, in a ring: positions; and what is known of the lane:
        # the rows seen, entries ever taken and ever put.
        self.begins = np.zeros((self.lanes.lanes, self.lanes.per_lane), np.int64)
        self.counts = np.zeros((self.lanes.lanes, 3), np.int64)

    def sample(self, dict arrays, bint replacement):
        cdef Batch batch
        cdef Py_ssize_t i
        cdef int64_t there
        _point(&batch, self.lanes, arrays, self.storage, self.batch_size)
        check_here(self.lanes)
        with nogil:
            pthread_mutex_lock(&self.lanes.mutex)
            there = total_starts(self.lanes)
            if there > 0 and (replacement or there >= self.batch_size):
                self._follow()
                self._draw(there, replacement)
                _gather(self.lanes, &batch, self.slot, self.batch_size, 1, self.gamma)
                for i in range(self.relabelled):
                    self._relabel(&batch, i)
            pthread_mutex_unlock(&self.lanes.mutex)
        _check_enough(there, self.batch_size, replacement)

    cdef void _follow(self) noexcept nogil:
        """Takes over which episodes began since the last time, and forgets those that are gone."""
        cdef Lanes* lanes = self.lanes
        cdef int64_t* begins = <int64_t*>cnp.PyArray_DATA(self.begins)
        cdef int64_t* known = <int64_t*>cnp.PyArray_DATA(self.counts)
        cdef int64_t i, position, base, oldest
        for i in range(lanes.lanes):
            base, oldest = i * lanes.per_lane, lanes.lane[i].head - lanes.per_lane
            while known[1] < known[2] and begins[base + known[1] % lanes.per_lane] < oldest:
                known[1] += 1
            for position in range(max(known[0], oldest), lanes.lane[i].head):
                if lanes.ages[base + position % lanes.per_lane] == 0:
                    begins[base + known[2] % lanes.per_lane] = position
                    known[2] += 1
            known[0] = lanes.lane[i].head
            known += 3

    cdef void _relabel(self, const Batch* batch, int64_t i) noexcept nogil:
        """Another goal: what was achieved after this step, or anywhere in its episode."""
        cdef Lanes* lanes = self.lanes
        cdef int64_t lane = self.slot[i] // lanes.per_lane, base = lane * lanes.per_lane
        cdef const int64_t* begins = <const int64_t*>cnp.PyArray_DATA(self.begins) + base
        cdef const int64_t* known = <const int64_t*>cnp.PyArray_DATA(self.counts) + 3 * lane
        cdef int64_t position = position_of(lanes, &lanes.lane[lane], self.slot[i] - base)
        cdef int64_t low = known[1], high = known[2], middle, first, last, chosen
        # The first episode that begins after this step.
        while low < high:
            middle = (low + high) // 2
            if begins[middle % lanes.per_lane] > position:
                high = middle
            else:
                low = middle + 1
        last = begins[low % lanes.per_lane] - 1 if low < known[2] else lanes.lane[lane].head - 1
        if self.strategy == FINAL:
            chosen = last
        else:
            first = position
            if self.strategy == EPISODE:
                # Of an episode whose begin is overwritten, what is left.
                first = max(lanes.lane[lane].head - lanes.per_lane, <int64_t>0)
                if low > known[1]:
                    first = begins[(low - 1) % lanes.per_lane]
            chosen = first + 1 + <int64_t>below(&self.generator, last - first)
        cdef const char* goal = row_at(lanes, base + chosen % lanes.per_lane) + lanes.obs.at + self.achieved
        memcpy(batch.obs + i * lanes.obs.size + self.desired, goal, self.goal)
        memcpy(batch.next_obs + i * lanes.obs.size + self.desired, goal, self.goal)


cdef double SMALLEST = 1e-300
cdef double LARGEST = 1e290


cdef inline void _fetch_row(const Lanes* lanes, int64_t slot) noexcept nogil:
    """The lines of a transition, which lie one after the other, that the copy will begin with."""
    cdef const char* row = row_at(lanes, slot)
    cdef int64_t at, size = 2 * lanes.stride
    prefetch(&lanes.ages[slot])
    at = 0
    while at < size and at < 1024:
        prefetch(row + at)
        at += CACHE_LINE


cdef void _gather(
    const Lanes* lanes, const Batch* batch, const int64_t* slots, int64_t count, int64_t n_step, double gamma
) noexcept nogil:
    """Copies the transitions that begin in these slots."""
    cdef int64_t i, j, base, slot, next_slot, position, steps, lane, size = lanes.obs.size * lanes.stack
    cdef const char* row
    cdef const char* next_row
    cdef double total, discount
    cdef float reward
    for i in range(count):
        lane = slots[i] // lanes.per_lane
        base = lane * lanes.per_lane
        slot = slots[i] - base
        row = row_at(lanes, base + slot)
        position = position_of(lanes, &lanes.lane[lane], slot)
        batch.index[i] = (position // lanes.per_lane) << lanes.slot_bits | slots[i]
        _stack(lanes, base, slot, batch.obs + i * size)
        memcpy(batch.action + i * lanes.action.size, row + lanes.action.at, lanes.action.size)
        for j in range(lanes.extras):
            memcpy(batch.extra[j] + i * lanes.extra[j].size, row + lanes.extra[j].at, lanes.extra[j].size)
        total, discount, steps = 0, 1, 0
        while True:
            memcpy(&reward, row + lanes.reward.at, sizeof(float))
            total += discount * reward
            discount *= gamma
            steps += 1
            next_slot = slot + steps
            if next_slot >= lanes.per_lane:
                next_slot -= lanes.per_lane
            next_row = row_at(lanes, base + next_slot)
            # The next row is a step of the same episode unless it is an end row; the newest one is no step yet that
            # could be bootstrapped behind.
            if (steps == n_step or flag(row, lanes.terminated) or flag(row, lanes.truncated)
                    or flag(next_row, lanes.end) or position + steps == lanes.lane[lane].head - 1):
                break
            row = next_row
        batch.reward[i] = <float>total
        batch.terminated[i], batch.truncated[i] = flag(row, lanes.terminated), flag(row, lanes.truncated)
        batch.discount[i] = 0 if batch.terminated[i] else <float>discount
        _stack(lanes, base, next_slot, batch.next_obs + i * size)


cdef inline void _stack(const Lanes* lanes, int64_t base, int64_t slot, char* out) noexcept nogil:
    """The observation in a slot, with the older ones of its episode before it."""
    cdef int64_t size = lanes.obs.size, older, at, first
    cdef int64_t age = lanes.ages[base + slot]
    if lanes.stack == 1:
        memcpy(out, row_at(lanes, base + slot) + lanes.obs.at, size)
        return
    for older in range(lanes.stack - 1, -1, -1):
        if older > age:
            if not lanes.repeat:
                memset(out, 0, size)
                out += size
                continue
            at = slot - age
        else:
            at = slot - older
        if at < 0:
            at += lanes.per_lane
        memcpy(out, row_at(lanes, base + at) + lanes.obs.at, size)
        out += size


cdef inline bint _insert(int64_t* table, int64_t size, int64_t number) noexcept nogil:
    """Into an open hash table of numbers plus one; False if it is there."""
    cdef int64_t at = <int64_t>((<uint64_t>number * 0x9E3779B97F4A7C15ULL) >> 20) & (size - 1)
    while table[at] != 0:
        if table[at] == number + 1:
            return False
        at = (at + 1) & (size - 1)
    table[at] = number + 1
    return True


def _check_enough(there, wanted, replacement):
    if there == 0:
        raise ValueError("the storage holds no transition yet: a step can be sampled once its next observation is there")
    if not replacement and there < wanted:
        raise ValueError(f"cannot draw {wanted} transitions without replacement from {there}")


cdef _point(Batch* batch, const Lanes* lanes, dict arrays, storage, Py_ssize_t size):
    """Points into the caller's arrays, which must be just as they are needed."""
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
    for i, name in enumerate(storage.extra):
        batch.extra[i] = output_of(arrays[name], name, dtype[name].base, (size, *dtype[name].shape))


def _aligned(count, value):
    raw = np.full(count + FAN, value)
    skip = -(raw.ctypes.data // 8) % FAN
    return raw[skip : skip + count]
