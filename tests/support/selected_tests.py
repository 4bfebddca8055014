"""Tests that were selected of a file, for fixtures that compute what all of them need."""

from typing import Any

import pytest


def selected(request: pytest.FixtureRequest, name: str, parameter: str) -> set[Any]:
    """Values of a parameter in the selected cases of a test that lies in the same file as the one that asks.

    Args:
        name: of the test function.
    """
    return {
        item.callspec.params[parameter]
        for item in request.session.items
        if item.path == request.path and getattr(item, "originalname", None) == name
    }
