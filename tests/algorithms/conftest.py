"""Fixtures of the tests of algorithms."""

import pytest


@pytest.fixture(autouse=True)
def _small_networks(one_thread: None) -> None:
    """All of these tests have small networks."""
