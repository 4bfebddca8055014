"""Checks of arguments, with messages that name the argument, the expected values and the value that came."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from fastrl.utils.names import did_you_mean

LARGEST_UINT32 = 2**32 - 1


def as_integer(name: str, value: object, least: int, most: int | None = LARGEST_UINT32) -> int:
    """Checks an integer.

    Raises:
        TypeError: no integer (a bool is none).
        ValueError: below `least`, or above `most` if there is such a bound.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"{name}: expected {bounds}, got {value}")
    return int(value)


def as_number(name: str, value: object) -> float:
    """Checks a number.

    Raises:
        TypeError: no number (a bool is none).
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    return float(value)


def one_of(name: str, value: Any, known: Sequence[str]) -> str:
    """Checks a name, which should be one of two or more.

    Raises:
        ValueError: anything else; the message has the name that is likely meant.
    """
    if not isinstance(value, str) or value not in known:
        *first, last = map(repr, known)
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise ValueError(f"{name}: expected {', '.join(first)} or {last}, got {value!r}{hint}")
    return value


def check_types(options: Any, least: int = 0) -> None:
    """Checks the fields of a dataclass that are flags, numbers or integers of at least `least`, or None where the type
    allows it.

    Raises:
        TypeError, ValueError: a field is not of its type; the message names it.
    """
    for field in fields(options):
        kind, value = str(field.type), getattr(options, field.name)
        if kind == "int":
            as_integer(field.name, value, least)
        elif kind == "bool" and not isinstance(value, bool | np.bool_):
            raise TypeError(f"{field.name}: expected True or False, got {value!r}")
        elif kind == "float" or (kind == "float | None" and value is not None):
            as_number(field.name, value)
