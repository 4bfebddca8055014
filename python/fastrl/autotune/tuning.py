"""Measurements of ways to run, and the choice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fastrl.autotune.race import Result
from fastrl.utils.tables import print_lines
from fastrl.utils.tables import show as show_parts


@dataclass(frozen=True)
class Tuning:
    """The measurements and the choice.

    Attributes:
        settings: of the run, with the choice.
        reasons: of each value that was chosen, by dotted key.
        results: of all ways to run, in the order of the table.
        facts: lines about the environment.
        seconds: wall-clock time of all measurements.
    """

    settings: Any
    reasons: Mapping[str, str]
    results: Sequence[Result]
    facts: Sequence[str]
    seconds: float

    @property
    def chosen(self) -> list[Result]:
        """The results of what the run will have."""
        return [each for each in self.results if each.is_chosen]

    @property
    def label(self) -> str:
        """Describes the choice in words."""
        return "; ".join(each.way.label for each in self.chosen)


def show(tuning: Tuning, console: Console) -> None:
    """Prints facts about the environment, and a table of the ways to run."""
    result = Table(
        title=f"measured in {tuning.seconds:.1f} s, environment steps per second",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    result.add_column("candidate", no_wrap=True)
    for name in ("measured", "lowest", "highest"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("", no_wrap=True)
    for each in tuning.results:
        rates = [each.measured, min(each.rates), max(each.rates)] if each.rates else []
        result.add_row(
            each.way.label,
            *([f"{rate:,.0f}" for rate in rates] or ["-"] * 3),
            ", ".join([*(["chosen"] if each.is_chosen else []), *each.notes]),
            style="bold" if each.is_chosen else None,
        )
    console.print()
    print_lines(console, *tuning.facts, *([""] if tuning.facts else []))
    show_parts(console, result)
