"""Standard output and error as commands need them: there, able to show every character, and no reason to stop a run."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_STREAMS = {"stdin": 0, "stdout": 1, "stderr": 2}


def prepare() -> None:
    """Mends what the command was started with: descriptors that are closed lead nowhere from now on, characters that
    the encoding of stdout lacks are escaped, a width of 0 columns is not believed."""
    # The next file that is opened would have a closed descriptor's number, and get what is printed.
    while (number := os.open(os.devnull, os.O_RDWR)) <= max(_STREAMS.values()):
        os.set_inheritable(number, True)
    os.close(number)
    for name, number in _STREAMS.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if os.environ.get("COLUMNS", "").strip("0") == "":
        os.environ.pop("COLUMNS", None)


def plain_console(**options: Any) -> "Console":
    """A console of rich's that shows text as it is: a path such as ``exp[/1]:fire:`` means nothing else."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, **options)


def to_nowhere(number: int) -> None:
    """Leads a descriptor nowhere: all who write to it have done so."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


@contextlib.contextmanager
def surviving(name: str, prefix: str = "") -> Iterator[None]:
    """Whatever becomes of ``stdout`` or ``stderr`` meanwhile (nobody reads on, the disk is full, the terminal is gone),
    writing to it does not fail: what is printed is lost.

    Args:
        name: which.
        prefix: of the line on stderr that says so of stdout.
    """
    before = getattr(sys, name)
    survive(name, prefix)
    try:
        yield
    finally:
        getattr(sys, name).flush()
        setattr(sys, name, before)


def survive(name: str, prefix: str | None = None) -> None:
    """As `surviving`, for the rest of the process; without a prefix nothing is said."""
    stream = getattr(sys, name)
    try:
        number = stream.fileno()
    except (OSError, ValueError, AttributeError):
        # No file, such as what tests and notebooks put in its place.
        return
    with contextlib.suppress(OSError):
        stream.flush()
    lasting = io.TextIOWrapper(
        io.BufferedWriter(_Lasting(number, prefix if name == "stdout" else None)),
        stream.encoding,
        errors="backslashreplace",
        line_buffering=name == "stderr" or stream.line_buffering,
    )
    setattr(sys, name, lasting)


class _Lasting(io.FileIO):
    """A descriptor to which writing never fails; see `survive`."""

    def __init__(self, number: int, prefix: str | None) -> None:
        super().__init__(number, "w", closefd=False)
        self._prefix = prefix

    def write(self, data: Any, /) -> int:
        try:
            return os.write(self.fileno(), data)
        except OSError as error:
            # EAGAIN: a slow reader of a non-blocking descriptor misses this, and may read on.
            if error.errno != errno.EAGAIN:
                to_nowhere(self.fileno())
                if self._prefix is not None:
                    line = f"{self._prefix}stdout failed ({error.strerror}): the run goes on without it"
                    print(line, file=sys.stderr)
        return len(data)
