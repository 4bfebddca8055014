"""Tables of results for the console."""

from rich.table import Table

from fastrl.benchmarks.results import Benchmark, Case, Spread, shown


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
