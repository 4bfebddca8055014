"""Copies of a process: an environment may fork, and the copy must not train, collect or clean up as well."""

import contextlib
import os
import traceback
from collections.abc import Iterator


def end_copy(owner: int, error: BaseException | None = None) -> None:
    """Ends this process at once, without its handlers of exits, unless it is the process ``owner``.

    Args:
        owner: id of the process that called foreign code.
        error: raised by that code in the copy; of `SystemExit` the copy has the exit code.
    """
    if os.getpid() == owner:
        return
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code or 0
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    os._exit(code & 0xFF if isinstance(code, int) else 1)


@contextlib.contextmanager
def ending_copies() -> Iterator[None]:
    """A context for foreign code: copies of this process that it makes end with the context."""
    owner = os.getpid()
    try:
        yield
    except BaseException as error:
        end_copy(owner, error)
        raise
    end_copy(owner)
