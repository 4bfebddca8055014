"""Results of finished runs as one table: a row for each group of runs that differ in their seed alone."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastrl.runs.facts import RunFacts
from fastrl.runs.listing import RunInfo, read_run, read_summary, score_in
from fastrl.runs.metrics import brief, duration, moments
from fastrl.runs.statistics import CAVEAT, INTERVAL, bootstrap, mean
from fastrl.utils.config import ConfigError, by_dotted_key, load_toml
from fastrl.utils.files import to_json

# Settings that columns of their own have.
_OF_COLUMNS = ("kind", "env.id", "run.algo", "run.seed")
_MEANING = (
    f"Steps and time are means over the seeds. Scores are of the evaluation at the end, with their {INTERVAL}: of the"
    f" seeds, or of the evaluation's episodes where there is one seed. {CAVEAT}"
)


@dataclass(frozen=True)
class FinishedRun:
    """A run directory as a report needs it.

    Attributes:
        info: environment, algorithm, seed, steps.
        settings: by dotted key, as its ``config.toml`` has them.
        seconds: of training.
        versions: of the newest session.
        score: of the evaluation at the end; NaN without one.
        returns: of that evaluation's episodes, if they are known.
    """

    info: RunInfo
    settings: Mapping[str, Any]
    seconds: float
    versions: Mapping[str, str]
    score: float
    returns: Sequence[float]

    @classmethod
    def read(cls, path: Path) -> "FinishedRun":
        """Reads a run directory.

        Raises:
            ConfigError: its settings cannot be read.
        """
        facts = RunFacts.read(path)
        summary = read_summary(path)
        evaluation = summary.get("evaluation")
        returns = evaluation.get("returns") if isinstance(evaluation, dict) else None
        return cls(
            info=read_run(path),
            settings=dict(by_dotted_key(load_toml(path / "config.toml"))),
            seconds=math.nan if facts is None else facts.seconds,
            versions=facts.sessions[-1].versions if facts is not None and facts.sessions else {},
            score=score_in(summary),
            returns=returns if isinstance(returns, list) else (),
        )


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    Attributes:
        runs: at least one.
        differences: settings that other groups of the same algorithm have otherwise, by dotted key.
    """

    runs: Sequence[FinishedRun]
    differences: Mapping[str, Any]

    def to_tree(self) -> dict[str, Any]:
        """A row of the table, JSON values by column."""
        first = self.runs[0]
        score, low, high = self.score()
        return {
            "env": first.info.env,
            "algo": first.info.algo,
            "settings": dict(self.differences),
            "seeds": [run.info.seed for run in self.runs],
            "steps": _mean_of([run.info.steps for run in self.runs]),
            "seconds": _mean_of([run.seconds for run in self.runs]),
            "score": score,
            "low": low,
            "high": high,
            "states": sorted({run.info.state for run in self.runs}),
            "versions": dict(first.versions),
            "runs": [str(run.info.path) for run in self.runs],
        }

    def score(self) -> tuple[float, float, float]:
        """Mean score of the runs that have one, and the ends of its interval: of the runs, or of the episodes of the
        evaluation of a single one. NaN where they are unknown."""
        scores = [run.score for run in self.runs if not math.isnan(run.score)]
        if not scores:
            return math.nan, math.nan, math.nan
        samples = self.runs[0].returns or scores if len(self.runs) == 1 else scores
        return _mean_of(scores), *bootstrap(mean, samples)[1:]


def _mean_of(values: Sequence[float]) -> float:
    return moments(values)["mean"]


def groups_of(runs: Sequence[FinishedRun]) -> list[Group]:
    """The runs in groups, in the order of their first run."""
    grouped: dict[str, list[FinishedRun]] = {}
    for run in runs:
        same = {key: value for key, value in run.settings.items() if key != "run.seed"}
        grouped.setdefault(to_json(same), []).append(run)
    firsts = [members[0] for members in grouped.values()]
    return [Group(members, differences(members[0], firsts)) for members in grouped.values()]


def differences(run: FinishedRun, others: Sequence[FinishedRun]) -> dict[str, Any]:
    """Settings of a run that others of the same task and algorithm have otherwise."""
    alike = [
        each.settings
        for each in others
        if all(each.settings.get(key) == run.settings.get(key) for key in ("kind", "run.algo"))
    ]
    return {
        key: value
        for key, value in run.settings.items()
        if key not in _OF_COLUMNS and any(each.get(key) != value for each in alike)
    }


def to_markdown(groups: Sequence[Group]) -> str:
    """A table in Markdown, with versions and the meaning of the interval below it."""
    rows = []
    for row in (group.to_tree() for group in groups):
        interval = "" if math.isnan(row["low"]) else f" ({brief(row['low'])} to {brief(row['high'])})"
        cells = (
            row["env"],
            row["algo"],
            ", ".join(f"{key} = {_text(value)}" for key, value in row["settings"].items()) or "-",
            ", ".join(map(str, row["seeds"])),
            ", ".join(row["states"]),
            f"{row['steps']:,.0f}",
            "-" if math.isnan(row["seconds"]) else duration(row["seconds"]),
            f"{brief(row['score'])}{interval}",
        )
        rows.append(cells)
    names = ("environment", "algorithm", "settings that differ", "seeds", "state", "steps", "time", "score")
    lines = table_lines(names, rows, left=5)
    versions = dict.fromkeys(_versions_of(run) for group in groups for run in group.runs if run.versions)
    lines += ["", _MEANING]
    if versions:
        lines += ["", f"Versions: {'; '.join(versions)}."]
    return "\n".join(lines) + "\n"


def table_lines(names: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """A table in Markdown; the columns after the first ``left`` are aligned at the right."""
    lines = [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in (names, *rows)
    ]
    lines.insert(1, f"|{'---|' * left}{'---:|' * (len(names) - left)}")
    return lines


def to_csv(groups: Sequence[Group]) -> str:
    """A table for spreadsheets, with a column for each setting that differs."""
    rows = [group.to_tree() for group in groups]
    settings = list(dict.fromkeys(key for row in rows for key in row["settings"]))
    plain = [key for key in rows[0] if key != "settings"] if rows else []
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*plain, *settings])
    for row in rows:
        cells = [row[key] for key in plain] + [row["settings"].get(key, "") for key in settings]
        writer.writerow(["" if cell != cell else _text(cell) for cell in cells])
    return file.getvalue()


def to_json_text(groups: Sequence[Group]) -> str:
    """The rows as a JSON list."""
    return to_json([group.to_tree() for group in groups], indent=2) + "\n"


def _versions_of(run: FinishedRun) -> str:
    return ", ".join(f"{name} {version}" for name, version in run.versions.items())


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_text, value))
    if isinstance(value, Mapping):
        return " ".join(f"{key} {each}" for key, each in value.items())
    return str(value)


def read_runs(paths: Sequence[Path]) -> tuple[list[FinishedRun], list[str]]:
    """Runs, and a line for each that cannot be read."""
    found, errors = [], []
    for path in paths:
        try:
            found.append(FinishedRun.read(path))
        except (ConfigError, OSError) as error:
            errors.append(str(error))
    return found, errors
