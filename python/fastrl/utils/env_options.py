"""Options of environments as text: the same ``key=value`` pairs in TOML files, in presets and on command lines."""

import json
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from fastrl.utils.config import ConfigError, Setting
from fastrl.utils.refusals import brief

# Words that are no JSON, as Python and the settings of a run write them.
_WORDS = {"True": True, "False": False, "None": None, "none": None}


def parse_value(text: str) -> Any:
    """The value of an option: JSON (``3``, ``true``, ``[208, 270]``, ``"text"``), a word for true, false or none as
    Python writes it, or else the text itself.

    >>> [parse_value(text) for text in ("3", "true", "True", "[208, 270]", "none", "human", '"3"')]
    [3, True, True, [208, 270], None, 'human', '3']
    """
    text = text.strip()
    if text in _WORDS:
        return _WORDS[text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """The keyword arguments of an environment from pairs ``key=value``, see `parse_value`.

    >>> parse_options(["lanes=3", "map=4x4"])
    {'lanes': 3, 'map': '4x4'}

    Raises:
        ValueError: a pair of another form, or a key twice.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip()
        if not equals or not key.isidentifier():
            raise ValueError("should be KEY=VALUE such as lanes=3")
        if key in options:
            raise ValueError(f"should give {key} once")
        options[key] = parse_value(text)
    return options


def read_options(words: Iterable[str]) -> dict[str, Any]:
    """`parse_options` for what follows ``--env-options`` on a command line.

    Raises:
        ConfigError: as its ValueError.
    """
    try:
        return parse_options(words)
    except ValueError as error:
        raise ConfigError(f"--env-options {error}, got {brief(words)}") from None


def _checked(pairs: tuple[str, ...]) -> tuple[str, ...]:
    parse_options(pairs)
    return pairs


# A setting for `parse_options`.
KeyValues = Annotated[tuple[str, ...], AfterValidator(_checked)]

EnvOptions = Annotated[
    KeyValues,
    Field(
        description="keyword arguments of the environment, such as lanes=3 busy=true; a value is JSON, else it is text"
    ),
    Setting(option="--env-options", words="KEY=VALUE"),
]
