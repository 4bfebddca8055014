"""The report of a search: what was found, what it is worth when it is trained again, at which cost."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from fastrl.runs.metrics import brief, duration
from fastrl.tuning.phases import Candidate, front
from fastrl.tuning.population import lineage_values
from fastrl.tuning.progress import brief_point, brief_value, spread
from fastrl.tuning.study import Study
from fastrl.tuning.trial import Trial, best_first
from fastrl.utils.config import leaves, to_plain
from fastrl.utils.files import to_json, write_atomically
from fastrl.utils.tables import print_lines, show

# Files of the report.
REPORT, TABLE, SUMMARY, BEST = "report.md", "trials.csv", "tune.json", "best.toml"


@dataclass(frozen=True)
class Findings:
    """The end of a search.

    Attributes:
        study: of the search.
        candidates: trials that were trained again, the best first.
        chosen: the trial that the search ends with; None: no trial has a score.
        final: scores of the chosen policies in episodes whose seeds nothing else has had, one of each training.
    """

    study: Study
    candidates: Sequence[Candidate]
    chosen: Trial | None
    final: Sequence[float]

    def chosen_values(self) -> dict[str, object]:
        """The settings of the chosen trial that were searched, by dotted key."""
        if self.chosen is None:
            return {}
        if self.study.config.method == "pbt":
            return lineage_values(self.study, self.chosen.number)
        return dict(self.study.space.values(self.chosen.point))


def write(findings: Findings, console: Console) -> None:
    """Prints the report, and writes it beside the search: text, tables, and the settings that were found."""
    study = findings.study
    if findings.chosen is not None:
        text = f"# {_headline(findings)}\n".encode() + study.toml(study.with_values(findings.chosen_values()))
        write_atomically(study.directory / BEST, text)
    write_atomically(study.directory / TABLE, _csv(study).encode())
    write_atomically(study.directory / SUMMARY, to_json(_tree(findings), indent=2).encode())
    parts = [_headline(findings), *_counts(study)]
    tables = [
        table for table in (_confirmation(findings), _pareto(study), _values(findings)) if table is not None
    ]
    write_atomically(study.directory / REPORT, _markdown(parts, tables).encode())
    print_lines(console, "", *parts)
    for table in tables:
        print_lines(console, "")
        show(console, table)


def _headline(findings: Findings) -> str:
    chosen = findings.chosen
    if chosen is None:
        return "no trial has a score"
    own = next((each for each in findings.candidates if each.trial is chosen), None)
    line = f"trial {chosen.number}: {brief(chosen.score)} in the search"
    if own is not None:
        line += f", {spread(own.scores)} when trained again with {len(own.scores)} other seeds"
    if findings.final:
        line += f", {spread(findings.final)} in episodes that nothing else has seen"
    return line


def _counts(study: Study) -> list[str]:
    """Lines about the trials of a search."""
    trials, config = study.of_search(), study.config
    states = [trial.result.state for trial in trials if trial.result is not None]
    seconds = math.fsum(
        trial.result.seconds
        for trial in study.trials.values()
        if trial.result is not None and not math.isnan(trial.result.seconds)
    )
    again = sum(trial.name.startswith("confirm-") for trial in study.trials.values())
    line = (
        f"{config.method}, seed {study.seed}: {len(trials)} trials, {states.count('complete')} complete,"
        f" {states.count('pruned')} stopped early, {states.count('failed')} failed; {again} trainings of the"
        f" confirmation; {duration(seconds)} of training in all"
    )
    failed = [trial for trial in study.trials.values() if trial.result and trial.result.state == "failed"]
    reasons = dict.fromkeys(trial.result.error for trial in failed if trial.result)
    return [line, *(f"failed: {reason}" for reason in list(reasons)[:3])]


def _confirmation(findings: Findings) -> Table | None:
    if not findings.candidates:
        return None
    table = Table(title="trained again, chosen by mean less standard error")
    for name in ("", "trial", "search", "again", "mean - error", "worst", "seeds", "parameters", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in findings.candidates:
        result = each.trial.result
        assert result is not None, "it is complete"
        table.add_row(
            "*" if each.trial is findings.chosen else "",
            str(each.trial.number),
            brief(each.trial.score),
            spread(each.scores),
            brief(each.bound),
            brief(min(each.scores, default=math.nan)),
            str(len(each.scores)),
            f"{result.parameters:,}",
            f"{result.seconds:.1f}",
        )
    return table


def _pareto(study: Study) -> Table | None:
    if study.config.objective == "score":
        return None
    table = Table(title="trials that no other one beats in both score and seconds")
    for name in ("trial", "seconds", "score", "parameters"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("settings")
    for trial in front(study.of_search()):
        assert trial.result is not None, "it is complete"
        table.add_row(
            str(trial.number),
            f"{trial.result.seconds:.1f}",
            brief(trial.score),
            f"{trial.result.parameters:,}",
            brief_point(trial.point),
        )
    return table


def _values(findings: Findings) -> Table | None:
    if findings.chosen is None:
        return None
    table = Table(title=f"settings of trial {findings.chosen.number}")
    for name in ("setting", "given", "found"):
        table.add_column(name, justify="left" if name == "setting" else "right", no_wrap=True)
    given = findings.study.settings
    known = leaves(type(given))
    for key, value in findings.chosen_values().items():
        if key in known:
            section, _, name = key.rpartition(".")
            before = getattr(getattr(given, section), name)
            table.add_row(key, brief_value(to_plain(before)), brief_value(to_plain(value)))
    return table


def _csv(study: Study) -> str:
    """A row for each trial of the search."""
    file = io.StringIO()
    names = [each.name for each in study.space.parameters]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        ["trial", "state", "score", "steps", "seconds", "parameters", "kills", "seed", *names, "error"]
    )
    for trial in study.of_search():
        result = trial.result
        if result is not None:
            own = [result.state, result.score, result.steps, result.seconds, result.parameters]
            point = [to_plain(trial.point.get(name)) for name in names]
            writer.writerow([trial.number, *own, trial.kills, trial.seed, *point, result.error])
    return file.getvalue()


def _tree(findings: Findings) -> dict[str, object]:
    chosen = findings.chosen
    return {
        "chosen": None if chosen is None else chosen.number,
        "search_score": None if chosen is None else chosen.score,
        "values": {key: to_plain(value) for key, value in findings.chosen_values().items()},
        "final": list(findings.final),
        "confirmed": [
            {
                "trial": each.trial.number,
                "search_score": each.trial.score,
                "scores": list(each.scores),
                "mean": each.mean,
                "standard_error": each.error,
            }
            for each in findings.candidates
        ],
    }


def _markdown(lines: Sequence[str], tables: Sequence[Table]) -> str:
    parts = ["# Report of a search", "", *(f"- {line}" for line in lines)]
    for table in tables:
        columns = table.columns
        parts += ["", f"## {table.title}", ""]
        parts.append(f"| {' | '.join(str(column.header) for column in columns)} |")
        parts.append(f"|{'|'.join('---' if column.justify == 'left' else '--:' for column in columns)}|")
        cells = zip(*(column.cells for column in columns), strict=True)
        parts += [f"| {' | '.join(map(str, row))} |" for row in cells]
    return "\n".join(parts) + "\n"


def chosen_of(candidates: Sequence[Candidate], trials: Sequence[Trial]) -> Trial | None:
    """The trial that a search ends with: the confirmed one with the best mean less its standard error; without a
    confirmation the best of the search."""
    for each in candidates:
        if not math.isnan(each.bound):
            return each.trial
    best = best_first(trials)
    return best[0] if best else None
