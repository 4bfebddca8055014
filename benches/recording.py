"""Results of the benches, shown as tables and written as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fastrl.utils.output import plain_console
from fastrl.utils.tables import show
from results import Benchmark, Case, Spread, shown

Record = Callable[..., Benchmark]


def recorder(bench: str, test: str, folder: Path | None, note: str = "") -> Record:
    """A function that shows results and, with a folder, writes them as JSON.

    It is called with a title, the unit, cases (`results.Case`, rates by contender, one a round), and the names of
    fastrl's contenders. Other attributes of `Benchmark` are keywords; ``part`` tells apart several results of one test.

    Args:
        bench: name of the file in benches/ without its ending.
        test: name of the test.
        note: a remark that the results keep.
    """

    def record(
        title: str, unit: str, cases: Sequence[Case], ours: Sequence[str], *, part: str = "", **more: Any
    ) -> Benchmark:
        result = Benchmark(
            topic=bench.removeprefix("bench_"),
            name=f"{test.removeprefix('test_')} {part}".rstrip(),
            title=title,
            unit=unit,
            cases=tuple(cases),
            ours=tuple(ours),
            **more,
        ).stamped(f"pytest benches/{bench}.py -s", note)
        print()
        show_and_write(result, folder)
        return result

    return record


def show_and_write(result: Benchmark, folder: Path | None) -> None:
    """Prints a table for each case and, with a folder, writes the result as JSON."""
    for case in result.cases:
        show(plain_console(), speed_table(result, case))
    for name, reason in result.left_out.items():
        print(f"{name} is left out: {reason}")
    if folder is not None:
        print(f"Written: {result.write(folder)}")


def speed_table(result: Benchmark, case: Case) -> Table:
    """Median, quartiles and how many times as good as each other one our best contender is."""
    spreads = {name: Spread.of(rates) for name, rates in case.rates.items()}
    others = result.others(case)
    title = result.title if case.name == result.title else f"{result.title}: {case.name}"
    direction = "lower" if result.lower_is_better else "higher"
    caption = f"ratio: {result.best(case)} beside the other one" if others else None
    table = Table(title=f"{title}, {result.unit} ({direction} is better)", caption=caption)
    table.add_column("", overflow="fold")
    for name in ("median", "quartiles", *(["ratio"] if others else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for name, spread in spreads.items():
        ratio = []
        if name in others:
            of = result.ratio(case, result.best(case), name)
            ratio = [f"{shown(of.median)} ({shown(of.low)} to {shown(of.high)})"]
        table.add_row(name, shown(spread.median), f"{shown(spread.low)} to {shown(spread.high)}", *ratio)
    return table
