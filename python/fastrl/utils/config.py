"""Typed configuration: frozen sections of settings, read from TOML files, presets and command lines.

A configuration is a section whose fields are sections. Its leaves have dotted keys, such as
``ppo.learning_rate``, the same in TOML files (``[ppo]``, then ``learning_rate = 0.001``), in presets and on
the command line (``--ppo.learning-rate 0.001``). Layers of values go on top of each other::

    config = build(TrainConfig, check(TrainConfig, load_toml(path), path), read_arguments(TrainConfig, arguments))
"""

import contextlib
import dataclasses
import functools
import json
import tomllib
import types
from collections.abc import Container, Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import tomli_w
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.fields import FieldInfo

from fastrl.utils.curve import Curve, MayBeCurve
from fastrl.utils.errors import UserError
from fastrl.utils.files import DamagedFileError, check_depth, escape_controls, read_file
from fastrl.utils.names import nearest, suggestion
from fastrl.utils.other_names import other_setting
from fastrl.utils.refusals import brief, message, refusal

T = TypeVar("T")

# Checked and converted values by dotted key.
Values = dict[str, Any]

_RULES = ConfigDict(defer_build=True, extra="forbid", allow_inf_nan=False, validate_default=True)

# Metavars of values in help texts, by their type.
METAVARS: dict[Any, str] = {bool: "true|false", int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}

# Files of settings have a few thousand bytes; a device such as /dev/zero never ends.
MAX_TOML_BYTES = 1 << 20


class ConfigError(UserError, ValueError):
    """An unknown or ill-typed setting."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """Marks what the command line and a resumed run may do with a field, beside its pydantic ``Field``::

        seed: Annotated[int, Field(ge=0, description="..."), Setting(option="--seed")] = 0

    A field without the mark is as one with ``Setting()``; of two marks the last one counts.

    Attributes:
        resumable: a resumed run may change it: nothing that the run has learned depends on it.
        option: a shorter name of its option ``--section.key``, which no other setting has; empty: see `short_names`.
        words: of a list, the name of an item, such as ``KEY=VALUE``: each item is a word after the option; empty: one
            word has all items, with commas between them.
    """

    resumable: bool = False
    option: str = ""
    words: str = ""


@dataclasses.dataclass(frozen=True)
class EndOf:
    """Marks the end of a schedule, whose start is another setting of the same section::

        final_lr: Annotated[float | None, Field(description="none: as at the start"), EndOf("lr")] = 0.0

    A layer of values that gives the start alone makes the schedule constant; see `build`. A start that is a curve has
    an end of its own, which no other may contradict.

    Attributes:
        start: the name of the start.
        alone: what the end, no optional number but with "constant", becomes where the start alone is given: "falls":
            it is lowered to a lower start; "stays": it stays.
    """

    start: str
    alone: Literal["constant", "falls", "stays"] = "constant"

    def end_of(self, start: Any, end: Any) -> Any:
        """The end of a schedule whose start alone is given.

        Args:
            end: of the layers before.
        """
        if isinstance(start, str):
            return None if self.alone == "constant" else Curve.parse(start).ends[1]
        return {"constant": None, "stays": end, "falls": start if end is None else min(end, start)}[
            self.alone
        ]


@dataclasses.dataclass(frozen=True)
class NotBeside:
    """Marks a setting that does nothing where another one of its section is given; a user who gives both is told.

    Attributes:
        other: the name of the other one, which is None otherwise.
    """

    other: str


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def section(cls: type[T]) -> type[T]:
    """Make a class a configuration section: a frozen, keyword-only pydantic dataclass.

    Unknown keys are errors, and so are NaN and infinity; defaults are checked like any other value. Fields
    carry their limits and their help text: ``lr: Annotated[float, Field(gt=0, description="...")] = 3e-4``.
    """
    return cast("type[T]", pydantic_dataclass(frozen=True, kw_only=True, config=_RULES)(cls))


@dataclasses.dataclass(frozen=True)
class Preset:
    """Settings under a name.

    Attributes:
        values: by table and key.
        with_table: settings on top, by the table that a run must have: ``{"dqn": {"env": {"num_envs": 1}}}``.
        for_any_algorithm: it suits algorithms too whose tables it lacks.
    """

    description: str
    values: Mapping[str, Mapping[str, Any]]
    with_table: Mapping[str, Mapping[str, Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    for_any_algorithm: bool = False


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One value of a configuration.

    Attributes:
        key: dotted, such as ``ppo.learning_rate``.
        type: with its limits and all other metadata.
        default: the value if no other is given.
        description: its help text.
        setting: its mark.
    """

    key: str
    type: Any
    default: Any
    description: str
    setting: Setting

    @property
    def option(self) -> str:
        """The shortest name of its option."""
        return self.setting.option or self.long_option

    @property
    def long_option(self) -> str:
        """The name of its option that says its section too: ``--ppo.learning-rate``."""
        return f"--{self.key.replace('_', '-')}"

    @property
    def marks(self) -> tuple[Any, ...]:
        """Annotations of its type."""
        return _metadata(self.type)

    @property
    def members(self) -> list[Any]:
        """The types of its values, or the values of a Literal; None for the type of None."""
        return _members(self.type)

    @property
    def is_switch(self) -> bool:
        """True if the value is true or false, so that its option takes no value: ``--x`` or ``--no-x``."""
        return _members(self.type) == [bool]

    def convert(self, value: Any, name: str) -> Any:
        """Converts a value of a TOML file or a preset to the leaf's type. ``none`` is None, which TOML lacks.

        Args:
            value: the value.
            name: of the leaf, for errors.

        Raises:
            ConfigError: the value does not fit.
        """
        if isinstance(value, str) and value.strip().lower() == "none" and None in _members(self.type):
            return None
        if callable(value) and any(isinstance(mark, MayBeCurve) for mark in self.marks):
            try:
                value = str(Curve.of(value))
            except ValueError as error:
                raise ConfigError(f"{name} {error}") from None
        try:
            # Strict conversion from JSON takes a list for a tuple, and does not take true for a number.
            return _adapter(self.type).validate_json(json.dumps(value, default=str), strict=True)
        except ValidationError as error:
            raise ConfigError(refusal(name, error, value)) from None

    def parse(self, text: str | list[str], name: str) -> Any:
        """`convert` for text from a command line: lists as ``64,64`` or ``[64, 64]`` or as several words, integers as
        ``1e6`` too."""
        if isinstance(text, list):
            return self.convert(text, name)
        members = _members(self.type)
        readings: list[Any] = [text]
        if None in members and text.strip().lower() == "none":
            return None
        if Path in members and not text:
            # Path("") is the current directory.
            raise ConfigError(f"{name} should be a path, got an empty text")
        if any(get_origin(member) is tuple for member in members):
            inner = text.strip().removeprefix("[").removesuffix("]")
            readings.append([item.strip(" '\"") for item in inner.split(",") if item.strip()])
        elif int in members and _is_whole(text):
            readings.append(int(float(text)))
        for reading in readings[:-1]:
            with contextlib.suppress(ValidationError):
                return _adapter(self.type).validate_python(reading)
        try:
            return _adapter(self.type).validate_python(readings[-1])
        except ValidationError as error:
            raise ConfigError(refusal(name, error, text)) from None

    def metavar(self) -> str:
        """The placeholder of the value in help texts, such as ``FLOAT`` or ``cpu|cuda``."""
        if any(isinstance(mark, MayBeCurve) for mark in self.marks):
            return "FLOAT|SCHEDULE"
        return self.setting.words or "|".join(_metavar(member) for member in _members(self.type))


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False))


def leaves(config_type: type) -> Mapping[str, Leaf]:
    """The leaves of a configuration by dotted key, in the order of their definition."""
    return _leaves(config_type)


@functools.cache
def _leaves(config_type: type) -> Mapping[str, Leaf]:
    return types.MappingProxyType({leaf.key: leaf for leaf in _walk(config_type, "")})


def short_names(known: Mapping[str, Leaf], table: str) -> dict[str, list[str]]:
    """The settings that a name without a table may mean, the same in options and in Python's keywords.

    A name means the setting whose `Setting.option` it is, else that of ``table``, else the only one whose last word it
    is. Where several have it, it means none of them.

    Args:
        known: the leaves of a configuration by dotted key.
        table: that of the algorithm.

    Returns:
        Dotted keys by name, with underscores: one, or several of an ambiguous name.
    """
    names: dict[str, list[str]] = {}
    for key in known:
        own, _, name = key.rpartition(".")
        if own == table or f"{table}.{name}" not in known:
            names.setdefault(name, []).append(key)
    options = {key: leaf.setting.option.lstrip("-").replace("-", "_") for key, leaf in known.items()}
    return names | {name: [key] for key, name in options.items() if name}


def resumable_keys(config_type: type) -> list[str]:
    """The dotted keys of the settings that a resumed run may change, in the order of their definition."""
    return [key for key, leaf in leaves(config_type).items() if leaf.setting.resumable]


def sections(config_type: type) -> Mapping[str, type]:
    """The sections of a configuration, by name."""
    return _sections(config_type)


@functools.cache
def _sections(config_type: type) -> Mapping[str, type]:
    hints = get_type_hints(config_type)
    return types.MappingProxyType({name: hint for name, hint in hints.items() if _is_section(hint)})


def check(config_type: type, tree: Mapping[str, Any], source: str) -> Values:
    """Checks nested values, as a TOML file has them.

    Args:
        config_type: the configuration.
        tree: the values.
        source: where they come from, for errors.

    Returns:
        The converted values by dotted key.

    Raises:
        ConfigError: an unknown key or an ill-typed value.
    """
    known, tables = leaves(config_type), sections(config_type)
    values: Values = {}
    # An unknown table is reported by its own name, not by that of a key in it.
    for key, value in by_dotted_key(tree, tables):
        if key in tables:
            raise ConfigError(f"{source}: {key} should be a table of settings, got {brief(value)}")
        if key not in known:
            if isinstance(value, Mapping):
                raise ConfigError(f"{source}: unknown table [{key}]; {suggestion(key, tables)}")
            raise ConfigError(f"{source}: unknown key {key}; did you mean {nearest(key, [*known, *tables])}?")
        values[key] = known[key].convert(value, f"{source}: {key}")
    return values


def by_keyword(config_type: type, table: str, given: Mapping[str, Any]) -> Values:
    """Checks settings that a Python call has by keyword.

    Args:
        config_type: the configuration.
        table: whose settings a short name means first, that of the algorithm.
        given: values by the name of a setting (``learning_rate``, see `short_names`), by table and name
            (``ppo__learning_rate``), or a dict of values by the name of a table.

    Returns:
        The converted values by dotted key.

    Raises:
        ConfigError: an unknown or ambiguous name, a setting that is given twice, or an ill-typed value.
    """
    known, tables = leaves(config_type), sections(config_type)
    values: Values = {}
    for name, value in given.items():
        if name in tables and isinstance(value, Mapping):
            found = {f"{name}.{key}": (f"{name}[{key!r}]", item) for key, item in value.items()}
        else:
            found = {_key_of(name, table, known): (name, value)}
        for key, (shown, item) in found.items():
            if key not in known:
                raise ConfigError(f"{shown}: unknown setting; {_near(key, known, table)}")
            if key in values:
                raise ConfigError(f"{shown}: {key} is given twice")
            values[key] = known[key].convert(_as_file_value(item, known[key]), shown)
    return values


def _key_of(name: str, table: str, known: Mapping[str, Leaf]) -> str:
    """The dotted key that a keyword means.

    Raises:
        ConfigError: it means none, or several.
    """
    own, _, last = name.partition("__")
    if f"{own}.{last}" in known:
        return f"{own}.{last}"
    meant = short_names(known, table).get(name, [])
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise ConfigError(
            f"{name} is a setting of several tables: say {' or '.join(key.replace('.', '__') for key in meant)}"
        )
    near = _near(name.replace("__", "."), known, table)
    raise ConfigError(f"{name}: unknown setting; {near}")


def _near(name: str, known: Mapping[str, Leaf], table: str) -> str:
    """The end of an error about an unknown keyword: what another library's name is here, else the nearest one, without
    its table where that is not needed."""
    if other := other_setting(name.rpartition(".")[2], {key.rpartition(".")[2] for key in known}):
        return other
    key = nearest(name if "." in name else f".{name}", known)
    short = key.rpartition(".")[2]
    is_enough = "." not in name and short_names(known, table).get(short) == [key]
    return f"did you mean {short if is_enough else key.replace('.', '__')}?"


def _as_file_value(value: Any, leaf: Leaf) -> Any:
    """A Python value as a file of settings would have it."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping) and leaf.setting.words:
        return [f"{key}={json.dumps(item, default=str)}" for key, item in value.items()]
    members = _members(leaf.type)
    if isinstance(value, float) and value.is_integer() and int in members and float not in members:
        return int(value)
    return value


def load_toml(path: str | Path) -> dict[str, Any]:
    """The nested values of a TOML file of at most `MAX_TOML_BYTES`.

    Raises:
        ConfigError: the file cannot be read, or is not TOML.
    """
    try:
        data = read_file(Path(path), MAX_TOML_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except DamagedFileError as error:
        raise ConfigError(
            f"{path} is not a file of settings: it{str(error).removeprefix(str(path))}"
        ) from None
    try:
        tree = tomllib.loads(data.decode("utf-8"))
        check_depth(tree)
        return tree
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a TOML file: it is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        yaml = "; settings are no YAML: --print-config prints a file to edit"
        hint = yaml if Path(path).suffix in (".yaml", ".yml") else ""
        raise ConfigError(f"{path} is not a TOML file: {error}{hint}") from None
    except RecursionError:
        raise ConfigError(f"{path}: its values are nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise ConfigError(f"{path}: {str(error).partition(';')[0]}") from None


def build(config_type: type[T], *layers: Values) -> T:
    """Builds a configuration from its defaults and layers of values, of which later ones replace earlier ones.

    A layer that gives the start of a schedule and not its end (see `EndOf`) replaces the end, too.

    Raises:
        ConfigError: values that do not go together.
    """
    known = leaves(config_type)
    # The defaults of a section are those of the instance that the configuration has for it, not those of its class.
    values = {key: leaf.default for key, leaf in known.items() if leaf.default is not dataclasses.MISSING}
    for layer in layers:
        values |= {**_implied_ends(known, values, layer), **layer}
    _check_ends(known, values)
    tree: dict[str, Any] = {}
    for key, value in values.items():
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
        raise ConfigError(f"{where + ': ' if where else ''}{message(problem)}") from None


def without_effect(settings: Any) -> dict[str, str]:
    """The settings that do nothing because others are given, see `NotBeside`: these by those, dotted keys."""
    known = leaves(type(settings))
    others = {
        key: f"{key.rpartition('.')[0]}.{mark.other}"
        for key, leaf in known.items()
        for mark in leaf.marks
        if isinstance(mark, NotBeside)
    }
    return {
        key: other
        for key, other in others.items()
        if other in known and attrgetter(other)(settings) is not None
    }


def replaced(settings: T, values: Values) -> T:
    """Settings with other values, by dotted key.

    Raises:
        ConfigError: values that do not go together.
    """
    return build(type(settings), values_of(settings), values)


def values_of(settings: Any) -> Values:
    """The values of settings, by dotted key."""
    return {key: attrgetter(key)(settings) for key in leaves(type(settings))}


def _ends(known: Mapping[str, Leaf]) -> Iterable[tuple[str, str, EndOf]]:
    """The ends of schedules and their starts, by dotted key."""
    for key, leaf in known.items():
        for mark in leaf.marks:
            if isinstance(mark, EndOf):
                yield key, f"{key.rpartition('.')[0]}.{mark.start}", mark


def _implied_ends(known: Mapping[str, Leaf], values: Values, layer: Values) -> Values:
    """The ends of schedules of which a layer, on top of other values, gives the start alone."""
    return {
        key: mark.end_of(layer[start], values[key]) for key, start, mark in _ends(known) if start in layer
    }


def _check_ends(known: Mapping[str, Leaf], values: Values) -> None:
    """Refuses ends that contradict the curves that they end.

    Raises:
        ConfigError
    """
    for key, start, _ in _ends(known):
        if isinstance(curve := values.get(start), str) and values[key] is not None:
            end = Curve.parse(curve).ends[1]
            if values[key] != end:
                raise ConfigError(
                    f"{key}: {start} is a schedule, {brief(curve)}, that ends at {end:g}: leave the other end out,"
                    f" got {values[key]}"
                )


def to_tree(config: Any) -> dict[str, Any]:
    """The values of a configuration as nested tables that TOML and JSON can hold, and that `check` reads."""
    return {
        name: to_tree(value) if dataclasses.is_dataclass(value) else to_plain(value)
        for name, value in ((field.name, getattr(config, field.name)) for field in dataclasses.fields(config))
    }


def to_toml(config: Any, comments: Mapping[str, str] | None = None) -> str:
    """The complete configuration as a TOML document, from which `load_toml` and `check` read the same values.

    Args:
        comments: lines that stand above settings, by dotted key.
    """
    text = tomli_w.dumps(to_tree(config))
    lines, table = [], ""
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            table = line.strip().strip("[]")
        key = f"{table}.{line.partition(' = ')[0]}"
        if comments and key in comments:
            lines.append(f"# {' '.join(comments[key].split())}\n")
        lines.append(line)
    return escape_controls("".join(lines))


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
            marks = _metadata(hint)
            description = next((mark.description for mark in marks if getattr(mark, "description", None)), "")
            setting = [Setting(), *(mark for mark in marks if isinstance(mark, Setting))][-1]
            yield Leaf(key, hint, default, description, setting)


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def _metadata(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def by_dotted_key(
    tree: Mapping[str, Any], tables: Container[str] | None = None, prefix: str = ""
) -> Iterable[tuple[str, Any]]:
    """The values of nested tables, by dotted key.

    Args:
        tables: keys of the tables whose values are meant, others are values themselves; None: of all tables.
    """
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and (tables is None or key in tables):
            yield from by_dotted_key(value, tables, f"{key}.")
        else:
            yield key, value


def _members(hint: Any) -> list[Any]:
    """The members of a union or the values of a Literal, else the type itself; None for the type of None."""
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
    return METAVARS.get(member, str(member))


def _is_whole(text: str) -> bool:
    try:
        return float(text).is_integer()
    except (ValueError, OverflowError):
        return False


def to_plain(value: Any) -> Any:
    """The value of a leaf as TOML and JSON can hold it."""
    if value is None:
        return "none"
    if isinstance(value, Path):
        return str(value)
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value
