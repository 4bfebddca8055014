"""Settings and fixtures of the benches."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fastrl.utils import torch_threads
from recording import Record, recorder


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("benches")
    group.addoption(
        "--bench-out", metavar="DIR", type=Path, help="folder for results as JSON (benches/report.py)"
    )
    group.addoption("--bench-note", metavar="TEXT", default="", help="a remark that the results keep")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch computes on one thread."""
    with torch_threads.one_thread():
        yield


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Shows results and, with ``--bench-out``, writes them as JSON: `recording.recorder`."""
    options = request.config.getoption
    return recorder(request.path.stem, request.node.name, options("--bench-out"), options("--bench-note"))


def pytest_xdist_auto_num_workers() -> int:
    """None: what is measured has the machine to itself."""
    return 0
