"""Sphinx directives that ask the code: the settings of an algorithm or table, what it goes with, the help of a command.

`{settings} ppo`: a table of the fields of a section of settings, with types, limits, defaults and descriptions.
`{uses} ppo`: spaces, collectors, masks and memories of an algorithm, from the page that `docs/draw_matrix.py` draws.
`{command} fastrl train CartPole-v1`: the help text of a command.
"""

import contextlib
import importlib
import io
import os
import re
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fastrl.algorithms import find
from fastrl.cli.main import main
from fastrl.utils.config import Leaf, leaves, section

MATRIX = Path(__file__).parent.parent / "reference" / "matrix.md"


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("settings", Settings)
    app.add_directive("uses", Uses)
    app.add_directive("command", Command)
    return {"parallel_read_safe": True}


class Settings(SphinxDirective):
    """A table of the settings of an algorithm, or of a section of settings: its import path `module:Class`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        config_type = find(name).config_type if ":" not in name else _imported(name)
        return self.parse_text_to_nodes(settings_table(config_type))


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def settings_table(config_type: type) -> str:
    """The fields of a section of settings as a table in Markdown."""
    whole = section(type("Whole", (), {"__annotations__": {"own": config_type}, "own": config_type()}))
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for leaf in leaves(whole).values():
        name = leaf.key.removeprefix("own.")
        default = getattr(leaf.default, "value", leaf.default)
        meaning = f"{escaped(leaf.description)} {limits(leaf)}".strip()
        rows.append(f"| `{name}` | {shown(default)} | {meaning} |")
    return "\n".join(rows)


def shown(value: Any) -> str:
    """A default as a file of settings would have it."""
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, tuple):
        return f"`{', '.join(map(str, value))}`"
    return f"`{str(value).lower() if isinstance(value, bool) else number(value)}`"


def number(value: Any) -> str:
    """A value in which large integers can be read: 1_000_000, 2^63."""
    if not isinstance(value, int) or value < 10_000:
        return str(value)
    is_power = value > 2**31 and value & (value - 1) == 0
    return f"2^{value.bit_length() - 1}" if is_power else f"{value:_}"


def limits(leaf: Leaf) -> str:
    """Values that a setting takes, in brackets."""
    bounds = [
        f"{sign} {number(getattr(bound, name))}"
        for mark in leaf.marks
        for bound in getattr(mark, "metadata", ())
        for name, sign in SIGNS.items()
        if getattr(bound, name, None) is not None
    ]
    kind = leaf.metavar().replace("|", "\\|")
    return f"({', '.join([f'`{kind}`', *bounds])})"


SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def escaped(text: str) -> str:
    """A description whose signs mean nothing in Markdown; options are set as code."""
    text = re.sub(r"([|*<\[\]])", r"\\\1", text)
    return re.sub(r"(?<![\w`])(--[a-z][\w.-]*)", r"`\1`", text)


class Uses(SphinxDirective):
    """Spaces, collectors, masks and memories of an algorithm."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(uses_table(self.arguments[0]))


def uses_table(algorithm: str) -> str:
    """Spaces, collectors, masks and memories of an algorithm as a table in Markdown."""
    tables = matrix()
    masks = taken(tables["Action masks", ""][algorithm])
    memory = taken(tables["Memory", ""][algorithm])
    is_team = find(algorithm).many_agents
    if is_team:
        spaces = tables["Many agents: PettingZoo's parallel environments", algorithm]
        worlds = {
            row: cells[algorithm] for row, cells in tables["Many agents: fastrl's environments", ""].items()
        }
        rest = {
            "collectors": taken(*tables["Many agents: collectors", algorithm].values()),
            "action masks": masks,
            "memory": memory,
            "environments of fastrl": taken(worlds),
        }
    else:
        spaces = tables["One agent: observations and actions", algorithm]
        rest = {
            "collectors": taken(*tables["Collectors", algorithm].values()),
            "action masks": masks,
            "memory": memory,
        }
    by_row = {row: "yes" if "yes" in cells.values() else "" for row, cells in spaces.items()}
    rows = {"observations": taken(by_row), "actions": taken(*spaces.values()), **rest}
    lines = [f"| {name} | {cells} |" for name, cells in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def taken(*rows: dict[str, str]) -> str:
    """The columns in which a row says yes, in their order."""
    return ", ".join(column for column in rows[0] if any(row[column] == "yes" for row in rows)) or "none"


Cells = dict[str, dict[str, str]]


@cache
def matrix() -> dict[tuple[str, str], Cells]:
    """Tables of the page of combinations, by heading and algorithm ("" where a heading has one table for all)."""
    found: dict[tuple[str, str], Cells] = {}
    for part in re.split("^## ", MATRIX.read_text(encoding="utf-8"), flags=re.M):
        heading, _, text = part.partition("\n")
        for names, table in re.findall(r"(?:^### (.*)\n\n)?((?:^\|.*\n)+)", text, re.M):
            head, _, *rows = (
                [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
            )
            cells = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}
            found |= {(heading, name): cells for name in names.split(", ")}
    return found


class Command(SphinxDirective):
    """The help text of a command."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        _, *words = self.arguments[0].split()
        return [nodes.literal_block(text=help_text(words), language="text")]


def help_text(words: list[str]) -> str:
    """The output of `fastrl WORDS --help`."""
    with (
        mock.patch.dict(os.environ, COLUMNS="92"),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.suppress(SystemExit),
    ):
        main([*words, "--help"])
    return out.getvalue()
