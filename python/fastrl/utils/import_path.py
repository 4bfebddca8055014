"""Import paths of the Python processes that this one starts: they import from where this one does, and nowhere else.

By itself Python imports from the current directory first in a process that is started by ``-m`` or ``-c``. A file there
that has the name of a module, such as ``signal.py``, would run in place of the module.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any


def python_command(code: str, *arguments: str) -> list[str]:
    """The command of a process that runs ``code``, with ``arguments`` in its ``sys.argv``."""
    folders = []
    for folder in sys.path:
        # An empty entry is the current directory, which may have been removed.
        with contextlib.suppress(OSError):
            folders.append(str(Path(folder).absolute()))
    # Not PYTHONPATH, which processes of that process would inherit.
    path = f"import sys; sys.path[:] = dict.fromkeys([*{folders!r}, *sys.path])\n"
    return [sys.executable, "-P", "-c", path + code, *arguments]


def module_command(module: str, *arguments: str) -> list[str]:
    """The command of a process that runs a module, as ``python -m`` does."""
    code = f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return python_command(code, *arguments)


@contextlib.contextmanager
def importing_as_here() -> Iterator[None]:
    """A context in which ``multiprocessing`` starts processes, a fork server or its tracker of resources."""
    options: Any = util
    # With -P a fork server would not find fastrl if it lies in the current directory.
    if _is_current(Path(__file__).parents[2]):
        yield
        return
    options._args_from_interpreter_flags = _safe_options
    try:
        yield
    finally:
        options._args_from_interpreter_flags = subprocess._args_from_interpreter_flags  # type: ignore[attr-defined]


def _is_current(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return folder.samefile(".")
    return False


def _safe_options() -> list[str]:
    """Options of this interpreter and ``-P``."""
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return options if "-P" in options or "-I" in options else [*options, "-P"]
