"""The storage: its memory, and how it is saved and opened again."""

import contextlib
import json
import math
import mmap
import os
import shutil
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fastrl._native._replay import FIELDS, Storage

# What of a saved replay is not rows: small arrays, by name, with dtype and shape a lane.
_STATE: dict[str, tuple[Any, bool]] = {
    "lanes": (np.int64, False),
    "ages": (np.uint8, True),
    "starts": (np.uint32, True),
}
# Errors that Python and NumPy raise when they decode an arbitrary text.
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
# Bytes of a description.
_LONGEST = 1 << 20
_LARGE_PAGE = 1 << 21
_VERSION = 1


class ReplayError(RuntimeError):
    """A saved replay that is damaged, foreign or of another version; one line."""


class Replay(Storage):
    """Circular storage of experience; see the module for the picture.

    Args:
        capacity: transitions, of all environments together; each has an equal share, rounded up, and room for the
            end row of one episode. Further episodes take a row each for their last observation, and in a full ring
            the oldest stack - 1 frames serve only as frames of later ones.
        obs_shape, obs_dtype: of one observation; with ``stack`` > 1, of one frame.
        action_shape, action_dtype: of one action; () and int64 for discrete ones.
        num_envs: environments, which write apart.
        stack: samplers give so many of the newest frames as one observation, oldest first, [stack, ...].
        pad: what stands for frames before an episode's first: ``"zero"``, or ``"repeat"`` for that first frame, as
            Gymnasium's FrameStackObservation does by default.
        extra: further fields of each step, name -> (dtype, shape).
        path: a directory that is made, for storage on disk, mapped into memory: it may be larger than memory. `open`
            opens it again. None: in memory.

    Attributes:
        dtype: of a row: env int32, obs, action, reward float32, terminated, truncated, end bool, and the extra fields.
            ``end`` marks a row that holds the last observation of an episode alone.
        num_envs, stack, extra, rows_per_env: as stored.
        lost: steps that cannot be sampled because what followed them never came, since this object was made.

    Raises:
        ValueError, TypeError: arguments that make no sense.
        FileExistsError, OSError: the directory is there, or there is no room for it.
    """

    path: Path | None
    _arrays: dict[str, NDArray[Any]]
    _pad: str

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
        extra: Mapping[str, tuple[DTypeLike, tuple[int, ...]]] | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> Self:
        for name, value in (("capacity", capacity), ("num_envs", num_envs), ("stack", stack)):
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
                raise TypeError(f"{name} must be an int, got {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if pad not in ("zero", "repeat"):
            raise ValueError(f"pad must be 'zero' or 'repeat', got {pad!r}")
        dtype = _row_dtype(obs_shape, obs_dtype, action_shape, action_dtype, extra or {})
        rows = max(-(-int(capacity) // int(num_envs)) + 1, int(stack) + 1)
        shape = (int(num_envs), rows)
        if shape[0] * shape[1] * dtype.itemsize > np.iinfo(np.intp).max // 2:
            raise ValueError(
                f"{capacity:,} rows of {dtype.itemsize} bytes are more than memory has addresses for"
            )
        folder = None if path is None else Path(path)
        if folder is None:
            arrays = {"rows": _zeros(shape, dtype)}
            for name, (kind, is_per_row) in _STATE.items():
                arrays[name] = _zeros(shape if is_per_row else (shape[0], 5), np.dtype(kind))
        else:
            arrays = _new_files(folder, shape, dtype)
            _write_description(folder, dtype, shape, int(stack), pad, None)
        return cls._over(arrays, int(stack), pad, folder)

    @classmethod
    def _over(cls, arrays: dict[str, NDArray[Any]], stack: int, pad: str, path: Path | None) -> Self:
        self = super().__new__(
            cls,
            arrays["rows"],
            arrays["lanes"],
            arrays["ages"],
            arrays["starts"],
            stack=stack,
            repeat=pad == "repeat",
        )
        self.path, self._arrays, self._pad = path, arrays, pad
        return self

    @property
    def nbytes(self) -> int:
        """All that is stored for it."""
        return sum(array.nbytes for array in self._arrays.values())

    @property
    def mark(self) -> int:
        """A number that is another one after each row that was written, and the same in what was saved and loaded."""
        return _checksum(self._arrays["lanes"])

    def flush(self) -> None:
        """Writes storage on disk to the disk."""
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
        """Writes everything into a directory, which appears, or is replaced, when it is complete.

        Raises:
            OSError: it cannot be written, for instance because the disk is full.
        """
        folder = Path(path)
        if folder.exists() and not (folder / "replay.json").exists():
            raise FileExistsError(f"{folder} is there and is no saved replay: choose another path")
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
                    with (new / f"{name}.bin").open("wb") as file:
                        array.tofile(file)
                        file.flush()
                        os.fsync(file.fileno())
            finally:
                self._release()
            rows = self._arrays["rows"]
            _write_description(new, self.dtype, rows.shape, self.stack, self._pad, checksums)
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
        """What `save` wrote, in memory.

        Raises:
            FileNotFoundError: there is nothing.
            ReplayError: it is damaged, foreign or of another version.
        """
        return cls._read(Path(path), is_mapped=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Storage on disk, as it was left: what is added goes into the same files. Their lengths are compared before
        they are mapped; who cuts one off later ends this process by SIGBUS.

        Raises:
            As `load`.
        """
        return cls._read(Path(path), is_mapped=True)

    @classmethod
    def _read(cls, folder: Path, *, is_mapped: bool) -> Self:
        written = folder / "replay.json"
        try:
            about = written.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"{folder} holds no saved replay") from None
        if not stat.S_ISREG(about.st_mode) or about.st_size > _LONGEST:
            raise ReplayError(f"{folder}: replay.json is damaged (no file of up to {_LONGEST:,} bytes)")
        try:
            description = json.loads(written.read_text(encoding="utf-8"))
            version = description["version"]
            if version != _VERSION:
                raise ReplayError(
                    f"{folder}: written by another version ({version}, this one reads {_VERSION})"
                )
            layout: Any = {key: _tuples(value) for key, value in description["dtype"].items()}
            dtype: np.dtype[Any] = np.dtype(layout)
            shape = tuple(int(size) for size in description["shape"])
            stack, pad = int(description["stack"]), str(description["pad"])
            if dtype.hasobject or dtype.itemsize < 1:
                raise ValueError(f"rows cannot be {dtype}")
            if len(shape) != 2 or min(shape) < 1:
                raise ValueError(f"shape must be two positive numbers, got {list(shape)}")
            if pad not in ("zero", "repeat"):
                raise ValueError(f"pad must be 'zero' or 'repeat', got {pad!r}")
            checksums = dict(description["checksums"] or {})
        except _DAMAGED as error:
            told = " ".join(str(error).split()) or type(error).__name__
            raise ReplayError(f"{folder}: replay.json is damaged ({told})") from error
        arrays: dict[str, NDArray[Any]] = {}
        kinds: dict[str, tuple[Any, tuple[int, ...]]] = {"rows": (dtype, shape)}
        for name, (kind, is_per_row) in _STATE.items():
            kinds[name] = (np.dtype(kind), shape if is_per_row else (shape[0], 5))
        for name, (kind, sizes) in kinds.items():
            file = folder / f"{name}.bin"
            count = math.prod(sizes)
            if not file.is_file() or file.stat().st_size != count * kind.itemsize:
                raise ReplayError(f"{file} is missing or not as long as replay.json says")
            if is_mapped:
                arrays[name] = np.memmap(file, kind, "r+", shape=sizes)
            else:
                arrays[name] = _zeros(sizes, kind)
                with file.open("rb") as opened:
                    opened.readinto(arrays[name].reshape(-1).view(np.uint8).data)
            checksum = None if is_mapped else checksums.get(name)
            if checksum is not None and _checksum(arrays[name]) != checksum:
                raise ReplayError(f"{file} is damaged: its checksum differs")
        try:
            replay = cls._over(arrays, stack, pad, folder if is_mapped else None)
        except (ValueError, TypeError, OverflowError) as error:
            raise ReplayError(f"{folder}: {error}") from error
        if is_mapped and checksums:
            # What is added changes the files.
            _write_description(folder, dtype, shape, stack, pad, None)
        return replay

    def __reduce__(self) -> Any:
        raise TypeError("a replay is not pickled: save it and load it, or send its rows through a queue")


def _row_dtype(
    obs_shape: tuple[int, ...],
    obs_dtype: DTypeLike,
    action_shape: tuple[int, ...],
    action_dtype: DTypeLike,
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
    for name, description in extra.items():
        if name in FIELDS or name in ("actions", "rewards", "next_obs", "discounts", "indices", "weights"):
            raise ValueError(f"extra: {name!r} is the name of a field that is there already")
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


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros whose pages are there, large ones where the system has them: many lanes are written and read at once, each
    on pages of its own."""
    count = int(np.prod(shape))
    nbytes = count * dtype.itemsize
    if nbytes < 1 << 18:
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, nbytes + 2 * _LARGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    # A large page begins at a multiple of its size.
    offset = -np.frombuffer(memory, np.uint8).ctypes.data % _LARGE_PAGE
    array = np.frombuffer(memory, dtype, count, offset).reshape(shape)
    # First use of a page costs more than the copy into it: once, here.
    np.frombuffer(memory, np.uint8, nbytes, offset)[:: mmap.PAGESIZE] = 0
    return array


def _checksum(array: NDArray[Any]) -> int:
    return zlib.crc32(array.reshape(-1).view(np.uint8).data)


def _new_files(folder: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
    folder.mkdir(parents=True)
    arrays: dict[str, NDArray[Any]] = {}
    try:
        kinds: dict[str, tuple[Any, tuple[int, ...]]] = {"rows": (dtype, shape)}
        for name, (kind, is_per_row) in _STATE.items():
            kinds[name] = (np.dtype(kind), shape if is_per_row else (shape[0], 5))
        for name, (kind, sizes) in kinds.items():
            file = folder / f"{name}.bin"
            with file.open("wb") as opened:
                # A disk that is full is an error here, not a crash at some later write.
                os.posix_fallocate(opened.fileno(), 0, int(np.prod(sizes)) * kind.itemsize)
            arrays[name] = np.memmap(file, kind, "r+", shape=sizes)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return arrays


def _write_description(
    folder: Path, dtype: np.dtype[Any], shape: Any, stack: int, pad: str, checksums: dict[str, int] | None
) -> None:
    names = dtype.names or ()
    description = {
        "version": _VERSION,
        "dtype": {
            "names": list(names),
            "formats": [[dtype[name].base.str, list(dtype[name].shape)] for name in names],
            "offsets": [dtype.fields[name][1] for name in names] if dtype.fields else [],
            "itemsize": dtype.itemsize,
        },
        "shape": list(shape),
        "stack": stack,
        "pad": pad,
        "checksums": checksums,
    }
    (folder / "replay.json").write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


def _tuples(value: Any) -> Any:
    """Formats as numpy wants them, [(kind, shape)]."""
    if isinstance(value, list):
        return [(item[0], tuple(item[1])) if isinstance(item, list) else item for item in value]
    return value
