"""Sphinx directive that shows presets and what runs with them reached.

`{presets} gym`: a table of the presets of `python/fastrl/tasks/gym/presets.toml`: their environments, descriptions, and
mean and deviation over the seeds of each training in the files of `docs/benchmarks/results` that they cite.
"""

import fnmatch
import statistics
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastrl_results
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import learning_curves
import seconds_to_score

ROOT = Path(__file__).resolve().parents[2]
RESULTS = fastrl_results.RESULTS


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("presets", Presets)
    return {"parallel_read_safe": True}


class Presets(SphinxDirective):
    """A table of the presets of a task."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        file = preset_file(self.arguments[0])
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
        self.env.note_dependency(str(file))
        for preset in tree["presets"].values():
            for name in preset.get("results", ()):
                self.env.note_dependency(str(results_file(name)))
        return self.parse_text_to_nodes(presets_table(tree))


def preset_file(task: str) -> Path:
    return ROOT / "python" / "fastrl" / "tasks" / task / "presets.toml"


def results_file(name: str) -> Path:
    """The file of results of a name, TOML or lines of JSON."""
    toml = RESULTS / f"{name}.toml"
    return toml if toml.exists() else RESULTS / f"{name}.jsonl"


def presets_table(tree: dict[str, Any]) -> str:
    """A row a preset, in Markdown; those that cite no results are not measured."""
    lines = ["| preset | environments | what it is | reached |", "|---|---|---|---|"]
    for name, preset in tree["presets"].items():
        patterns = patterns_of(tree, name)
        found = [text for file in preset.get("results", ()) for text in reached(file, name, patterns)]
        ids = ", ".join(f"`{each}`" for each in patterns)
        lines.append(f"| `{name}` | {ids} | {preset['description']} | {'; '.join(found)} |")
    return "\n".join(lines)


def patterns_of(tree: dict[str, Any], name: str) -> list[str]:
    """The patterns of environments' ids that have a preset."""
    return [pattern for pattern, names in tree.get("ids", {}).items() if name in names]


def reached(file: str, preset: str, patterns: list[str]) -> Iterator[str]:
    """Results of a file for a preset: environment or command, mean and deviation over seeds."""
    path = results_file(file)
    if file == "seconds_to_score":
        for entry in seconds_to_score.board(path):
            if entry.run.contender == "fastrl" and fits(entry.run.env, patterns):
                seconds = statistics.median(row.seconds for row in entry.rows)
                yield f"`{entry.run.env}` {entry.run.score:g} in {seconds:.1f} s"
    elif path.suffix == ".jsonl":
        curves: dict[tuple[str, str], list[float]] = {}
        for row in learning_curves.read_rows(path):
            if row.run.variant == "preset" and fits(row.run.env, patterns):
                curves.setdefault((row.run.env, row.run.algo), []).append(row.last)
        for (env, algo), lasts in curves.items():
            yield f"`{env} --algo {algo}` {learning_curves.mean_and_deviation(lasts)}"
    else:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
        for group in tree["groups"]:
            if is_of(group, preset, patterns):
                cells = fastrl_results.row(group, tree)
                command = cells["command"].replace("fastrl train ", "").replace("fastrl-train ", "")
                yield f"{command or '`' + group['environment'] + '`'} {cells['mean']}"


def is_of(group: dict[str, Any], preset: str, patterns: list[str]) -> bool:
    """True if a group of trainings has the preset: named by its command, or by the environment's id."""
    if not group.get("contender", "fastrl").startswith("fastrl"):
        return False
    command = group.get("command", "")
    if "--preset " in command:
        return f"--preset {preset} " in f"{command} "
    return any(fits(word, patterns) for word in [group.get("environment", ""), *command.split()])


def fits(env: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(env, pattern) for pattern in patterns)
