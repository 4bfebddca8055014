"""Rounds in turns, tables and command-line options that several benches share.

A machine that becomes slower or faster during a measurement in turns favours no contender.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from rich import box
from rich.table import Table

from fastrl.cli.arguments import at_least, positive

K = TypeVar("K")
V = TypeVar("V")


def turns(contenders: Iterable[K], rounds: int) -> Iterator[K]:
    """Yields each contender once a round, in reverse order in every second round."""
    order = list(contenders)
    for i in range(rounds):
        yield from order if i % 2 == 0 else reversed(order)


def measure_in_turns(contenders: Mapping[K, Callable[[], V]], rounds: int) -> dict[K, list[V]]:
    """Calls all contenders in turns; returns their results by contender."""
    results: dict[K, list[V]] = {name: [] for name in contenders}
    for name in turns(contenders, rounds):
        results[name].append(contenders[name]())
    return results


def rate(step: Callable[[], int], seconds: float) -> float:
    """Calls ``step``, which returns a number of things done, for ``seconds``; returns things per second."""
    done, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        done += step()
    return done / passed


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
