"""The main module of worker processes: the program that starts them, imported only where something of it is needed.

By itself ``multiprocessing`` imports the program again in each process, so that a script without
``if __name__ == "__main__":`` would start workers in each worker. Most workers need nothing of it: their environments
are named by id or import path. Here the program waits until an attribute of ``__main__`` is looked up, as when an
object of it is unpickled, or until `import_main`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from multiprocessing import spawn
from typing import Any

# The module that workers run in place of the program, and what follows the program's arguments to name the program.
_STAND_IN = "fastrl.utils.worker_main"
_MARK = "--fastrl-main-module"

# Entries by which `spawn.prepare` finds the program.
_KEYS = ("init_main_from_name", "init_main_from_path")

# In a worker: the entry and the name or path of the program, until it is imported.
_waiting: list[tuple[str, str]] = []


@contextlib.contextmanager
def main_on_demand() -> Iterator[None]:
    """A context in which processes are started that import the program only where they need something of it."""
    prepare = spawn.get_preparation_data

    def prepared(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        key = next((key for key in _KEYS if key in data), None)
        if key is not None and not data[key].endswith("__main__"):
            # Everything else in these data is used before the program is run, and has a use of its own.
            data["sys_argv"] = [*data["sys_argv"], _MARK, key, data.pop(key)]
            data["init_main_from_name"] = _STAND_IN
        return data

    spawn.get_preparation_data = prepared
    try:
        yield
    finally:
        spawn.get_preparation_data = prepare


def wait_with_main(variables: dict[str, Any]) -> None:
    """Takes the name of the program from the arguments of this worker.

    Args:
        variables: of the module that stands in for the program; a process that the worker starts is to find the program
            by them, as it would by the program's own.
    """
    if sys.argv[-3:-2] != [_MARK]:
        return
    key, where = sys.argv[-2:]
    del sys.argv[-3:]
    _waiting.append((key, where))
    is_path = key == "init_main_from_path"
    variables["__file__"] = where if is_path else None
    variables["__spec__"] = None if is_path else ModuleSpec(where, None)


def main_attribute(name: str) -> Any:
    """An attribute of the program, which is imported for it; the ``__getattr__`` of the module that stands in.

    Raises:
        AttributeError: there is none. Whatever the program raises.
    """
    # Python itself looks for special names, which every module may lack.
    if not (name.startswith("__") and name.endswith("__")) and import_main():
        return getattr(sys.modules["__main__"], name)
    raise AttributeError(f"module '__main__' has no attribute {name!r}")


def import_main() -> bool:
    """Imports the program that started this worker, if it waits for that. True: now it has been imported."""
    if not _waiting:
        return False
    key, where = _waiting.pop()
    main: Any = sys.modules["__main__"]
    # Otherwise it would look as if the program was there.
    main.__file__ = main.__spec__ = None
    process: Any = multiprocessing.current_process()
    was_inheriting = getattr(process, "_inheriting", False)
    # By this a program is refused that starts processes when it is imported, see `processes.require_main_guard`.
    process._inheriting = True
    try:
        spawn.prepare({key: where})
    finally:
        process._inheriting = was_inheriting
    return True
