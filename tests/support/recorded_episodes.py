"""Recorded episodes with random values in any space, and their comparison to the bit."""

import dataclasses
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

from fastrl.replay.episodes import Episode

IMAGE = Box(0, 255, (4, 5, 3), np.uint8)
BIG = Box(-1e300, 1e300, (2,), np.float64)
SPACES: list[Space[Any]] = [
    BIG,
    IMAGE,
    Box(-1, 1, (), np.float32),
    Box(-5, 5, (2, 3), np.int16),
    Box(0, 1, (3,), np.bool_),
    Discrete(5, start=-2),
    MultiDiscrete([3, 4]),
    MultiDiscrete([[3, 4], [2, 2]], np.int32),
    MultiBinary(6),
    Dict({"camera": IMAGE, "inner": Tuple((Discrete(3), BIG)), "flag": MultiBinary(2)}),
    Tuple((Box(-np.inf, np.inf, (3,), np.float32), Dict({"a": Discrete(2), "b": Discrete(4)}))),
    Dict({"mission": Text(20), "at": Discrete(9)}),
]


def stacked(space: Space[Any], samples: list[Any]) -> Any:
    """Samples of a space as arrays with a first axis, in its form."""
    if isinstance(space, Dict):
        return {key: stacked(child, [each[key] for each in samples]) for key, child in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(stacked(child, [each[i] for each in samples]) for i, child in enumerate(space.spaces))
    if isinstance(space, Text):
        return np.array(samples, dtype=object)
    return np.array(samples, space.dtype).reshape(len(samples), *(space.shape or ()))


def episode_of(
    obs_space: Space[Any],
    action_space: Space[Any],
    steps: int,
    seed: int,
    *,
    infos: bool = False,
    noise: bool = False,
) -> Episode:
    """Random values; the seed is the episode's."""
    obs_space.seed(seed)
    action_space.seed(seed)
    rng = np.random.default_rng(seed)
    ended = np.zeros(steps, np.bool_)
    ended[-1] = True
    facts = None
    if infos:
        facts = {
            "x": rng.normal(size=steps + 1),
            "inner": {"place": rng.integers(9, size=(steps + 1, 2)), "late": rng.normal(size=(steps, 3))},
            "name": np.array([f"row {i}" for i in range(steps + 1)], dtype=object),
        }
    return Episode(
        stacked(obs_space, [obs_space.sample() for _ in range(steps + 1)]),
        stacked(action_space, [action_space.sample() for _ in range(steps)]),
        rng.normal(size=steps) * 10.0 ** rng.integers(-9, 9, size=steps),
        ended if seed % 2 else np.zeros(steps, np.bool_),
        np.zeros(steps, np.bool_) if seed % 2 else ended,
        stacked(action_space, [action_space.sample() for _ in range(steps)]) if noise else None,
        facts,
        None if seed % 5 == 4 else 2**62 + seed,
        seed,
    )


def assert_same(got: Any, expected: Any) -> None:
    """Equal to the bit, with dtypes, in nested dicts, tuples and data classes."""
    if dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_same(getattr(got, field.name), getattr(expected, field.name))
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key, value in expected.items():
            assert_same(got[key], value)
    elif isinstance(expected, tuple):
        assert isinstance(got, tuple) and len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            assert_same(a, b)
    elif isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        if expected.dtype == object:
            assert got.tolist() == expected.tolist()
        else:
            assert got.tobytes() == expected.tobytes()
    else:
        assert got == expected
