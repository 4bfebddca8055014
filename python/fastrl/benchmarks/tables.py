"""Tables of results for the console."""

from rich.table import Table

from fastrl.benchmarks.results import Benchmark, Case, Spread, shown


def speed_table(result: Benchmark, case: Case) -> Table:
    """Median, quartiles and the ratio of our best contender to each other one."""
    spreads = {name: Spread.of(rates) for name, rates in case.rates.items()}
    best = result.best(case)
    title = result.title if case.name == result.title else f"{result.title}: {case.name}"
    table = Table(title=f"{title}, {result.unit}", caption=f"ratio: {best} divided by the other one")
    table.add_column("", overflow="fold")
    for name in ("median", "quartiles", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, spread in spreads.items():
        ratio = ""
        if name not in result.ours:
            of = case.ratio(best, name)
            ratio = f"{shown(of.median)} ({shown(of.low)} to {shown(of.high)})"
        table.add_row(name, shown(spread.median), f"{shown(spread.low)} to {shown(spread.high)}", ratio)
    return table
