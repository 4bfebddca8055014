"""Checks of arguments."""

import re

import numpy as np
import pytest

from fastrl.utils.arguments import as_integer, as_number


def test_integers_of_python_and_numpy_within_bounds():
    for value, least, most in ((3, 0, 3), (np.int64(-2), -2, None), (2**32 - 1, 1, 2**32 - 1)):
        got = as_integer("size", value, least, most)
        assert got == value and type(got) is int


@pytest.mark.parametrize(
    ("value", "most", "error", "message"),
    [
        (True, 9, TypeError, "size: expected an integer, got True"),
        (2.0, 9, TypeError, "size: expected an integer, got 2.0"),
        (0, 9, ValueError, "size: expected 1 to 9, got 0"),
        (10, 9, ValueError, "size: expected 1 to 9, got 10"),
        (0, None, ValueError, "size: expected at least 1, got 0"),
    ],
)
def test_other_values_are_refused_by_name(value, most, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        as_integer("size", value, 1, most)


def test_numbers():
    assert as_number("dt", np.float32(0.5)) == 0.5
    for value in (True, "1", None):
        with pytest.raises(TypeError, match="dt: expected a number, got"):
            as_number("dt", value)
