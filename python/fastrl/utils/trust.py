"""Checks of settings from files. Anybody may have written a file, so it imports nothing that its reader did not name.

A setting that can affect more than its run is marked where it is defined, with a function that describes the effect::

    id: Annotated[str, Field(description="..."), Reach(imports_environment)]

Presets and command lines are trusted, files are not: `from_file` reads and checks the settings of every file.
"""

import dataclasses
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastrl.utils.config import Values, check, leaves, values_of
from fastrl.utils.env_options import parse_options
from fastrl.utils.errors import UserError

# ``os:system``, ``my_module.sub:Env-v0``.
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d][\w./-]*")

# The most characters of a file's text that an error message shows.
_SHOWN = 300


class TrustError(UserError, RuntimeError):
    """Settings of a file would do something that its reader has not allowed; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Reach:
    """Marks a setting by which a file could run code, connect to another machine or write outside its run.

    Attributes:
        effect: from a value and all values of its file to the effect of the value, as the end of "it would ..."; an
            empty text if there is none.
    """

    effect: Callable[[Any, Values], str]


def imports_environment(name: str, values: Values) -> str:
    """The effect of an environment's id: ``module:function`` and ``module:Env-v0`` import the module."""
    module, colon, made = name.partition(":")
    if not colon:
        return ""
    if not made.isidentifier():
        return f"import the module {module!r} for the environment {made!r}"
    arguments = ", ".join(values.get("env.options", ()))
    return f"import the module {module!r} and call its {made}({_shown(arguments)})"


def imports_algorithm(name: str, values: Values) -> str:
    """Describes what the name of an algorithm does: ``module:Class`` imports the module."""
    module, colon, _ = name.partition(":")
    return f"import the module {_shown(repr(module))}" if colon else ""


def trusted_import(key: str, name: str, source: Path | str, *, trust: bool) -> str:
    """Returns the name of a task or an algorithm that a file or checkpoint has.

    Args:
        key: of the name in the file, for errors.

    Raises:
        TrustError: it would import code.
    """
    would = imports_algorithm(name, {})
    if would and not trust:
        raise TrustError(
            f"{source}: {key} would {would}; only if you trust this file, give --trust (in Python, trust=True)"
        )
    return name


def imports_modules(names: tuple[str, ...], values: Values) -> str:
    """Describes what names of classes do: each ``module:Class`` imports the module."""
    return next((would for name in names if (would := imports_algorithm(name, values))), "")


def imports_agents(names: tuple[str, ...], values: Values) -> str:
    """Describes what names of opponents do: ``module:Class``, perhaps with a weight after it, imports the module."""
    found = next((name for name in names if _IMPORT_PATH.match(name)), None)
    return "" if found is None else f"import the module of the agent {_shown(repr(found))}"


def imports_network(path: str | None, values: Values) -> str:
    """Describes what the import path of a network does: it imports the module."""
    return "" if path is None else f"import {_shown(repr(path))}"


def passes_import_paths(options: tuple[str, ...], values: Values, receiver: str = "the environment") -> str:
    """The effect of the options of an environment or a network: it may import, or make, what an option names."""
    for text in _texts(parse_options(options)):
        if _IMPORT_PATH.fullmatch(text):
            return f"pass {_shown(repr(text))} to {receiver}, which may import it"
    return ""


def connects_to_ray(address: str | None, values: Values) -> str:
    """The effect of an address: a Ray cluster runs code in every process that connects to it."""
    return "" if address is None else f"connect to the Ray cluster at {address!r}, which can run code here"


def writes_files(path: Path | None, values: Values) -> str:
    """The effect of a path outside the run directory."""
    return "" if path is None else f"write to {str(path)!r}"


def reaches(config_type: type, values: Values) -> dict[str, str]:
    """The effects beyond their run that ``values`` have, by dotted key."""
    found: dict[str, str] = {}
    for key, leaf in leaves(config_type).items():
        for mark in leaf.marks:
            if isinstance(mark, Reach) and key in values and (effect := mark.effect(values[key], values)):
                found[key] = effect
    return found


def from_file(
    config_type: type,
    tree: Mapping[str, Any],
    source: str,
    *,
    trust: bool = False,
    named: Values | None = None,
) -> Values:
    """Checks the settings of a file or a checkpoint with `fastrl.utils.config.check`, and their effects.

    Args:
        config_type: the configuration.
        tree: nested values, as the file has them.
        source: name of the file, for errors.
        trust: allow every effect.
        named: values by dotted key that the reader has given, which replace those of the file.

    Returns:
        The values by dotted key.

    Raises:
        TrustError: the file would import, connect to or write something that its reader has not named.
        ConfigError: an unknown key or an ill-typed value.
    """
    values = check(config_type, tree, source)
    refuse_reach(config_type, values, source, trust=trust, named=named or {})
    return values


def refuse_reach(
    config_type: type, values: Values, source: str, *, trust: bool, named: Values | None
) -> None:
    """Refuses settings from a file that have effects beyond their run. Arguments and errors are those of `from_file`;
    ``named`` is None where the reader cannot name any."""
    if trust:
        return
    known = leaves(config_type)
    for key, effect in reaches(config_type, values).items():
        if key not in (named or {}):
            value, option = values[key], known[key].option
            option_too = (
                ""
                if named is None or isinstance(value, tuple)
                else f" or {option} {_shown(shlex.quote(str(value)))}"
            )
            named_in_python = "env=... or " if key == "env.id" else ""
            raise TrustError(
                f"{source}: {key} would {effect}; only if you trust this file, give --trust{option_too}"
                f" (in Python, {named_in_python}trust=True)"
            )


def trust_option(config: Any) -> str:
    """The option with which a command can read the settings of a run again: ``" --trust"``, or an empty text."""
    values = values_of(config)
    return " --trust" if reaches(type(config), values) else ""


def _texts(options: Mapping[str, Any]) -> Iterator[str]:
    """All text in the values of options, keys of objects included."""
    left = list(options.values())
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            left += [*item, *item.values()]
        elif isinstance(item, list):
            left += item


def _shown(text: str) -> str:
    """The text, shortened, with control characters escaped: they could hide other text on a terminal."""
    plain = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return plain if len(plain) <= _SHOWN else f"{plain[:_SHOWN]}... ({len(plain)} characters)"
