"""Columns of recorded episodes: arrays of an episode as columns of an Arrow table, and back.

An episode of T steps takes T + 1 rows of the table, one for each observation. The last row has no action, reward and
flags; they are null there. A column holds one leaf of a space, in the leaf's own dtype.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Tuple
from numpy.typing import NDArray

from fastrl.envs.rows import leaves_of
from fastrl.utils.errors import UserError
from fastrl.utils.files import parse_json

try:
    import pyarrow as pa
except ImportError:
    raise UserError("recorded episodes need pyarrow: pip install 'fastrl[demos]'") from None


class DemosError(UserError):
    """A data set of episodes that cannot be read or written as asked; the message names the file and what to do."""


@dataclass(frozen=True)
class Column:
    """A column of an Arrow table of steps.

    Attributes:
        group: "observation", "action", "expert_action", "reward", "terminated", "truncated" or "info".
        path: keys of Dicts and indices of Tuples that lead to the leaf.
        dtype: of its numbers; "U" for texts.
        shape: of the leaf in one row.
        has_last: there is a value in the last row of an episode, too.
    """

    group: str
    path: tuple[Any, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    has_last: bool

    @property
    def name(self) -> str:
        """Name of the column, such as ``observation/camera``."""
        return "/".join((self.group, *map(str, self.path)))

    @property
    def is_text(self) -> bool:
        return self.dtype.kind == "U"

    @property
    def size(self) -> int:
        """Numbers of a row."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a row; texts count as 16."""
        return 16 if self.is_text else self.size * self.dtype.itemsize

    def field(self) -> pa.Field:
        """Field of the table's schema; its metadata has what `from_field` needs."""
        facts = {
            "group": self.group,
            "path": list(self.path),
            "dtype": "U" if self.is_text else self.dtype.str,
            "shape": list(self.shape),
            "has_last": self.has_last,
        }
        return pa.field(self.name, self.arrow_type(), metadata={"fastrl": json.dumps(facts)})

    @classmethod
    def from_field(cls, field: pa.Field) -> Column:
        """The column that a field of a schema describes.

        Raises:
            ValueError, KeyError, TypeError: it describes none.
        """
        facts = parse_json((field.metadata or {})[b"fastrl"])
        dtype = np.dtype(facts["dtype"])
        return cls(facts["group"], tuple(facts["path"]), dtype, tuple(facts["shape"]), facts["has_last"])

    def arrow_type(self) -> pa.DataType:
        if self.is_text:
            return pa.large_string()
        if self.dtype == np.bool_ and not self.shape:
            return pa.bool_()
        # Bits of other booleans would have to be unpacked.
        number = pa.uint8() if self.dtype == np.bool_ else pa.from_numpy_dtype(self.dtype)
        return pa.list_(number, self.size) if self.shape else number

    def to_arrow(self, parts: Sequence[NDArray[Any]], last: NDArray[np.bool_]) -> pa.Array:
        """The column of several episodes.

        Args:
            parts: values of episodes one after the other, T + 1 rows for each, or T without `has_last`.
            last: bool [rows], True in the last row of each episode.
        """
        values = np.concatenate(parts) if len(parts) > 1 else parts[0]
        if not self.has_last:
            own, values = values, np.zeros((len(last), *self.shape), object if self.is_text else self.dtype)
            values[~last] = own
        if self.is_text:
            if not self.has_last:
                values[last] = None
            return pa.array(values.tolist(), pa.large_string())
        # From buffers: `pyarrow.array` would import pandas where that is installed, which takes a second.
        arrow_type, rows = self.arrow_type(), len(values)
        valid = None if self.has_last else _bits(~last)
        if pa.types.is_boolean(arrow_type):
            return pa.Array.from_buffers(arrow_type, rows, [valid, _bits(values)])
        data = pa.py_buffer(np.ascontiguousarray(values))
        if not self.shape:
            return pa.Array.from_buffers(arrow_type, rows, [valid, data])
        numbers = pa.Array.from_buffers(arrow_type.value_type, rows * self.size, [None, data])
        return pa.Array.from_buffers(arrow_type, rows, [valid], children=[numbers])

    def to_numpy(self, array: pa.Array) -> Any:
        """All rows of the column, [rows, *shape]: a read-only view of the table's memory, but of single booleans and
        texts a copy."""
        if self.is_text:
            return np.array([text or "" for text in array.to_pylist()], dtype=object)
        if pa.types.is_boolean(array.type):
            bits = np.frombuffer(array.buffers()[1], np.uint8)
            unpacked = np.unpackbits(bits, count=array.offset + len(array), bitorder="little")
            return unpacked[array.offset :].view(np.bool_)
        numbers = array.values if self.shape else array
        # Null slots are zeros; their validity is known from the episodes' lengths.
        values = np.frombuffer(numbers.buffers()[1], self.dtype)
        start = array.offset * self.size
        return values[start : start + len(array) * self.size].reshape(len(array), *self.shape)


def _bits(values: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def columns_of(space: gymnasium.Space[Any], group: str, *, has_last: bool) -> list[Column]:
    """A column for each leaf of a space.

    Raises:
        DemosError: a space without columns.
    """
    try:
        leaves = list(leaves_of(space))
    except ValueError as error:
        raise DemosError(f"{group}s cannot be recorded: {error}") from None
    columns = []
    for path, leaf in leaves:
        dtype = np.dtype("U") if leaf.dtype is None or leaf.dtype.kind == "U" else np.dtype(leaf.dtype)
        if not dtype.isnative:
            raise DemosError(
                f"{group}s cannot be recorded: {dtype} has the other byte order than this machine"
            )
        columns.append(
            Column(group, path, dtype, () if dtype.kind == "U" else tuple(leaf.shape or ()), has_last)
        )
    return columns


def info_columns(infos: Mapping[str, Any], steps: int, episodes: int) -> list[Column]:
    """A column for each value of the infos of episodes: nested dicts of arrays with T + 1 or T rows of each.

    Args:
        steps: of all episodes together.

    Raises:
        DemosError: another form.
    """
    columns = []
    for path, values in flat_items(infos):
        array = np.asarray(values)
        where = "/".join(path)
        if array.dtype == object and all(isinstance(value, str) for value in array.ravel().tolist()):
            array = array.astype("U")
        fits = array.dtype.kind in "biufU" and array.dtype.isnative
        if not fits or array.ndim < 1 or len(array) not in (steps, steps + episodes):
            raise DemosError(
                f"infos {where!r}: expected an array of numbers or texts with {steps + episodes} or {steps} rows,"
                f" got {array.dtype} {list(array.shape)}"
            )
        dtype = np.dtype("U") if array.dtype.kind == "U" else array.dtype
        columns.append(Column("info", path, dtype, array.shape[1:], len(array) == steps + episodes))
    return columns


def flat_items(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Leaves of nested dicts with their paths."""
    items: list[tuple[tuple[str, ...], Any]] = []
    for key, value in tree.items():
        own = (*path, str(key))
        items += flat_items(value, own) if isinstance(value, Mapping) else [(own, value)]
    return items


def leaf_at(tree: Any, path: Sequence[Any]) -> Any:
    """The leaf of nested dicts and tuples at a path.

    Raises:
        KeyError, IndexError, TypeError: there is none.
    """
    for key in path:
        tree = tree[key]
    return tree


def nest(
    space: gymnasium.Space[Any], leaves: Mapping[tuple[Any, ...], Any], path: tuple[Any, ...] = ()
) -> Any:
    """Leaves by path in the form of a space: nested dicts and tuples."""
    if isinstance(space, Dict):
        return {key: nest(child, leaves, (*path, key)) for key, child in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(nest(child, leaves, (*path, index)) for index, child in enumerate(space.spaces))
    return leaves[path]


def nest_dict(leaves: Mapping[tuple[Any, ...], Any]) -> dict[str, Any]:
    """Leaves by path as nested dicts."""
    tree: dict[str, Any] = {}
    for path, value in leaves.items():
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
    return tree
