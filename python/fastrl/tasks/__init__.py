"""Tasks: one folder each, found by name.

A folder of this package whose ``__init__`` has ``NAME``, ``SUMMARY`` and ``ENVIRONMENTS`` (patterns of ids that the
task trains on) and whose module ``task`` has ``TASK``, a `fastrl.training.task.Task`, adds a task; there is no list to
extend. The ``__init__`` imports nothing, for help texts name all tasks.
"""

import fnmatch
import functools
import importlib
import pkgutil
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastrl.utils.config import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from fastrl.training.task import Task


@functools.cache
def tasks() -> Mapping[str, "ModuleType"]:
    """The folders of the tasks, by the names of the tasks, in alphabetical order."""
    folders = [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]
    found = {(module := importlib.import_module(f"{__name__}.{folder}")).NAME: module for folder in folders}
    return dict(sorted(found.items()))


def find(name: str) -> "Task":
    """The task of a name, or of an import path such as ``my_task.task:TASK``, which becomes its name.

    Raises:
        ConfigError: there is none.
    """
    from fastrl.training.task import Task

    if name in tasks():
        task: Task = importlib.import_module(f"{tasks()[name].__name__}.task").TASK
        return task
    path, colon, attribute = name.partition(":")
    try:
        own = getattr(importlib.import_module(path), attribute) if colon else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name}: {error}") from None
    if not isinstance(own, Task):
        raise ConfigError(f"the task should be one of {', '.join(tasks())}, or module:TASK; got {name!r}")
    own.name = name  # by which checkpoints call it, and a resumed run finds it
    return own


def task_for(env_id: str) -> str | None:
    """The name of the task that trains on an environment, by the most specific pattern; None for other words."""

    def literal(pattern: str) -> int:
        return len(re.sub(r"\[.*?\]|\*|\?", "", pattern))

    fitting = [
        (literal(pattern), name)
        for name, folder in tasks().items()
        for pattern in folder.ENVIRONMENTS
        if fnmatch.fnmatchcase(env_id, pattern)
    ]
    return max(fitting)[1] if fitting else None
