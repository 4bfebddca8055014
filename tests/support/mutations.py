"""Seeded damage: values of a JSON tree that are replaced or removed, and bytes that are cut or flipped."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 3, 10**30, 2**63, 0.5, -1e300, float("nan"), float("inf")),
    *("", "x", "../x", "\x1b[31mred", "\ud800", "nan", [], {}, [1], [[]], {"x": 1}, [None], ["x"] * 3),
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in nested dicts and lists; of long lists the first ones."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:3]) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutated(tree: Any, chance: random.Random) -> tuple[Any, str]:
    """A copy of a tree with one change, and what it is."""
    tree = copy.deepcopy(tree)
    *path, key = chance.choice(list(places(tree)))
    parent = tree
    for step in path:
        parent = parent[step]
    if chance.random() < 0.25:
        del parent[key]
        return tree, f"{[*path, key]} removed"
    parent[key] = chance.choice(VALUES)
    return tree, f"{[*path, key]} = {str(parent[key])[:40]!r}"


def damaged(data: bytes, chance: random.Random) -> tuple[bytes, str]:
    """Bytes that are cut, with a part twice, or with some that are others, and what was done."""
    at = chance.randrange(len(data))
    match chance.randrange(4):
        case 0:
            return data[:at], f"cut at {at}"
        case 1:
            return data[:at] + data[at:][:9] + data[at:], f"9 bytes twice at {at}"
        case 2:
            # Headers are at the start.
            at %= 200
    changed = bytearray(data)
    changed[at] ^= 1 << chance.randrange(8)
    return bytes(changed), f"a bit at {at}"


def refuses(call: Callable[[], object], what: str, *errors: type[BaseException]) -> bool:
    """Calls what reads something damaged; True if it refuses it by one of its errors, in one line.

    Args:
        what: was damaged, which other errors name.
    """
    try:
        call()
    except errors as error:
        line = str(error)
    except BaseException as error:
        error.add_note(what)
        raise
    else:
        return False
    assert line and "\n" not in line, what
    return True
