"""The space of a search: which settings it varies, and between which values."""

import dataclasses
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from fastrl.utils.config import ConfigError, EndOf, Leaf, Values, leaves, load_toml, to_plain, without_effect
from fastrl.utils.names import suggestion
from fastrl.utils.tunable import Choices, Fixed, Layers, Mark, Range

# A point of a space: values by the name of a parameter.
Point = dict[str, Any]
# Fields of a mark, by which a file tells the kinds apart.
_KINDS: dict[frozenset[str], type[Mark]] = {
    frozenset({"low", "high"}): Range,
    frozenset({"values"}): Choices,
    frozenset({"widths", "depths"}): Layers,
    frozenset({"value"}): Fixed,
}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A number or a choice that a sampler draws.

    Attributes:
        name: the dotted key of a setting, with ``.width`` or ``.depth`` after that of hidden layers.
        low, high: of numbers.
        log, from_one: as of `Range`.
        integer: whole numbers.
        choices: in place of numbers; empty: it is a number.
        ordered: as of `Choices`.
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    from_one: bool = False
    integer: bool = False
    choices: tuple[Any, ...] = ()
    ordered: bool = False

    def at(self, share: float) -> Any:
        """The value at a share of the range, from 0 to 1."""
        if self.choices:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        low, high = self.drawn_range
        if self.integer:
            # Each number has the same share of the scale.
            low, high = low - 0.5, high + 0.5
        if self.log:
            drawn = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            drawn = low + share * (high - low)
        return self.from_drawn(drawn)

    @property
    def drawn_range(self) -> tuple[float, float]:
        """Between which it is drawn: of a value's distance to 1, that distance."""
        return (1 - self.high, 1 - self.low) if self.from_one else (self.low, self.high)

    def from_drawn(self, drawn: float) -> Any:
        """The value of a drawn number."""
        value = min(max(1 - drawn if self.from_one else drawn, self.low), self.high)
        return round(value) if self.integer else value

    def to_drawn(self, value: Any) -> float:
        """The inverse of `from_drawn`; of choices the index."""
        if self.choices:
            return float(self.choices.index(value))
        return 1 - value if self.from_one else float(value)

    def share(self, value: Any) -> float:
        """The inverse of `at`, for figures."""
        if self.choices:
            return self.choices.index(value) / max(len(self.choices) - 1, 1)
        (low, high), drawn = self.drawn_range, self.to_drawn(value)
        if self.log:
            low, high, drawn = math.log(low), math.log(high), math.log(drawn)
        share = (drawn - low) / (high - low)
        return 1 - share if self.from_one else share


class Space:
    """The settings that a search varies.

    Args:
        leaves: all settings of the run, by dotted key.
        marks: between which values, by dotted key.

    Raises:
        ConfigError: values that a setting cannot have.
    """

    def __init__(self, leaves: Mapping[str, Leaf], marks: Mapping[str, Mark]) -> None:
        self._leaves, self.marks = leaves, dict(marks)
        self.parameters = tuple(
            parameter
            for key, mark in self.marks.items()
            if mark.search
            for parameter in _parameters(leaves[key], mark)
        )
        for point in (self.at([0.0] * len(self.parameters)), self.at([1.0] * len(self.parameters))):
            for key, value in self.values(point).items():
                leaves[key].convert(to_plain(value), f"the space: {key}")

    def at(self, shares: Sequence[float]) -> Point:
        """The point at shares of all ranges."""
        return {each.name: each.at(share) for each, share in zip(self.parameters, shares, strict=True)}

    def draw(self, generator: np.random.Generator) -> Point:
        """A point, drawn at random."""
        return self.at(generator.random(len(self.parameters)).tolist())

    def values(self, point: Mapping[str, Any]) -> Values:
        """The settings that a point means, by dotted key."""
        values: Values = {}
        for key, mark in self.marks.items():
            if not mark.search:
                continue
            if isinstance(mark, Layers):
                values[key] = (point[f"{key}.width"],) * point[f"{key}.depth"]
            elif isinstance(mark, Fixed):
                values[key] = self._leaves[key].convert(to_plain(mark.value), key)
            else:
                values[key] = point[key]
        return values

    def only(self, keys: Collection[str]) -> "Space":
        """The part of it that varies these settings alone."""
        kept = {key: mark for key, mark in self.marks.items() if key in keys or isinstance(mark, Fixed)}
        return Space(self._leaves, kept)

    def with_ends(self, settings: Any, given: Collection[str]) -> "Space":
        """A copy of the space, in which schedules whose starts are searched have the ends that were given, see `EndOf`.

        Args:
            settings: of the run.
            given: dotted keys of settings.
        """
        ends = {
            key: Fixed(attrgetter(key)(settings))
            for key in given
            for mark in self._leaves[key].marks
            if isinstance(mark, EndOf) and f"{key.rpartition('.')[0]}.{mark.start}" in self.marks
        }
        return Space(self._leaves, {**ends, **self.marks})

    def to_toml(self) -> str:
        """The space as a file, from which `read_space` reads it."""
        return "\n".join(_table(self._leaves[key], mark) for key, mark in self.marks.items())


def _table(leaf: Leaf, mark: Mark) -> str:
    """A mark as a table of a file."""
    fields = {
        field.name: value
        for field in dataclasses.fields(mark)
        if (value := getattr(mark, field.name)) != field.default or field.name in ("widths", "depths")
    }
    fields.pop("of_images", None)
    if isinstance(mark, Choices):
        # A mark without values means all of them.
        fields = {"values": ()} | fields | {"values": choices_of(leaf, mark)}
    lines = [f"{name} = {json.dumps(to_plain(value))}" for name, value in fields.items()]
    return "\n".join([f"# {leaf.description}", f"[{leaf.key}]", *lines, ""])


def space_of(settings: Any, *, has_images: bool, fixed: Collection[str] = ()) -> Space:
    """The space of a run: all of its settings that have a mark.

    Args:
        has_images: its observations are images.
        fixed: dotted keys of settings that stay as they are.
    """
    known, kept = leaves(type(settings)), {*fixed, *without_effect(settings)}
    marks = {key: mark_of(leaf) for key, leaf in known.items() if key not in kept}
    return Space(
        known,
        {
            key: mark
            for key, mark in marks.items()
            if mark and (has_images or not (isinstance(mark, Choices) and mark.of_images))
        },
    )


def mark_of(leaf: Leaf) -> Mark | None:
    """The mark of a setting; None without one."""
    marks = [mark for mark in leaf.marks if isinstance(mark, Mark)]
    return marks[-1] if marks else None


def read_space(settings: Any, path: Path) -> Space:
    """The space that a file describes, a table for each setting: ``low``, ``high`` and perhaps ``log``; ``values``; or
    ``widths`` and ``depths``. ``search = false`` leaves one out.

    Raises:
        ConfigError: an unknown setting, or values that it cannot have.
    """
    known = leaves(type(settings))
    marks: dict[str, Mark] = {}
    for table, entries in load_toml(path).items():
        if not isinstance(entries, Mapping):
            raise ConfigError(f"{path}: {table} should be a table of settings, such as [ppo.gamma]")
        for name, fields in entries.items():
            key = f"{table}.{name}"
            if key not in known:
                raise ConfigError(f"{path}: unknown setting {key}; {suggestion(key, known)}")
            if not isinstance(fields, Mapping):
                raise ConfigError(f"{path}: {key} should be a table such as {{ low = 0.9, high = 0.999 }}")
            marks[key] = _read_mark(fields, f"{path}: {key}")
    return Space(known, marks)


def _read_mark(fields: Mapping[str, Any], where: str) -> Mark:
    kind = next((kind for names, kind in _KINDS.items() if names <= fields.keys()), None)
    names = [] if kind is None else [field.name for field in dataclasses.fields(kind)]
    if kind is None or not fields.keys() <= set(names):
        raise ConfigError(
            f"{where} should have low and high, perhaps log and from_one; or values, perhaps ordered; or widths and"
            f" depths; or value; got {', '.join(fields)}"
        )
    values: dict[str, Any] = {
        name: tuple(tuple(each) if isinstance(each, list) else each for each in value)
        if isinstance(value, list)
        else value
        for name, value in fields.items()
    }
    mark = kind(**values)
    if isinstance(mark, Range):
        numbers = [mark.low, mark.high]
        if not all(type(number) in (int, float) for number in numbers) or not mark.low < mark.high:
            raise ConfigError(f"{where}: low should be a number less than high, got {mark.low!r}")
        if mark.log and (1 - mark.high if mark.from_one else mark.low) <= 0:
            raise ConfigError(f"{where}: log needs {'a high below 1' if mark.from_one else 'a low above 0'}")
    elif not all(getattr(mark, name) for name in names if isinstance(getattr(mark, name), tuple)):
        raise ConfigError(f"{where} has no values")
    return mark


def choices_of(leaf: Leaf, mark: Choices) -> tuple[Any, ...]:
    """The values of a mark, or all that the setting's type names."""
    if mark.values:
        return tuple(None if value == "none" and None in leaf.members else value for value in mark.values)
    return tuple(
        value for member in leaf.members for value in ((False, True) if member is bool else (member,))
    )


def _parameters(leaf: Leaf, mark: Mark) -> Iterator[Parameter]:
    if isinstance(mark, Layers):
        yield Parameter(f"{leaf.key}.width", choices=mark.widths, ordered=True)
        yield Parameter(f"{leaf.key}.depth", choices=mark.depths, ordered=True)
    elif isinstance(mark, Choices):
        yield Parameter(leaf.key, choices=choices_of(leaf, mark), ordered=mark.ordered)
    elif isinstance(mark, Range):
        integer = int in leaf.members and float not in leaf.members
        yield Parameter(leaf.key, mark.low, mark.high, mark.log, mark.from_one, integer)
