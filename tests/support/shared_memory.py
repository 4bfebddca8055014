"""The shared memory of fastrl that is there, by the processes that made it."""

import os
import re
from pathlib import Path

FOLDER = Path("/dev/shm")
# The names that fastrl generates: process id and start time of the maker, and a random number, in hexadecimal digits.
_GENERATED = re.compile(r"fastrl-([0-9a-f]{8})[0-9a-f]{8}-[0-9a-f]{16}")
# Those of tests and of tables that ranks share: the process id is the first number, in decimal digits.
_GIVEN = re.compile(r"fastrl-[a-z._-]+-(\d+)(-.+)?")


def _maker(name: str) -> int | None:
    """Process id of the maker; None if the name does not have it."""
    if generated := _GENERATED.fullmatch(name):
        return int(generated[1], 16)
    given = _GIVEN.fullmatch(name)
    return int(given[1]) if given else None


def _names() -> set[str]:
    return {path.name for path in FOLDER.glob("fastrl-*")}


def shared_memory_of(pid: int) -> set[str]:
    """Names of the files of ``/dev/shm`` that a process made; it may have ended."""
    return {name for name in _names() if _maker(name) == pid}


def segments() -> set[str]:
    """Names of the files of ``/dev/shm`` that fastrl made, except for those of other running processes."""

    def is_others(name: str) -> bool:
        maker = _maker(name)
        return maker not in (None, os.getpid()) and Path(f"/proc/{maker}").exists()

    return {name for name in _names() if not is_others(name)}
