"""Algorithms: one module each, found by name.

A module of this package that defines a subclass of `fastrl.algorithms.protocol.Algorithm` with a ``name``, which is
that of the module with hyphens for underscores, adds an algorithm; there is no list to extend. The ``name`` is given in
a line of its own, by which modules are found without being imported. Its class is a name of this package, for
subclasses: ``fastrl.algorithms.PPO``. Where a module ``*_settings`` has its name, summary and settings in an abstract
class that it inherits, command lines need no PyTorch to parse it.
"""

import functools
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastrl.utils.errors import UserError
from fastrl.utils.names import did_you_mean

if TYPE_CHECKING:
    from gymnasium.spaces import Space

    from fastrl.algorithms.protocol import Algorithm, Problem


class AlgorithmError(UserError, ValueError):
    """A name or import path that is no algorithm."""


@functools.cache
def _modules() -> Mapping[str, str]:
    """The module in which each algorithm is declared, by its name, in alphabetical order. The text of the modules says
    so: importing all of them takes longer than a short run."""
    found: dict[str, str] = {}
    for path in sorted(path for folder in __path__ for path in Path(folder).glob("*.py")):
        names = re.findall(r'\n    name = "(.+)"\n', path.read_text("utf-8"))
        if path.stem.endswith("_settings"):
            found |= dict.fromkeys(names, path.stem)
        elif (name := path.stem.replace("_", "-")) in names:
            found.setdefault(name, path.stem)
    return dict(sorted(found.items()))


class _Found(Mapping[str, "type[Algorithm[Any]]"]):
    """The algorithms of this package by name, in alphabetical order. Finding one imports its module alone.

    Args:
        is_declaration: they are classes that declare algorithms.
    """

    def __init__(self, *, is_declaration: bool) -> None:
        self._is_declaration = is_declaration
        self._classes: dict[str, type[Algorithm[Any]]] = {}

    def __getitem__(self, name: str) -> "type[Algorithm[Any]]":
        if name not in self._classes:
            self._classes[name] = self._find(name)
        return self._classes[name]

    def _find(self, name: str) -> "type[Algorithm[Any]]":
        from fastrl.algorithms.protocol import Algorithm

        declared_in = _modules()[name]
        module = declared_in if self._is_declaration else name.replace("-", "_")
        found = vars(importlib.import_module(f"{__name__}.{module}")).values()
        classes = [each for each in found if inspect.isclass(each) and issubclass(each, Algorithm)]
        for each in classes:
            if getattr(each, "name", "") == name and (self._is_declaration or _is_algorithm(each)):
                return each
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_modules())

    def __len__(self) -> int:
        return len(_modules())


_ALGORITHMS, _DECLARATIONS = _Found(is_declaration=False), _Found(is_declaration=True)


def algorithms() -> Mapping[str, "type[Algorithm[Any]]"]:
    """The algorithms of this package by name, in alphabetical order."""
    return _ALGORITHMS


def declarations() -> Mapping[str, "type[Algorithm[Any]]"]:
    """Declarations of the algorithms of this package by name, in alphabetical order, for settings and help texts: an
    abstract class from a module ``*_settings``, which loads no PyTorch, else the algorithm itself."""
    return _DECLARATIONS


def declaration(name: str) -> "type[Algorithm[Any]]":
    """The declaration of an algorithm, see `declarations`; of one of the user's own the algorithm, which is imported.

    Raises:
        AlgorithmError: there is none.
    """
    return declarations()[name] if name in declarations() else find(name)


def class_named(name: str) -> "type[Algorithm[Any]] | None":
    """The algorithm of this package whose class has a name, such as ``PPO``; None: there is none."""
    # Most classes have the name of their module.
    likely = algorithms().get(name.lower())
    if likely is not None and likely.__name__ == name:
        return likely
    return next((each for each in algorithms().values() if each.__name__ == name), None)


def __getattr__(name: str) -> Any:
    """The classes of the algorithms, such as ``PPO``."""
    # Imports of modules ask here, too.
    if name[0].isupper() and (algorithm := class_named(name)) is not None:
        return algorithm
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def find(name: str) -> "type[Algorithm[Any]]":
    """The algorithm of a name, or of an import path such as ``my_module:MyAlgorithm``.

    Raises:
        AlgorithmError: there is none.
    """
    if name in algorithms():
        return algorithms()[name]
    path, colon, attribute = name.partition(":")
    if not colon:
        hint = did_you_mean(name, algorithms())
        raise AlgorithmError(
            f"--algo should be one of {', '.join(algorithms())}, or module:Class of your own; got {name!r}{hint}"
        )
    try:
        found = getattr(importlib.import_module(path), attribute)
    except (ImportError, AttributeError) as error:
        raise AlgorithmError(f"--algo {name}: {error}") from None
    if not _is_algorithm(found):
        lacks = sorted(getattr(found, "__abstractmethods__", ()))
        hint = f"; it lacks {', '.join(lacks)}" if lacks else ""
        raise AlgorithmError(
            f"--algo {name}: should be a subclass of fastrl.algorithms.protocol.Algorithm with all of its methods"
            f" and a name{hint}"
        )
    algorithm: type[Algorithm[Any]] = found
    return algorithm


def check_takes(
    algorithm: "type[Algorithm[Any]]", problem: "Problem", env_actions: "Space[Any] | None" = None
) -> None:
    """Refuses a problem whose observations or actions an algorithm does not take.

    Args:
        algorithm, problem: of a run.
        env_actions: the environment's own action space, which the message shows; None: the problem's.

    Raises:
        AlgorithmError: names the algorithms of this package that take them.
    """
    from gymnasium.spaces import MultiBinary

    from fastrl.networks.action_space import Actions

    obs, actions = problem.obs_rows.kind, Actions(problem.action_space).kind
    if obs in algorithm.obs_kinds and actions in algorithm.action_kinds:
        return
    if obs not in algorithm.obs_kinds:
        noun, space = f"{obs} observations", problem.obs_space
    else:
        space = problem.action_space if env_actions is None else env_actions
        kind = "multi-binary" if isinstance(space, MultiBinary) else actions.replace("_", "-")
        noun = f"{kind} actions"
    others = [
        name
        for name, other in declarations().items()
        if obs in other.obs_kinds and actions in other.action_kinds and _family(other) == _family(algorithm)
    ]
    can = f"these algorithms do: {', '.join(others)}" if others else "no algorithm does"
    raise AlgorithmError(f"{algorithm.name} does not take {noun} such as {space}; {can}")


def _family(algorithm: "type[Algorithm[Any]]") -> tuple[bool, bool]:
    """Algorithms of one family can take each other's place: with many agents, without an environment."""
    from fastrl.algorithms.protocol import DatasetAlgorithm

    return algorithm.many_agents, issubclass(algorithm, DatasetAlgorithm)


def _is_algorithm(value: Any) -> bool:
    from fastrl.algorithms.protocol import Algorithm

    return (
        inspect.isclass(value)
        and issubclass(value, Algorithm)
        and not inspect.isabstract(value)
        and hasattr(value, "name")
    )
