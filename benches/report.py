"""Tables and charts from results of benchmarks.

    python benches/suite.py --out results                   # or: pytest benches/bench_replay.py -s --bench-out results
    python benches/report.py results --out docs/benchmarks  # measured.md, and charts/*.svg beside it

Reads all ``*.json`` of a folder (`results` has the format). Results with the same topic, title and
unit make one section; in it, cases with the same contenders make one table and one chart.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fastrl.utils.errors import UserError
from fastrl.utils.files import write_atomically
from results import Benchmark, Case, Spread, read_all, shown

PAGE = "measured.md"
CHARTS = "charts"
HEAD = """\
<!-- Written by benches/report.py from {source}: change the data, not this page. -->

# Measured beside other libraries

Each number is the median over rounds, with the quartiles of the rounds in brackets. All contenders of a case are
measured in turns; a ratio is formed round by round, so that a machine that becomes slower for a while slows both sides.
The command under each heading repeats the measurement; machine, versions and date are those of the run shown here.
"""
OURS, OTHERS = "#2a7fb8", "#969696"
# Ratio of the longest to the shortest bar from which an axis is logarithmic.
LOGARITHMIC = 20


@dataclass(frozen=True)
class Section:
    """Results with the same topic, title and unit, in the order of their files."""

    results: Sequence[Benchmark]

    @property
    def first(self) -> Benchmark:
        return self.results[0]

    def tables(self) -> Iterator[tuple[Benchmark, list[Case]]]:
        """Cases with the same contenders, and a result that has such a case."""
        found: dict[tuple[str, ...], tuple[Benchmark, list[Case]]] = {}
        for result in self.results:
            for case in result.cases:
                found.setdefault(tuple(case.rates), (result, []))[1].append(case)
        yield from found.values()

    def chart(self, number: int) -> str:
        """File name of the chart of a table."""
        words = f"{self.first.topic} {self.first.title} {number or ''}".lower()
        return re.sub(r"[^a-z0-9]+", "-", words).strip("-") + ".svg"


def sections(results: Iterable[Benchmark]) -> list[Section]:
    """Results by topic, title and unit, sorted by topic and title."""
    ordered = sorted(results, key=_section_key)
    return [Section(list(group)) for _, group in groupby(ordered, key=_section_key)]


def _section_key(result: Benchmark) -> tuple[str, str, str]:
    return result.topic, result.title, result.unit


def page(found: Sequence[Section], source: str) -> str:
    """The Markdown page."""
    everywhere = {_setup(result) for section in found for result in section.results}
    parts = [HEAD.format(source=source)]
    if len(everywhere) == 1:
        parts.append(f"All of them: {next(iter(everywhere))}.\n")
    for section in found:
        parts += [f"## {section.first.title}\n", conditions(section, len(everywhere) > 1)]
        for number, table in enumerate(tables(section)):
            parts += [
                table,
                f"![{section.first.title}, {section.first.unit}]({CHARTS}/{section.chart(number)})\n",
            ]
    return "\n".join(part for part in parts if part)


def _setup(result: Benchmark) -> str:
    """Machine and versions in a line."""
    machine = result.machine
    where = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}"
    )
    return f"{where}; {', '.join(' '.join(each) for each in result.versions.items())}"


def conditions(section: Section, with_setup: bool) -> str:
    """Paragraphs that say what was measured, by which command and when; with the machine and versions if wanted."""
    first = section.first
    loads = [result.machine["load"][0] for result in section.results]
    load = " to ".join(str(each) for each in dict.fromkeys((min(loads), max(loads))))
    left_out = {name: reason for result in section.results for name, reason in result.left_out.items()}
    parts = [f"`{first.command}`, {first.date[:10]}", f"load average at the end {load}"]
    if with_setup:
        parts.insert(1, _setup(first))
    paragraphs = [
        *dict.fromkeys(result.about for result in section.results),
        "Lower is better; ratios say how many times as good." if first.lower_is_better else "",
        f"{'; '.join(parts)}.",
        first.note,
        *(f"{name} was left out: {reason}." for name, reason in left_out.items()),
    ]
    return "".join(f"{paragraph}\n\n" for paragraph in paragraphs if paragraph).removesuffix("\n")


def is_long(cases: Sequence[Case]) -> bool:
    """True if a table has more cases than contenders: cases are rows then, and the chart shows ratios."""
    return len(cases) > len(cases[0].rates) + 1


def tables(section: Section) -> list[str]:
    """Rates and ratios of each table of a section, in Markdown."""
    return [_tables(cases, result) for result, cases in section.tables()]


def _tables(cases: Sequence[Case], result: Benchmark) -> str:
    if is_long(cases):
        return _long_table(cases, result)
    parts = _rates_table(cases, result.unit), _ratio_table(cases, result)
    return "\n".join(part for part in parts if part)


def _long_table(cases: Sequence[Case], result: Benchmark) -> str:
    """A row a case: rates, and the ratio of our best contender to each other one."""
    names = list(cases[0].rates)
    others = result.others(cases[0])
    rows = [[result.unit, *names, *(f"ratio to {name}" for name in others)]]
    for case in cases:
        rates = [_cell(Spread.of(case.rates[name])) for name in names]
        rows.append(
            [case.name, *rates, *(_cell(result.ratio(case, result.best(case), name)) for name in others)]
        )
    return _table(rows)


def _rates_table(cases: Sequence[Case], unit: str) -> str:
    rows = [[unit, *(case.name for case in cases)]]
    for name in cases[0].rates:
        rows.append([name, *(_cell(Spread.of(case.rates[name])) for case in cases)])
    return _table(rows)


def _ratio_table(cases: Sequence[Case], result: Benchmark) -> str:
    """Ratios of our best contender of each case to the others; empty where there are none."""
    others = result.others(cases[0])
    if not others:
        return ""
    rows = [["ratio to", *(case.name for case in cases)], ["of", *(result.best(case) for case in cases)]]
    for name in others:
        rows.append([name, *(_cell(result.ratio(case, result.best(case), name)) for case in cases)])
    return _table(rows)


def _cell(spread: Spread) -> str:
    return f"{shown(spread.median)} ({shown(spread.low)} to {shown(spread.high)})"


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def chart(cases: Sequence[Case], result: Benchmark) -> Figure:
    """Bars of the medians of all contenders with the quartiles as whiskers, a panel a case. With many cases, bars of
    the ratios, a panel for each other contender."""
    others = result.others(cases[0])
    if is_long(cases) and others:
        figure = Figure(figsize=(7.5, (0.24 * len(cases) + 0.8) * len(others)), layout="constrained")
        for axes, other in zip(figure.subplots(len(others), squeeze=False).flat, others, strict=True):
            spreads = {case.name: result.ratio(case, result.best(case), other) for case in cases}
            _bars(axes, spreads, [OURS] * len(spreads), f"ratio to {other}")
        return figure
    columns = min(len(cases), 2)
    rows = -(-len(cases) // columns)
    names = list(cases[0].rates)
    figure = Figure(figsize=(5.5 * columns + 1.5, (0.28 * len(names) + 0.8) * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes, case in zip(grid.flat, cases, strict=False):
        _draw(axes, case, result)
    for axes in list(grid.flat)[len(cases) :]:
        axes.set_visible(False)
    return figure


def _draw(axes: Axes, case: Case, result: Benchmark) -> None:
    spreads = {name: Spread.of(rates) for name, rates in case.rates.items()}
    colours = [OURS if name in result.ours else OTHERS for name in spreads]
    _bars(axes, spreads, colours, f"{case.name}, {result.unit}")


def _bars(axes: Axes, spreads: Mapping[str, Spread], colours: Sequence[str], title: str) -> None:
    """Horizontal bars of medians, with the quartiles as whiskers."""
    medians = [spread.median for spread in spreads.values()]
    whiskers = [
        [spread.median - spread.low for spread in spreads.values()],
        [spread.high - spread.median for spread in spreads.values()],
    ]
    axes.barh(list(spreads), medians, color=colours, xerr=whiskers, ecolor="#404040", error_kw={"lw": 1})
    axes.invert_yaxis()
    if max(medians) > LOGARITHMIC * min(medians) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(left=min(medians) / 3)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value).replace(".00", "")))
    axes.set_title(title, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(axis="x", color="#eeeeee")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def write(source: Path, out: Path) -> list[Path]:
    """Writes the page and its charts, and deletes charts that no section has any more; returns what was written.

    Raises:
        ResultError: the source has no results, or a file in it is something else.
    """
    found = sections(read_all(source))
    (out / CHARTS).mkdir(parents=True, exist_ok=True)
    written = [out / PAGE]
    write_atomically(out / PAGE, page(found, source.name).encode())
    # The same data give the same files.
    with mpl.rc_context({"svg.hashsalt": "fastrl", "svg.fonttype": "none"}):
        for section in found:
            for number, (result, cases) in enumerate(section.tables()):
                written.append(out / CHARTS / section.chart(number))
                chart(cases, result).savefig(written[-1], metadata={"Date": None})
    for file in (out / CHARTS).glob("*.svg"):
        if file not in written:
            file.unlink()
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="DIR", help="folder of results, *.json")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the page and charts"
    )
    options = parser.parse_args(arguments)
    try:
        written = write(options.source, options.out)
    except UserError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    print(*(f"Written: {file}" for file in written), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
