"""The stubs are the manual of the compiled modules: they must name every item, with its arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="pip install '.[test-all]'")
pytestmark = pytest.mark.slow

# Names that Cython and PyO3 add to every module; stubs leave them out.
ALLOWED = r"fastrl\._native\.\w+\.__(all|test|reduce_cython|setstate_cython)__"
# The stubs use neither; mypy would check PyTorch for a minute.
CONFIG = "[mypy]\n[mypy-fastrl,gymnasium.*,torch.*]\nfollow_imports = skip\n"
STUBS = (Path(__file__).resolve().parent.parent / "python" / "fastrl" / "_native").glob("*.pyi")


def test_stubs_fit_the_compiled_modules(tmp_path: Path) -> None:
    (tmp_path / "allowed").write_text(ALLOWED)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    modules = [f"fastrl._native.{stub.stem}" for stub in STUBS]
    stubtest = [sys.executable, "-m", "mypy.stubtest", "--allowlist", "allowed", "--ignore-unused-allowlist"]
    config = ["--mypy-config-file", "mypy.ini"]
    done = subprocess.run(
        [*stubtest, *config, *modules], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
