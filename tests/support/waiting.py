"""Waiting in tests: until a condition holds, however slow the machine is."""

import time
from collections.abc import Callable
from pathlib import Path

# Seconds: more than anything here takes on a busy and slow machine that stalls now and then.
TIMEOUT = 600.0


def wait_until(condition: Callable[[], object], message: str = "it takes too long") -> None:
    """Returns once the condition holds.

    Raises:
        AssertionError: it does not hold after `TIMEOUT` seconds.
    """
    until = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < until, message
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    """True if there is such a process; one that has ended does not run, even before its parent has waited for it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
