"""HDF5 files as Minari reads them: a group for each episode.

::

    episode_0            attributes id, total_steps, and seed if it is known
        observations     [T + 1, ...], or a group: a Dict's keys, a Tuple's _index_0, _index_1, ...
        actions          [T, ...], in the same form
        rewards          float64 [T]
        terminations     bool [T]
        truncations      bool [T]
        infos            a group of arrays [T + 1, ...] or [T, ...]
    episode_1
    ...

The bytes are written here, not by the HDF5 library, which takes ten times as long for small groups. They follow the
HDF5 File Format Specification, version 1.0 of the superblock and of object headers, which every version of the library
reads. Episodes of equal lengths have equal headers, but for the addresses in them: these are made once and filled in.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.replay.episode_columns import DemosError
from fastrl.utils.closing import Closing
from fastrl.utils.files import new_file

try:
    from h5py import h5t
except ImportError:
    raise DemosError("Minari's files need h5py: pip install 'fastrl[demos]'") from None

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_UNDEFINED = 2**64 - 1
# Half of the entries of a leaf and of an inner node of the root group's tree.
_LEAF, _INNER = 32, 16
# Headers that are kept.
_MOST_HEADERS = 1000

# Types of header messages.
_DATASPACE, _LINK_INFO, _DATATYPE, _FILL_VALUE, _LINK, _LAYOUT, _GROUP_INFO, _ATTRIBUTE, _SYMBOL_TABLE = (
    *(0x1, 0x2, 0x3, 0x5, 0x6, 0x8, 0xA, 0xC, 0x11),
)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _message(kind: int, data: bytes) -> bytes:
    data = _padded(data)
    return struct.pack("<HHB3x", kind, len(data), 0) + data


def _object(messages: Sequence[bytes]) -> bytes:
    """An object header of version 1."""
    body = b"".join(messages)
    return struct.pack("<BxHII4x", 1, len(messages), 1, len(body)) + body


def _datatype(dtype: np.dtype[Any]) -> bytes:
    if dtype.kind == "S":
        # Class 3, version 1; padded with zeros, UTF-8.
        return struct.pack("<B3sI", 0x13, b"\x11\0\0", dtype.itemsize)
    # The library puts the message's type and a version before it.
    return bytes(h5t.py_create(dtype, logical=True).encode()[2:])


def _dataspace(shape: tuple[int, ...]) -> bytes:
    return struct.pack(f"<BBB5x{len(shape)}Q", 1, len(shape), 0, *shape)


def _attribute(name: str, dtype: np.dtype[Any]) -> bytes:
    """An attribute of one number, which is the last 8 bytes."""
    text, kind, space = name.encode() + b"\0", _datatype(dtype), _dataspace(())
    head = struct.pack("<BxHHH", 1, len(text), len(kind), len(space))
    return _message(_ATTRIBUTE, head + _padded(text) + _padded(kind) + _padded(space) + bytes(8))


@dataclass
class _Header:
    """All object headers of an episode's group.

    Attributes:
        data: the bytes; the group comes first.
        addresses: places of addresses, and the offsets from the start of this header that belong there.
        numbers: places of the attributes' numbers.
        size: of header and arrays, which follow it.
    """

    data: bytearray = field(default_factory=bytearray)
    addresses: list[tuple[int, int]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    size: int = 0


def _make_header(
    leaves: Sequence[tuple[Sequence[str], NDArray[Any]]], attributes: Sequence[tuple[str, str]]
) -> _Header:
    """The header of an episode.

    Args:
        leaves: arrays with their paths.
        attributes: names and dtypes.
    """
    header = _Header()
    tree: dict[str, Any] = {}
    for number, (path, array) in enumerate(leaves):
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = (number, array)
    tree.setdefault("infos", {})
    places: list[tuple[int, int]] = []

    def add(node: Any, own: Sequence[bytes] = ()) -> int:
        """Appends an object and what is in it; returns its offset."""
        start = len(header.data)
        if not isinstance(node, dict):
            number, array = node
            data, place = _dataset(array)
            header.data += data
            places.append((start + place, number))
            return start
        header.data += _object([*_group_messages(node), *own])
        # Links follow two messages, whose sizes are those of an empty group.
        at = start + 16 + sum(map(len, _group_messages({})))
        for key, child in node.items():
            # The address ends the link, before its padding.
            header.addresses.append((at + 8 + _link_size(key) - 8, add(child)))
            at += len(_link(key, 0))
        for attribute in own:
            at += len(attribute)
            header.numbers.append(at - 8)
        return start

    add(tree, [_attribute(name, np.dtype(kind)) for name, kind in attributes])
    header.size = len(header.data)
    starts = []
    for _, array in leaves:
        starts.append(header.size)
        header.size += array.nbytes + -array.nbytes % 8
    header.addresses += [(place, starts[number]) for place, number in places]
    return header


def _group_messages(children: dict[str, Any]) -> list[bytes]:
    """Messages of a group whose links keep their order; addresses are filled in later."""
    info = struct.pack("<BBQQQQ", 0, 3, len(children), _UNDEFINED, _UNDEFINED, _UNDEFINED)
    links = [_link(key, order) for order, key in enumerate(children)]
    return [_message(_LINK_INFO, info), _message(_GROUP_INFO, b"\0\0"), *links]


def _link_size(name: str) -> int:
    return 13 + len(name.encode()) + 8


def _link(name: str, order: int) -> bytes:
    """A hard link with its creation order, its name in UTF-8, and an address that is filled in later."""
    text = name.encode()
    # Flags: the length takes 2 bytes, there are an order and a character set.
    return _message(_LINK, struct.pack("<BBQBH", 1, 0b10101, order, 1, len(text)) + text + bytes(8))


def _dataset(array: NDArray[Any]) -> tuple[bytes, int]:
    """A header of a contiguous array, and the place of the array's address in it."""
    messages = [
        _message(_DATASPACE, _dataspace(array.shape)),
        _message(_DATATYPE, _datatype(array.dtype)),
        # Space is there; nothing is filled in.
        _message(_FILL_VALUE, struct.pack("<BBBB", 2, 2, 1, 0)),
        _message(_LAYOUT, struct.pack("<BBQQ", 3, 1, 0, array.nbytes)),
    ]
    return _object(messages), 16 + sum(map(len, messages[:3])) + 8 + 2


class EpisodeFile(Closing):
    """Writes a file of episodes, in order.

    Args:
        path: of the new file.
    """

    def __init__(self, path: Path) -> None:
        self._file = new_file(path)
        self._file.write(bytes(96))
        self._end = 96
        self._headers: dict[Any, _Header] = {}
        # Of each episode's group.
        self._addresses: list[int] = []

    def write(
        self, steps: int, seed: int | None, leaves: Sequence[tuple[Sequence[str], NDArray[Any]]]
    ) -> None:
        """Writes an episode.

        Args:
            steps: T.
            seed: of the reset; None: unknown.
            leaves: arrays with their paths in the episode's group; texts are arrays of objects.
        """
        leaves = [(path, _as_bytes(array)) for path, array in leaves]
        attributes, numbers = [("id", "<i8"), ("total_steps", "<i8")], [len(self._addresses), steps]
        if seed is not None:
            attributes.append(("seed", "<i8" if seed < 2**63 else "<u8"))
            numbers.append(seed)
        key = (*attributes, *((path, array.dtype, array.shape) for path, array in leaves))
        header = self._headers.get(key)
        if header is None:
            if len(self._headers) >= _MOST_HEADERS:
                self._headers.clear()
            header = self._headers[key] = _make_header(leaves, attributes)
        base, data = self._end, header.data
        for place, offset in header.addresses:
            struct.pack_into("<Q", data, place, base + offset)
        for place, number in zip(header.numbers, numbers, strict=True):
            struct.pack_into("<Q", data, place, number)
        self._file.write(data)
        for _, array in leaves:
            self._file.write(np.ascontiguousarray(array).data)
            self._file.write(bytes(-array.nbytes % 8))
        self._addresses.append(base)
        self._end += header.size

    def close(self) -> None:
        """Completes the file."""
        root = self._write_root()
        entry = struct.pack("<QQII16x", 0, root, 0, 0)
        self._file.seek(0)
        self._file.write(
            _SIGNATURE
            + struct.pack("<8BHHI", 0, 0, 0, 0, 0, 8, 8, 0, _LEAF, _INNER, 0)
            + struct.pack("<QQQQ", 0, _UNDEFINED, self._end, _UNDEFINED)
            + entry
        )
        self._file.close()

    def _append(self, data: bytes) -> int:
        """Appends bytes; returns their address."""
        start = self._end
        data = _padded(data)
        self._file.write(data)
        self._end += len(data)
        return start

    def _write_root(self) -> int:
        """Writes the root group: names in a heap, links sorted by name in a B-tree. Returns its address."""
        names = [b"episode_%d" % i for i in range(len(self._addresses))]
        heap, offsets = bytearray(8), []
        for name in names:
            offsets.append(len(heap))
            heap += _padded(name + b"\0")
        # The head of the list of free blocks: there are none.
        data = self._append(bytes(heap))
        heap_address = self._append(b"HEAP" + struct.pack("<B3xQQQ", 0, len(heap), 1, data))
        order = sorted(range(len(names)), key=names.__getitem__)
        # Addresses of the nodes of a level, each with the heap's offset of its greatest name.
        nodes: list[tuple[int, int]] = []
        for first in range(0, max(len(order), 1), 2 * _LEAF):
            own = order[first : first + 2 * _LEAF]
            entries = b"".join(struct.pack("<QQII16x", offsets[i], self._addresses[i], 0, 0) for i in own)
            block = b"SNOD" + struct.pack("<BxH", 1, len(own)) + entries
            nodes.append((self._append(block.ljust(8 + 80 * _LEAF, b"\0")), offsets[own[-1]] if own else 0))
        level = 0
        while level == 0 or len(nodes) > 1:
            nodes = self._write_level(nodes, level)
            level += 1
        return self._append(_object([_message(_SYMBOL_TABLE, struct.pack("<QQ", nodes[0][0], heap_address))]))

    def _write_level(self, children: list[tuple[int, int]], level: int) -> list[tuple[int, int]]:
        """Writes a level of the tree over its children; returns its nodes."""
        size = 24 + (2 * _INNER + 1) * 8 + 2 * _INNER * 8
        groups = [children[i : i + 2 * _INNER] for i in range(0, len(children), 2 * _INNER)]
        nodes, start, key = [], self._end, 0
        for i, group in enumerate(groups):
            left = start + (i - 1) * size if i else _UNDEFINED
            right = start + (i + 1) * size if i + 1 < len(groups) else _UNDEFINED
            block = b"TREE" + struct.pack("<BBHQQQ", 0, level, len(group), left, right, key)
            block += b"".join(struct.pack("<QQ", *each) for each in group)
            key = group[-1][1]
            nodes.append((self._append(block.ljust(size, b"\0")), key))
        return nodes


def _as_bytes(array: NDArray[Any]) -> NDArray[Any]:
    """Texts as UTF-8 of one length; numbers as they are."""
    if array.dtype != object:
        return array
    encoded = np.array([text.encode() for text in array.ravel().tolist()]).reshape(array.shape)
    return encoded if encoded.dtype.itemsize else encoded.astype("S1")
