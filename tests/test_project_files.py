"""Files about the project that repeat one another: the version, the Python versions, the names of commands."""

from __future__ import annotations

import importlib.util
import json
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


def dockerfile() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, each with its arguments in one line."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split(maxsplit=1)[0], " ".join(line.split()[1:])) for line in lines]


def test_the_image_runs_as_an_ordinary_user() -> None:
    instructions = dockerfile()
    users = [(place, user) for place, (name, user) in enumerate(instructions) if name == "USER"]
    made = re.findall(r"useradd (?:--\S+ (?:\d+ )?)*(\w+)", instructions[1][1])
    assert [user for _, user in users] == made and "root" not in made
    # What it writes to is its own: what is made before the instruction USER is given to it.
    given = re.search(rf"chown --recursive {made[0]}:{made[0]} ([^&]+)", instructions[1][1])
    assert given is not None
    environment = dict(
        pair.split("=", 1) for name, rest in instructions if name == "ENV" for pair in rest.split()
    )
    folders = {environment["VIRTUAL_ENV"], *(rest for name, rest in instructions if name == "WORKDIR")}
    assert set(given[1].split()) == folders
    assert all(
        place > users[0][0] for place, (name, _) in enumerate(instructions) if name in ("COPY", "WORKDIR")
    )
    assert all(f"--chown={made[0]}:{made[0]} " in rest for name, rest in instructions if name == "COPY")


def test_documented_lines_keep_the_runs_of_a_container() -> None:
    instructions = dockerfile()
    volumes = [json.loads(rest) for name, rest in instructions if name == "VOLUME"]
    workdir = [rest for name, rest in instructions if name == "WORKDIR"][-1]
    # New run directories are made in runs/ of the current directory.
    assert volumes == [[f"{workdir}/runs"]]
    assert f"{workdir}/runs" in re.findall(r"mkdir -p ([^&]+)", instructions[1][1])[0].split()
    texts = [ROOT / "Dockerfile", ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    lines = [
        line for path in texts for line in re.findall("docker run [^\n]*", path.read_text(encoding="utf-8"))
    ]
    assert len(lines) >= 5
    for line in lines:
        if "pytest" not in line:
            assert re.search(rf" -v [\w-]+:{workdir}/runs fastrl\b", line), line


def test_the_image_keeps_the_rules_of_dockerfiles() -> None:
    instructions = dockerfile()
    (_, base), *_ = instructions
    assert (
        instructions[0][0] == "FROM"
        and re.fullmatch(r"[\w/]+:[\w.-]+", base)
        and not base.endswith(":latest")
    )
    for name, rest in instructions:
        assert name in ("FROM", "RUN", "USER", "ENV", "WORKDIR", "COPY", "VOLUME", "CMD")
        if "apt-get install" in rest:
            assert "apt-get update" in rest and "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists/*" in rest
        if "pip install" in rest:
            assert "--no-cache-dir" in rest
        if name == "WORKDIR":
            assert rest.startswith("/")
    assert [name for name, _ in instructions].count("CMD") == 1
    assert json.loads(instructions[-1][1])[0] in PROJECT["project"]["scripts"]


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
