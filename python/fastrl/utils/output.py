"""Standard output and error of a command: always open, able to show every character, and never a reason to stop a
run."""

import contextlib
import errno
import importlib.util
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_STREAMS = {"stdin": 0, "stdout": 1, "stderr": 2}


def repair_streams() -> None:
    """Repairs the streams that the command was started with: closed descriptors become /dev/null, characters that the
    encoding of stdout lacks are escaped, and a terminal width of 0 columns is ignored."""
    # Otherwise the next file to be opened would get a closed descriptor's number, and the text printed to it.
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
    """A rich console that shows text as it is, without markup or emoji: a path may be ``exp[/1]:fire:``. Control
    characters are escaped, see `printable`."""
    from rich.console import Console

    class PlainConsole(Console):
        """Renders all texts, those of tables too, as they are."""

        def render_str(self, text: str, **options: Any) -> "Text":
            return super().render_str(printable(text), **options)

    return PlainConsole(markup=False, emoji=False, highlight=False, **options)


class QuietConsole:
    """A console that shows nothing. Rich's, which does so with ``quiet=True``, takes as long to load as a short run; it
    is loaded for what this one lacks."""

    quiet = True
    is_terminal = is_jupyter = False

    def print(self, *renderables: object, **options: object) -> None:
        """Shows nothing."""

    def __getattr__(self, name: str) -> Any:
        from rich.console import Console

        return getattr(Console(quiet=True), name)


def quiet_console() -> "Console":
    """A console that shows nothing, in place of one of rich."""
    return cast("Console", QuietConsole())


def is_watched() -> bool:
    """True if somebody may see progress: on a terminal, or in a notebook."""
    may_be = "IPython" in sys.modules or os.environ.keys() & {"FORCE_COLOR", "TTY_COMPATIBLE"}
    if not (may_be or (sys.stdout is not None and sys.stdout.isatty())):
        return False
    console = plain_console()
    return console.is_terminal or console.is_jupyter


# Control characters without ends of lines and tabs, and those that reverse the direction of text.
_CONTROLS = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (
        *range(9),
        *range(11, 32),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    )
}


def printable(text: str) -> str:
    """A text of unknown origin, for a terminal: control characters, which it would obey, are escaped."""
    return text.translate(_CONTROLS)


def figure_text(text: str) -> str:
    """A text of unknown origin, for a figure of matplotlib: dollars begin no formula."""
    return printable(text).replace("$", r"\$")


def shows_bars(console: "Console") -> bool:
    """True where a progress bar can be redrawn: on a terminal, and in notebooks with ipywidgets."""
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal and not console.is_dumb_terminal


def redirect_to_null(number: int) -> None:
    """Makes a descriptor write to /dev/null, for everything in this process that uses it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


@contextlib.contextmanager
def ignoring_write_errors(name: str, prefix: str = "") -> Iterator[None]:
    """A context in which writing to a standard stream never fails. If the stream breaks (its reader has gone, the disk
    is full, the terminal is closed), text written to it is lost.

    Args:
        name: ``"stdout"`` or ``"stderr"``.
        prefix: start of the line on stderr that reports a broken stdout.
    """
    before = getattr(sys, name)
    ignore_write_errors(name, prefix)
    try:
        yield
    finally:
        getattr(sys, name).flush()
        setattr(sys, name, before)


def ignore_write_errors(name: str, prefix: str | None = None) -> None:
    """Ignores errors of writing from now on, see `ignoring_write_errors`; without a prefix none is reported."""
    stream = getattr(sys, name)
    try:
        number = stream.fileno()
    except (OSError, ValueError, AttributeError):
        # Tests and notebooks replace the stream by an object without a file.
        return
    with contextlib.suppress(OSError):
        stream.flush()
    stream = io.TextIOWrapper(
        io.BufferedWriter(_UnfailingFile(number, prefix if name == "stdout" else None)),
        stream.encoding,
        errors="backslashreplace",
        line_buffering=name == "stderr" or stream.line_buffering,
    )
    setattr(sys, name, stream)


class _UnfailingFile(io.FileIO):
    """A descriptor to which writing never fails, see `ignore_write_errors`."""

    def __init__(self, number: int, prefix: str | None) -> None:
        super().__init__(number, "w", closefd=False)
        self._prefix = prefix

    def write(self, data: Any, /) -> int:
        try:
            return os.write(self.fileno(), data)
        except OSError as error:
            # EAGAIN: the reader of a non-blocking descriptor is slow; it misses this text and can continue.
            if error.errno != errno.EAGAIN:
                redirect_to_null(self.fileno())
                if self._prefix is not None:
                    line = f"{self._prefix}stdout failed ({error.strerror}): the run continues without it"
                    print(line, file=sys.stderr)
        return len(data)
