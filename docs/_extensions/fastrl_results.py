"""Sphinx directives that show results from data files.

`{results} gym-ppo`: a table of trainings with their seeds and spread, from `docs/benchmarks/results/gym-ppo.toml`.
`{speed} envs-cage2 ...`: tables of measurements, from `docs/benchmarks/data/envs-cage2.json`, which benches write;
those with the same title share tables.
`{seconds-to-score}`: the table of `benches/seconds_to_score.py`, and its chart once it is drawn.
`{traffic-teams}`: those of `benches/traffic_teams.py`.

A file of results has `score`, what the numbers are; `digits` of them after the point; if known, `date`, `unit` and
`mark`, the heading of marks that groups have. Each of its `groups` has trainings that differ in the seed alone: some of
`environment`, `command` and `contender` that say which, `steps` of training, a `mark`, a `note`, `digits` of its own,
`cpu_seconds` (one number, or the least and the most), and `runs`: a `score` each, and if known its `seed` and its
`cpu_seconds`.
"""

import statistics
import sys
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benches"))
import report
import seconds_to_score
import traffic_teams
from results import read

DOCS = Path(__file__).resolve().parent.parent
RESULTS, DATA = DOCS / "benchmarks" / "results", DOCS / "benchmarks" / "data"
IMAGES = DOCS / "images"
NAMES = ("environment", "command", "contender", "steps", "mark", "seeds", "scores", "mean", "cpu_seconds")
HEADINGS = {"contender": "", "scores": "each seed", "mean": "mean", "cpu_seconds": "CPU seconds"}
COUNTS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("results", Results)
    app.add_directive("speed", Speed)
    app.add_directive("seconds-to-score", SecondsToScore)
    app.add_directive("traffic-teams", TrafficTeams)
    return {"parallel_read_safe": True}


class Results(SphinxDirective):
    """A table of trainings with seeds and spread."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        file = RESULTS / f"{self.arguments[0]}.toml"
        self.env.note_dependency(str(file))
        return self.parse_text_to_nodes(results_table(tomllib.loads(file.read_text(encoding="utf-8"))))


class Speed(SphinxDirective):
    """Tables of measurements, by the names of their files, where ``*`` stands for any part of one, with their commands,
    machine and dates."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        files = [file for name in self.arguments[0].split() for file in found(name)]
        for file in files:
            self.env.note_dependency(str(file))
        return self.parse_text_to_nodes(speed_tables(files))


class SecondsToScore(SphinxDirective):
    """The board of seconds until a score is reached."""

    def run(self) -> list[nodes.Node]:
        for file in (seconds_to_score.ROWS, seconds_to_score.PLAN):
            self.env.note_dependency(str(file))
        picture = chart(self, "seconds-to-score.svg", "Seconds until a score is reached")
        return self.parse_text_to_nodes(seconds_to_score.table(seconds_to_score.board()) + picture)


class TrafficTeams(SphinxDirective):
    """Tables of teams in traffic with and without radio."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(traffic_teams.FILE))
        picture = chart(
            self, "traffic-teams.svg", "Measures of teams in traffic by world, algorithm and channel"
        )
        return self.parse_text_to_nodes(traffic_teams.tables(traffic_teams.board()) + picture)


def chart(directive: SphinxDirective, name: str, caption: str) -> str:
    """A picture of docs/images in Markdown, once it is drawn."""
    directive.env.note_dependency(str(IMAGES / name))
    return f"\n\n![{caption}](/images/{name})" if (IMAGES / name).exists() else ""


def found(name: str) -> list[Path]:
    """The files of results by a name.

    Raises:
        ValueError: there is none.
    """
    files = sorted(DATA.glob(f"{name}.json"))
    if not files:
        raise ValueError(
            f"there are no results {name} in {DATA}: python benches/measure.py {DATA} makes them"
        )
    return files


def speed_tables(files: list[Path]) -> str:
    """Conditions of measurements (command, machine, date) and their tables of rates and ratios, in Markdown."""
    parts = []
    for section in report.sections(read(file) for file in files):
        parts += [report.conditions(section, with_setup=True), *report.tables(section)]
    return "\n".join(parts)


def results_table(tree: dict[str, Any]) -> str:
    """A row a group, in Markdown, and a sentence that says what the numbers are."""
    rows = [row(group, tree) for group in tree["groups"]]
    used = [name for name in NAMES if any(cells.get(name) for cells in rows)]
    headings = {**HEADINGS, "mark": tree.get("mark", "")}
    lines = [[headings.get(name, name) for name in used], ["---"] * len(used)]
    lines += [[cells.get(name, "") for name in used] for cells in rows]
    score = tree["score"]
    about = [f"{score[0].upper()}{score[1:]}; ± is the standard deviation over seeds."]
    if "date" in tree:
        about.append(
            f"Measured on {tree['date']:%-d %B %Y}." if hasattr(tree["date"], "year") else f"{tree['date']}."
        )
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", " ".join(about)])


def row(group: dict[str, Any], tree: dict[str, Any]) -> dict[str, str]:
    """The cells of a group, by name."""
    runs, unit = group["runs"], tree.get("unit", "")
    digits = group.get("digits", tree["digits"])
    scores = [run["score"] for run in runs]
    mean = f"{statistics.fmean(scores):,.{digits}f}"
    if len(scores) > 1:
        mean += f" ± {statistics.stdev(scores):,.{digits}f}"
    steps = group.get("steps", "")
    cells = {
        "environment": group.get("environment", ""),
        "command": f"`{group['command']}`" if "command" in group else "",
        "contender": group.get("contender", ""),
        "steps": f"{steps:,}" if isinstance(steps, int) else steps,
        "mark": f"{group['mark']:,}" if isinstance(group.get("mark"), int) else str(group.get("mark", "")),
        "seeds": seeds(runs),
        "scores": ", ".join(f"{score:,.{digits}f}" for score in scores) + unit,
        "mean": mean + unit,
        "cpu_seconds": seconds(group),
    }
    if "note" in group:
        first = next(name for name in NAMES if cells[name])
        cells[first] += f" ({group['note']})"
    return cells


def seeds(runs: list[dict[str, Any]]) -> str:
    """The seeds: `0 to 4`, `0, 2`, or how many there are."""
    known = [run["seed"] for run in runs if "seed" in run]
    if len(known) < len(runs):
        return COUNTS[len(runs) - 1]
    if len(known) > 3 and known == list(range(known[0], known[-1] + 1)):
        return f"{known[0]} to {known[-1]}"
    return ", ".join(map(str, known))


def seconds(group: dict[str, Any]) -> str:
    """The least and the most of a run."""
    known = [run["cpu_seconds"] for run in group["runs"] if "cpu_seconds" in run] or group.get(
        "cpu_seconds", []
    )
    if not known:
        return ""
    least, most = min(known), max(known)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
