# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Circular storage of experience. The manual is ``fastrl/_native/_replay.pyi``, the layout ``_replay_rings.pxd``."""

from operator import index

import numpy as np

cimport numpy as cnp
from cpython.float cimport PyFloat_AsDouble
from cpython.pycapsule cimport PyCapsule_New
from libc.string cimport memcpy

from _arrays cimport data_of, output_of
from _replay_rings cimport *

cnp.import_array()

# Forks between the process that imported this module and the present one.
cdef int64_t forks = 0


cdef void _in_child() noexcept nogil:
    global forks
    forks += 1


if pthread_atfork(NULL, NULL, &_in_child) != 0:
    raise MemoryError("no memory to register a handler for forks")

FIELDS = ("env", "obs", "action", "reward", "terminated", "truncated", "end")


cdef struct Source:
    # Arrays of the values of one or many steps.
    const char* obs
    const char* action
    const char* reward
    const char* next_obs
    const char* terminated
    const char* truncated
    const char* mask  # NULL: rows have none
    const char* next_mask  # NULL: last observations have none
    const char* extra[MAX_EXTRA]


cdef class Storage:
    cdef readonly object dtype
    cdef readonly Py_ssize_t num_envs
    cdef readonly Py_ssize_t stack
    cdef readonly Py_ssize_t num_masked
    cdef readonly bint final_masks
    cdef readonly tuple extra
    cdef Rings rings
    cdef object memory
    cdef cnp.ndarray ends
    cdef tuple obs_shape, action_shape, extra_dtypes
    cdef frozenset extra_names
    cdef object obs_dtype, action_dtype, reward_dtype, bool_dtype
    # Bytes of an action that is a single integer; 0 for other actions, which numpy converts.
    cdef int action_int

    def __cinit__(self, rows, rings, ages, starts, *, Py_ssize_t stack=1, bint repeat=False, bint final_masks=False):
        cdef Rings* mine = &self.rings
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
        self.num_masked = 0
        if "mask" in dtype.names:
            field = dtype["mask"]
            if dtype.names[len(FIELDS)] != "mask" or field.base != np.bool_ or field.ndim != 1 or not field.shape[0]:
                raise TypeError(f"mask must be bool [num_masked], after the field end, got {dtype}")
            self.num_masked = field.shape[0]
        if final_masks and not self.num_masked:
            raise ValueError("final_masks are for rows with masks: set num_masked")
        if rows.ndim != 2 or rows.shape[0] < 1 or rows.shape[1] < stack + 1:
            raise ValueError(
                f"rows must have shape [num_envs, R] with R at least stack + 1 = {stack + 1}, got {list(rows.shape)}"
            )
        if rows.shape[1] >= 1 << 32:
            raise ValueError(f"a ring may have up to 2**32 - 1 rows, got {rows.shape[1]}")
        if not 1 <= stack <= MAX_AGE:
            raise ValueError(f"stack must be from 1 to {MAX_AGE}, got {stack}")
        mine.rows = output_of(rows, "rows", dtype, rows.shape)
        mine.ring = <Ring*>output_of(rings, "rings", np.dtype(np.int64), (rows.shape[0], 5))
        mine.ages = <uint8_t*>output_of(ages, "ages", np.dtype(np.uint8), rows.shape)
        mine.starts = <uint32_t*>output_of(starts, "starts", np.dtype(np.uint32), rows.shape)
        self.extra = dtype.names[len(FIELDS) + (self.num_masked > 0):]
        if len(self.extra) > MAX_EXTRA:
            raise ValueError(f"there may be up to {MAX_EXTRA} extra fields, got {len(self.extra)}")

        self.memory = (rows, rings, ages, starts)
        self.dtype = dtype
        self.num_envs, self.stack, self.final_masks = rows.shape[0], stack, final_masks
        self.obs_dtype, self.obs_shape = dtype["obs"].base, dtype["obs"].shape
        self.action_dtype, self.action_shape = dtype["action"].base, dtype["action"].shape
        self.reward_dtype, self.bool_dtype = dtype["reward"], np.dtype(np.bool_)
        self.extra_names = frozenset(self.extra)
        self.extra_dtypes = tuple(dtype[name] for name in self.extra)
        self.action_int = 0
        if self.action_shape == () and self.action_dtype.kind == "i":
            self.action_int = self.action_dtype.itemsize

        mine.num_envs, mine.ring_size = rows.shape[0], rows.shape[1]
        mine.stride, mine.stack, mine.repeat = dtype.itemsize, stack, repeat
        mine.slot_bits = (rows.size - 1).bit_length()
        mine.lost, mine.extras = 0, len(self.extra)
        mine.env, mine.obs = _field(dtype, "env"), _field(dtype, "obs")
        mine.action, mine.reward = _field(dtype, "action"), _field(dtype, "reward")
        mine.terminated, mine.truncated = _field(dtype, "terminated"), _field(dtype, "truncated")
        mine.end = _field(dtype, "end")
        mine.mask = _field(dtype, "mask") if self.num_masked else Field(0, 0)
        mine.final_masks = final_masks
        for i, name in enumerate(self.extra):
            mine.extra[i] = _field(dtype, name)
        _check_rings(mine)
        self.ends = np.ascontiguousarray(rings[:, 2:4] % rows.shape[1])
        mine.ends = <int64_t*>cnp.PyArray_DATA(self.ends)

    def __dealloc__(self):
        pthread_mutex_destroy(&self.rings.mutex)

    def __len__(self):
        return total_starts(&self.rings)

    @property
    def rows_per_env(self):
        return self.rings.ring_size

    @property
    def lost(self):
        return self.rings.lost

    def _handle(self):
        return PyCapsule_New(&self.rings, b"fastrl.Rings", NULL)

    def _acquire(self):
        check_here(&self.rings)
        # A thread that holds the lock may wait for the GIL, so the GIL is released to wait for the lock.
        if pthread_mutex_trylock(&self.rings.mutex) != 0:
            with nogil:
                pthread_mutex_lock(&self.rings.mutex)

    def _release(self):
        pthread_mutex_unlock(&self.rings.mutex)

    def add(self, obs, action, reward, next_obs, terminated, truncated, Py_ssize_t env=0, *, mask=None,
            next_mask=None, **extra):
        cdef Source source
        cdef int64_t number = 0
        cdef float real
        cdef char ended, cut
        source.obs = data_of(obs, "obs", self.obs_dtype, self.obs_shape)
        source.next_obs = data_of(next_obs, "next_obs", self.obs_dtype, self.obs_shape)
        if self.action_int and not cnp.PyArray_Check(action):
            # index() refuses a value that is not an exact integer, such as a float.
            number = action if isinstance(action, int) else index(action)
            if self.action_int < 8 and number != (number << (64 - 8 * self.action_int)) >> (64 - 8 * self.action_int):
                raise ValueError(f"action must fit into {self.action_dtype}, got {number}")
            # The first bytes of a little-endian integer are the same integer in fewer bytes.
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
        source.mask = self._mask(mask, "mask", self.num_masked > 0, ())
        source.next_mask = self._mask(next_mask, "next_mask", self.final_masks, ())
        kept = None
        if self.rings.extras or extra:
            kept = self._extra(extra, None, &source)
        check_here(&self.rings)
        if pthread_mutex_trylock(&self.rings.mutex) == 0:
            _step(&self.rings, env, &source, 0)
            pthread_mutex_unlock(&self.rings.mutex)
        else:
            with nogil:
                pthread_mutex_lock(&self.rings.mutex)
                _step(&self.rings, env, &source, 0)
                pthread_mutex_unlock(&self.rings.mutex)

    def add_many(self, obs, actions, rewards, next_obs, terminated, truncated, envs=None, *, masks=None, next_masks=None,
                 **extra):
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
        source.mask = self._mask(masks, "masks", self.num_masked > 0, (count,))
        source.next_mask = self._mask(next_masks, "next_masks", self.final_masks, (count,))
        kept = None
        if self.rings.extras or extra:
            kept = self._extra(extra, count, &source)
        check_here(&self.rings)
        with nogil:
            pthread_mutex_lock(&self.rings.mutex)
            for i in range(count):
                _step(&self.rings, env[i] if env != NULL else i, &source, i)
            pthread_mutex_unlock(&self.rings.mutex)

    def append(self, records):
        cdef Py_ssize_t count, i
        cdef const char* record
        cdef int64_t stride = self.rings.stride, at = self.rings.env.at
        cdef int env = 0
        record = data_of(records, "records", self.dtype, (-1,))
        count = cnp.PyArray_DIM(records, 0)
        for i in range(count):
            memcpy(&env, record + i * stride + at, sizeof(int))
            if not 0 <= env < self.num_envs:
                raise IndexError(f"env must be from 0 to {self.num_envs - 1}, got {env} in record {i}")
        check_here(&self.rings)
        with nogil:
            pthread_mutex_lock(&self.rings.mutex)
            for i in range(count):
                _record(&self.rings, record + i * stride)
            pthread_mutex_unlock(&self.rings.mutex)

    def append_steps(self, envs, obs, actions, rewards, terminated, truncated, final_obs, *, masks=None,
                     final_masks=None, **extra):
        cdef Source source
        cdef Py_ssize_t steps, count, width, i, j, t
        cdef int64_t frames, size = self.rings.obs.size
        cdef const int64_t* env
        cdef bytearray made = bytearray(self.rings.stride)
        cdef char* record = made
        cdef bint[MAX_EXTRA] varies
        if not cnp.PyArray_Check(rewards) or rewards.ndim != 2:
            raise ValueError(f"rewards must have shape [T, R], got {list(np.shape(rewards))}")
        steps, count = cnp.PyArray_DIM(rewards, 0), cnp.PyArray_DIM(rewards, 1)
        axes = (steps, count)
        # Steps that are taken from longer arrays may be apart.
        obs, actions, rewards = _contiguous(obs), _contiguous(actions), _contiguous(rewards)
        terminated, truncated, final_obs = _contiguous(terminated), _contiguous(truncated), _contiguous(final_obs)
        source.obs = data_of(obs, "obs", self.obs_dtype, (steps + 1, count, -1))
        width = cnp.PyArray_DIM(obs, 2)
        source.next_obs = data_of(final_obs, "final_obs", self.obs_dtype, (*axes, width))
        frames = width * cnp.PyArray_ITEMSIZE(obs)
        if frames < size or frames % size:
            raise ValueError(f"obs must have rows of whole frames of {size} bytes, got {frames}")
        # Of the frames of a stack the newest, the last one, is stored.
        source.obs += frames - size
        source.next_obs += frames - size
        source.action = data_of(actions, "actions", self.action_dtype, (*axes, *self.action_shape))
        source.reward = data_of(rewards, "rewards", self.reward_dtype, axes)
        source.terminated = data_of(terminated, "terminated", self.bool_dtype, axes)
        source.truncated = data_of(truncated, "truncated", self.bool_dtype, axes)
        source.mask = self._mask(masks, "masks", self.num_masked > 0, axes)
        source.next_mask = self._mask(final_masks, "final_masks", self.final_masks, axes)
        env = <const int64_t*>data_of(envs, "envs", np.dtype(np.int64), (count,))
        for i in range(count):
            if not 0 <= env[i] < self.num_envs:
                raise IndexError(f"envs must be from 0 to {self.num_envs - 1}, got {env[i]} at {i}")
        self._check_extra(extra)
        for j, name in enumerate(self.extra):
            field, value = self.extra_dtypes[j], extra[name]
            varies[j] = cnp.PyArray_Check(value) and cnp.PyArray_NDIM(value) > field.ndim
            source.extra[j] = data_of(value, name, field.base, (*axes, *field.shape) if varies[j] else field.shape)
        check_here(&self.rings)
        with nogil:
            pthread_mutex_lock(&self.rings.mutex)
            for i in range(count):
                for t in range(steps):
                    _fragment_step(&self.rings, env[i], &source, t * count + i, frames, varies, record)
            pthread_mutex_unlock(&self.rings.mutex)

    def cut(self, Py_ssize_t env):
        if not 0 <= env < self.num_envs:
            raise IndexError(f"env must be from 0 to {self.num_envs - 1}, got {env}")
        cdef Ring* ring = &self.rings.ring[env]
        self._acquire()
        if ring.state == PENDING:
            _cut(&self.rings, ring, env * self.rings.ring_size)
        ring.state = CLOSED
        self._release()

    cdef object _scalar(self, value, name, dtype, shape):
        """Converts a number to an array, if the field is a single number."""
        if shape != () or cnp.PyArray_Check(value):
            return value
        if not np.can_cast(np.min_scalar_type(value), dtype, "same_kind"):
            raise TypeError(f"{name} must fit dtype {dtype}, got {value!r}")
        return np.array(value, dtype)

    cdef const char* _mask(self, value, name, bint is_needed, tuple count) except? NULL:
        """The masks of one or many observations, which are given exactly where rows have them."""
        if (value is not None) != is_needed:
            raise TypeError(
                f"{name}: expected {'a bool array' if is_needed else 'None'}, got {type(value).__name__}; see num_masked"
                " and final_masks of the replay"
            )
        return data_of(value, name, self.bool_dtype, (*count, self.num_masked)) if is_needed else NULL

    cdef _check_extra(self, dict extra):
        if extra.keys() != self.extra_names:
            raise TypeError(f"the extra fields {list(self.extra)} are needed, got {sorted(extra)}")

    cdef list _extra(self, extra, count, Source* source):
        """Points ``source`` to the extra fields. Returns the arrays that must live as long as ``source``."""
        self._check_extra(extra)
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


cdef void _step(Rings* rings, int64_t env, const Source* source, int64_t i) noexcept nogil:
    """Writes a transition: its row, and its next observation as an end row, which the next step may replace."""
    cdef Ring* ring = &rings.ring[env]
    cdef const char* obs = source.obs + i * rings.obs.size
    cdef char* row
    cdef char* next_row
    cdef int64_t slot, next_slot, base = env * rings.ring_size, j
    cdef uint8_t ended
    cdef int number = <int>env
    slot = _place(rings, ring, base, obs)
    row = row_at(rings, base + slot)
    memcpy(row + rings.env.at, &number, sizeof(int))
    copy_bytes(row + rings.action.at, source.action + i * rings.action.size, rings.action.size)
    memcpy(row + rings.reward.at, source.reward + i * sizeof(float), sizeof(float))
    row[rings.terminated.at] = source.terminated[i]
    row[rings.truncated.at] = source.truncated[i]
    row[rings.end.at] = 0
    if source.mask != NULL:
        copy_bytes(row + rings.mask.at, source.mask + i * rings.mask.size, rings.mask.size)
    for j in range(rings.extras):
        copy_bytes(row + rings.extra[j].at, source.extra[j] + i * rings.extra[j].size, rings.extra[j].size)
    next_slot = _claim(rings, ring, base)
    next_row = row_at(rings, base + next_slot)
    # Only the observation and the mask of an end row have a meaning; the rest is 0, so that files are reproducible.
    clear_bytes(next_row, rings.obs.at)
    memcpy(next_row + rings.env.at, &number, sizeof(int))
    copy_bytes(next_row + rings.obs.at, source.next_obs + i * rings.obs.size, rings.obs.size)
    clear_bytes(next_row + rings.obs.at + rings.obs.size, rings.stride - rings.obs.at - rings.obs.size)
    next_row[rings.end.at] = 1
    if source.next_mask != NULL:
        copy_bytes(next_row + rings.mask.at, source.next_mask + i * rings.mask.size, rings.mask.size)
    _join(rings, ring, base, slot, next_slot)
    ended = source.terminated[i] or source.truncated[i]
    ring.state = CLOSED if ended else PROVISIONAL


cdef void _record(Rings* rings, const char* record) noexcept nogil:
    """Writes a record of a stream: a step, whose next observation is in the next record of its ring, or an end row."""
    cdef int env
    memcpy(&env, record + rings.env.at, sizeof(int))
    cdef Ring* ring = &rings.ring[env]
    cdef int64_t base = env * rings.ring_size, slot, before
    cdef char* newest
    cdef bint ended
    if flag(record, rings.end):
        if ring.state == PENDING:
            before = _newest(rings, ring)
            slot = _claim(rings, ring, base)
            memcpy(row_at(rings, base + slot), record, rings.stride)
            _join(rings, ring, base, before, slot)
        ring.state = CLOSED
        return
    if ring.state == PENDING:
        before = _newest(rings, ring)
        newest = row_at(rings, base + before)
        ended = flag(newest, rings.terminated) or flag(newest, rings.truncated)
        if ended:
            _cut(rings, ring, base)
            slot = _begin(rings, ring, base)
        else:
            slot = _claim(rings, ring, base)
            _join(rings, ring, base, before, slot)
    else:
        slot = _place(rings, ring, base, record + rings.obs.at)
    memcpy(row_at(rings, base + slot), record, rings.stride)
    ring.state = PENDING


cdef void _fragment_step(Rings* rings, int64_t env, const Source* source, int64_t i, int64_t frames, const bint* varies,
                         char* record) noexcept nogil:
    """Writes a step of a fragment, and the end row after the last one of an episode, as records of a stream."""
    cdef int number = <int>env
    cdef int64_t j, k
    cdef bint terminated = source.terminated[i], truncated = source.truncated[i]
    memcpy(record + rings.env.at, &number, sizeof(int))
    copy_bytes(record + rings.obs.at, source.obs + i * frames, rings.obs.size)
    copy_bytes(record + rings.action.at, source.action + i * rings.action.size, rings.action.size)
    memcpy(record + rings.reward.at, source.reward + i * sizeof(float), sizeof(float))
    record[rings.terminated.at], record[rings.truncated.at], record[rings.end.at] = terminated, truncated, 0
    if source.mask != NULL:
        copy_bytes(record + rings.mask.at, source.mask + i * rings.mask.size, rings.mask.size)
    for j in range(rings.extras):
        k = i if varies[j] else 0
        copy_bytes(record + rings.extra[j].at, source.extra[j] + k * rings.extra[j].size, rings.extra[j].size)
    _record(rings, record)
    if not (terminated or truncated):
        return
    record[rings.end.at] = 1
    copy_bytes(record + rings.obs.at, source.next_obs + i * frames, rings.obs.size)
    clear_bytes(record + rings.mask.at, rings.mask.size)
    # After a termination no action follows.
    if source.next_mask != NULL and not terminated:
        copy_bytes(record + rings.mask.at, source.next_mask + i * rings.mask.size, rings.mask.size)
    _record(rings, record)


cdef inline int64_t _newest(const Rings* rings, const Ring* ring) noexcept nogil:
    return (ring.cursor if ring.cursor else rings.ring_size) - 1


cdef inline int64_t _claim(Rings* rings, Ring* ring, int64_t base) noexcept nogil:
    """Returns the slot of the next row, and removes the steps from ``starts`` that need the row it replaces."""
    cdef int64_t slot = ring.cursor, gone = ring.head - rings.ring_size, start, at, age
    cdef int64_t older = rings.stack - 1
    cdef int64_t* end = &rings.ends[2 * (ring - rings.ring)]
    while ring.first < ring.last:
        start = rings.starts[base + end[0]]
        at, age = position_of(rings, ring, start), rings.ages[base + start]
        if at - (age if age < older else older) > gone:
            break
        ring.first += 1
        end[0] = end[0] + 1 if end[0] + 1 < rings.ring_size else 0
    ring.head += 1
    ring.cursor = slot + 1 if slot + 1 < rings.ring_size else 0
    # The row after it will be written soon, and is in no cache.
    at = 0
    while at < rings.stride and at < 512:
        prefetch_write(row_at(rings, base + ring.cursor) + at)
        at += CACHE_LINE
    return slot


cdef inline void _join(Rings* rings, Ring* ring, int64_t base, int64_t slot, int64_t next_slot) noexcept nogil:
    """Adds the step in ``slot`` to ``starts``: the observation after it is in ``next_slot``."""
    cdef uint8_t age = rings.ages[base + slot]
    cdef int64_t older = rings.stack - 1, at = position_of(rings, ring, slot)
    cdef int64_t* end = &rings.ends[2 * (ring - rings.ring)]
    rings.ages[base + next_slot] = age + 1 if age < MAX_AGE else MAX_AGE
    if at - (age if age < older else older) >= ring.head - rings.ring_size:
        rings.starts[base + end[1]] = <uint32_t>slot
        ring.last += 1
        end[1] = end[1] + 1 if end[1] + 1 < rings.ring_size else 0


cdef inline int64_t _begin(Rings* rings, Ring* ring, int64_t base) noexcept nogil:
    cdef int64_t slot = _claim(rings, ring, base)
    rings.ages[base + slot] = 0
    return slot


cdef inline void _cut(Rings* rings, Ring* ring, int64_t base) noexcept nogil:
    """Makes the newest row, a step whose next observation never came, an end row."""
    row_at(rings, base + _newest(rings, ring))[rings.end.at] = 1
    rings.lost += 1


cdef inline int64_t _place(Rings* rings, Ring* ring, int64_t base, const char* obs) noexcept nogil:
    """Returns the slot of a step that has this observation; the observation is written to it."""
    cdef int64_t slot
    if ring.state == PROVISIONAL:
        slot = _newest(rings, ring)
        if same_bytes(row_at(rings, base + slot) + rings.obs.at, obs, rings.obs.size):
            return slot
    elif ring.state == PENDING:
        _cut(rings, ring, base)
    slot = _begin(rings, ring, base)
    copy_bytes(row_at(rings, base + slot) + rings.obs.at, obs, rings.obs.size)
    return slot


cdef object _contiguous(array):
    return cnp.PyArray_GETCONTIGUOUS(array) if cnp.PyArray_Check(array) else array


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


cdef _check_rings(const Rings* rings):
    """Refuses a state, perhaps from a damaged file, that points outside of the rings."""
    cdef int64_t i, j
    cdef const Ring* ring
    for i in range(rings.num_envs):
        ring = &rings.ring[i]
        if (ring.head < 0 or ring.cursor != ring.head % rings.ring_size or ring.first < 0
                or not 0 <= ring.last - ring.first <= rings.ring_size or ring.last > ring.head
                or not CLOSED <= ring.state <= PENDING or (ring.head == 0 and ring.state != CLOSED)):
            raise ValueError(f"the state of ring {i} contradicts itself: it is damaged")
        for j in range(ring.first, ring.last):
            if rings.starts[i * rings.ring_size + j % rings.ring_size] >= rings.ring_size:
                raise ValueError(f"ring {i} refers to a row that it does not have: it is damaged")
