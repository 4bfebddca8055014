"""The protocol of loggers: objects that take the rows of a run."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from fastrl.runs.directory import RunDirectory
from fastrl.runs.row import Row
from fastrl.utils.config import by_dotted_key, to_tree
from fastrl.utils.errors import UserError
from fastrl.utils.output import quiet_console

if TYPE_CHECKING:
    from rich.console import Console


Shown = Mapping[str, Callable[[float], str]]
"""Texts that a console shows of metrics, by their names; "" for nothing."""


class LoggerError(UserError, ValueError):
    """A name or import path that is no logger, or a logger whose library is missing."""


@dataclasses.dataclass(frozen=True)
class LoggedRun:
    """Facts of the run that a logger is started with.

    Attributes:
        directory: of the run; None: nothing is written.
        after: environment steps of the checkpoint that the run resumes from; 0 for a new run. What was logged after it
            is void.
        episodes: that had ended by then.
        total, done: the run's goal, and how much of it is done, both in ``unit``.
        unit: "steps", "episodes" or "samples".
        settings: of the run, for loggers that show them.
        console: for people.
        shown: texts of metrics of the run's task for it.
    """

    directory: RunDirectory | None
    after: int = 0
    episodes: int = 0
    total: int = 1
    done: int = 0
    unit: str = "steps"
    settings: Any = None
    console: Console = dataclasses.field(default_factory=quiet_console)
    shown: Shown = dataclasses.field(default_factory=dict)

    @property
    def files(self) -> RunDirectory:
        """The run directory.

        Raises:
            LoggerError: the run has none.
        """
        if self.directory is None:
            raise LoggerError("run.loggers: a logger of files needs a run directory: name one")
        return self.directory

    def hyper_parameters(self) -> dict[str, bool | int | float | str]:
        """The settings by dotted key; values of other types as text."""
        tree = {} if self.settings is None else to_tree(self.settings)
        return {
            key: value if isinstance(value, bool | int | float) else str(value)
            for key, value in by_dotted_key(tree)
        }


class Logger(Protocol):
    """Takes the rows of a run, one after the other. Any class with these two methods is one; it is constructed with a
    `LoggedRun`.

    ``--run.loggers my_module:MyLogger`` finds it; with a ``name``, in `fastrl.runs.loggers`, it is called by that.
    """

    def log(self, row: Row) -> None:
        """Logs a row."""

    def close(self) -> None:
        """Ends the logger; called once, also if the run has failed."""


@runtime_checkable
class Flushing(Protocol):
    """A logger that holds rows in memory."""

    def flush(self) -> None:
        """Makes sure that what was logged survives a crash; called before each checkpoint."""


def is_logger(value: Any) -> bool:
    """True for classes with the methods of `Logger`."""
    return inspect.isclass(value) and all(callable(getattr(value, each, None)) for each in ("log", "close"))
