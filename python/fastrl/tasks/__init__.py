"""Tasks: one folder each, found by name or by the environment.

A folder of this package adds a task: its ``__init__`` has ``NAME``, ``SUMMARY``, ``ENVIRONMENTS`` (patterns of the
ids that the task trains on), ``NEEDS_ENVIRONMENT`` (the command line names an environment, not the task) and
``EXPERTS``, the form of its scripted experts' names, such as ``"baseline:NAME (CAGE 2)"``, or "". ``ON_REQUEST``, if it
is there, has patterns of ids that the task trains on where an algorithm is named that it takes. Its module ``task``
has ``TASK``, a `fastrl.training.task.Task`. The ``__init__`` imports nothing, because help texts name all tasks.

A task with scripted policies that ``fastrl eval`` scores lists their names in ``BASELINES``, and its module
``evaluate`` has ``SCORING``, the part of the task that scores them and loads no torch.

A task with experts lists their names in ``EXPERT_NAMES``, and its module ``experts`` has
``find_expert(text, env) -> ExpertSpec`` (`fastrl.collectors.expert`). Workers of recordings import the latter, so that
neither it nor this module loads settings or torch.
"""

import fnmatch
import functools
import importlib
import pkgutil
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastrl.runs.directory import never_saved

if TYPE_CHECKING:
    from types import ModuleType

    from fastrl.envs.spec import EnvSpec
    from fastrl.training.task import Task


@functools.cache
def tasks() -> Mapping[str, "ModuleType"]:
    """The folders of the tasks, by the names of the tasks, in alphabetical order."""
    folders = [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]
    found = {(module := importlib.import_module(f"{__name__}.{folder}")).NAME: module for folder in folders}
    return dict(sorted(found.items()))


def with_experts() -> "list[ModuleType]":
    """The folders of the tasks that have scripted experts."""
    return [folder for folder in tasks().values() if folder.EXPERTS]


def find(name: str) -> "Task":
    """The task of a name, or of an import path such as ``my_task.task:TASK``, which becomes its name.

    Raises:
        ConfigError: there is none.
    """
    from fastrl.training.task import Task
    from fastrl.utils.config import ConfigError

    if name in tasks():
        task: Task = importlib.import_module(f"{tasks()[name].__name__}.task").TASK
        return task
    path, colon, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(path), attribute) if colon else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name}: {error}") from None
    if not isinstance(found, Task):
        raise ConfigError(
            f"the task should be one of {', '.join(tasks())}, or module:TASK; got {name!r} (an environment needs a name"
            " with a small letter)"
        )
    if not type(found).__module__.startswith(f"{__name__}."):
        found.name = name  # by which checkpoints call it, and a resumed run finds it
    return found


def is_task(name: str) -> bool:
    """True for the name of a task, and for an import path in capitals such as ``my_module:MY_TASK``. One with digits,
    such as ``my_module:D1``, is an environment's, unless TASK is in it."""
    module, _, attribute = name.partition(":")
    is_constant = attribute.isidentifier() and attribute.isupper() and not module.startswith("-")
    return name in tasks() or (is_constant and ("TASK" in attribute or not re.search(r"\d", attribute)))


def load_saved(run: Path) -> tuple[str, Any]:
    """The task of a run and the nested settings in its newest checkpoint; of a run that was killed before its first
    checkpoint the task that its config.toml names, and None.

    Args:
        run: a run directory or a checkpoint file.

    Raises:
        CheckpointError: there is no checkpoint, or a damaged one.
        ConfigError: the run names no task, or one that this fastrl does not have.
    """
    from fastrl.utils.config import ConfigError, load_toml

    if never_saved(run):
        config = None
        kind = load_toml(run / "config.toml").get("kind")
    else:
        from fastrl.runs.checkpoint import load_newest

        _, state = load_newest(run)
        from fastrl.training.stages import saved_settings

        kind, config = state.get("kind"), saved_settings(state)
    if kind is None:
        raise ConfigError(f"{run} does not name its task: this fastrl cannot use it")
    if not isinstance(kind, str) or not is_task(kind):
        raise ConfigError(f"{run} is of a task that this fastrl does not have: {kind!r}")
    return kind, config


def task_for(env_id: str, algo: str | None = None) -> str | None:
    """The name of the task that trains on an environment, by the most specific pattern; None for other words.

    A factory whose module has imported PettingZoo is called once, to see whether it makes a parallel environment.

    Args:
        algo: an algorithm that the task must take; None: any.

    Raises:
        AlgorithmError: there is no such algorithm.
    """

    from fastrl.envs.spec import EnvSpec

    def literal(pattern: str) -> int:
        return len(re.sub(r"\[.*?\]|\*|\?", "", pattern))

    fitting = [
        (literal(pattern), name)
        for name, folder in tasks().items()
        for pattern in (*folder.ENVIRONMENTS, *(() if algo is None else getattr(folder, "ON_REQUEST", ())))
        if fnmatch.fnmatchcase(env_id, pattern)
    ]
    if algo is not None:
        from fastrl.algorithms import declaration

        algorithm = declaration(algo)
        fitting = [(length, name) for length, name in fitting if find(name).takes(algorithm)]
    elif ":" in env_id and env_id not in tasks() and makes_parallel(EnvSpec(env_id)):
        return "pettingzoo"
    return max(fitting)[1] if fitting else None


def task_name_on(env_id: str, algo: str | None = None) -> str:
    """The name of the task that trains on an environment, with an algorithm if one is named.

    Raises:
        ConfigError: there is none; the message names what is likely meant.
    """
    from fastrl.utils.config import ConfigError

    if (name := task_for(env_id, algo)) is not None:
        return name
    if task_for(env_id) is not None:
        from fastrl.algorithms import declarations

        others = [other for other in declarations() if task_for(env_id, other) is not None]
        raise ConfigError(f"--algo {algo} does not learn in {env_id}; {', '.join(others)} do")
    if env_id in tasks():
        example = "ALE/Pong-v5" if env_id == "pixels" else "CartPole-v1"
        raise ConfigError(
            f"{env_id} names no environment: give its id, such as {example}, or module:function"
        )
    from gymnasium import registry

    from fastrl.utils.names import likely

    # The newest of versions that are as likely.
    known = {name.lower(): name for name in [*named_tasks(), *reversed(registry)]}
    found = likely(env_id.lower(), known)
    if found is not None:
        raise ConfigError(f"unknown environment {env_id}; did you mean {known[found]}?")
    raise ConfigError(
        f"unknown environment {env_id}: give {', '.join(named_tasks())}, a Gymnasium id such as CartPole-v1, or"
        " module:function"
    )


def agent_task_on(env_id: str) -> str:
    """The name of the task in which an agent of the user's own plays in an environment: where one agent and several may
    be trained, that of one.

    Raises:
        ConfigError: as of `task_name_on`.
    """
    from gymnasium import registry

    if env_id in named_tasks():
        return env_id
    name = task_name_on(env_id)
    if find(name).many_agents and env_id in registry:
        return task_for(env_id, "ppo") or name
    return name


def makes_parallel(spec: "EnvSpec") -> bool:
    """True if a factory's module uses PettingZoo, and the factory makes a parallel environment."""
    from fastrl.envs import contract
    from fastrl.envs.spec import is_parallel

    try:
        importlib.import_module(spec.id.partition(":")[0])
        if "pettingzoo" not in sys.modules:
            return False
        env = spec.build_object()
        found = is_parallel(env)
        contract.close(env)
    except (Exception, SystemExit):
        # The task of Gymnasium's environments reports what is wrong.
        return False
    return found


def named_tasks() -> list[str]:
    """The tasks that the command line calls by their names; those of the others are found by the environment."""
    return [name for name, folder in tasks().items() if not folder.NEEDS_ENVIRONMENT]
