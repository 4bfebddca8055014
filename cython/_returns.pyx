# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Advantages and returns over rollouts. The manual is ``fastrl/_returns.pyi``."""

import numpy as np

from libc.math cimport exp
from libc.stdlib cimport calloc, free


def gae(
    rewards,
    values,
    terminations,
    truncations,
    final_values,
    last_values,
    advantages,
    returns,
    *,
    double gamma,
    double gae_lambda,
):
    _check_fraction("gamma", gamma)
    _check_fraction("gae_lambda", gae_lambda)
    _check_arrays(
        dict(rewards=rewards, values=values, terminations=terminations, truncations=truncations,
             final_values=final_values, last_values=last_values),
        dict(advantages=advantages, returns=returns),
    )
    cdef const float[:, ::1] reward = rewards
    cdef const float[:, ::1] value = values
    cdef const unsigned char[:, ::1] terminated = terminations.view(np.uint8)
    cdef const unsigned char[:, ::1] truncated = truncations.view(np.uint8)
    cdef const float[:, ::1] final_value = final_values
    cdef const float[::1] last_value = last_values
    cdef float[:, ::1] advantage = advantages
    cdef float[:, ::1] return_ = returns
    cdef Py_ssize_t num_steps = reward.shape[0], num_envs = reward.shape[1], t
    cdef double* running = _doubles(num_envs)
    with nogil:
        for t in range(num_steps - 1, -1, -1):
            _gae_row(
                num_envs, gamma, gamma * gae_lambda,
                &reward[t, 0], &value[t, 0], &terminated[t, 0], &truncated[t, 0], &final_value[t, 0],
                &last_value[0] if t == num_steps - 1 else &value[t + 1, 0],
                running, &advantage[t, 0], &return_[t, 0],
            )
        free(running)


cdef void _gae_row(
    Py_ssize_t num_envs,
    double gamma,
    double decay,
    const float* reward,
    const float* value,
    const unsigned char* terminated,
    const unsigned char* truncated,
    const float* final_value,
    const float* next_value,
    double* running,
    float* advantage,
    float* return_,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef double bootstrap, delta
    for i in range(num_envs):
        # After an end the next row belongs to another episode: neither its value nor its advantage may leak in.
        bootstrap = _after(terminated[i], truncated[i], final_value[i], next_value[i])
        delta = reward[i] + gamma * bootstrap - value[i]
        running[i] = delta if terminated[i] or truncated[i] else delta + decay * running[i]
        advantage[i] = <float>running[i]
        return_[i] = <float>(running[i] + value[i])


def discounted_returns(
    rewards,
    terminations,
    truncations,
    final_values,
    last_values,
    returns,
    *,
    double gamma,
):
    _check_fraction("gamma", gamma)
    _check_arrays(
        dict(rewards=rewards, terminations=terminations, truncations=truncations, final_values=final_values,
             last_values=last_values),
        dict(returns=returns),
    )
    cdef const float[:, ::1] reward = rewards
    cdef const unsigned char[:, ::1] terminated = terminations.view(np.uint8)
    cdef const unsigned char[:, ::1] truncated = truncations.view(np.uint8)
    cdef const float[:, ::1] final_value = final_values
    cdef const float[::1] last_value = last_values
    cdef float[:, ::1] return_ = returns
    cdef Py_ssize_t num_steps = reward.shape[0], num_envs = reward.shape[1], t
    cdef double* running = _doubles(num_envs)
    with nogil:
        _copy_row(num_envs, &last_value[0], running)
        for t in range(num_steps - 1, -1, -1):
            _step_back(
                num_envs, gamma, &reward[t, 0], &terminated[t, 0], &truncated[t, 0], &final_value[t, 0], running
            )
            _store_row(num_envs, running, &return_[t, 0])
        free(running)


def n_step_returns(
    rewards,
    values,
    terminations,
    truncations,
    final_values,
    last_values,
    returns,
    *,
    double gamma,
    Py_ssize_t n_step,
):
    _check_fraction("gamma", gamma)
    if n_step < 1:
        raise ValueError(f"n_step must be at least 1, got {n_step}")
    _check_arrays(
        dict(rewards=rewards, values=values, terminations=terminations, truncations=truncations,
             final_values=final_values, last_values=last_values),
        dict(returns=returns),
    )
    cdef const float[:, ::1] reward = rewards
    cdef const float[:, ::1] value = values
    cdef const unsigned char[:, ::1] terminated = terminations.view(np.uint8)
    cdef const unsigned char[:, ::1] truncated = truncations.view(np.uint8)
    cdef const float[:, ::1] final_value = final_values
    cdef const float[::1] last_value = last_values
    cdef float[:, ::1] return_ = returns
    cdef Py_ssize_t num_steps = reward.shape[0], num_envs = reward.shape[1], t, k
    cdef double* running = _doubles(num_envs)
    with nogil:
        for t in range(num_steps):
            # Back from the row that the sum ends before; not t + n_step > num_steps, which may overflow.
            if n_step >= num_steps - t:
                k = num_steps
                _copy_row(num_envs, &last_value[0], running)
            else:
                k = t + n_step
                _copy_row(num_envs, &value[k, 0], running)
            while k > t:
                k -= 1
                _step_back(
                    num_envs, gamma,
                    &reward[k, 0], &terminated[k, 0], &truncated[k, 0], &final_value[k, 0], running,
                )
            _store_row(num_envs, running, &return_[t, 0])
        free(running)


cdef void _step_back(
    Py_ssize_t num_envs,
    double gamma,
    const float* reward,
    const unsigned char* terminated,
    const unsigned char* truncated,
    const float* final_value,
    double* running,
) noexcept nogil:
    """Returns after a step become returns before it."""
    cdef Py_ssize_t i
    for i in range(num_envs):
        running[i] = reward[i] + gamma * _after(terminated[i], truncated[i], final_value[i], running[i])


def lambda_returns(
    rewards,
    values,
    terminations,
    truncations,
    final_values,
    last_values,
    returns,
    *,
    double gamma,
    double return_lambda,
):
    _check_fraction("gamma", gamma)
    _check_fraction("return_lambda", return_lambda)
    _check_arrays(
        dict(rewards=rewards, values=values, terminations=terminations, truncations=truncations,
             final_values=final_values, last_values=last_values),
        dict(returns=returns),
    )
    cdef const float[:, ::1] reward = rewards
    cdef const float[:, ::1] value = values
    cdef const unsigned char[:, ::1] terminated = terminations.view(np.uint8)
    cdef const unsigned char[:, ::1] truncated = truncations.view(np.uint8)
    cdef const float[:, ::1] final_value = final_values
    cdef const float[::1] last_value = last_values
    cdef float[:, ::1] return_ = returns
    cdef Py_ssize_t num_steps = reward.shape[0], num_envs = reward.shape[1], t
    cdef double* running = _doubles(num_envs)
    with nogil:
        _copy_row(num_envs, &last_value[0], running)
        for t in range(num_steps - 1, -1, -1):
            _lambda_row(
                num_envs, gamma, return_lambda,
                &reward[t, 0], &terminated[t, 0], &truncated[t, 0], &final_value[t, 0],
                &last_value[0] if t == num_steps - 1 else &value[t + 1, 0],
                running,
            )
            _store_row(num_envs, running, &return_[t, 0])
        free(running)


cdef void _lambda_row(
    Py_ssize_t num_envs,
    double gamma,
    double return_lambda,
    const float* reward,
    const unsigned char* terminated,
    const unsigned char* truncated,
    const float* final_value,
    const float* next_value,
    double* running,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef double mixed
    for i in range(num_envs):
        mixed = (1.0 - return_lambda) * next_value[i] + return_lambda * running[i]
        running[i] = reward[i] + gamma * _after(terminated[i], truncated[i], final_value[i], mixed)


def vtrace(
    log_ratios,
    rewards,
    values,
    terminations,
    truncations,
    final_values,
    last_values,
    advantages,
    returns,
    *,
    double gamma,
    double rho_clip=1.0,
    double c_clip=1.0,
    double trace_lambda=1.0,
):
    _check_fraction("gamma", gamma)
    _check_fraction("trace_lambda", trace_lambda)
    if not 0.0 < c_clip <= rho_clip:
        raise ValueError(f"clips must be 0 < c_clip <= rho_clip, got c_clip {c_clip} and rho_clip {rho_clip}")
    _check_arrays(
        dict(rewards=rewards, log_ratios=log_ratios, values=values, terminations=terminations,
             truncations=truncations, final_values=final_values, last_values=last_values),
        dict(advantages=advantages, returns=returns),
    )
    cdef const float[:, ::1] log_ratio = log_ratios
    cdef const float[:, ::1] reward = rewards
    cdef const float[:, ::1] value = values
    cdef const unsigned char[:, ::1] terminated = terminations.view(np.uint8)
    cdef const unsigned char[:, ::1] truncated = truncations.view(np.uint8)
    cdef const float[:, ::1] final_value = final_values
    cdef const float[::1] last_value = last_values
    cdef float[:, ::1] advantage = advantages
    cdef float[:, ::1] return_ = returns
    cdef Py_ssize_t num_steps = reward.shape[0], num_envs = reward.shape[1], t
    cdef double* running = _doubles(num_envs)
    with nogil:
        for t in range(num_steps - 1, -1, -1):
            _vtrace_row(
                num_envs, gamma, rho_clip, c_clip, trace_lambda, &log_ratio[t, 0],
                &reward[t, 0], &value[t, 0], &terminated[t, 0], &truncated[t, 0], &final_value[t, 0],
                &last_value[0] if t == num_steps - 1 else &value[t + 1, 0],
                running, &advantage[t, 0], &return_[t, 0],
            )
        free(running)


cdef void _vtrace_row(
    Py_ssize_t num_envs,
    double gamma,
    double rho_clip,
    double c_clip,
    double trace_lambda,
    const float* log_ratio,
    const float* reward,
    const float* value,
    const unsigned char* terminated,
    const unsigned char* truncated,
    const float* final_value,
    const float* next_value,
    double* running,
    float* advantage,
    float* return_,
) noexcept nogil:
    """``running`` is what V-trace adds to the value of a row: v - V."""
    cdef Py_ssize_t i
    cdef double ratio, rho, bootstrap, correction
    for i in range(num_envs):
        ratio = exp(log_ratio[i])
        rho = min(rho_clip, ratio)
        bootstrap = _after(terminated[i], truncated[i], final_value[i], next_value[i])
        correction = 0.0 if terminated[i] or truncated[i] else running[i]
        advantage[i] = <float>(rho * (reward[i] + gamma * (bootstrap + correction) - value[i]))
        running[i] = (
            rho * (reward[i] + gamma * bootstrap - value[i])
            + gamma * trace_lambda * min(c_clip, ratio) * correction
        )
        return_[i] = <float>(running[i] + value[i])


cdef inline double _after(
    unsigned char terminated, unsigned char truncated, double final_value, double goes_on
) noexcept nogil:
    """What follows a step is worth: nothing after a true end, the value of the true last observation where the
    episode was cut off, else ``goes_on``."""
    if terminated:
        return 0.0
    return final_value if truncated else goes_on


cdef double* _doubles(Py_ssize_t count) except NULL:
    """Zeros, to be freed."""
    cdef double* numbers = <double*>calloc(count, sizeof(double))
    if numbers == NULL:
        raise MemoryError(f"no memory for the running sums of {count} environments")
    return numbers


cdef void _copy_row(Py_ssize_t num_envs, const float* row, double* running) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(num_envs):
        running[i] = row[i]


cdef void _store_row(Py_ssize_t num_envs, const double* running, float* row) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(num_envs):
        row[i] = <float>running[i]


def _check_arrays(inputs, outputs):
    """Of ``inputs`` the rewards come first: their shape [T, N] is that of all arrays, but last_values [N]."""
    shape = None
    for name, array in inputs.items():
        dtype = np.bool_ if name in ("terminations", "truncations") else np.float32
        _check_array(name, array, dtype, shape[1:] if name == "last_values" else shape)
        shape = shape or array.shape
    others = dict(inputs)
    for name, array in outputs.items():
        _check_output(name, array, shape, others)
        others[name] = array


def _check_fraction(name, value):
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")


def _check_array(name, array, dtype, shape):
    """One array as the loops above need it; `shape` None: any two dimensions, neither of them empty."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, got {type(array).__name__}")
    if array.dtype != dtype:
        raise TypeError(f"{name} must have dtype {np.dtype(dtype).name}, got {array.dtype}")
    if shape is None:
        if array.ndim != 2 or array.size == 0:
            raise ValueError(f"{name} must have shape [T, N] with T and N at least 1, got {list(array.shape)}")
    elif array.shape != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(array.shape)}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous; pass numpy.ascontiguousarray({name})")
    if not array.flags.aligned:
        raise ValueError(f"{name} must be aligned in memory; pass a copy")


def _check_output(name, array, shape, others):
    _check_array(name, array, np.float32, shape)
    if not array.flags.writeable:
        raise ValueError(f"{name} is written to and must not be read-only")
    for other_name, other in others.items():
        if np.may_share_memory(array, other):
            raise ValueError(f"{name} must not share memory with {other_name}")
