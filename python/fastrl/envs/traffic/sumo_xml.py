"""Reading of SUMO's XML files, which come from elsewhere: without entities, and with errors that name file and line."""

from __future__ import annotations

import gzip
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from fastrl.utils.names import did_you_mean

# Bytes of the largest file that is read, unpacked.
MOST_BYTES = 1 << 28
# The largest coordinates, m (those of UTM have 1e7), and other numbers: squares of them are finite.
MOST_METRES, MOST = 1e8, 1e12


@dataclass
class Element:
    """An element of an XML file.

    Attributes:
        tag, attributes, children: as in the file; text is left out.
        file: name of the file.
        line: line of the start tag.
    """

    tag: str
    attributes: dict[str, str]
    file: str
    line: int
    children: list[Element] = field(default_factory=list)

    def __str__(self) -> str:
        name = next(
            (f" {key}={self.attributes[key]!r}" for key in ("id", "from") if key in self.attributes), ""
        )
        return f"{self.file}, line {self.line}, <{self.tag}{name}>"

    def error(self, message: str) -> ValueError:
        """An error about this element."""
        return ValueError(f"{self}: {message}")

    def all(self, tag: str) -> Iterable[Element]:
        """The children with a tag."""
        return (child for child in self.children if child.tag == tag)

    def check_known(self, name: str, known: Collection[str], message: str) -> str:
        """A name, which must be a known one; the message of the error ends with it and the nearest of these."""
        if name not in known:
            raise self.error(f"{message} {name!r}{did_you_mean(name, known)}")
        return name

    def text(self, key: str) -> str:
        """An attribute that must be there."""
        if key not in self.attributes:
            raise self.error(f"expected the attribute {key!r}{did_you_mean(key, self.attributes)}")
        return self.attributes[key]

    def number(self, key: str, default: float | None = None, least: float = -math.inf) -> float:
        """A number of at most `MOST`; the default where there is none."""
        if default is not None and key not in self.attributes:
            return default
        given = self.text(key)
        try:
            value = float(given)
        except ValueError:
            value = math.nan
        if not abs(value) <= MOST or value < least:
            bound = f" of at least {least:g}" if least > -math.inf else ""
            raise self.error(f"{key}: expected a number{bound}, got {given!r}")
        return value

    def index(self, key: str, default: int | None = None) -> int:
        """A whole number from 0 on."""
        value = self.number(key, default, least=0)
        if value != int(value):
            raise self.error(f"{key}: expected a whole number, got {self.text(key)!r}")
        return int(value)

    def points(self, key: str) -> NDArray[np.float64]:
        """A shape "x,y x,y ..." of at least two points, float64 [P, 2]; heights are left out."""
        given = self.text(key)
        try:
            points = np.array([[float(number) for number in point.split(",")][:2] for point in given.split()])
        except ValueError:
            points = np.empty(0)
        shown = given if len(given) < 40 else given[:37] + "..."
        if points.ndim != 2 or points.shape[0] < 2 or points.shape[1] != 2 or not np.isfinite(points).all():
            raise self.error(f"{key}: expected at least two points 'x,y x,y', got {shown!r}")
        if (np.abs(points) > MOST_METRES).any():
            raise self.error(f"{key}: expected coordinates within {MOST_METRES:g} m, got {shown!r}")
        return points


def _read_bytes(path: Path, what: str) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, EOFError) as error:
        near = [other.name for other in path.parent.glob("*.xml*")] if path.parent.is_dir() else []
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"{what}: cannot read {str(path)!r}: {reason}{did_you_mean(path.name, near)}"
        ) from None
    if len(data) > MOST_BYTES:
        raise ValueError(f"{what}: {str(path)!r} has more than {MOST_BYTES >> 20} MiB")
    return data


def read_xml(path: str | Path, root: str, what: str) -> Element:
    """The root element of an XML file, which may be packed by gzip (`.gz`).

    Args:
        path: the file.
        root: the tag that its root must have.
        what: name of the option that the file belongs to, for errors.

    Raises:
        ValueError: a file that cannot be read or is no XML, declares a document type (entities of which could expand
            without end), or has another root. One line with the file's name, and the line where there is one.
    """
    path = Path(path)
    data = _read_bytes(path, what)
    parser: Any = expat.ParserCreate()
    top: list[Element] = []
    open_elements: list[Element] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes, path.name, parser.CurrentLineNumber)
        (open_elements[-1].children if open_elements else top).append(element)
        open_elements.append(element)

    def end(_tag: str) -> None:
        open_elements.pop()

    def refuse(*_: object) -> None:
        raise ValueError(f"{what}: {path.name}, line {parser.CurrentLineNumber}: document types are not read")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ValueError(f"{what}: {path.name} is no XML: {error}") from None
    if top[0].tag != root:
        raise ValueError(f"{what}: {path.name}: expected the root element <{root}>, got <{top[0].tag}>")
    return top[0]
