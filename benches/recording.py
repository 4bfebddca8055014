"""Results of the benches, shown and written as those of ``fastrl bench`` are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastrl.benchmarks.results import Benchmark, Case
from fastrl.benchmarks.tables import speed_table
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show

Record = Callable[..., Benchmark]


def recorder(bench: str, test: str, folder: Path | None, note: str = "") -> Record:
    """A function that shows results and, with a folder, writes them as JSON.

    It is called with a title, the unit, cases (`fastrl.benchmarks.results.Case`, rates by contender, one a round), and
    the names of fastrl's contenders. Other attributes of `Benchmark` are keywords; ``part`` tells apart several results
    of one test.

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
        for case in result.cases:
            show(plain_console(), speed_table(result, case))
        for name, reason in result.left_out.items():
            print(f"{name} is left out: {reason}")
        if folder is not None:
            print(f"Written: {result.write(folder)}")
        return result

    return record
