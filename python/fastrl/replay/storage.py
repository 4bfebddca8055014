"""The storage of a replay: its memory, and its files."""

import contextlib
import json
import math
import mmap
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fastrl._native._replay import FIELDS, Storage
from fastrl.utils.arguments import as_integer
from fastrl.utils.dtypes import describe_dtype, dtype_of
from fastrl.utils.files import new_file, parse_json, read_file, write_atomically

# Errors that Python and NumPy raise when they decode arbitrary text.
_DAMAGED = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    SyntaxError,
    MemoryError,
)
# The most bytes of replay.json.
_MAX_DESCRIPTION = 1 << 20
_LARGE_PAGE = 1 << 21
_VERSION = 3
# Names of the arrays of batches, and of masks, whether a replay has them or not.
_RESERVED = frozenset(
    [
        *("actions", "rewards", "next_obs", "discounts", "indices", "weights"),
        *("mask", "masks", "next_mask", "next_masks", "action_masks"),
    ]
)


class ReplayError(RuntimeError):
    """A saved replay is damaged, is none or has another version; the message is one line."""


class Replay(Storage):
    """Circular storage of experience, described in `fastrl.replay`.

    Args:
        capacity: transitions of all environments together. Each environment has an equal share, rounded up, and room
            for the end row of one episode; each further episode takes one more row for its last observation. In a full
            ring the oldest stack - 1 frames are used only in the stacks of later ones.
        obs_shape, obs_dtype: of one observation; with ``stack`` > 1, of one frame.
        action_shape, action_dtype: of one action; () and int64 for discrete ones.
        num_envs: number of environments.
        stack: number of newest frames that samplers return as one observation [stack, ...], oldest first.
        pad: the frames before the first of an episode: ``"zero"``, or ``"repeat"`` for the first frame, the default of
            Gymnasium's FrameStackObservation.
        num_masked: width of the action masks, one for each observation that is acted on; 0: there are none.
        final_masks: the last observation of an episode has one, too, which may be all False after a termination.
        extra: further fields of each step, name -> (dtype, shape).
        path: directory to make for a storage in mapped files, which may be larger than memory; `open` opens it again.
            None: in memory.

    Attributes:
        dtype: dtype of a row: env int32, obs, action, reward float32, terminated, truncated, end bool, mask
            bool [num_masked] if there are masks, and the extra fields. ``end`` marks an end row, of which only the
            observation and, with ``final_masks``, the mask have a meaning.
        num_envs, stack, num_masked, final_masks, extra: as given.
        rows_per_env: rows of each environment's ring.
        lost: number of steps, since this object was made, that cannot be sampled because their next observation never
            came.

    Raises:
        ValueError, TypeError: arguments that make no sense.
        FileExistsError, OSError: the directory exists already, or the disk is full.
    """

    path: Path | None
    _arrays: dict[str, NDArray[Any]]
    # Entries of the description in replay.json other than dtype and shape of the rows.
    _options: dict[str, Any]

    def __new__(
        cls,
        capacity: int,
        obs_shape: tuple[int, ...],
        obs_dtype: DTypeLike = np.float32,
        *,
        action_shape: tuple[int, ...] = (),
        action_dtype: DTypeLike = np.int64,
        num_envs: int = 1,
        stack: int = 1,
        pad: Literal["zero", "repeat"] = "zero",
        num_masked: int = 0,
        final_masks: bool = False,
        extra: Mapping[str, tuple[DTypeLike, tuple[int, ...]]] | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> Self:
        for name, value in (("capacity", capacity), ("num_envs", num_envs), ("stack", stack)):
            as_integer(name, value, 1, None)
        as_integer("num_masked", num_masked, 0, None)
        _check_pad(pad)
        dtype = _row_dtype(obs_shape, obs_dtype, action_shape, action_dtype, num_masked, extra or {})
        rows = max(-(-int(capacity) // int(num_envs)) + 1, int(stack) + 1)
        shape = (int(num_envs), rows)
        options = {"stack": int(stack), "pad": pad, "final_masks": bool(final_masks)}
        if shape[0] * shape[1] * dtype.itemsize > np.iinfo(np.intp).max // 2:
            raise ValueError(f"{capacity:,} rows of {dtype.itemsize} bytes exceed the address space")
        folder = None if path is None else Path(path).absolute()
        if folder is None:
            arrays = {name: _zeros(sizes, kind) for name, (sizes, kind) in _layout(shape, dtype).items()}
        else:
            arrays = _new_files(folder, shape, dtype)
            _write_description(folder, arrays["rows"], options)
        return cls._over(arrays, options, folder)

    @classmethod
    def _over(cls, arrays: dict[str, NDArray[Any]], options: dict[str, Any], path: Path | None) -> Self:
        self = super().__new__(
            cls,
            arrays["rows"],
            arrays["rings"],
            arrays["ages"],
            arrays["starts"],
            stack=options["stack"],
            repeat=options["pad"] == "repeat",
            final_masks=options["final_masks"],
        )
        self.path, self._arrays, self._options = path, arrays, options
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._arrays.values())

    @property
    def mark(self) -> int:
        """A checksum of the write positions: it changes with each row, and is the same after saving and loading."""
        return _checksum(self._arrays["rings"])

    def flush(self) -> None:
        """Writes mapped files to the disk; does nothing for storage in memory."""
        if self.path is None:
            return
        self._acquire()
        try:
            for array in self._arrays.values():
                if isinstance(array, np.memmap):
                    array.flush()
        finally:
            self._release()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the replay to a directory, which appears, or is replaced, once it is complete.

        Raises:
            FileExistsError: the path exists and is not a saved replay.
            OSError: it cannot be written, for instance because the disk is full.
        """
        folder = Path(path)
        if folder.exists() and not (folder / "replay.json").exists():
            raise FileExistsError(f"{folder} exists and is not a saved replay: choose another path")
        if self.path is not None and folder.resolve() == self.path.resolve():
            self.flush()
            return
        new = folder.with_name(f"{folder.name}.new-{os.getpid()}")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        try:
            self._acquire()
            try:
                checksums = {name: _checksum(array) for name, array in self._arrays.items()}
                for name, array in self._arrays.items():
                    with new_file(new / f"{name}.bin") as file:
                        array.tofile(file)
                        file.flush()
                        os.fsync(file.fileno())
            finally:
                self._release()
            _write_description(new, self._arrays["rows"], self._options, checksums)
            old = folder.with_name(f"{folder.name}.old-{os.getpid()}")
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Loads a saved replay into memory.

        Raises:
            FileNotFoundError: there is no saved replay.
            ReplayError: it is damaged, is none or has another version.
        """
        return cls._read(Path(path), is_mapped=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Opens a replay in mapped files; additions are written to them. Their lengths are checked before they are
        mapped; truncating one later ends this process by SIGBUS.

        Raises:
            FileNotFoundError, ReplayError: as `load`.
        """
        return cls._read(Path(path), is_mapped=True)

    @classmethod
    def _read(cls, folder: Path, *, is_mapped: bool) -> Self:
        written = folder / "replay.json"
        try:
            description = parse_json(read_file(written, _MAX_DESCRIPTION))
            version = description["version"]
            if version != _VERSION:
                raise ReplayError(
                    f"{folder}: it has version {version}, and this fastrl reads version {_VERSION}"
                )
            dtype = dtype_of(description["dtype"])
            shape = tuple(int(size) for size in description["shape"])
            options: dict[str, Any] = {
                "stack": int(description["stack"]),
                "pad": str(description["pad"]),
                # Older versions had no masks.
                "final_masks": bool(description.get("final_masks", False)),
            }
            if dtype.hasobject or dtype.itemsize < 1:
                raise ValueError(f"rows cannot be {dtype}")
            if len(shape) != 2 or min(shape) < 1:
                raise ValueError(f"shape must be two positive numbers, got {list(shape)}")
            _check_pad(options["pad"])
            checksums = dict(description["checksums"] or {})
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"{folder} holds no saved replay") from None
        except _DAMAGED as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ReplayError(f"{folder}: replay.json is damaged ({reason})") from error
        arrays: dict[str, NDArray[Any]] = {}
        for name, (sizes, kind) in _layout(shape, dtype).items():
            file = folder / f"{name}.bin"
            count = math.prod(sizes)
            if not file.is_file() or file.stat().st_size != count * kind.itemsize:
                raise ReplayError(f"{file} is missing, or has not the length that replay.json states")
            if is_mapped:
                if file.is_symlink():
                    # Additions would be written to a file elsewhere.
                    raise ReplayError(f"{file} is a link: load the replay, or move the file here")
                arrays[name] = np.memmap(file, kind, "r+", shape=sizes)
            else:
                arrays[name] = _zeros(sizes, kind)
                with file.open("rb") as opened:
                    opened.readinto(arrays[name].reshape(-1).view(np.uint8).data)
            checksum = None if is_mapped else checksums.get(name)
            if checksum is not None and _checksum(arrays[name]) != checksum:
                raise ReplayError(f"{file} is damaged: its checksum differs")
        try:
            replay = cls._over(arrays, options, folder if is_mapped else None)
        except (ValueError, TypeError, OverflowError) as error:
            raise ReplayError(f"{folder}: {error}") from error
        if is_mapped and checksums:
            # Additions invalidate the checksums.
            _write_description(folder, arrays["rows"], options)
        return replay

    def __reduce__(self) -> Any:
        raise TypeError("a replay cannot be pickled: save it and load it, or send its rows through a queue")


def _check_pad(pad: str) -> None:
    if pad not in ("zero", "repeat"):
        raise ValueError(f"pad must be 'zero' or 'repeat', got {pad!r}")


def _row_dtype(
    obs_shape: tuple[int, ...],
    obs_dtype: DTypeLike,
    action_shape: tuple[int, ...],
    action_dtype: DTypeLike,
    num_masked: int,
    extra: Mapping[str, tuple[DTypeLike, tuple[int, ...]]],
) -> np.dtype[Any]:
    fields: list[tuple[str, DTypeLike, tuple[int, ...]]] = [
        ("env", np.int32, ()),
        ("obs", obs_dtype, tuple(obs_shape)),
        ("action", action_dtype, tuple(action_shape)),
        ("reward", np.float32, ()),
        ("terminated", np.bool_, ()),
        ("truncated", np.bool_, ()),
        ("end", np.bool_, ()),
    ]
    if num_masked:
        fields.append(("mask", np.bool_, (int(num_masked),)))
    for name, description in extra.items():
        if name in FIELDS or name in _RESERVED:
            raise ValueError(f"extra: {name!r} is the name of another field")
        kind, shape = description
        fields.append((name, kind, tuple(shape)))
    dtype = np.dtype(fields, align=True)
    if dtype.hasobject:
        raise TypeError("rows cannot hold Python objects: choose numeric dtypes")
    for name, kind, _ in fields:
        if np.dtype(kind).byteorder == ">":
            raise TypeError(
                f"{name}: {np.dtype(kind)} has the other byte order; choose {np.dtype(kind).newbyteorder('=')}"
            )
    return dtype


def _layout(shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shapes and dtypes of a replay's arrays, for rings [num_envs, rows_per_env] of rows."""
    return {
        "rows": (shape, dtype),
        "rings": ((shape[0], 5), np.dtype(np.int64)),
        "ages": (shape, np.dtype(np.uint8)),
        "starts": (shape, np.dtype(np.uint32)),
    }


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros in allocated pages, large ones if the system has them: many rings, each in its own pages, are written and
    read at the same time."""
    count = int(np.prod(shape))
    nbytes = count * dtype.itemsize
    if nbytes < 1 << 18:
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, nbytes + 2 * _LARGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    # A large page starts at a multiple of its size.
    offset = -np.frombuffer(memory, np.uint8).ctypes.data % _LARGE_PAGE
    array = np.frombuffer(memory, dtype, count, offset).reshape(shape)
    # Touches each page, because its first use costs more than a copy into it.
    np.frombuffer(memory, np.uint8, nbytes, offset)[:: mmap.PAGESIZE] = 0
    return array


def _checksum(array: NDArray[Any]) -> int:
    return zlib.crc32(array.reshape(-1).view(np.uint8).data)


def _new_files(folder: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
    folder.mkdir(parents=True)
    arrays: dict[str, NDArray[Any]] = {}
    try:
        for name, (sizes, kind) in _layout(shape, dtype).items():
            file = folder / f"{name}.bin"
            with new_file(file) as opened:
                # A full disk is an error here rather than a crash at some later write.
                os.posix_fallocate(opened.fileno(), 0, int(np.prod(sizes)) * kind.itemsize)
            arrays[name] = np.memmap(file, kind, "r+", shape=sizes)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return arrays


def _write_description(
    folder: Path, rows: NDArray[Any], options: dict[str, Any], checksums: dict[str, int] | None = None
) -> None:
    description = {
        "version": _VERSION,
        "dtype": describe_dtype(rows.dtype),
        "shape": list(rows.shape),
        **options,
        "checksums": checksums,
    }
    write_atomically(folder / "replay.json", f"{json.dumps(description, indent=1)}\n".encode())
