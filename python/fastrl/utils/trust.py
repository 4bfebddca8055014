"""Checks of settings that come from a file. It may be anybody's, so it imports nothing that its reader did not name.

A setting that can reach beyond its run is marked where it is defined, with what it would do::

    id: Annotated[str, Field(description="..."), Reach(imports_environment)]

Presets and command lines are trusted, files are not: `from_file` reads the settings of all of them.
"""

import dataclasses
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from fastrl.utils.config import Values, check, leaves, to_tree
from fastrl.utils.env_options import parse_options
from fastrl.utils.errors import UserError

# ``os:system``, ``my_module.sub:Env-v0``.
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d][\w./-]*")

# Of what a file says, so much is shown.
_SHOWN = 300


class TrustError(UserError, RuntimeError):
    """A file would do something that only its reader can allow; one line that says what, and how."""


@dataclasses.dataclass(frozen=True)
class Reach:
    """Marks a setting by which a file could run code, connect to another machine or write outside its run.

    Attributes:
        would: says what a value would do, as the end of "it would ..."; empty if it does no harm. It is given the value
            and all of the file's values.
    """

    would: Callable[[Any, Values], str]


def imports_environment(name: str, values: Values) -> str:
    """Of an environment's id: ``module:function`` and ``module:Env-v0`` import the module."""
    module, colon, made = name.partition(":")
    if not colon:
        return ""
    if not made.isidentifier():
        return f"import the module {module!r} for the environment {made!r}"
    arguments = ", ".join(values.get("env.options", ()))
    return f"import the module {module!r} and call its {made}({_shown(arguments)})"


def hands_on_import_paths(options: tuple[str, ...], values: Values) -> str:
    """Of an environment's options: there are environments that make another one, which they are told by its id."""
    for text in _texts(parse_options(options)):
        if _IMPORT_PATH.fullmatch(text):
            return f"hand {_shown(repr(text))} to the environment, which may import it"
    return ""


def connects_to_ray(address: str | None, values: Values) -> str:
    """Of an address: whoever runs a Ray cluster runs code in all that connect to it."""
    return "" if address is None else f"connect to the Ray cluster at {address!r}, which can run code here"


def writes_files(path: Path | None, values: Values) -> str:
    """Of a path outside the run directory."""
    return "" if path is None else f"write to {str(path)!r}"


def reaches(config_type: type, values: Values) -> dict[str, str]:
    """The settings among ``values`` that reach beyond their run, by dotted key, with what each would do."""
    found: dict[str, str] = {}
    for key, leaf in leaves(config_type).items():
        for mark in get_args(leaf.type)[1:]:
            if isinstance(mark, Reach) and key in values and (would := mark.would(values[key], values)):
                found[key] = would
    return found


def from_file(
    config_type: type,
    tree: Mapping[str, Any],
    source: str,
    *,
    trust: bool = False,
    named: Values | None = None,
) -> Values:
    """The settings in a file or a checkpoint, checked (see `fastrl.utils.config.check`), if it may have them.

    Args:
        tree: nested values, as they stand there.
        source: the file.
        trust: its reader trusts it with everything.
        named: what its reader has given himself, by dotted key, which stands above the file.

    Raises:
        TrustError: it would import, connect to or write something that nobody has named.
        ConfigError: an unknown key or an ill-typed value.
    """
    values = check(config_type, tree, source)
    refuse_reach(config_type, values, source, trust=trust, named=named or {})
    return values


def refuse_reach(config_type: type, values: Values, source: str, *, trust: bool, named: Values) -> None:
    """Refuses settings that came from a file; arguments and errors are those of `from_file`."""
    if trust:
        return
    known = leaves(config_type)
    for key, would in reaches(config_type, values).items():
        if key not in named:
            value = values[key]
            own = (
                ""
                if isinstance(value, tuple)
                else f" or {known[key].option} {_shown(shlex.quote(str(value)))}"
            )
            raise TrustError(
                f"{source}: {key} would {would}; only if you trust this file, give --trust{own} (in Python, trust=True)"
            )


def trust_option(config: Any) -> str:
    """The option that a command needs to read a run's settings again: ``" --trust"``, or nothing."""
    values = check(type(config), to_tree(config), "settings")
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
    """Without control characters, for they could hide what a terminal shows; shortened."""
    plain = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return plain if len(plain) <= _SHOWN else f"{plain[:_SHOWN]}... ({len(plain)} characters)"
