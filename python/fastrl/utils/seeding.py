"""Random numbers as functions of the seed and of their purpose, the same in every process and for every collector.

An episode is identified by its environment index, or `NO_ENV`, and its number among the episodes of that index. Its
environment is reset with the `env_seed` of the two, and each of its actions takes one number from its `act_stream`. So
an episode is the same in any process, beside any other episodes and in any batch of actions. The hash is splitmix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014); compiled code draws the same numbers.
"""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl._native._rust import fill_noise, fill_normals, fill_uniforms

GOLDEN = np.uint64(0x9E3779B97F4A7C15)

# The index of whole episodes, which belong to no environment and are numbered over the run.
NO_ENV = 2**32

_ENV, _ACT, _EVALUATION = 1, 2, 3

# So many episodes at most take less time one by one, with plain integers.
_FEW = 16

_GOLDEN, _WORD = int(GOLDEN), 2**64 - 1


def mix(x: Any) -> Any:
    """splitmix64's finaliser: a bijection of uint64, an array or a scalar."""
    with np.errstate(over="ignore"):
        x = np.asarray(x, np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def stream(seed: int, *indices: Any) -> Any:
    """Hashes a seed (0 to 2**64 - 1) and indices (not negative, or arrays of one shape of them) to uint64."""
    with np.errstate(over="ignore"):
        state = mix(np.uint64(seed) + GOLDEN)
        for index in indices:
            state = mix(state ^ mix(np.asarray(index, np.uint64) + GOLDEN))
        return state


def env_seed(seed: int, index: int, number: int) -> int:
    """The seed for ``env.reset(seed=...)`` at the start of an episode: 31 bits, which every environment accepts."""
    return _stream(seed, _ENV, index, number) >> 33


def env_seeds(seed: int, indices: NDArray[np.int64], episodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """`env_seed` of many episodes, int64 [K]."""
    if len(indices) <= _FEW:
        return np.array([_stream(seed, _ENV, *each) >> 33 for each in _pairs(indices, episodes)], np.int64)
    seeds: NDArray[np.int64] = (stream(seed, _ENV, indices, episodes) >> np.uint64(33)).astype(np.int64)
    return seeds


def evaluation_seed(seed: int) -> int:
    """The seed of a run's evaluations on the way, 31 bits. The evaluation at the end has the run's own seed."""
    return int(stream(seed, _EVALUATION)) >> 33


def act_stream(seed: int, index: int, number: int) -> int:
    """The stream from which the actions of an episode are drawn, for `uniforms`."""
    return _stream(seed, _ACT, index, number)


def _stream(seed: int, purpose: int, index: int, number: int) -> int:
    """Stream of plain integers as of `stream`, ten times as fast as numpy."""
    state = _mix(_purpose_state(seed, purpose) ^ _mix((int(index) + _GOLDEN) & _WORD))
    return _mix(state ^ _mix((int(number) + _GOLDEN) & _WORD))


@functools.lru_cache(16)
def _purpose_state(seed: int, purpose: int) -> int:
    return _mix(_mix((int(seed) + _GOLDEN) & _WORD) ^ _mix(purpose + _GOLDEN))


def _mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _WORD
    return x ^ (x >> 31)


def act_streams(seed: int, indices: NDArray[np.int64], episodes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """`act_stream` of many episodes, uint64 [K]."""
    if len(indices) <= _FEW:
        return np.array([_stream(seed, _ACT, *each) for each in _pairs(indices, episodes)], np.uint64)
    streams: NDArray[np.uint64] = stream(seed, _ACT, indices, episodes)
    return streams


def _pairs(indices: NDArray[np.int64], episodes: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    return zip(indices.tolist(), episodes.tolist(), strict=True)


def agent_streams(streams: NDArray[np.uint64], num_agents: int) -> NDArray[np.uint64]:
    """A stream for each agent of some episodes, uint64 [K, A], from the episodes' own, uint64 [K]."""
    with np.errstate(over="ignore"):
        return mix(streams[:, None] ^ mix(np.arange(1, num_agents + 1, dtype=np.uint64) * GOLDEN))


def uniforms(streams: NDArray[np.uint64], steps: NDArray[np.int64]) -> NDArray[np.float32]:
    """The number of each stream at a step.

    Args:
        streams: uint64 [K].
        steps: int64 [K], steps of the episode, counted from 0.

    Returns:
        float32 [K], from 0 to 1 - 2**-24.
    """
    with np.errstate(over="ignore"):
        bits = mix(streams + (steps.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    # The upper 24 bits.
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def uniforms_of_parts(
    streams: NDArray[np.uint64], steps: NDArray[np.int64], parts: int
) -> NDArray[np.float32]:
    """Numbers for actions of several parts, as `uniforms`, float32 [K, parts]."""
    drawn = np.empty((len(streams), parts), np.float32)
    fill_uniforms(streams, steps, drawn)
    return drawn


def noise(stream: int, step: int, size: int) -> NDArray[np.float32]:
    """Independent standard normal numbers of one stream at a step, for gradient steps, float32 [size]."""
    drawn = np.empty(size, np.float32)
    fill_noise(stream, step, drawn)
    return drawn


def normals(streams: NDArray[np.uint64], steps: NDArray[np.int64], size: int) -> NDArray[np.float32]:
    """Independent standard normal numbers of each stream at a step (Box and Muller, 1958), float32 [K, size]."""
    drawn = np.empty((len(streams), size), np.float32)
    fill_normals(streams, steps, drawn)
    return drawn
