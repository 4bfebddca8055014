"""Presets that stand in a TOML file."""

import fnmatch
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastrl.utils.config import Preset, load_toml


class PresetFile(Mapping[str, Preset]):
    """The presets of a TOML file by name, in the order of the file, which is read when a preset is first needed.

    Tables of the file:

    - ``[presets.NAME]``: a preset: tables as in a file of settings, ``description``, and optionally

      - ``extends``: names of parts and presets whose settings it inherits; later ones replace those of earlier ones,
        its own replace all;
      - ``with``: settings on top by the table that a run must have, as `Preset.with_table`;
      - ``for_any_algorithm``: as of `Preset`;
      - ``results``: names of the files in ``docs/benchmarks/results`` that say what it reached, for the documentation;

    - ``[parts.NAME]``: what several presets extend, with the same keys;
    - ``[tables]``: names that stand for several tables, which have the same settings;
    - ``[ids]``: presets by patterns of environments' ids, each on top of the one before; the first pattern that fits
      counts;
    - ``[algorithms]``: algorithms by such patterns, where the usual one does not learn.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getitem__(self, name: str) -> Preset:
        if name not in self._tree["presets"]:
            raise KeyError(name)
        tables = self._extended(name)
        marks = {key: tables.pop(key) for key in ("description", "for_any_algorithm") if key in tables}
        with_table = tables.pop("with", {})
        return Preset(values=tables, with_table=with_table, **marks)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tree["presets"])

    def __len__(self) -> int:
        return len(self._tree["presets"])

    def presets_for(self, env_id: str) -> tuple[str, ...] | None:
        """The presets of an environment; None: no pattern fits."""
        names = self._by_id("ids", env_id)
        return None if names is None else tuple(names)

    def algorithm_for(self, env_id: str) -> str | None:
        """The algorithm that learns in an environment; None: the usual one."""
        algorithm: str | None = self._by_id("algorithms", env_id)
        return algorithm

    def _by_id(self, table: str, env_id: str) -> Any:
        patterns = self._tree.get(table, {})
        return next((patterns[each] for each in patterns if fnmatch.fnmatchcase(env_id, each)), None)

    @functools.cached_property
    def _tree(self) -> dict[str, Any]:
        return load_toml(self._path)

    def _extended(self, name: str) -> dict[str, Any]:
        """A preset or part on top of what it extends."""
        known = self._tree["presets"] | self._tree.get("parts", {})
        preset = dict(known[name])
        preset.pop("results", None)
        bases = [self._extended(base) for base in preset.pop("extends", ())]
        return functools.reduce(_merged, [*bases, self._spelled_out(preset)])

    def _spelled_out(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Nested values with the tables that a name of ``[tables]`` stands for in its place."""
        result: dict[str, Any] = {}
        for name, value in tree.items():
            content = self._spelled_out(value) if isinstance(value, dict) else value
            for table in self._tree.get("tables", {}).get(name, [name]):
                result = _merged(result, {table: content})
        return result


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values with others on top."""
    result = dict(below)
    for key, value in above.items():
        result[key] = _merged(result.get(key, {}), value) if isinstance(value, dict) else value
    return result
