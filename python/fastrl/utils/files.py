"""Files: written atomically and never through links, read with bounds if they may be of others; standard JSON.

The functions here write all files of the package. A writer opens no name that somebody else may have made: what is
complete is renamed over the target, which replaces a link instead of following it.
"""

import contextlib
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fastrl.utils.errors import UserError

# Most bytes of a JSON document and of a line of one, and how deeply values may be nested in it.
MAX_JSON_BYTES, MAX_LINE_BYTES, MAX_DEPTH = 1 << 24, 1 << 20, 100


class DamagedFileError(UserError, ValueError):
    """A file, or a document in one, that is not what it should be; one line that says why."""


def new_file(path: Path) -> BinaryIO:
    """Opens a new file to write to.

    Raises:
        FileExistsError: there is something of that name, a link for instance.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags, 0o666), "wb")  # noqa: PTH123 - a descriptor has no path


def append_file(path: Path) -> BinaryIO:
    """Opens a file to append to, which is made if it is not there.

    Raises:
        DamagedFileError: it is a link, or no regular file.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        number = os.open(path, flags, 0o666)
    except OSError:
        if not path.is_symlink() and not path.is_fifo():
            raise
    else:
        if stat.S_ISREG(os.fstat(number).st_mode):
            return open(number, "ab")  # noqa: PTH123 - a descriptor has no path
        os.close(number)
    raise DamagedFileError(f"{path} is a link or no regular file, and is not written to: remove it")


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A context that gives a file to write to, and replaces ``path`` by it in one step at its end: even if the machine
    stops, the path holds the complete old or the complete new file."""
    with _replacing(path, f".{path.name}.{secrets.token_hex(4)}.tmp") as file:
        yield file


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A context like `atomic_file`, for libraries that open files themselves: gives a new path with the same suffix."""
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.tmp{path.suffix}")
    with _replacing(path, temporary.name):
        yield temporary


@contextlib.contextmanager
def _replacing(path: Path, name: str) -> Iterator[BinaryIO]:
    temporary = path.with_name(name)
    try:
        with new_file(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno is not None:
            # A full disk names no file.
            error.filename = str(path)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    # A rename is durable only after its directory is synced.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Replaces a file in one step, see `atomic_file`."""
    with atomic_file(path) as file:
        file.write(data)


def save_figure(path: Path, figure: Any, **options: Any) -> None:
    """Replaces a picture by a figure of matplotlib, in the format that the suffix names."""
    with atomic_file(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower() or "png", **options)


def open_file(path: Path) -> BinaryIO:
    """Opens a file that may be of others to read.

    Raises:
        OSError: it cannot be opened.
        DamagedFileError: it is no regular file; reading a pipe would block for ever.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(number).st_mode):
        return open(number, "rb")  # noqa: PTH123 - a descriptor has no path
    os.close(number)
    raise DamagedFileError(f"{path} is no regular file")


def read_file(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """The bytes of a file that may be of others.

    Raises:
        OSError: it cannot be read.
        DamagedFileError: it is no regular file, or has more than ``limit`` bytes.
    """
    with open_file(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise DamagedFileError(f"{path} has more than {limit:,} bytes")
    return data


def read_json(path: Path, kind: type = dict) -> Any:
    """The document of a JSON file that may be of others.

    Raises:
        OSError: it cannot be read.
        DamagedFileError: it is no regular file, too long, nested too deeply, no JSON or of another kind.
    """
    data = read_file(path)
    try:
        return parse_json(data, kind)
    except DamagedFileError as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None


def read_lines(path: Path, *, start: int = 0) -> Iterator[str]:
    """The lines of a text file of unknown origin, with their ends; a line of more than `MAX_LINE_BYTES` comes in
    pieces, and bytes that are no UTF-8 are replaced.

    Args:
        start: first byte; counted from the end if it is negative.

    Raises:
        OSError: it cannot be read.
        DamagedFileError: it is no regular file.
    """
    with open_file(path) as file:
        if start:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start + end if start < 0 else start, 0))
        while line := file.readline(MAX_LINE_BYTES):
            yield line.decode("utf-8", "replace")


def parse_json(text: str | bytes, kind: type = dict) -> Any:
    """The value of a JSON text of others.

    Raises:
        DamagedFileError: it is none, is of another kind, or nested more than `MAX_DEPTH` deep.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise DamagedFileError("its values are nested too deeply") from None
    except ValueError as error:
        raise DamagedFileError(f"it is not JSON: {str(error).partition(';')[0]}") from None
    check_depth(value)
    if not isinstance(value, kind):
        raise DamagedFileError(
            f"expected {_KINDS.get(kind, kind.__name__)}, got {_KINDS.get(type(value), 'a value')}"
        )
    return value


_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}


def check_depth(value: Any) -> None:
    """Refuses dicts and lists that are nested more than `MAX_DEPTH` deep: whatever walks through them would fail.

    Raises:
        DamagedFileError
    """
    level = [value]
    for _ in range(MAX_DEPTH):
        containers = [each for each in level if isinstance(each, dict | list)]
        if not containers:
            return
        level = [item for each in containers for item in (each.values() if isinstance(each, dict) else each)]
    raise DamagedFileError("its values are nested too deeply")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Returns a value as standard JSON, in which NaN and infinity become null, and control characters are escaped."""
    options: dict[str, Any] = {"indent": indent, "allow_nan": False, "ensure_ascii": False}
    try:
        text = json.dumps(value, **options)
    except (TypeError, ValueError):
        # A copy is made only where there is a NaN, an infinity or a mapping that is no dict.
        text = json.dumps(_finite(value), **options)
    return escape_controls(text)


# Control characters that JSON and TOML leave alone though terminals obey them, and halves of characters.
_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *range(0xD800, 0xE000))}


def escape_controls(text: str) -> str:
    """A JSON or TOML document in which no control characters are left but ends of lines and tabs."""
    return text.translate(_CONTROLS)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
