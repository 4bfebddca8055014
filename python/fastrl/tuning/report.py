"""The report of a search: what was found, what it is worth when it is trained again, at which cost."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fastrl.runs.metrics import brief, duration, spread
from fastrl.tuning.phases import Candidate, front
from fastrl.tuning.population import lineage_values
from fastrl.tuning.progress import brief_point, brief_value
from fastrl.tuning.study import Study
from fastrl.tuning.trial import Trial, best_first
from fastrl.utils.config import Values, leaves, to_plain
from fastrl.utils.files import to_json, write_atomically
from fastrl.utils.tables import print_lines, show

# Files of the report.
REPORT, TABLE, SUMMARY, BEST = "report.md", "trials.csv", "tune.json", "best.toml"


@dataclass(frozen=True)
class Tuned:
    """The end of a search.

    Attributes:
        study: of the search.
        confirmed: trials that were trained again, the best first.
        chosen: the trial that the search ends with; None: no trial has a score.
        final: scores of the chosen policies in episodes whose seeds nothing else has had, one of each training.
    """

    study: Study
    confirmed: Sequence[Candidate]
    chosen: Trial | None
    final: Sequence[float]

    @property
    def directory(self) -> Path:
        """Directory of the search; its ``best.toml`` has the settings that were found."""
        return self.study.directory

    @property
    def trials(self) -> list[Trial]:
        """Trials of the search."""
        return self.study.of_search()

    @property
    def values(self) -> Values:
        """The settings that were searched, by dotted key: those of the chosen trial."""
        if self.chosen is None:
            return {}
        if self.study.config.method == "pbt":
            return lineage_values(self.study, self.chosen.number)
        return self.study.space.values(self.chosen.point)

    @property
    def candidate(self) -> Candidate | None:
        """The chosen trial, trained again; None without confirmation."""
        return next((each for each in self.confirmed if each.trial is self.chosen), None)

    @property
    def score(self) -> float:
        """Mean of the chosen settings' scores when they were trained again; of a search without confirmation the score
        of the best trial."""
        return self.search_score if self.candidate is None else self.candidate.mean

    @property
    def standard_error(self) -> float:
        """The standard error of that mean; NaN without confirmation."""
        return math.nan if self.candidate is None else self.candidate.error

    @property
    def search_score(self) -> float:
        """Score that the same settings had in the search."""
        return math.nan if self.chosen is None else self.chosen.score


def write(found: Tuned, console: Console) -> None:
    """Prints the report, and writes it beside the search: text, tables, and the settings that were found."""
    study = found.study
    if found.chosen is not None:
        text = f"# {_headline(found)}\n".encode() + study.toml(study.with_values(found.values))
        write_atomically(study.directory / BEST, text)
    write_atomically(study.directory / TABLE, _csv(study).encode())
    write_atomically(study.directory / SUMMARY, to_json(_tree(found), indent=2).encode())
    lines = [_headline(found), *_counts(study)]
    tables = [table for table in (_confirmation(found), _pareto(study), _values(found)) if table is not None]
    write_atomically(study.directory / REPORT, _markdown(lines, tables).encode())
    print_lines(console, "", *lines)
    for table in tables:
        print_lines(console, "")
        show(console, table)


def _headline(found: Tuned) -> str:
    chosen = found.chosen
    if chosen is None:
        return "no trial has a score"
    candidate = found.candidate
    line = f"trial {chosen.number}: {brief(chosen.score)} in the search"
    if candidate is not None:
        line += f", {spread(candidate.scores)} when trained again with {len(candidate.scores)} other seeds"
    if found.final:
        line += f", {spread(found.final)} in episodes that nothing else has seen"
    return line


def _counts(study: Study) -> list[str]:
    """Lines about the trials of a search."""
    trials, config = study.of_search(), study.config
    states = [trial.result.state for trial in trials if trial.result is not None]
    results = [trial.result for trial in study.trials.values() if trial.result is not None]
    seconds = math.fsum(result.seconds for result in results if not math.isnan(result.seconds))
    again = sum(trial.name.startswith("confirm-") for trial in study.trials.values())
    line = (
        f"{config.method}, seed {study.seed}: {len(trials)} trials, {states.count('complete')} complete,"
        f" {states.count('pruned')} stopped early, {states.count('failed')} failed; {again} trainings of the"
        f" confirmation; {duration(seconds)} of training in all"
    )
    reasons = dict.fromkeys(result.error for result in results if result.state == "failed")
    return [line, *(f"failed: {reason}" for reason in list(reasons)[:3])]


def _table(title: str, names: Sequence[str], rows: Iterable[Sequence[str]], left: str | None = None) -> Table:
    """A table of numbers, but for the column ``left``."""
    table = Table(title=title)
    for name in names:
        table.add_column(name, justify="left" if name == left else "right", no_wrap=name != "settings")
    for row in rows:
        table.add_row(*row)
    return table


def _confirmation(found: Tuned) -> Table | None:
    if not found.confirmed:
        return None
    rows = [
        (
            "*" if each.trial is found.chosen else "",
            str(each.trial.number),
            brief(each.trial.score),
            spread(each.scores),
            brief(each.bound),
            brief(min(each.scores, default=math.nan)),
            str(len(each.scores)),
            *_cost(each.trial),
        )
        for each in found.confirmed
    ]
    names = ("", "trial", "search", "again", "mean - error", "worst", "seeds", "parameters", "seconds")
    return _table("trained again, chosen by mean less standard error", names, rows)


def _cost(trial: Trial) -> tuple[str, str]:
    """Parameters and seconds of a complete trial."""
    assert trial.result is not None, "it is complete"
    return f"{trial.result.parameters:,}", f"{trial.result.seconds:.1f}"


def _pareto(study: Study) -> Table | None:
    if study.config.objective == "score":
        return None
    rows = [
        (str(trial.number), seconds, brief(trial.score), parameters, brief_point(trial.point))
        for trial in front(study.of_search())
        for parameters, seconds in [_cost(trial)]
    ]
    names = ("trial", "seconds", "score", "parameters", "settings")
    return _table("trials that no other one beats in both score and seconds", names, rows, "settings")


def _values(found: Tuned) -> Table | None:
    if found.chosen is None:
        return None
    given = found.study.settings
    known = leaves(type(given))
    rows = [
        (key, brief_value(to_plain(attrgetter(key)(given))), brief_value(to_plain(value)))
        for key, value in found.values.items()
        if key in known
    ]
    return _table(f"settings of trial {found.chosen.number}", ("setting", "given", "found"), rows, "setting")


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
            measured = [result.state, result.score, result.steps, result.seconds, result.parameters]
            point = [to_plain(trial.point.get(name)) for name in names]
            writer.writerow([trial.number, *measured, trial.kills, trial.seed, *point, result.error])
    return file.getvalue()


def _tree(found: Tuned) -> dict[str, object]:
    return {
        "chosen": None if found.chosen is None else found.chosen.number,
        "search_score": found.search_score,
        "values": {key: to_plain(value) for key, value in found.values.items()},
        "final": list(found.final),
        "confirmed": [
            {
                "trial": each.trial.number,
                "search_score": each.trial.score,
                "scores": list(each.scores),
                "mean": each.mean,
                "standard_error": each.error,
            }
            for each in found.confirmed
        ],
    }


def _markdown(facts: Sequence[str], tables: Sequence[Table]) -> str:
    lines = ["# Report of a search", "", *(f"- {line}" for line in facts)]
    for table in tables:
        columns = table.columns
        lines += ["", f"## {table.title}", ""]
        lines.append(f"| {' | '.join(str(column.header) for column in columns)} |")
        lines.append(f"|{'|'.join('---' if column.justify == 'left' else '--:' for column in columns)}|")
        cells = zip(*(column.cells for column in columns), strict=True)
        lines += [f"| {' | '.join(map(str, row))} |" for row in cells]
    return "\n".join(lines) + "\n"


def chosen_of(candidates: Sequence[Candidate], trials: Sequence[Trial]) -> Trial | None:
    """The trial that a search ends with: the confirmed one with the best mean less its standard error; without a
    confirmation the best of the search."""
    confirmed = [each.trial for each in candidates if not math.isnan(each.bound)]
    return next(iter(confirmed or best_first(trials)), None)
