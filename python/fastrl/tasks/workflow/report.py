"""Report of a search for the best workflow: a table, and files."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table

from fastrl.envs.cage2.workflow import workflow_name
from fastrl.runs.metrics import plus_minus
from fastrl.tasks.workflow.outcome import Outcome
from fastrl.tasks.workflow.search import Search, Standing
from fastrl.utils.files import to_json, write_atomically

# Most orders in the table on a console; files have all.
_SHOWN = 15


@dataclass(frozen=True)
class Step:
    """One outcome of a search, and the best return after it.

    Attributes:
        number: 1, 2, 3 ...
        used: episodes of the run, this outcome's included.
        outcome: of training one order.
        counts: it reached the compliance threshold.
        final: it is of an order that is trained to the end.
        best: the greatest return of an outcome that counts so far; NaN before the first one.
    """

    number: int
    used: int
    outcome: Outcome
    counts: bool
    final: bool
    best: float


@dataclass(frozen=True)
class Report:
    """A search, as far as it has come.

    Attributes:
        method: of the search; empty if one order was given.
        threshold: of compliance.
        steps: outcomes, in order.
        standings: orders tried, the best first.
        chosen: the best order that counts; None if none does.
        most_compliant: the order of the greatest compliance; None before one was tried.
    """

    method: str
    threshold: float
    steps: tuple[Step, ...]
    standings: tuple[Standing, ...]
    chosen: Standing | None
    most_compliant: Standing | None

    def regrets(self) -> list[float]:
        """Differences between the best return of the whole search and the best so far, after each step."""
        best = self.steps[-1].best if self.steps else math.nan
        return [best - step.best for step in self.steps]

    def verdict(self) -> str:
        """The choice in a sentence."""
        if self.chosen is not None:
            return f"best workflow: {_describe(self.chosen)}"
        if self.most_compliant is not None:
            return (
                f"no workflow reached compliance {self.threshold:g}; most compliant: {_describe(self.most_compliant)}."
                " A greater compliance weight, more episodes or a lower --compliance-threshold may help"
            )
        return "no workflow was tried"

    def table(self) -> Group:
        """The orders tried, for people."""
        table = Table(
            title=f"workflows tried ({self.method})" if self.method else "the workflow that was given",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
        )
        table.add_column("workflow", overflow="fold")
        for name in ("episodes", "return", "compliance"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("counts")
        for standing in self.standings[:_SHOWN]:
            outcome = standing.outcome
            table.add_row(
                workflow_name(standing.workflow).replace(",", " > "),
                f"{standing.episodes:,}",
                plus_minus(outcome.mean_return, outcome.return_stderr),
                plus_minus(outcome.compliance, outcome.compliance_stderr, 3),
                "yes" if standing.counts else "no",
                style="bold" if standing == self.chosen else None,
            )
        counting = sum(standing.counts for standing in self.standings)
        notes = [
            f"{len(self.standings)} of 120 orders tried, {counting} reached compliance {self.threshold:g}.",
            "Return and compliance: of the newest episodes of training, ± standard error.",
        ]
        if len(self.standings) > _SHOWN:
            notes.append(f"The other {len(self.standings) - _SHOWN} are in workflows.csv.")
        return Group(table, *notes)

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "method": self.method,
            "compliance_threshold": self.threshold,
            "chosen": None if self.chosen is None else _standing_tree(self.chosen),
            "most_compliant": None if self.most_compliant is None else _standing_tree(self.most_compliant),
            "workflows": [_standing_tree(standing) for standing in self.standings],
            "steps": self._records(),
        }

    def _records(self) -> list[dict[str, Any]]:
        return [
            {
                "step": step.number,
                "used": step.used,
                **step.outcome.to_tree(),
                "counts": step.counts,
                "final": step.final,
                "best": step.best,
                "regret": regret,
            }
            for step, regret in zip(self.steps, self.regrets(), strict=True)
        ]

    def write(self, folder: Path) -> None:
        """Writes ``workflows.json``, ``workflows.csv`` (a line for each order) and ``steps.csv`` (a line for each
        outcome)."""
        write_atomically(folder / "workflows.json", to_json(self.to_tree(), indent=2).encode())
        standings = [_standing_tree(standing) for standing in self.standings]
        write_atomically(folder / "workflows.csv", _csv(standings))
        write_atomically(folder / "steps.csv", _csv(self._records()))


def report_of(search: Search, before: int = 0) -> Report:
    """The report of a search as it is now.

    Args:
        before: episodes that were used before it started.
    """
    steps: list[Step] = []
    best, used = math.nan, before
    for number, (outcome, final) in enumerate(zip(search.outcomes, search.finals, strict=True), 1):
        counts = search.counts(outcome)
        used += outcome.episodes
        if counts and not best >= outcome.mean_return:
            best = outcome.mean_return
        steps.append(Step(number, used, outcome, counts, final, best))
    return Report(
        method=search.name if len(search.orders) > 1 else "",
        threshold=search.config.compliance_threshold,
        steps=tuple(steps),
        standings=tuple(search.standings()),
        chosen=search.best(),
        most_compliant=search.most_compliant(),
    )


def _describe(standing: Standing) -> str:
    outcome = standing.outcome
    return (
        f"{workflow_name(standing.workflow)}, return {plus_minus(outcome.mean_return, outcome.return_stderr)},"
        f" compliance {outcome.compliance:.3f} after {standing.episodes:,} episodes"
    )


def _standing_tree(standing: Standing) -> dict[str, Any]:
    return standing.outcome.to_tree() | {"episodes": standing.episodes, "counts": standing.counts}


def _csv(records: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]) if records else [])
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()
