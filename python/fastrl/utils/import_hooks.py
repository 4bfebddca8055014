"""Work that waits for the import of another module."""

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any


def after_import(name: str, then: Callable[[], object]) -> None:
    """Calls a function once a module has been imported: at once if it is there already."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _AfterImport(name, then))


class _AfterImport(MetaPathFinder):
    """Finds one module where others find it, and is called back when it has run."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            # It may be installed later.
            sys.meta_path.insert(0, self)
            return spec
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            self._then()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
