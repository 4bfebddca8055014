"""Checks of single values of a config. Every error names the key that it is about.

Raises in all of them: ValueError, TypeError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fastrl.utils.arguments import as_integer, as_number
from fastrl.utils.names import did_you_mean

# The largest number of a config, so that a simulation stays finite.
LARGEST = 1e9
# Checks a value; the text is its path, such as "config['duration']".
Check = Callable[[str, Any], object]


def known_keys(path: str, given: Any, known: Mapping[str, Any]) -> None:
    """Checks that a value is a dict with known keys."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{path}: expected a dict, got {type(given).__name__}")
    for key in given:
        if key in known:
            continue
        hint = did_you_mean(key, known) or f": known are {', '.join(known)}"
        raise ValueError(f"{path}: unknown key {key!r}{hint}")


def number(path: str, value: Any, *, least: float = -math.inf, above: float = -math.inf) -> None:
    """Checks a number of a size with which a simulation stays finite."""
    as_number(path, value)
    positive = above == 0.0
    size: Any = abs(value)
    if not size <= LARGEST or value < least or value <= above or (positive and value < 1 / LARGEST):
        bound = " above 0" if positive else f" of at least {least:g}" if least > -math.inf else ""
        raise ValueError(f"{path}: expected a finite number{bound}, at most {LARGEST:g}, got {value!r}")


def flag(path: str, value: Any) -> None:
    """Checks True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{path}: expected True or False, got {value!r}")


def only(path: str, value: Any, kept: Any, why: str) -> None:
    """Checks a flag of which one value is supported."""
    flag(path, value)
    if value != kept:
        raise ValueError(f"{path}: only {kept} is supported, got {value}: {why}")


def numbers(path: str, value: Any, length: int | None = None, **bounds: float) -> None:
    """Checks a list of numbers, of the given length if there is one; `bounds` as of `number`."""
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str):
        raise TypeError(f"{path}: expected a list of numbers, got {value!r}")
    if length is not None and len(value) != length:
        raise ValueError(f"{path}: expected {length} numbers, got {value!r}")
    for i, one in enumerate(value):
        number(f"{path}[{i}]", one, **bounds)


def different(path: str, value: Any, *, rising: bool = False) -> None:
    """Checks a pair of different numbers, so that their distance can be a divisor."""
    numbers(path, value, 2)
    if value[0] == value[1] or (rising and value[0] > value[1]):
        wanted = "[low, high] with low < high" if rising else "two different numbers"
        raise ValueError(f"{path}: expected {wanted}, got {value!r}")


def choice(path: str, value: Any, choices: Sequence[str]) -> None:
    """Checks one of several names."""
    if value not in choices:
        hint = did_you_mean(value, choices)
        raise ValueError(f"{path}: expected one of {', '.join(map(repr, choices))}, got {value!r}{hint}")


def names(path: str, value: Any, known: Sequence[str]) -> None:
    """Checks a list of different names."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"{path}: expected a list of names, got {value!r}")
    if not value:
        raise ValueError(f"{path}: expected at least one name, got none")
    for name in value:
        choice(path, name, known)
    if len(set(value)) != len(value):
        raise ValueError(f"{path}: expected each name once, got {list(value)}")


def whole(least: int, most: int) -> Check:
    """A check of a whole number within bounds."""
    return lambda path, value: as_integer(path, value, least, most)


def optional(check: Check) -> Check:
    """A check that lets None pass."""
    return lambda path, value: None if value is None else check(path, value)


def pair(wanted: str, check: Check) -> Check:
    """A check of two values, each by a check."""

    def checked(path: str, value: Any) -> None:
        if not isinstance(value, Sequence | np.ndarray) or len(value) != 2:
            raise ValueError(f"{path}: expected {wanted}, got {value!r}")
        for i in range(2):
            check(f"{path}[{i}]", value[i])

    return checked


def required(wanted: str, check: Check) -> Check:
    """A check of a value that has no default."""

    def checked(path: str, value: Any) -> object:
        if value is None:
            raise ValueError(f"{path}: expected {wanted}, got None")
        return check(path, value)

    return checked


_OF_TYPE: dict[type, Check] = {bool: flag, int: number, float: number}


def check_values(
    path: str, given: Mapping[str, Any], defaults: Mapping[str, Any], checks: Mapping[str, Check]
) -> None:
    """Checks all values of a dict: by the check of the key, else flags and numbers by the type of their default."""
    for key, value in given.items():
        check = checks.get(key) or _OF_TYPE.get(type(defaults.get(key)))
        if check is not None:
            check(f"{path}[{key!r}]", value)
