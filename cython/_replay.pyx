# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Circular storage of experience. The manual is ``fastrl/_native/_replay.pyi``, the layout ``_replay_lanes.pxd``."""

from operator import index

import numpy as np

cimport numpy as cnp
from cpython.float cimport PyFloat_AsDouble
from cpython.pycapsule cimport PyCapsule_New
from libc.string cimport memcpy

from _arrays cimport data_of, output_of
from _replay_lanes cimport *

cnp.import_array()

# Forks that lie between the process that imported this and this one.
cdef int64_t forks = 0


cdef void _in_child() noexcept nogil:
    global forks
    forks += 1


if pthread_atfork(NULL, NULL, &_in_child) != 0:
    raise MemoryError("no memory to take notice of forks")

FIELDS = ("env", "obs", "action", "reward", "terminated", "truncated", "end")


cdef struct Source:
    # Where the values of one or many steps lie, one after the other.
    const char* obs
    const char* action
    const char* reward
    const char* next_obs
    const char* terminated
    const char* truncated
    const char* extra[MAX_EXTRA]


cdef class Storage:
    cdef readonly object dtype
    cdef readonly Py_ssize_t num_envs
    cdef readonly Py_ssize_t stack
    cdef readonly tuple extra
    cdef Lanes lanes
    cdef object memory
    cdef cnp.ndarray ends
    cdef tuple obs_shape, action_shape, extra_dtypes
    cdef object obs_dtype, action_dtype, reward_dtype, bool_dtype
    # How a Python number becomes an action: its bytes if it is an int of that size, or 0 for what numpy makes of it.
    cdef int action_int

    def __cinit__(self, rows, lanes, ages, starts, *, Py_ssize_t stack=1, bint repeat=False):
        cdef Lanes* mine = &self.lanes
        cdef pthread_mutexattr_t attributes
        pthread_mutexattr_init(&attributes)
        pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE)
        pthread_mutex_init(&mine.mutex, &attributes)
        pthread_mutexattr_destroy(&attributes)
        mine.forks, mine.made_after = &forks, forks
        dtype = rows.dtype
        if dtype.names is None or dtype.names[: len(FIELDS)] != FIELDS or dtype.hasobject:
            raise TypeError(f"rows must have the fields {', '.join(FIELDS)} first and no objects, got {dtype}")
        for name, kind in (("env", np.int32), ("reward", np.float32), *((name, np.bool_) for name in FIELDS[4:])):
            if dtype[name] != kind:
                raise TypeError(f"{name} must have dtype {np.dtype(kind)}, got {dtype[name]}")
        if rows.ndim != 2 or rows.shape[0] < 1 or rows.shape[1] < stack + 1:
            raise ValueError(
                f"rows must have shape [num_envs, R] with R at least stack + 1 = {stack + 1}, got {list(rows.shape)}"
            )
        if rows.shape[1] >= 1 << 32:
            raise ValueError(f"a lane may have up to 2**32 - 1 rows, got {rows.shape[1]}")
        if not 1 <= stack <= MAX_AGE:
            raise ValueError(f"stack must be from 1 to {MAX_AGE}, got {stack}")
        mine.rows = output_of(rows, "rows", dtype, rows.shape)
        mine.lane = <Lane*>output_of(lanes, "lanes", np.dtype(np.int64), (rows.shape[0], 5))
        mine.ages = <uint8_t*>output_of(ages, "ages", np.dtype(np.uint8), rows.shape)
        mine.starts = <uint32_t*>output_of(starts, "starts", np.dtype(np.uint32), rows.shape)
        self.extra = dtype.names[len(FIELDS):]
        if len(self.extra) > MAX_EXTRA:
            raise ValueError(f"there may be up to {MAX_EXTRA} extra fields, got {len(self.extra)}")

        self.memory = (rows, lanes, ages, starts)
        self.dtype = dtype
        self.num_envs, self.stack = rows.shape[0], stack
        self.obs_dtype, self.obs_shape = dtype["obs"].base, dtype["obs"].shape
        self.action_dtype, self.action_shape = dtype["action"].base, dtype["action"].shape
        self.reward_dtype, self.bool_dtype = dtype["reward"], np.dtype(np.bool_)
        self.extra_dtypes = tuple(dtype[name] for name in self.extra)
        self.action_int = 0
        if self.action_shape == () and self.action_dtype.kind == "i":
            self.action_int = self.action_dtype.itemsize

        mine.lanes, mine.per_lane = rows.shape[0], rows.shape[1]
        mine.stride, mine.stack, mine.repeat = dtype.itemsize, stack, repeat
        mine.slot_bits = (rows.size - 1).bit_length()
        mine.lost, mine.extras = 0, len(self.extra)
        mine.env, mine.obs = _field(dtype, "env"), _field(dtype, "obs")
        mine.action, mine.reward = _field(dtype, "action"), _field(dtype, "reward")
        mine.terminated, mine.truncated = _field(dtype, "terminated"), _field(dtype, "truncated")
        mine.end = _field(dtype, "end")
        for i, name in enumerate(self.extra):
            mine.extra[i] = _field(dtype, name)
        _check_lanes(mine)
        self.ends = np.ascontiguousarray(lanes[:, 2:4] % rows.shape[1])
        mine.ends = <int64_t*>cnp.PyArray_DATA(self.ends)

    def __dealloc__(self):
        pthread_mutex_destroy(&self.lanes.mutex)

    def __len__(self):
        return total_starts(&self.lanes)

    @property
    def rows_per_env(self):
        return self.lanes.per_lane

    @property
    def lost(self):
        return self.lanes.lost

    def _handle(self):
        return PyCapsule_New(&self.lanes, b"fastrl.Lanes", NULL)

    def _acquire(self):
        check_here(&self.lanes)
        # A holder may wait for the GIL; so nobody waits for the lock with the GIL in hand.
        if pthread_mutex_trylock(&self.lanes.mutex) != 0:
            with nogil:
                pthread_mutex_lock(&self.lanes.mutex)

    def _release(self):
        pthread_mutex_unlock(&self.lanes.mutex)

    def add(self, obs, action, reward, next_obs, terminated, truncated, Py_ssize_t env=0, **extra):
        cdef Source source
        cdef int64_t number = 0
        cdef float real
        cdef char ended, cut
        source.obs = data_of(obs, "obs", self.obs_dtype, self.obs_shape)
        source.next_obs = data_of(next_obs, "next_obs", self.obs_dtype, self.obs_shape)
        if self.action_int and not cnp.PyArray_Check(action):
            # What has no exact integer of its own, a float for one, is refused.
            number = action if isinstance(action, int) else index(action)
            if self.action_int < 8 and number != (number << (64 - 8 * self.action_int)) >> (64 - 8 * self.action_int):
                raise ValueError(f"action must fit into {self.action_dtype}, got {number}")
            # The low bytes of a little-endian number are the smaller number.
            source.action = <const char*>&number
        else:
            action = self._scalar(action, "action", self.action_dtype, self.action_shape)
            source.action = data_of(action, "action", self.action_dtype, self.action_shape)
        real = <float>PyFloat_AsDouble(reward)
        source.reward = <const char*>&real
        ended, cut = _truth(terminated, "terminated"), _truth(truncated, "truncated")
        source.terminated, source.truncated = &ended, &cut
        if not 0 <= env < self.num_envs:
            raise IndexError(f"env must be from 0 to {self.num_envs - 1}, got {env}")
        kept = None
        if self.lanes.extras or extra:
            kept = self._extra(extra, None, &source)
        check_here(&self.lanes)
        if pthread_mutex_trylock(&self.lanes.mutex) == 0:
            _step(&self.lanes, env, &source, 0)
            pthread_mutex_unlock(&self.lanes.mutex)
        else:
            with nogil:
                pthread_mutex_lock(&self.lanes.mutex)
                _step(&self.lanes, env, &source, 0)
                pthread_mutex_unlock(&self.lanes.mutex)

    def add_many(self, obs, actions, rewards, next_obs, terminated, truncated, envs=None, **extra):
        cdef Source source
        cdef Py_ssize_t count, i
        cdef const int64_t* env = NULL
        if not isinstance(obs, np.ndarray):
            raise TypeError(f"obs must be a numpy array, got {type(obs).__name__}")
        if obs.ndim == 0:
            raise ValueError("obs must have shape [N, ...], got []")
        count = obs.shape[0]
        source.obs = data_of(obs, "obs", self.obs_dtype, (count, *self.obs_shape))
        source.action = data_of(actions, "actions", self.action_dtype, (count, *self.action_shape))
        source.reward = data_of(rewards, "rewards", self.reward_dtype, (count,))
        source.next_obs = data_of(next_obs, "next_obs", self.obs_dtype, (count, *self.obs_shape))
        source.terminated = data_of(terminated, "terminated", self.bool_dtype, (count,))
        source.truncated = data_of(truncated, "truncated", self.bool_dtype, (count,))
        if envs is not None:
            env = <const int64_t*>data_of(envs, "envs", np.dtype(np.int64), (count,))
            for i in range(count):
                if not 0 <= env[i] < self.num_envs:
                    raise IndexError(f"envs must be from 0 to {self.num_envs - 1}, got {env[i]} at {i}")
        elif count != self.num_envs:
            raise ValueError(f"without envs there must be a row for each of {self.num_envs}, got {count}")
        kept = None
        if self.lanes.extras or extra:
            kept = self._extra(extra, count, &source)
        check_here(&self.lanes)
        with nogil:
            pthread_mutex_lock(&self.lanes.mutex)
            for i in range(count):
                _step(&self.lanes, env[i] if env != NULL else i, &source, i)
            pthread_mutex_unlock(&self.lanes.mutex)

    def append(self, records):
        cdef Py_ssize_t count, i
        cdef const char* record
        cdef int64_t stride = self.lanes.stride, at = self.lanes.env.at
        cdef int env = 0
        record = data_of(records, "records", self.dtype, (-1,))
        count = cnp.PyArray_DIM(records, 0)
        for i in range(count):
            memcpy(&env, record + i * stride + at, sizeof(int))
            if not 0 <= env < self.num_envs:
                raise IndexError(f"env must be from 0 to {self.num_envs - 1}, got {env} in record {i}")
        check_here(&self.lanes)
        with nogil:
            pthread_mutex_lock(&self.lanes.mutex)
            for i in range(count):
                _record(&self.lanes, record + i * stride)
            pthread_mutex_unlock(&self.lanes.mutex)

    def cut(self, Py_ssize_t env):
        if not 0 <= env < self.num_envs:
            raise IndexError(f"env must be from 0 to {self.num_envs - 1}, got {env}")
        cdef Lane* lane = &self.lanes.lane[env]
        self._acquire()
        if lane.state == PENDING:
            _cut(&self.lanes, lane, env * self.lanes.per_lane)
        lane.state = CLOSED
        self._release()

    cdef object _scalar(self, value, name, dtype, shape):
        """A number of Python or numpy as an array, where a single number is what is stored."""
        if shape != () or cnp.PyArray_Check(value):
            return value
        if not np.can_cast(np.min_scalar_type(value), dtype, "same_kind"):
            raise TypeError(f"{name} must fit dtype {dtype}, got {value!r}")
        return np.array(value, dtype)

    cdef list _extra(self, extra, count, Source* source):
        """Points ``source`` to the extra fields; gives back what must live as long as that."""
        if len(extra) != len(self.extra) or not all(name in extra for name in self.extra):
            raise TypeError(f"the extra fields {list(self.extra)} are needed, got {sorted(extra)}")
        kept = []
        for i, name in enumerate(self.extra):
            dtype, shape = self.extra_dtypes[i].base, self.extra_dtypes[i].shape
            value = extra[name]
            if count is None:
                value = self._scalar(value, name, dtype, shape)
            else:
                shape = (count, *shape)
            source.extra[i] = data_of(value, name, dtype, shape)
            kept.append(value)
        return kept


cdef void _step(Lanes* lanes, int64_t env, const Source* source, int64_t i) noexcept nogil:
    """A transition: its row, and its next observation as a row that the next step may take over."""
    cdef Lane* lane = &lanes.lane[env]
    cdef const char* obs = source.obs + i * lanes.obs.size
    cdef char* row
    cdef char* next_row
    cdef int64_t slot, next_slot, base = env * lanes.per_lane, j
    cdef uint8_t ended
    cdef int number = <int>env
    slot = _place(lanes, lane, base, obs)
    row = row_at(lanes, base + slot)
    memcpy(row + lanes.env.at, &number, sizeof(int))
    copy_bytes(row + lanes.action.at, source.action + i * lanes.action.size, lanes.action.size)
    memcpy(row + lanes.reward.at, source.reward + i * sizeof(float), sizeof(float))
    row[lanes.terminated.at] = source.terminated[i]
    row[lanes.truncated.at] = source.truncated[i]
    row[lanes.end.at] = 0
    for j in range(lanes.extras):
        copy_bytes(row + lanes.extra[j].at, source.extra[j] + i * lanes.extra[j].size, lanes.extra[j].size)
    next_slot = _claim(lanes, lane, base)
    next_row = row_at(lanes, base + next_slot)
    # What an end row holds besides its observation means nothing; it is 0 so that files are the same each time.
    clear_bytes(next_row, lanes.obs.at)
    memcpy(next_row + lanes.env.at, &number, sizeof(int))
    copy_bytes(next_row + lanes.obs.at, source.next_obs + i * lanes.obs.size, lanes.obs.size)
    clear_bytes(next_row + lanes.obs.at + lanes.obs.size, lanes.stride - lanes.obs.at - lanes.obs.size)
    next_row[lanes.end.at] = 1
    _join(lanes, lane, base, slot, next_slot)
    ended = source.terminated[i] or source.truncated[i]
    lane.state = CLOSED if ended else PROVISIONAL


cdef void _record(Lanes* lanes, const char* record) noexcept nogil:
    """One record of a stream: a step, whose next observation comes with the next record of its lane, or an end."""
    cdef int env
    memcpy(&env, record + lanes.env.at, sizeof(int))
    cdef Lane* lane = &lanes.lane[env]
    cdef int64_t base = env * lanes.per_lane, slot, before
    cdef char* newest
    cdef bint ended
    if flag(record, lanes.end):
        if lane.state == PENDING:
            before = _newest(lanes, lane)
            slot = _claim(lanes, lane, base)
            memcpy(row_at(lanes, base + slot), record, lanes.stride)
            _join(lanes, lane, base, before, slot)
        lane.state = CLOSED
        return
    if lane.state == PENDING:
        before = _newest(lanes, lane)
        newest = row_at(lanes, base + before)
        ended = flag(newest, lanes.terminated) or flag(newest, lanes.truncated)
        if ended:
            _cut(lanes, lane, base)
            slot = _begin(lanes, lane, base)
        else:
            slot = _claim(lanes, lane, base)
            _join(lanes, lane, base, before, slot)
    else:
        slot = _place(lanes, lane, base, record + lanes.obs.at)
    memcpy(row_at(lanes, base + slot), record, lanes.stride)
    lane.state = PENDING


cdef inline int64_t _newest(const Lanes* lanes, const Lane* lane) noexcept nogil:
    return (lane.cursor if lane.cursor else lanes.per_lane) - 1


cdef inline int64_t _claim(Lanes* lanes, Lane* lane, int64_t base) noexcept nogil:
    """The slot of the next row. What needs the row that lay there can be sampled no more."""
    cdef int64_t slot = lane.cursor, gone = lane.head - lanes.per_lane, start, at, age
    cdef int64_t older = lanes.stack - 1
    cdef int64_t* end = &lanes.ends[2 * (lane - lanes.lane)]
    while lane.first < lane.last:
        start = lanes.starts[base + end[0]]
        at, age = position_of(lanes, lane, start), lanes.ages[base + start]
        if at - (age if age < older else older) > gone:
            break
        lane.first += 1
        end[0] = end[0] + 1 if end[0] + 1 < lanes.per_lane else 0
    lane.head += 1
    lane.cursor = slot + 1 if slot + 1 < lanes.per_lane else 0
    # The next row will be written soon, and nothing has it in a cache.
    at = 0
    while at < lanes.stride and at < 512:
        prefetch_write(row_at(lanes, base + lane.cursor) + at)
        at += CACHE_LINE
    return slot


cdef inline void _join(Lanes* lanes, Lane* lane, int64_t base, int64_t slot, int64_t next_slot) noexcept nogil:
    """The observation after the step in ``slot`` is there, in ``next_slot``: the step may be sampled."""
    cdef uint8_t age = lanes.ages[base + slot]
    cdef int64_t older = lanes.stack - 1, at = position_of(lanes, lane, slot)
    cdef int64_t* end = &lanes.ends[2 * (lane - lanes.lane)]
    lanes.ages[base + next_slot] = age + 1 if age < MAX_AGE else MAX_AGE
    if at - (age if age < older else older) >= lane.head - lanes.per_lane:
        lanes.starts[base + end[1]] = <uint32_t>slot
        lane.last += 1
        end[1] = end[1] + 1 if end[1] + 1 < lanes.per_lane else 0


cdef inline int64_t _begin(Lanes* lanes, Lane* lane, int64_t base) noexcept nogil:
    cdef int64_t slot = _claim(lanes, lane, base)
    lanes.ages[base + slot] = 0
    return slot


cdef inline void _cut(Lanes* lanes, Lane* lane, int64_t base) noexcept nogil:
    """The newest row is a step whose next observation never came: what is left of it is its observation."""
    row_at(lanes, base + _newest(lanes, lane))[lanes.end.at] = 1
    lanes.lost += 1


cdef inline int64_t _place(Lanes* lanes, Lane* lane, int64_t base, const char* obs) noexcept nogil:
    """The slot for a step that says what it observed, with the observation in it."""
    cdef int64_t slot
    if lane.state == PROVISIONAL:
        slot = _newest(lanes, lane)
        if same_bytes(row_at(lanes, base + slot) + lanes.obs.at, obs, lanes.obs.size):
            return slot
    elif lane.state == PENDING:
        _cut(lanes, lane, base)
    slot = _begin(lanes, lane, base)
    copy_bytes(row_at(lanes, base + slot) + lanes.obs.at, obs, lanes.obs.size)
    return slot


cdef char _truth(value, name) except -1:
    if value is True:
        return 1
    if value is False:
        return 0
    if isinstance(value, np.bool_):
        return 1 if value else 0
    raise TypeError(f"{name} must be a bool, got {type(value).__name__}")


cdef Field _field(dtype, name):
    cdef Field field
    field.at, field.size = dtype.fields[name][1], dtype[name].itemsize
    return field


cdef _check_lanes(const Lanes* lanes):
    """What a file says must not lead to memory elsewhere."""
    cdef int64_t i, j
    cdef const Lane* lane
    for i in range(lanes.lanes):
        lane = &lanes.lane[i]
        if (lane.head < 0 or lane.cursor != lane.head % lanes.per_lane or lane.first < 0
                or not 0 <= lane.last - lane.first <= lanes.per_lane or lane.last > lane.head
                or not CLOSED <= lane.state <= PENDING or (lane.head == 0 and lane.state != CLOSED)):
            raise ValueError(f"the state of lane {i} contradicts itself: damaged")
        for j in range(lane.first, lane.last):
            if lanes.starts[i * lanes.per_lane + j % lanes.per_lane] >= lanes.per_lane:
                raise ValueError(f"lane {i} names a row that it does not have: damaged")
