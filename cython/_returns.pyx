# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Advantages and returns over rollouts. The manual is ``fastrl/_returns.pyi``."""

import numpy as np

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
    _check_array("rewards", rewards, np.float32, None)
    cdef Py_ssize_t num_steps = rewards.shape[0], num_envs = rewards.shape[1]
    shape = (num_steps, num_envs)
    _check_array("values", values, np.float32, shape)
    _check_array("terminations", terminations, np.bool_, shape)
    _check_array("truncations", truncations, np.bool_, shape)
    _check_array("final_values", final_values, np.float32, shape)
    _check_array("last_values", last_values, np.float32, (num_envs,))
    inputs = {
        "rewards": rewards,
        "values": values,
        "terminations": terminations,
        "truncations": truncations,
        "final_values": final_values,
        "last_values": last_values,
    }
    _check_output("advantages", advantages, shape, inputs)
    _check_output("returns", returns, shape, {**inputs, "advantages": advantages})

    cdef const float[:, ::1] reward = rewards
    cdef const float[:, ::1] value = values
    cdef const unsigned char[:, ::1] terminated = terminations.view(np.uint8)
    cdef const unsigned char[:, ::1] truncated = truncations.view(np.uint8)
    cdef const float[:, ::1] final_value = final_values
    cdef const float[::1] last_value = last_values
    cdef float[:, ::1] advantage = advantages
    cdef float[:, ::1] return_ = returns
    cdef double* running = <double*>calloc(num_envs, sizeof(double))
    if running == NULL:
        raise MemoryError(f"no memory for the running advantages of {num_envs} environments")
    cdef Py_ssize_t t
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
        if terminated[i]:
            bootstrap = 0.0
        elif truncated[i]:
            bootstrap = final_value[i]
        else:
            bootstrap = next_value[i]
        delta = reward[i] + gamma * bootstrap - value[i]
        running[i] = delta if terminated[i] or truncated[i] else delta + decay * running[i]
        advantage[i] = <float>running[i]
        return_[i] = <float>(running[i] + value[i])


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
