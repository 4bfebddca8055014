"""Specifications of environments: descriptions that pickle, from which each process builds its own."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import json
import pickle
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import gymnasium
from gymnasium.vector import VectorEnv

from fastrl.envs import contract
from fastrl.envs.registration import MULTI_AGENT_IDS
from fastrl.envs.rows import in_rows
from fastrl.utils.forks import ending_copies
from fastrl.utils.main_module import import_main
from fastrl.utils.names import did_you_mean

Factory = Callable[..., gymnasium.Env[Any, Any]]

# Modules that register environments when they are imported, by the start of the ids.
_REGISTERED_BY = {
    **dict.fromkeys(("MiniGrid-", "BabyAI-"), "minigrid"),
    **dict.fromkeys(("highway-", "merge-", "roundabout-", "intersection-", "racetrack-"), "highway_env"),
    **dict.fromkeys(
        ("Fetch", "Hand", "AntMaze", "PointMaze", "Adroit", "FrankaKitchen"), "gymnasium_robotics"
    ),
    "Panda": "panda_gym",
}

# Extras of fastrl that install a package of environments and its dependencies.
_EXTRAS = dict.fromkeys(("pettingzoo", "mpe2"), "'fastrl[pettingzoo]'")

# An object without these attributes is no environment, whatever its class.
_PARTS = ("observation_space", "action_space", "reset", "step")


def is_parallel(env: Any) -> bool:
    """True for an object with the interface of PettingZoo's ``ParallelEnv``."""
    return all(hasattr(env, name) for name in (*_PARTS, "possible_agents")) and callable(
        env.observation_space
    )


class ElsewhereError(ValueError):
    """One process can build an environment or a network and another one cannot; the message ends with what to do."""


def _elsewhere(problem: str, name: str) -> ElsewhereError:
    return ElsewhereError(
        f"env: {problem}, so other processes cannot build it; put the function that makes it into a module, such as"
        f" my_module.py, and give 'my_module:{name}', or collect with 'sequential', which steps it in this process"
    )


def unpickle(payload: bytes) -> Any:
    """Loads an object that another process has pickled, with an environment's spec in it.

    Raises:
        ElsewhereError: this process lacks something that the object needs, such as a class of a notebook.
    """
    try:
        return pickle.loads(payload)
    except (AttributeError, ImportError) as error:
        raise _elsewhere(str(error), "make_env") from error


@dataclass(frozen=True)
class EnvSpec:
    """A way to build an environment, which pickles.

    Attributes:
        id: a Gymnasium id such as ``"CartPole-v1"`` or ``"my_module:MyEnv-v0"``, or the import path of a function or
            class, ``"my_module:make_env"``.
        options: keyword arguments.
        rows: environments are made by `fastrl.envs.rows.in_rows`: they give rows and take flat actions.
        is_vector: the factory makes a `gymnasium.vector.VectorEnv`, see `make_vector`.
    """

    id: str
    options: Mapping[str, Any] = field(default_factory=dict)
    rows: bool = False
    is_vector: bool = False

    def __getstate__(self) -> dict[str, Any]:
        # The receiving process reports it: an id of a notebook is registered in the notebook's process only.
        return {**self.__dict__, "_was_registered": self.id in gymnasium.registry}

    @property
    def is_local(self) -> bool:
        """True if no other process can build its environments."""
        return False

    @property
    def scored_agents(self) -> int | None:
        """Number of agents, the first ones, whose mean return is that of an episode; None: all."""
        return None

    @property
    def is_nameless(self) -> bool:
        """True of a function that is at the top of no module, so that nothing that is saved can name it."""
        return False

    def make(self) -> gymnasium.Env[Any, Any]:
        """Builds an environment.

        Raises:
            ValueError: there is no such id, module or factory (the message names the nearest id), or the factory
                makes no environment.
            ElsewhereError: the process that pickled this knows the id, this process does not.
            Any error of the environment about its options.
        """
        env = self.build()
        if isinstance(env, VectorEnv):
            self.close(env)
            raise ValueError(
                f"env: {self.id} makes a vector environment, which only the collector 'vector' steps; make a"
                " gymnasium.Env for others"
            )
        return env

    def as_rows(self) -> Self:
        """A copy with `rows`: its environments convert what has to be converted, and are as they are otherwise."""
        # A copy would forget what the sender knew, see `__getstate__`.
        return self if self.rows else dataclasses.replace(self, rows=True)

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """A copy with further keyword arguments; an environment that exists already stays as it is."""
        return dataclasses.replace(self, options={**self.options, **options})

    def make_vector(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        """Builds a vector environment. A factory with a parameter ``num_envs`` is given the number.

        Raises:
            ValueError: there is no such factory, it makes something else, or another number of environments.
            Any error of the factory.
        """
        env = self.build(num_envs)
        if not isinstance(env, VectorEnv):
            raise ValueError(
                f"env: {self.id} makes a single environment, a {type(env).__name__}; the collector 'vector' steps a"
                " gymnasium.vector.VectorEnv: choose another collector"
            )
        return env

    def close(self, env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> None:
        """Closes what was made, and ignores its errors: after an error it may be unable to close."""
        contract.close(env)

    def build(self, num_envs: int | None = None) -> gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]:
        """Builds what the factory makes, as `make` or as `make_vector`.

        Args:
            num_envs: of a vector environment; None: any number.
        """
        with ending_copies():
            env = self._build(num_envs)
        if not isinstance(env, VectorEnv):
            return in_rows(env, self.id) if self.rows else env
        if num_envs is not None and env.num_envs != num_envs:
            found = env.num_envs
            self.close(env)
            raise ValueError(
                f"env: {self.id} makes {found} environments, expected {num_envs}: set num_envs to {found}, or give the"
                " factory a parameter num_envs"
            )
        return env

    def build_object(self) -> Any:
        """Calls the factory and returns its result unchecked, such as a parallel environment of PettingZoo.

        Raises:
            ValueError: there is no such factory.
            Any error of the factory.
        """
        factory = self._factory()
        if factory is None:
            raise ValueError(
                f"env: expected the import path of a function, my_module:make_env, got {self.id!r}"
            )
        with ending_copies():
            return factory(**self.options)

    def _build(self, num_envs: int | None) -> Any:
        factory = self._factory()
        if factory is not None:
            options = dict(self.options)
            if "num_envs" not in options and _has_parameter(factory, "num_envs"):
                options["num_envs"] = 1 if num_envs is None else num_envs
            made = factory(**options)
            if is_parallel(made):
                raise ValueError(
                    f"env: {self.id} makes a PettingZoo ParallelEnv, which ippo, mappo and reinforce train (--algo"
                    " mappo); this takes a gymnasium.Env"
                )
            lacks = [name for name in _PARTS if not hasattr(made, name)]
            if lacks:
                raise ValueError(
                    f"env: {self.id} should make a gymnasium.Env, got a {type(made).__name__} without"
                    f" {', '.join(lacks)}"
                )
            return made
        try:
            self._register()
            return gymnasium.make(self.id, **self.options)
        except (gymnasium.error.UnregisteredEnv, gymnasium.error.NamespaceNotFound) as error:
            if self.__dict__.get("_was_registered") and import_main():
                return gymnasium.make(self.id, **self.options)
            if self.__dict__.get("_was_registered"):
                raise _elsewhere(f"{self.id!r} is registered in one process only", self.id) from error
            if self.id in MULTI_AGENT_IDS:
                raise ValueError(
                    f"env: {self.id} has many agents, which ippo, mappo and reinforce train (--algo mappo)"
                ) from error
            if self.id.startswith("ALE/"):
                raise ValueError(
                    f"env: Gymnasium knows no {self.id!r} before ale_py is imported; to learn Atari games use"
                    f" fastrl-train {self.id}"
                ) from error
            hint = did_you_mean(self.id, gymnasium.registry)
            raise ValueError(f"env: Gymnasium knows no {self.id!r}{hint}") from error
        except ModuleNotFoundError as error:
            raise ValueError(f"env: {self.id!r}: {error}") from error

    def _register(self) -> None:
        """Imports the module that registers the id, if it is a known one and has not been imported; takes MuJoCo's
        warnings.

        Raises:
            ValueError: it is not installed.
        """
        known = gymnasium.registry.get(self.id)
        if known is not None and str(known.entry_point).startswith("gymnasium.envs.mujoco."):
            _take_mujoco_warnings()
        module = next((name for start, name in _REGISTERED_BY.items() if self.id.startswith(start)), None)
        if module is None or self.id in gymnasium.registry:
            return
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            raise ValueError(
                f"env: {self.id} needs {module}, which is not installed: pip install {module}"
            ) from None

    def _factory(self) -> Factory | None:
        """The function or class of an import path; None for a Gymnasium id."""
        module_name, colon, name = self.id.partition(":")
        if not colon or not name.isidentifier():
            return None
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            own, missing = module_name.partition(".")[0], str(error.name).partition(".")[0]
            if own in _EXTRAS and importlib.util.find_spec(missing) is None:
                raise ValueError(
                    f"env: {self.id} needs {missing}, which is not installed: pip install {_EXTRAS[own]}"
                ) from None
            raise ValueError(
                f"env: {self.id!r}: {error}; it should be importable in every process"
            ) from error
        factory = getattr(module, name, None)
        if factory is None:
            if module_name == "__main__":
                raise _elsewhere(f"{self.id!r} is in one process only", name)
            file = getattr(module, "__file__", None)
            raise ValueError(
                f"env: module {module_name}{f' ({file})' if file else ''} has no {name!r}"
                f"{did_you_mean(name, dir(module))}"
            )
        if not callable(factory):
            raise ValueError(f"env: {self.id} should be a function or class that makes an environment")
        return factory


def _take_mujoco_warnings() -> None:
    """Makes MuJoCo's warnings Python's, which otherwise go to stderr and into a file of the current directory. Those
    about Gymnasium's own models, which use an old attribute, are left out."""
    try:
        mujoco = importlib.import_module("mujoco")
    except ImportError:
        # Gymnasium says what is missing.
        return

    def warn(text: str) -> None:
        if "deprecated" not in text:
            warnings.warn(f"MuJoCo: {text}", stacklevel=2)

    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(warn)


@dataclass(frozen=True)
class _FactorySpec(EnvSpec):
    """A spec of a function or class itself, without an import path."""

    factory: Factory | None = None

    @property
    def is_local(self) -> bool:
        try:
            pickle.dumps(self.factory)
        except Exception:
            return True
        return False

    @property
    def is_nameless(self) -> bool:
        return _named(self.id) is not self.factory

    def _factory(self) -> Factory | None:
        return self.factory


@dataclass(frozen=True)
class _OwnedSpec(EnvSpec):
    """A spec of an environment that exists, and stays its owner's: this process alone can step it."""

    env: Any = None

    def with_options(self, options: Mapping[str, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(f"{self.id} is an environment of this process, which alone can step it")


class _VectorEnvSpec(_OwnedSpec):
    """A spec of a vector environment that exists."""

    def _build(self, num_envs: int | None) -> Any:
        return self.env

    def close(self, env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> None:
        pass


@dataclass(frozen=True)
class _EnvInstanceSpec(_OwnedSpec):
    """A spec of an environment that exists. Where several are needed, further ones are built from its own Gymnasium
    spec."""

    # Shared by all copies of the spec: not empty while the environment is in use.
    lent: list[bool] = field(default_factory=list)

    @property
    def is_local(self) -> bool:
        return True

    def _build(self, num_envs: int | None) -> Any:
        if not self.lent:
            self.lent.append(True)
            return _Lent(self.env, self.lent)
        if self.env.spec is None:
            raise ValueError(
                f"env: this {self.id} has no spec, so there is one of it, and it is in use: give a function that makes"
                " environments, or num_envs=1 without evaluations during the run"
            )
        return gymnasium.make(self.env.spec)


class _Lent(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose owner closes it."""

    def __init__(self, env: gymnasium.Env[Any, Any], lent: list[bool]) -> None:
        super().__init__(env)
        self._lent = lent

    def close(self) -> None:
        self._lent.clear()


def any_spec(env: Any) -> EnvSpec:
    """Spec as of `as_spec`, also of a function or an environment that only this process has; see `EnvSpec.is_local`.

    Raises:
        TypeError: it is nothing of the kind.
    """
    if isinstance(env, gymnasium.Env):
        return _EnvInstanceSpec(contract.env_name(env), env=env)
    if isinstance(env, str | EnvSpec | VectorEnv):
        return as_spec(env)
    if not callable(env):
        raise TypeError(
            "env: expected an id, an import path, a function that makes environments (num_envs says how many), or an"
            f" environment; got {type(env).__name__}: {env!r}"
        )
    factory, options = _parted(env)
    name = _name_of(factory)
    if _named(name) is factory and not name.startswith("__main__:"):
        return EnvSpec(name, options)
    return _FactorySpec(name, factory=env)


def _name_of(factory: Any) -> str:
    """The import path of a function or class, if it is at the top of its module."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    module = getattr(factory, "__module__", "?")
    return f"{module}:{getattr(factory, '__qualname__', type(factory).__name__)}"


def _named(path: str) -> Any:
    """The object of an import path, of a module that has been imported; None: there is none."""
    module, _, name = path.partition(":")
    return getattr(sys.modules.get(module), name, None)


def _parted(factory: Any) -> tuple[Any, dict[str, Any]]:
    """The function of a ``functools.partial`` and its arguments by name, if files can hold them as they are; anything
    else, and no arguments."""
    if not isinstance(factory, functools.partial):
        return factory, {}
    try:
        parameters = inspect.signature(factory.func).parameters.values()
        names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        options = dict(zip(names, factory.args, strict=False)) | factory.keywords
        if json.loads(json.dumps(options)) == options and len(names) >= len(factory.args):
            return factory.func, options
    except (TypeError, ValueError):
        pass
    return factory, {}


def _has_parameter(factory: Factory, name: str) -> bool:
    try:
        return name in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False


def as_spec(env: str | EnvSpec | Factory | VectorEnv[Any, Any, Any], **options: Any) -> EnvSpec:
    """A spec from an id, a spec, a function or class that makes an environment, or a vector environment.

    Raises:
        TypeError: it does not pickle, so no other process could build it; or options for a vector environment.
    """
    if isinstance(env, VectorEnv):
        if options:
            raise TypeError(f"env: a {type(env).__name__} takes no options: it is built already")
        return _VectorEnvSpec(type(env).__name__, is_vector=True, env=env)
    if isinstance(env, EnvSpec):
        spec: EnvSpec = dataclasses.replace(env, options={**env.options, **options}) if options else env
    elif isinstance(env, str):
        spec = EnvSpec(env, options)
    elif isinstance(env, gymnasium.Env):
        raise TypeError(
            f"env: got an environment ({type(env).__name__}); other processes have to build their own: give"
            " its id ('CartPole-v1') or the import path of its factory ('my_module:make_env')"
        )
    elif callable(env):
        spec = _FactorySpec(_name_of(env), options, factory=env)
    else:
        raise TypeError(
            f"env: expected an id, an import path or a function, got {type(env).__name__}: {env!r}"
        )
    try:
        pickle.dumps(spec)
    except Exception as error:
        raise TypeError(
            f"env: {spec.id} does not pickle ({error}), so other processes cannot build it: give an id"
            " ('CartPole-v1'), or put the function at the top of a module and give it or its import path"
            " ('my_module:make_env'); lambdas and functions inside functions will not do"
        ) from None
    return spec
