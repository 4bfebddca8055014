"""CI's audit of the Rust crates: what it must find. The registry, which knows what is yanked, is not asked here."""

from __future__ import annotations

import datetime
import importlib.util
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / ".ci" / "audit.py"
REGISTRY = "registry+somewhere/crates.io-index"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="a source distribution has no .ci")


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("version", "requirement", "expected"),
    [
        ("0.24.1", ">= 0.24.1", True),
        ("0.24.0", ">= 0.24.1", False),
        ("0.24.10", ">=0.24.9", True),
        ("0.2.8", ">= 0.2.9, < 0.3.0", False),
        ("0.3.0", ">= 0.2.9, < 0.3.0", False),
        ("0.2.9", ">= 0.2.9, < 0.3.0", True),
        ("1.9.0", "^1.2", True),
        ("2.0.0", "^1.2", False),
        ("1.1.9", "1.2", False),
        ("0.3.9", "^0.3.1", True),
        ("0.4.0", "^0.3.1", False),
        ("0.0.4", "^0.0.3", False),
        ("0.9.0", "^0", True),
        ("1.2.9", "~1.2.3", True),
        ("1.3.0", "~1.2.3", False),
        ("1.3.7", "= 1.3", True),
        ("1.4.0", "=1.3", False),
        ("1.5.0+zip", "<= 1.5", True),
        ("1.5.1", "> 1.5", True),
    ],
)
def test_requirements_are_cargos(audit: ModuleType, version: str, requirement: str, expected: bool) -> None:
    assert audit.fits(version, requirement) is expected


def test_a_vulnerable_an_unknown_and_a_foreign_crate_are_found(audit: ModuleType) -> None:
    extract = tomllib.loads(audit.EXTRACT.read_text(encoding="utf-8"))
    assert isinstance(extract["date"], datetime.date)
    crates = [
        {"name": "pyo3", "version": "0.24.0", "source": REGISTRY, "checksum": "1"},
        {"name": "crossbeam-deque", "version": "0.8.0", "source": REGISTRY, "checksum": "2"},
        {"name": "crossbeam-deque", "version": "0.8.1", "source": REGISTRY, "checksum": "3"},
        {"name": "new-here", "version": "1.0.0", "source": "git+somewhere"},
    ]
    found = audit.vulnerable(crates, extract)
    assert [line.split(",")[0] for line in found if "RUSTSEC-2025-0020" in line or "deque" in line] == [
        "crossbeam-deque 0.8.0: RUSTSEC-2021-0093",
        "pyo3 0.24.0: RUSTSEC-2025-0020",
    ]
    assert "new-here: not in advisories.toml; write it again with --update" in found
    (foreign,) = audit.foreign(crates)
    assert foreign.startswith("new-here 1.0.0: from git+somewhere")


def test_the_extract_is_of_the_locked_crates(audit: ModuleType) -> None:
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    extract = tomllib.loads(audit.EXTRACT.read_text(encoding="utf-8"))
    assert audit.vulnerable([crate for crate in lock if "source" in crate], extract) == []


def test_an_extract_is_read_from_a_database(audit: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "crates" / "some"
    folder.mkdir(parents=True)
    for number, more in (("1", ""), ("2", 'withdrawn = "2026-01-01"\n')):
        (folder / f"RUSTSEC-{number}.md").write_text(
            f'```toml\n[advisory]\nid = "RUSTSEC-{number}"\npackage = "some"\ndate = "2025-01-01"\n{more}'
            '[versions]\npatched = [">= 1.1"]\n```\n\n# Words\n'
        )
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    extract = tomllib.loads(audit.extracted(tmp_path, {"some", "other"}))
    assert extract["crates"] == ["other", "some"]
    assert extract["advisory"] == [
        {"id": "RUSTSEC-1", "package": "some", "date": "2025-01-01", "patched": [">= 1.1"], "unaffected": []}
    ]
