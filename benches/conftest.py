"""Settings and fixtures of the benches."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch computes on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_xdist_auto_num_workers() -> int:
    """None: what is measured has the machine to itself."""
    return 0
