"""Folders of the tests, for programs that tests start."""

import os
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
GOLDEN = SUPPORT / "golden"
ROOT = SUPPORT.parents[1]


def import_path(test: str) -> str:
    """PYTHONPATH for a program that imports a test module, given the module's ``__file__``."""
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(Path(test).parent), str(SUPPORT), *([inherited] if inherited else [])])
