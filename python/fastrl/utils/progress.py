"""Signs of life of commands that take long: a bar on a terminal, elsewhere a line now and then."""

import contextlib
import importlib
import math
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column

from fastrl.utils.output import plain_console

# Options with which a command prints nothing but what was asked for.
_QUIET = {"-h", "--help", "--json", "--print-config"}


class Progress:
    """Progress of one thing that takes long, as a context manager.

    On a terminal it is a bar, which is gone at the end; elsewhere a line every ``interval`` seconds, none before that.

    Args:
        what: what is done, such as "evaluating".
        total: how much there is to do, in any unit; None: nobody knows.
        console: where to; None: stderr.
        interval: seconds between lines where there is no terminal.
    """

    def __init__(
        self, what: str, total: float | None, console: Console | None = None, *, interval: float = 10.0
    ) -> None:
        self._console = console or plain_console(stderr=True)
        self._what = what
        self._total = total
        self._done = 0.0
        self._interval = interval
        self._printed_at = time.monotonic()
        self._bar: Bar | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bar = Bar(
                SpinnerColumn(),
                TextColumn(
                    "{task.description}",
                    markup=False,
                    table_column=Column(no_wrap=True, overflow="ellipsis", ratio=2),
                ),
                BarColumn(bar_width=None, table_column=Column(ratio=1)),
                TaskProgressColumn(),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
                expand=True,
            )
            self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def describe(self, what: str) -> None:
        """Says what is done from now on."""
        self._what = what
        self.advance(0)

    def advance(self, amount: float = 1) -> None:
        """Adds to what is done."""
        self._done += amount
        if self._bar is not None:
            self._bar.update(self._task, description=self._what, completed=self._done)
        elif time.monotonic() - self._printed_at >= self._interval:
            self._printed_at = time.monotonic()
            share = math.nan if not self._total else self._done / self._total
            text = self._what if math.isnan(share) else f"{self._what}: {share:.0%}"
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)


def silent() -> Progress:
    """Progress that nobody sees."""
    return Progress("", None, plain_console(quiet=True))


def load_torch(arguments: Sequence[str]) -> None:
    """Imports PyTorch, which takes seconds, and says so before.

    On a terminal the line goes away when PyTorch is there.

    Args:
        arguments: of the command. If they ask for help, settings or JSON, only a terminal's stderr has the line.
    """
    if "torch" in sys.modules:
        return
    line, terminal = "loading PyTorch ...", False
    with contextlib.suppress(OSError, ValueError, AttributeError):
        terminal = sys.stderr.isatty()
        if terminal:
            print(line, end="", file=sys.stderr, flush=True)
        elif not _QUIET & set(arguments):
            print(line, flush=True)
    importlib.import_module("torch")
    if terminal:
        print("\r" + " " * len(line) + "\r", end="", file=sys.stderr, flush=True)
