"""Files about the project that repeat one another: the version, the Python versions, the names of commands."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]

pytestmark = pytest.mark.skipif(
    not (ROOT / "CHANGELOG.md").exists(), reason="a source distribution has no such files"
)


@pytest.fixture(scope="module")
def build_wheels() -> ModuleType:
    loader = SourceFileLoader("build_wheels", str(ROOT / "scripts" / "build-wheels"))
    spec = importlib.util.spec_from_loader("build_wheels", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_changelog_has_the_version_and_its_date() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    assert versions[0] == VERSION
    assert versions == sorted(versions, key=lambda v: [int(part) for part in v.split(".")], reverse=True)
    assert text.index("## [Unreleased]") < text.index(f"## [{VERSION}]")


def test_the_citation_names_the_version_and_the_date_of_the_changelog() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {VERSION}\n" in text
    (date,) = re.findall(r'^date-released: "(.*)"$', text, re.MULTILINE)
    assert f"## [{VERSION}] - {date}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_tests_that_interrupt_run_in_the_background_too() -> None:
    """Tests that interrupt pass where signals are ignored, as under ``nohup pytest &``."""

    def ignore() -> None:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    test = "tests/training/test_run.py::test_asked_to_stop_it_is_noted"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-q", test],
        cwd=ROOT,
        preexec_fn=ignore,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_python_versions_agree(build_wheels: ModuleType) -> None:
    """The wheels' versions are those of cibuildwheel; the first is the oldest that is allowed."""
    identifiers = PROJECT["tool"]["cibuildwheel"]["build"].split()
    assert identifiers == [f"cp{version.replace('.', '')}-*" for version in build_wheels.VERSIONS]
    assert PROJECT["project"]["requires-python"] == f">={build_wheels.VERSIONS[0]}"


def test_scripts_find_interpreters(build_wheels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    assert build_wheels.version_of(sys.executable) == version
    monkeypatch.setattr(build_wheels, "VERSIONS", (version, "3.99"))
    monkeypatch.setenv("PYENV_ROOT", str(ROOT / "nowhere"))
    monkeypatch.setattr(build_wheels.shutil, "which", {f"python{version}": sys.executable}.get)
    assert list(build_wheels.found_pythons()) == [sys.executable]


def test_a_failing_command_ends_the_script_with_its_output(build_wheels: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"(?s)what went wrong.*failed with exit code 3"):
        build_wheels.run(sys.executable, "-c", "print('what went wrong'); exit(3)", cwd=tmp_path)


def test_the_smoke_test_of_wheels_passes_here() -> None:
    script = ROOT / "scripts" / "smoke_test.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.endswith("works\n"), done.stderr
