"""Fixtures of tests of algorithms."""

from collections.abc import Iterator

import pytest

from fastrl.utils import torch_threads


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small gain nothing from more, and threads that wait for each other suffer on a busy machine."""
    with torch_threads.one_thread():
        yield
