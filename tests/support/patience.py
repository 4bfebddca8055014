"""How tests wait: until what they wait for is so, however slow the machine is."""

import time
from collections.abc import Callable
from pathlib import Path

# Seconds that nothing takes, on a machine that is busy and slow, and stalls now and then.
LONG = 600.0


def wait_until(is_so: Callable[[], object], what: str = "it takes too long") -> None:
    until = time.monotonic() + LONG
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.005)


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended and nobody has asked about does not run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
