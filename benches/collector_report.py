"""Tables and plot of `compare_collectors`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from rich.table import Table

from fastrl.collectors.resources import cores
from fastrl.runs.metrics import counted
from rounds import number_table

if TYPE_CHECKING:
    from compare_collectors import Case, Result, Setting


def title(setting: Setting) -> str:
    """The environment, the policy and the machine in a line."""
    options = ", ".join(f"{name}={value}" for name, value in setting.env.options.items())
    env = f"{setting.env.id}({options})" if options else setting.env.id
    acting = "random actions" if setting.hidden is None else f"a network of {setting.hidden} acting"
    return f"{env}, {acting}, {counted(cores(), 'core')}"


def speed_table(results: Sequence[Result], setting: Setting) -> Table:
    """The results as a table."""
    names = ("workers", "episodes/s", "steps/s", "speed-up", "each", "cores", "MiB", "start", "100,000*")
    table = number_table(
        title(setting),
        "collector",
        *names,
        caption="speed-up: steps/s relative to sequential; each: speed-up per worker;\n"
        "cores: busy on average; MiB: peak memory of all processes;\n"
        "start: seconds until the first episode; 100,000*: time for 100,000\n"
        "episodes, extrapolated from the measurement, start included",
    )
    before = ""
    for result in results:
        if before and result.case.method != before:
            table.add_section()
        before = result.case.method
        speed = result.speed
        table.add_row(
            result.case.label,
            str(result.case.workers) if result.case.has_workers else "-",
            f"{speed.episodes_per_second:,.1f}",
            f"{speed.steps_per_second:,.0f}",
            "" if result.speed_up is None else f"{result.speed_up:.2f}",
            "" if result.efficiency is None else f"{result.efficiency:.0%}",
            f"{speed.cores:.2f}",
            f"{speed.memory_mib:,.0f}",
            f"{speed.cold_start:.1f}",
            long_time(result.many_seconds),
        )
    return table


def price_table(results: Sequence[Result], setting: Setting) -> Table:
    """The costs that the executor avoids: barriers, pickled weights, rebuilt environments."""
    by_label = {result.case.label: result for result in results}
    base = by_label["executor"]
    table = number_table(
        f"{counted(base.case.workers, 'worker')}, {title(setting)}",
        "",
        *("episodes/s", "steps/s", "times", "cores", "weights"),
        caption="times: duration relative to the executor; weights: share of the workers' time\nfor reading weights",
    )
    for label, result in by_label.items():
        table.add_row(
            label,
            f"{result.speed.episodes_per_second:,.1f}",
            f"{result.speed.steps_per_second:,.0f}",
            f"{base.speed.steps_per_second / result.speed.steps_per_second:.2f}",
            f"{result.speed.cores:.2f}",
            f"{result.speed.parts.get('weights', 0.0):.2%}",
        )
    return table


def long_time(seconds: float) -> str:
    """``12 s``, ``3.4 min``, ``5.6 h``."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


_COLOURS = {
    "sequential": "#737373",
    "sync": "#d95f0e",
    "executor": "#2a7fb8",
    "native": "#41ab5d",
    "ray": "#6a51a3",
}


def draw(results: Sequence[Result], setting: Setting, path: Path) -> None:
    """Writes `figure_of` as a PNG."""
    figure_of(results, setting).savefig(path, dpi=110)


def figure_of(results: Sequence[Result], setting: Setting) -> Figure:
    """Steps a second, speed-up, memory and cold start by the number of workers."""
    panels: list[tuple[str, Callable[[Result], float | None]]] = [
        ("steps/s", lambda result: result.speed.steps_per_second),
        ("speed-up against sequential", lambda result: result.speed_up),
        ("peak memory, MiB", lambda result: result.speed.memory_mib),
        ("cold start, s", lambda result: result.speed.cold_start),
    ]
    sizes = sorted({result.case.workers for result in results})
    figure = Figure(figsize=(11, 7), layout="constrained")
    for axes, (name, value) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        lines = list(_lines(results, value))
        heights = [y for _, points in lines for _, y in points]
        for case, points in lines:
            style = {"color": _COLOURS.get(case.method, "black"), "label": case.method}
            if case.has_workers:
                axes.plot(*zip(*points, strict=True), "o-", **style)
            else:
                axes.axhline(points[0][1], linestyle="--", **style)
        if name.startswith("speed-up"):
            axes.plot(sizes, sizes, ":", color="#bdbdbd", label="ideal")
        axes.set(title=name, xlabel="workers", xscale="log", xticks=sizes, xticklabels=sizes)
        if heights and max(heights) > 20 * min(heights) > 0:
            axes.set_yscale("log")
            # Powers of ten alone may be one tick.
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        else:
            axes.set_ylim(bottom=0)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.grid(color="#eeeeee")
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.legend(
        *figure.axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False
    )
    figure.suptitle(title(setting))
    return figure


def _lines(
    results: Sequence[Result], value: Callable[[Result], float | None]
) -> Iterator[tuple[Case, list[tuple[int, float]]]]:
    """A case of each method that has points, and the points: workers and value."""
    for method in dict.fromkeys(result.case.method for result in results):
        chosen = [result for result in results if result.case.method == method]
        points = [(result.case.workers, y) for result in chosen if (y := value(result)) is not None]
        if points:
            yield chosen[0].case, sorted(points)
