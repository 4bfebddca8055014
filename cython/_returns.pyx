# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Advantages and returns of rollouts. The manual is ``fastrl/_native/_returns.pyi``."""

import numpy as np

cimport numpy as cnp
from libc.math cimport exp
from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free

from _arrays cimport data_of, output_of

cnp.import_array()

cdef object FLOAT32 = np.dtype(np.float32)
cdef object BOOL = np.dtype(np.bool_)


cdef struct Rollout:
    # Arrays [num_steps, num_envs], but last_values [num_envs]; those that a function does not have are NULL.
    Py_ssize_t num_steps
    Py_ssize_t num_envs
    const float* rewards
    const float* values
    const float* log_ratios
    const uint8_t* terminated
    const uint8_t* truncated
    const float* final_values
    const float* last_values
    float* advantages
    float* returns


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
    cdef Rollout rollout = _rollout(
        dict(rewards=rewards, values=values, terminations=terminations, truncations=truncations,
             final_values=final_values, last_values=last_values),
        dict(advantages=advantages, returns=returns),
    )
    cdef double* running = _zeros(rollout.num_envs)
    cdef Py_ssize_t t
    with nogil:
        for t in range(rollout.num_steps - 1, -1, -1):
            _gae_row(&rollout, t, gamma, gamma * gae_lambda, running)
        free(running)


cdef void _gae_row(
    const Rollout* rollout, Py_ssize_t t, double gamma, double decay, double* running
) noexcept nogil:
    """``running`` is the advantage of the row after; it becomes that of row ``t``."""
    cdef Py_ssize_t i, num_envs = rollout.num_envs, at = t * num_envs
    cdef const float* reward = rollout.rewards + at
    cdef const float* value = rollout.values + at
    cdef const uint8_t* terminated = rollout.terminated + at
    cdef const uint8_t* truncated = rollout.truncated + at
    cdef const float* final_value = rollout.final_values + at
    cdef const float* next_value = _next_values(rollout, t)
    cdef float* advantage = rollout.advantages + at
    cdef float* return_ = rollout.returns + at
    cdef double bootstrap, delta
    for i in range(num_envs):
        # After an end the next row belongs to another episode: neither its value nor its advantage may leak in.
        bootstrap = _value_after(terminated[i], truncated[i], final_value[i], next_value[i])
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
    cdef Rollout rollout = _rollout(
        dict(rewards=rewards, terminations=terminations, truncations=truncations, final_values=final_values,
             last_values=last_values),
        dict(returns=returns),
    )
    cdef double* running = _zeros(rollout.num_envs)
    cdef Py_ssize_t t, i
    with nogil:
        for i in range(rollout.num_envs):
            running[i] = rollout.last_values[i]
        for t in range(rollout.num_steps - 1, -1, -1):
            _discounted_row(&rollout, t, gamma, running)
        free(running)


cdef void _discounted_row(const Rollout* rollout, Py_ssize_t t, double gamma, double* running) noexcept nogil:
    """``running`` is the return after row ``t``; it becomes the return from it on."""
    cdef Py_ssize_t i, num_envs = rollout.num_envs, at = t * num_envs
    cdef const float* reward = rollout.rewards + at
    cdef const uint8_t* terminated = rollout.terminated + at
    cdef const uint8_t* truncated = rollout.truncated + at
    cdef const float* final_value = rollout.final_values + at
    cdef float* return_ = rollout.returns + at
    for i in range(num_envs):
        running[i] = reward[i] + gamma * _value_after(terminated[i], truncated[i], final_value[i], running[i])
        return_[i] = <float>running[i]


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
    cdef Rollout rollout = _rollout(
        dict(rewards=rewards, log_ratios=log_ratios, values=values, terminations=terminations,
             truncations=truncations, final_values=final_values, last_values=last_values),
        dict(advantages=advantages, returns=returns),
    )
    cdef double* running = _zeros(rollout.num_envs)
    cdef Py_ssize_t t
    with nogil:
        for t in range(rollout.num_steps - 1, -1, -1):
            _vtrace_row(&rollout, t, gamma, rho_clip, c_clip, trace_lambda, running)
        free(running)


cdef void _vtrace_row(
    const Rollout* rollout,
    Py_ssize_t t,
    double gamma,
    double rho_clip,
    double c_clip,
    double trace_lambda,
    double* running,
) noexcept nogil:
    """``running`` is the difference of the target and the value of the row after; it becomes that of row ``t``."""
    cdef Py_ssize_t i, num_envs = rollout.num_envs, at = t * num_envs
    cdef const float* log_ratio = rollout.log_ratios + at
    cdef const float* reward = rollout.rewards + at
    cdef const float* value = rollout.values + at
    cdef const uint8_t* terminated = rollout.terminated + at
    cdef const uint8_t* truncated = rollout.truncated + at
    cdef const float* final_value = rollout.final_values + at
    cdef const float* next_value = _next_values(rollout, t)
    cdef float* advantage = rollout.advantages + at
    cdef float* return_ = rollout.returns + at
    cdef double ratio, rho, bootstrap, correction
    for i in range(num_envs):
        ratio = exp(log_ratio[i])
        rho = min(rho_clip, ratio)
        bootstrap = _value_after(terminated[i], truncated[i], final_value[i], next_value[i])
        correction = 0.0 if terminated[i] or truncated[i] else running[i]
        advantage[i] = <float>(rho * (reward[i] + gamma * (bootstrap + correction) - value[i]))
        running[i] = (
            rho * (reward[i] + gamma * bootstrap - value[i])
            + gamma * trace_lambda * min(c_clip, ratio) * correction
        )
        return_[i] = <float>(running[i] + value[i])


cdef inline const float* _next_values(const Rollout* rollout, Py_ssize_t t) noexcept nogil:
    """The values of the observations after row ``t``, if their episodes continue."""
    if t == rollout.num_steps - 1:
        return rollout.last_values
    return rollout.values + (t + 1) * rollout.num_envs


cdef inline double _value_after(
    uint8_t terminated, uint8_t truncated, double final_value, double next_value
) noexcept nogil:
    """The value after a step: 0 where the episode terminated, the value of its true last observation where it was
    truncated, else ``next_value``."""
    if terminated:
        return 0.0
    return final_value if truncated else next_value


cdef double* _zeros(Py_ssize_t count) except NULL:
    """Memory that the caller frees."""
    cdef double* numbers = <double*>calloc(count, sizeof(double))
    if numbers == NULL:
        raise MemoryError(f"no memory for the running sums of {count} environments")
    return numbers


cdef Rollout _rollout(dict inputs, dict outputs) except *:
    """Checks all arrays and points to them."""
    cdef Rollout rollout
    rewards = inputs["rewards"]
    if isinstance(rewards, np.ndarray) and (rewards.ndim != 2 or rewards.size == 0):
        raise ValueError(f"rewards must have shape [T, N] with T and N at least 1, got {list(rewards.shape)}")
    cdef tuple shape = rewards.shape if isinstance(rewards, np.ndarray) else (-1, -1)
    rollout.rewards = <const float*>_input(inputs, "rewards", FLOAT32, shape)
    rollout.num_steps, rollout.num_envs = shape
    rollout.log_ratios = <const float*>_input(inputs, "log_ratios", FLOAT32, shape)
    rollout.values = <const float*>_input(inputs, "values", FLOAT32, shape)
    rollout.terminated = <const uint8_t*>_input(inputs, "terminations", BOOL, shape)
    rollout.truncated = <const uint8_t*>_input(inputs, "truncations", BOOL, shape)
    rollout.final_values = <const float*>_input(inputs, "final_values", FLOAT32, shape)
    rollout.last_values = <const float*>_input(inputs, "last_values", FLOAT32, shape[1:])
    rollout.advantages = _output(outputs, "advantages", shape, inputs)
    rollout.returns = _output(outputs, "returns", shape, inputs)
    return rollout


cdef char* _input(dict arrays, name, dtype, tuple shape) except? NULL:
    return data_of(arrays[name], name, dtype, shape) if name in arrays else NULL


cdef float* _output(dict outputs, name, tuple shape, dict inputs) except? NULL:
    if name not in outputs:
        return NULL
    cdef char* data = output_of(outputs[name], name, FLOAT32, shape)
    # Those before it in order of definition; the outputs after it are compared with it.
    for other_name, other in [*inputs.items(), *outputs.items()]:
        if other_name == name:
            break
        if np.may_share_memory(outputs[name], other):
            raise ValueError(f"{name} must not share memory with {other_name}")
    return <float*>data


cdef int _check_fraction(name, double value) except -1:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
    return 0
