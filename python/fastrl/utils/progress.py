"""Progress of commands that take long: a bar on a terminal, elsewhere a line from time to time."""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fastrl.utils.output import plain_console, shows_bars

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from fastrl.utils.notebook_bar import NotebookBar

# With these options a command prints only its result.
_QUIET = {"-h", "--help", "--json", "--print-config"}


class Progress:
    """Progress of one task, as a context manager.

    On a terminal it is a bar, which is removed at the end, in notebooks one that stays; elsewhere it is a line every
    ``interval`` seconds.

    Args:
        task: a present participle, such as "evaluating".
        total: amount of work, in any unit; None: unknown.
        console: the console to print on; None: stderr.
        interval: seconds between lines, and before the first, where there is no terminal.

    Attributes:
        done: amount of work that is done.
    """

    def __init__(
        self, task: str, total: float | None, console: Console | None = None, *, interval: float = 10.0
    ) -> None:
        self._console = console or plain_console(stderr=True)
        self._description = task
        self._total = total
        self.done = 0.0
        self._interval = interval
        self._printed_at = time.monotonic()
        self._bar: Bar | None = None
        self._notebook: NotebookBar | None = None
        if self._console.is_jupyter and not self._console.quiet:
            from fastrl.utils.notebook_bar import NotebookBar

            self._notebook = NotebookBar(task)
        elif shows_bars(self._console):
            from rich.progress import (
                BarColumn,
                SpinnerColumn,
                TaskProgressColumn,
                TextColumn,
                TimeElapsedColumn,
            )
            from rich.progress import Progress as Bar
            from rich.table import Column

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
            self._task = self._bar.add_task(task, total=total)
            self._bar.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._notebook is not None:
            self._notebook.close()

    def describe(self, task: str) -> None:
        """Changes the description of the task."""
        self._description = task
        self.advance(0)

    def advance(self, amount: float = 1) -> None:
        """Adds an amount of work that is done."""
        self.done += amount
        share = math.nan if not self._total else self.done / self._total
        if self._bar is not None:
            self._bar.update(self._task, description=self._description, completed=self.done)
        elif self._notebook is not None:
            self._notebook.show(share, "", self._description)
        elif time.monotonic() - self._printed_at >= self._interval:
            self._printed_at = time.monotonic()
            text = self._description if math.isnan(share) else f"{self._description}: {share:.0%}"
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)


def load_torch(arguments: Sequence[str] = ()) -> None:
    """Imports PyTorch, which takes seconds, and prints a line before.

    On a terminal the line is removed afterwards.

    Args:
        arguments: the command's arguments. If they ask for help, settings or JSON, the line is printed on a terminal
            only.
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
