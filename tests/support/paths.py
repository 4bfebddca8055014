"""Folders of the tests, for programs that tests start."""

import os
from pathlib import Path

import fastrl

SUPPORT = Path(__file__).resolve().parent
GOLDEN = SUPPORT / "golden"
ROOT = SUPPORT.parents[1]
BENCHES = ROOT / "benches"


def import_path(place: str | Path = SUPPORT) -> str:
    """PYTHONPATH for a program that imports what the tests do: helpers of tests and of benchmarks, and the package as
    it was imported here, installed or in its sources.

    Args:
        place: a folder, or a file whose folder is meant, such as the ``__file__`` of a test module.
    """
    folder = Path(place) if Path(place).is_dir() else Path(place).parent
    inherited = [path for path in [os.environ.get("PYTHONPATH", "")] if path]
    package = Path(fastrl.__file__).parent.parent
    return os.pathsep.join([*map(str, dict.fromkeys((folder, SUPPORT, BENCHES, package))), *inherited])
