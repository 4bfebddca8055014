"""Settings and fixtures of the benches."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from fastrl.benchmarks.results import Benchmark, Case
from fastrl.benchmarks.tables import speed_table
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("benches")
    group.addoption(
        "--bench-out", metavar="DIR", type=Path, help="folder for results as JSON (benches/report.py)"
    )
    group.addoption("--bench-note", metavar="TEXT", default="", help="a remark that the results keep")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch computes on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[..., Benchmark]:
    """Shows results and, with ``--bench-out``, writes them as JSON.

    Called with a title, the unit, cases (`fastrl.benchmarks.results.Case`, rates by contender, one a round), and the
    names of fastrl's contenders; ``about`` says more in a sentence, ``left_out`` has a reason by missing contender.
    """

    def keep(
        title: str,
        unit: str,
        cases: Sequence[Case],
        ours: Sequence[str],
        *,
        about: str = "",
        **more: dict[str, str],
    ) -> Benchmark:
        file = request.path.stem
        result = Benchmark(
            topic=file.removeprefix("bench_"),
            name=request.node.name.removeprefix("test_"),
            title=title,
            unit=unit,
            cases=tuple(cases),
            ours=tuple(ours),
            about=about,
            **more,
        ).stamped(f"pytest benches/{file}.py -s", request.config.getoption("--bench-note"))
        print()
        for case in result.cases:
            show(plain_console(), speed_table(result, case))
        folder = request.config.getoption("--bench-out")
        if folder is not None:
            print(f"Written: {result.write(folder)}")
        return result

    return keep


def pytest_xdist_auto_num_workers() -> int:
    """None: what is measured has the machine to itself."""
    return 0
