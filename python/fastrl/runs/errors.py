"""Errors of runs."""

import os
import traceback

from fastrl.utils.errors import UserError


class TrainError(UserError, RuntimeError):
    """A run that cannot start or resume, for a reason that its user can act on; one line."""


class HookError(RuntimeError):
    """Code of the user's that watches a run, a callback or a logger, has raised; one line that says which.

    Attributes:
        traceback: of that code, as text.
    """

    def __init__(self, what: str, error: BaseException) -> None:
        self.traceback = "".join(traceback.format_exception(error))
        super().__init__(f"{what} failed: {self.traceback.splitlines()[-1]}")


def check_memory(needed: float, subject: str, advice: str) -> None:
    """Refuses sizes for which the system would kill the process for its memory.

    Args:
        needed: bytes.
        subject: start of the error, such as "this takes at least".
        advice: end of the error, after "choose".

    Raises:
        TrainError: the machine has less.
    """
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise TrainError(
            f"{subject} {needed / 1e9:,.0f} GB of memory, the machine has {there / 1e9:,.0f}: choose {advice}"
        )
