"""Typed configuration: frozen sections, read from TOML, presets and a command line made from their types.

A configuration is a section whose fields are sections. Its leaves have dotted keys, such as
``ppo.learning_rate``, the same in TOML files (``[ppo]``, then ``learning_rate = 0.001``), in presets and on
the command line (``--ppo.learning_rate 0.001``). Layers of values go on top of each other::

    config = build(TrainConfig, read_toml(TrainConfig, path), read_arguments(TrainConfig, arguments))
"""

import argparse
import contextlib
import dataclasses
import difflib
import json
import re
import shutil
import textwrap
import tomllib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import tomli_w
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.fields import FieldInfo

from fastrl.utils.errors import UserError

T = TypeVar("T")

# Values by dotted key, checked and converted.
Values = dict[str, Any]

# Unknown keys are errors, and so are NaN and infinity; defaults are checked like any other value.
_RULES = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)

# A name less alike than this is not proposed instead of one that is unknown.
_LIKELY = 0.6


# A setting that runs have in common; reading a checkpoint runs no code.
InitFrom = Annotated[
    Path | None,
    Field(
        description="begin with the weights of a run (of its newest checkpoint) or of a checkpoint file, all else anew;"
        " none: random weights"
    ),
]


# A file of settings has a few thousand; a device such as /dev/zero never ends.
MOST_TOML_BYTES = 1 << 20


class ConfigError(UserError, ValueError):
    """An unknown or ill-typed setting."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def section(cls: type[T]) -> type[T]:
    """Make a class a configuration section: a frozen, keyword-only pydantic dataclass.

    Unknown keys are errors, and so are NaN and infinity; defaults are checked like any other value. Fields
    carry their limits and their help text: ``lr: Annotated[float, Field(gt=0, description="...")] = 3e-4``.
    """
    return cast("type[T]", pydantic_dataclass(frozen=True, kw_only=True, config=_RULES)(cls))


@dataclasses.dataclass(frozen=True)
class Preset:
    """Settings under a name."""

    description: str
    values: Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One value of a configuration: its dotted key, its type (limits included), default and help text."""

    key: str
    type: Any
    default: Any
    description: str

    def convert(self, value: Any, name: str) -> Any:
        """A value from a TOML file or a preset in the leaf's type. TOML has no null: ``none`` stands for it.

        Raises:
            ConfigError: it does not fit; the message calls the leaf ``name``.
        """
        if isinstance(value, str) and value.strip().lower() == "none" and None in _members(self.type):
            return None
        try:
            # As JSON, for there strict means what it does in TOML: a list may be a tuple, true is no number.
            return self._adapter().validate_json(json.dumps(value, default=str), strict=True)
        except ValidationError as error:
            raise ConfigError(_refusal(name, error, value)) from None

    def parse(self, text: str, name: str) -> Any:
        """`convert` for text from a command line: lists as ``64,64`` or ``[64, 64]``, integers as ``1e6``
        too."""
        members = _members(self.type)
        readings: list[Any] = [text]
        if None in members and text.strip().lower() == "none":
            return None
        if Path in members and not text:
            # It would be the current directory.
            raise ConfigError(f"{name} should be a path, got an empty text")
        if any(get_origin(member) is tuple for member in members):
            inner = text.strip().removeprefix("[").removesuffix("]")
            readings.append([item.strip(" '\"") for item in inner.split(",") if item.strip()])
        elif int in members and _is_whole(text):
            readings.append(int(float(text)))
        for reading in readings[:-1]:
            with contextlib.suppress(ValidationError):
                return self._adapter().validate_python(reading)
        try:
            return self._adapter().validate_python(readings[-1])
        except ValidationError as error:
            raise ConfigError(_refusal(name, error, text)) from None

    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.type, config=ConfigDict(allow_inf_nan=False))

    def metavar(self) -> str:
        """What stands for the value in help texts, such as ``FLOAT`` or ``cpu|cuda``."""
        return "|".join(_metavar(member) for member in _members(self.type))


def leaves(config_type: type) -> dict[str, Leaf]:
    """The leaves of a configuration by dotted key, in order of definition."""
    return {leaf.key: leaf for leaf in _walk(config_type, "")}


def sections(config_type: type) -> dict[str, type]:
    """The sections of a configuration, by name."""
    return {name: hint for name, hint in get_type_hints(config_type).items() if _is_section(hint)}


def check(config_type: type, tree: Mapping[str, Any], source: str) -> Values:
    """Checks nested values, as they stand in a TOML file, and flattens them.

    Raises:
        ConfigError: an unknown key or an ill-typed value; ``source`` says where.
    """
    known, tables = leaves(config_type), sections(config_type)
    values: Values = {}
    for key, value in _flattened(tree, set(tables)):
        if key in tables:
            raise ConfigError(f"{source}: {key} should be a table of settings, got {brief(value)}")
        if key not in known:
            raise ConfigError(f"{source}: unknown key {key}; did you mean {nearest(key, [*known, *tables])}?")
        values[key] = known[key].convert(value, f"{source}: {key}")
    return values


def read_toml(config_type: type, path: str | Path) -> Values:
    """The values that a TOML file sets.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or has an unknown key or an ill-typed value.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_TOML_BYTES + 1)
        if len(data) > MOST_TOML_BYTES:
            raise ConfigError(f"{path} is no file of settings: it has more than {MOST_TOML_BYTES:,} bytes")
        tree = tomllib.loads(data.decode("utf-8"))
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a TOML file: it is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from None
    except ValueError as error:  # a number of thousands of digits
        raise ConfigError(f"{path}: {str(error).partition(';')[0]}") from None
    except RecursionError:
        raise ConfigError(f"{path}: its values are nested too deeply") from None
    return check(config_type, tree, str(path))


def build(config_type: type[T], *layers: Values) -> T:
    """The configuration: defaults, with the layers on top, later ones above earlier ones.

    Raises:
        ConfigError: values that do not go together.
    """
    tree: dict[str, Any] = {}
    # The defaults of a section are those of the instance that the configuration has for it, not those of its class.
    defaults = {
        key: leaf.default
        for key, leaf in leaves(config_type).items()
        if leaf.default is not dataclasses.MISSING
    }
    for layer in (defaults, *layers):
        for key, value in layer.items():
            *parents, name = key.split(".")
            table = tree
            for parent in parents:
                table = table.setdefault(parent, {})
            table[name] = value
    try:
        return config_type(**tree)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ConfigError(f"{where + ': ' if where else ''}{_message(problem)}") from None


def to_tree(config: Any) -> dict[str, Any]:
    """All values of a configuration as nested tables of what TOML and JSON can hold; `check` reads them."""
    return {
        name: to_tree(value) if dataclasses.is_dataclass(value) else _plain(value)
        for name, value in ((field.name, getattr(config, field.name)) for field in dataclasses.fields(config))
    }


def to_toml(config: Any) -> str:
    """The complete configuration as a TOML document that `read_toml` reads back to the same."""
    return tomli_w.dumps(to_tree(config))


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that ``name`` was most likely meant to be, see `likeness`."""
    return max(known, key=lambda candidate: likeness(name, candidate))


def likeness(name: str, candidate: str) -> float:
    """A number from 0 to 1: how likely ``candidate`` was meant by ``name``.

    Dotted names are also compared by their last part, so that ``clip`` finds ``ppo.clip_range``; and by the
    initials of it, so that ``lr`` finds ``ppo.learning_rate``.
    """
    leaf, own = candidate.rpartition(".")[2], name.rpartition(".")[2]
    initials = "".join(word[:1] for word in leaf.split("_"))
    return max(
        difflib.SequenceMatcher(None, name, candidate).ratio(),
        0.95 * difflib.SequenceMatcher(None, own, leaf).ratio(),
        0.9 if len(own) > 1 and own == initials else 0,
    )


class ArgumentParser(argparse.ArgumentParser):
    """argparse whose errors are one line that names the nearest valid option; exit code 2.

    Hyphens and underscores in option names mean the same.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments = [str(argument) for argument in args]
        # Intermixed, for otherwise an argument that may be left out cannot stand behind options.
        return self.parse_intermixed_args([self._spelled(argument) for argument in arguments], namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")

    def _spelled(self, argument: str) -> str:
        """The argument with its option's name, if it has one, spelled as it was defined."""
        option, equals, value = argument.partition("=")
        if not option.startswith("--") or option == "--":
            return argument
        known = {_normal(name): name for name in self._option_string_actions if name.startswith("--")}
        if _normal(option) not in known:
            near = nearest(_normal(option), known)
            likely = likeness(_normal(option), near) >= _LIKELY
            hint = f"did you mean {known[near]}?" if likely else "--help lists those there are"
            self.error(f"unknown option {option}; {hint}")
        return known[_normal(option)] + equals + value


def add_options(
    parser: argparse.ArgumentParser, config_type: type, short: Mapping[str, str] | None = None
) -> None:
    """Adds an option ``--section.key`` for every leaf, a group of the help for every section.

    Args:
        parser: what to add to.
        config_type: a section of sections.
        short: other names for leaves, by dotted key, such as ``{"run.seed": "--seed"}``.
    """
    groups = {
        name: parser.add_argument_group(
            name, (cls.__doc__ or "").strip().partition("\n")[0].replace("``", "")
        )
        for name, cls in sections(config_type).items()
    }
    for key, leaf in leaves(config_type).items():
        # A switch may stand alone: --ppo.compile is --ppo.compile true.
        is_switch = bool in _members(leaf.type)
        names = [(short or {}).get(key), f"--{key}"]
        groups[key.partition(".")[0]].add_argument(
            *[name for name in names if name],
            dest=key,
            metavar=leaf.metavar(),
            help=f"{leaf.description} [{_shown(leaf.default)}]".replace("%", "%%"),
            default=argparse.SUPPRESS,
            nargs="?" if is_switch else None,
            const="true" if is_switch else None,
        )


def read_arguments(
    config_type: type, arguments: argparse.Namespace, short: Mapping[str, str] | None = None
) -> Values:
    """The values that options made by `add_options` set.

    Raises:
        ConfigError: an ill-typed value; the message names the option.
    """
    given = vars(arguments)
    return {
        key: leaf.parse(given[key], (short or {}).get(key, f"--{key}"))
        for key, leaf in leaves(config_type).items()
        if key in given
    }


class HelpFormatter(argparse.HelpFormatter):
    """Names all spellings of an option before its value once: ``--seed, --run.seed INT``. Lines break between words and
    nowhere else; those of descriptions stay, and break where they are too long for the terminal."""

    def __init__(self, prog: str) -> None:
        columns = shutil.get_terminal_size().columns
        super().__init__(prog, max_help_position=34 if columns >= 100 else 24, width=max(columns - 2, 40))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrapped(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        # Text after a name such as "  smoke: " or "  cage2   " is wrapped below itself or a little indented.
        lines = []
        for line in text.splitlines():
            named = re.match(r"\s+\S+\s\s+", line)
            hanging = (
                len(named[0]) if named else len(line) - len(line.lstrip()) + (4 if line[:1] == " " else 0)
            )
            lines += _wrapped(indent + line, width, " " * hanging + indent) or [""]
        return "\n".join(lines)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


def _wrapped(text: str, width: int, hanging: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=hanging, break_on_hyphens=False, break_long_words=False
    )


def _walk(config_type: type, prefix: str, defaults: Any = None) -> Iterable[Leaf]:
    """The leaves of a section, with the defaults of an instance of it, if there is one."""
    hints = get_type_hints(config_type, include_extras=True)
    for field in dataclasses.fields(config_type):
        hint, key = hints[field.name], prefix + field.name
        default = field.default.default if isinstance(field.default, FieldInfo) else field.default
        if defaults is not None:
            default = getattr(defaults, field.name)
        if _is_section(hint):
            yield from _walk(hint, key + ".", default if isinstance(default, hint) else None)
        else:
            yield Leaf(key, hint, default, _description(hint))


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _description(hint: Any) -> str:
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((item.description for item in metadata if getattr(item, "description", None)), "")


def _flattened(tree: Mapping[str, Any], tables: set[str], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in tree.items():
        key = prefix + name
        # An unknown table is reported by its own name, not by that of a key in it.
        if isinstance(value, Mapping) and key in tables:
            yield from _flattened(value, tables, key + ".")
        else:
            yield key, value


def _members(hint: Any) -> list[Any]:
    """What a value may be: a union's members, the values of a Literal; None for the type of None."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _members(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return [each for member in get_args(hint) for each in _members(member)]
    if origin is Literal:
        return list(get_args(hint))
    return [None if hint is types.NoneType else hint]


def _metavar(member: Any) -> str:
    if member is None:
        return "none"
    if get_origin(member) is tuple:
        item = _metavar(_members(get_args(member)[0])[0])
        return f"{item},{item},..."
    names = {bool: "true|false", int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}
    return names.get(member, str(member))


def _is_whole(text: str) -> bool:
    try:
        return float(text).is_integer()
    except (ValueError, OverflowError):
        return False


def _refusal(name: str, error: ValidationError, given: Any) -> str:
    """``name should be greater than 0, got -1``, from what pydantic says."""
    problems = error.errors(include_url=False)
    expected = " or ".join(dict.fromkeys(map(_message, problems))).replace(" or should be ", " or ")
    choices = [choice for problem in problems for choice in _choices(problem)]
    hint = ""
    if choices and isinstance(given, str) and likeness(given, near := nearest(given, choices)) >= _LIKELY:
        hint = f"; did you mean {near!r}?"
    return f"{name} {expected}, got {brief(given)}{hint}"


def _message(problem: Any) -> str:
    message: str = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    # What follows says how the conversion failed: "should be a valid integer, unable to parse ...".
    message = (
        message.partition(", unable to")[0].replace("valid tuple", "list").replace("valid array", "list")
    )
    item = next((part for part in problem["loc"] if isinstance(part, int)), None)
    if item is None:
        return message
    return f"should be a list whose item {item + 1} {message.replace('should be', 'is')}"


def _choices(problem: Any) -> list[str]:
    if problem["type"] != "literal_error":
        return []
    return [part.strip("'") for part in problem["ctx"]["expected"].replace(" or ", ", ").split(", ")]


def brief(value: Any) -> str:
    """A value for an error message, cut to what fits a line."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _plain(value: Any) -> Any:
    if value is None:
        return "none"
    if isinstance(value, Path):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    plain = _plain(value)
    if isinstance(plain, bool):
        return str(plain).lower()
    if isinstance(plain, int) and plain >= 10_000:
        return f"{plain:_}"
    return ",".join(map(str, plain)) if isinstance(plain, list) else str(plain)


def _normal(option: str) -> str:
    return option.lstrip("-").replace("-", "_")
