"""The journal of a search: what was started and how it ended, a line each, on disk before anything else follows.

One process writes it, which holds a lock on the search's directory. A line that a crash has cut, or that is damaged, is
left out: what it said about a run is in the run's own directory.
"""

import fcntl
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastrl.utils.closing import Closing
from fastrl.utils.errors import UserError
from fastrl.utils.files import append_file, parse_json, to_json

NAME = "journal.jsonl"
# What stands before a line's checksum, of the text before it.
_SUM = ', "crc": "'

Record = dict[str, Any]


class JournalError(UserError, RuntimeError):
    """A journal that cannot be read or written; one line that says why."""


class Journal(Closing):
    """The journal of a search, open for one process.

    Args:
        directory: of the search; it is there.

    Attributes:
        records: all of them, the oldest first.
        damaged: numbers of the lines that were left out, from 1 on.

    Raises:
        JournalError: another process has it.
        OSError, DamagedFileError: it cannot be opened.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self._lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise JournalError(f"{directory} is in use: another process is searching there") from None
        try:
            self._file = append_file(self.path)
        except BaseException:
            os.close(self._lock)
            raise
        self.records, self.damaged = list[Record](), list[int]()
        data = self.path.read_bytes()
        for number, line in enumerate(data.splitlines(keepends=True), 1):
            record = parse(line)
            if record is None:
                self.damaged.append(number)
            else:
                self.records.append(record)
        if data and not data.endswith(b"\n"):
            # The next line starts on a line of its own.
            self._file.truncate(data.rfind(b"\n") + 1)

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes a record; it is on disk when this returns.

        Raises:
            OSError: it cannot, as on a full disk; the journal is as it was.
        """
        line, file = dump(record), self._file.fileno()
        size = os.fstat(file).st_size
        try:
            # A disk that fills up takes a part of a line, then refuses.
            while line:
                line = line[os.write(file, line) :]
            os.fsync(file)
        except OSError as error:
            os.ftruncate(file, size)
            error.filename = str(self.path)
            raise
        self.records.append(dict(record))

    def close(self) -> None:
        self._file.close()
        os.close(self._lock)


def dump(record: Mapping[str, Any]) -> bytes:
    """A record as a line."""
    text = to_json(dict(record))[:-1]
    return f'{text}{_SUM}{zlib.crc32(text.encode()):08x}"}}\n'.encode()


def parse(line: bytes) -> Record | None:
    """The record of a line; None of a damaged one."""
    try:
        text, found, rest = line.decode().rpartition(_SUM)
        if not found or rest != f'{zlib.crc32(text.encode()):08x}"}}\n':
            return None
        return parse_json(text + "}")
    except ValueError:
        return None
