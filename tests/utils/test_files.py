import json
import math
import os
from pathlib import Path

import pytest

from fastrl.utils.files import to_json, write_atomically


def test_files_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old and long")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_standard() -> None:
    text = to_json(
        {"nan": math.nan, "list": [math.inf, 1.5, "ü"], "tuple": (1, None), "deep": {"x": -math.inf}}
    )
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text) == {
        "nan": None,
        "list": [None, 1.5, "ü"],
        "tuple": [1, None],
        "deep": {"x": None},
    }
