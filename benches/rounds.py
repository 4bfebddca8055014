"""Rounds in turns, tables and command-line options that several benches share."""

import argparse

from rich import box
from rich.table import Table

from fastrl.benchmarks.rounds import measure_in_turns, rate, turns
from fastrl.cli.arguments import at_least, positive

__all__ = ["add_round_options", "measure_in_turns", "number_table", "rate", "turns"]


def number_table(title: str | None, first: str, *numbers: str, caption: str | None = None) -> Table:
    """A table with a column of text and columns of numbers."""
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def add_round_options(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Adds ``--seconds``, ``--rounds`` (with this default) and ``--json``."""
    parser.add_argument(
        "--seconds", type=positive, default=5.0, metavar="FLOAT", help="seconds of each measurement [5]"
    )
    parser.add_argument(
        "--rounds",
        type=at_least(1),
        default=rounds,
        metavar="INT",
        help=f"measurements of each case, in turns [{rounds}]",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON and nothing else")
