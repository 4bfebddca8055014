"""Arguments of models: environments, classes of the user's own, callbacks and loggers, as settings name them."""

import inspect
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from fastrl.algorithms import algorithms
from fastrl.envs.spec import EnvSpec, any_spec
from fastrl.tasks import find as find_task
from fastrl.tasks import is_task, task_for, tasks
from fastrl.training.callbacks import Callback
from fastrl.training.task import Task
from fastrl.utils.config import ConfigError, Values, check, leaves
from fastrl.utils.env_options import parse_options


def task_on(env: Any, algorithm: str | None) -> Task:
    """The task that trains on an environment.

    Raises:
        ConfigError: the algorithm does not go with the environment.
    """
    if isinstance(env, str) and is_task(env):
        return find_task(env)
    try:
        spec = any_spec(env)
    except TypeError as error:
        raise ConfigError(str(error)) from None
    if spec.is_nameless:
        warnings.warn(
            f"env: {spec.id} is at the top of no module, so what is saved cannot name it: fastrl.load(path) gives a"
            " model that acts, but learns only with env=..., and fastrl eval, render and --resume cannot build it; put"
            " the function into a module, with arguments as functools.partial(make_env, size=3)",
            stacklevel=3,
        )
    # An environment that only this process can build has no id by which a task could recognise it.
    env_id = "module:factory" if spec.is_local or spec.is_vector else spec.id
    name = task_for(env_id, algorithm) or (task_for("module:factory", algorithm) if spec.is_local else None)
    if name is None and algorithm is not None:
        others = [other for other in algorithms() if task_for(env_id, other) is not None]
        can = (
            f"these do: {', '.join(others)}"
            if others
            else f"env should be an id such as CartPole-v1, a factory or {', '.join(tasks())}"
        )
        raise ConfigError(f"env: {algorithm} does not learn in {spec.id}; {can}")
    if name is None:
        raise ConfigError(
            f"env: expected an id such as CartPole-v1, module:function or one of {', '.join(tasks())}, got {spec.id!r}"
        )
    return on_spec(find_task(name), spec)


def on_spec(task: Task, spec: EnvSpec) -> Task:
    """The task on a spec that settings cannot name; as it is for others."""
    return task.on(spec) if type(spec) is not EnvSpec else task


def env_settings(task: Task, env: Any, config_type: type, changes: Values, tree: Mapping[str, Any]) -> Values:
    """Settings that follow from the environment, and those that were given.

    Args:
        changes: values that were given, by dotted key.
        tree: nested values of a file; options of both come on top of those of a ``functools.partial``.
    """
    known = leaves(config_type)
    values: Values = {}
    if "env.id" in known and not (isinstance(env, str) and is_task(env)):
        spec = any_spec(env)
        values["env.id"] = spec.id
        if spec.options and "env.options" in known:
            table = tree.get("env")
            in_file = check(config_type, {"env": table} if isinstance(table, Mapping) else {}, "config")
            words = {**in_file, **changes}.get("env.options", ())
            changes = {**changes, "env.options": option_words({**spec.options, **parse_options(words)})}
    if isinstance(env, VectorEnv):
        values["env.num_envs"] = env.num_envs
    elif is_only_one(env):
        values["env.num_envs"] = 1
    return values | changes


def check_same_options(env: Any, settings: Any, file: Path) -> None:
    """Refuses a ``functools.partial`` with other arguments than those that a run has.

    Raises:
        ConfigError
    """
    options = any_spec(env).options
    saved = parse_options(getattr(settings.env, "options", ())) if options else {}
    for key, value in options.items():
        if key not in saved or saved[key] != value:
            raise ConfigError(
                f"{file} is of a run whose environment has the options {saved}, not {key}={value!r}"
            )


def recorded_env(demos: Any, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The environment that a data set was recorded in, and the settings with its options.

    Raises:
        ConfigError: the data set does not name it.
    """
    facts = demos.meta.get("env") or {}
    if not isinstance(facts.get("id"), str):
        raise ConfigError(
            'env: the data set does not name the environment that it was recorded in: give both, ("ENV", demos=...)'
        )
    options = option_words(facts.get("options") or {})
    return facts["id"], ({"env__options": options} if options else {}) | settings


def option_words(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Keyword arguments of an environment as settings have them."""
    return tuple(f"{key}={json.dumps(value)}" for key, value in options.items())


def check_options(env: Any, settings: Any) -> None:
    """Refuses options for an environment that exists.

    Raises:
        ConfigError
    """
    options = getattr(settings.env, "options", ()) if "env.options" in leaves(type(settings)) else ()
    if options and isinstance(env, gymnasium.Env | VectorEnv):
        raise ConfigError(
            f"env.options: this {type(env).__name__} is made already, {' '.join(options)} comes too late: give it to"
            " the environment, or give its class"
        )


def is_only_one(env: Any) -> bool:
    """True of an environment from which no others can be built."""
    return isinstance(env, gymnasium.Env) and env.spec is None


def import_path(what: str, given: Any) -> str:
    """The import path of a class of the user's own, by which checkpoints name it.

    Raises:
        ConfigError: it has none.
    """
    if isinstance(given, str):
        return given
    if not inspect.isclass(given):
        raise ConfigError(f"{what}: expected a class or its import path 'my_module:MyClass', got {given!r}")
    path = f"{given.__module__}:{given.__qualname__}"
    if getattr(sys.modules.get(given.__module__), given.__qualname__, None) is not given:
        raise ConfigError(
            f"{what}: {given.__qualname__} is defined inside a function or class; move it to the top of its module, so"
            " that checkpoints can name it"
        )
    return path


def check_hooks(what: str, given: Any, expected: str, fits: Callable[[Any], bool]) -> None:
    """Refuses what is no list of callbacks or loggers.

    Raises:
        ConfigError
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ConfigError(f"{what}: expected a list of objects {expected}, got {given!r}")
    for each in given:
        if not fits(each):
            hint = f": give {each.__qualname__}()" if inspect.isclass(each) else ""
            raise ConfigError(f"{what}: expected objects {expected}, got {each!r}{hint}")


def is_callback(each: Any) -> bool:
    return isinstance(each, Callback)


def is_logger(each: Any) -> bool:
    return not inspect.isclass(each) and all(callable(getattr(each, name, None)) for name in ("log", "close"))
