"""The package as a stranger gets it: sdist, wheel, a fresh environment far from the sources, a training."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import quick_build

pytestmark = pytest.mark.slow
pytest.importorskip("build", reason="pip install '.[test-all]'")
pytest.importorskip("maturin", reason="pip install '.[test-all]'")
pytest.importorskip("Cython", reason="pip install '.[test-all]'")

ROOT = Path(__file__).resolve().parent.parent
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
MODULES = ["_rust", *sorted(source.stem for source in (ROOT / "cython").glob("*.pyx"))]
# The repository's own builds have compiled the dependencies of the Rust crates.
QUICK_BUILD = {
    "CARGO_TARGET_DIR": str(ROOT / "target"),
    "MATURIN_PEP517_ARGS": " ".join(quick_build.CARGO),
    **quick_build.CYTHON,
}
COMPILED = {f"fastrl/_native/{name}{SUFFIX}" for name in MODULES}


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Runs a command with the tools of this interpreter's environment; returns what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"PATH": path}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (archive,) = out.glob("fastrl-*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def sources(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist, with what earlier builds of other kinds would have left in it."""
    out = tmp_path_factory.mktemp("sources")
    with tarfile.open(sdist) as archive:
        archive.extractall(out, filter="data")
    (tree,) = out.iterdir()
    (tree / "python/fastrl/_native/_returns.cpython-38-x86_64-linux-gnu.so").write_bytes(b"of another Python")
    (tree / f"python/fastrl/_native/_deleted{SUFFIX}").write_bytes(b"of a source that is gone")
    (tree / f"python/fastrl/envs/_strange{SUFFIX}").write_bytes(b"from who knows where")
    return tree


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    run(*pip_wheel, "--wheel-dir", out, sources, cwd=out, **QUICK_BUILD)
    (built,) = out.glob("fastrl-*.whl")
    return built


def fresh_environment(where: Path, *package: str | Path) -> Path:
    """A new virtual environment with the package in it and the rest from this one; returns its bin folder."""
    venv.create(where, with_pip=False)
    (site,) = where.glob("lib/python*/site-packages")
    # The last in order: what is installed here, an older fastrl too, comes after what is installed there.
    (site / "zzz_outer.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", where / "bin" / "python", "install", "--ignore-installed"]
    offline = ["--no-deps", "--no-index", "--no-build-isolation", "--no-cache-dir"]
    run(*pip, *offline, *package, cwd=where, **QUICK_BUILD)
    return where / "bin"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_environment(tmp_path_factory.mktemp("fresh"), wheel)


def test_the_sdist_has_the_sources_and_nothing_that_was_built(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {str(Path(*Path(name).parts[1:])) for name in archive.getnames()}
    for needed in ("Cargo.toml", "Cargo.lock", "README.md", "LICENSE", "pyproject.toml", "PKG-INFO"):
        assert needed in names
    tree = [ROOT / folder for folder in ("build_backend", "cython", "python", "rust", "tests")]
    sources = {
        str(path.relative_to(ROOT))
        for folder in tree
        for pattern in ("*.py", "*.pyi", "*.pyx", "*.pxd", "*.rs", "*.toml", "py.typed")
        for path in folder.rglob(pattern)
    }
    assert sources - names == set()
    strange = [name for name in names if name.endswith((".so", ".pyc", ".c", ".whl")) or "target/" in name]
    assert strange == []


def test_the_wheel_has_every_module_and_no_foreign_one(sources: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert {name for name in names if name.endswith((".so", ".pyd"))} == COMPILED
    package = sources / "python"
    plain = {
        str(path.relative_to(package))
        for pattern in ("*.py", "*.pyi", "py.typed", "*.net.xml", "*.rou.xml", "presets.toml")
        for path in (package / "fastrl").rglob(pattern)
    }
    assert {name for name in names if ".dist-info/" not in name} == plain | COMPILED
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{python}-{python}-" in wheel.name
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert wheel.name.startswith(f"fastrl-{version}-")
    assert f"\nVersion: {version}\n" in metadata


def test_the_wheel_has_the_licences_of_what_is_compiled_into_it(wheel: Path) -> None:
    run(sys.executable, ROOT / "build_backend" / "third_party.py", "--check", cwd=ROOT)
    files = [ROOT / "LICENSE", *sorted((ROOT / "licenses").iterdir())]
    with zipfile.ZipFile(wheel) as archive:
        licences = {
            name.partition(".dist-info/licenses/")[2]: archive.read(name)
            for name in archive.namelist()
            if ".dist-info/licenses/" in name and not name.endswith("/")
        }
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        declared = re.findall(r"^License-File: (.*)$", archive.read(metadata).decode(), re.MULTILINE)
    assert licences == {str(file.relative_to(ROOT)): file.read_bytes() for file in files}
    assert sorted(declared) == sorted(licences)


def test_only_what_is_linked_is_listed_and_a_changed_list_is_noticed(tmp_path: Path) -> None:
    listed = set(
        re.findall(r"^([\w-]+) [\d.]+: ", (ROOT / "licenses/rust-crates.txt").read_text(), re.MULTILINE)
    )
    assert {"pyo3", "serde", "libc", "numpy"} <= listed  # numpy: PyO3's bindings
    assert listed.isdisjoint({"fastrl-core", "proptest", "criterion", "loom", "syn", "serde_derive", "cc"})
    shutil.copytree(ROOT / "build_backend", tmp_path / "build_backend")
    for name in ("Cargo.toml", "Cargo.lock", "rust", "benches", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "licenses").mkdir()
    (tmp_path / "licenses" / "rust-crates.txt").write_text("bitflags 0.1.0: MIT\n")
    check = [sys.executable, "build_backend/third_party.py", "--check"]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "does not match Cargo.lock: run third_party.py" in done.stderr


def test_a_fresh_environment_trains_and_evaluates(installed: Path, tmp_path: Path) -> None:
    code = (
        "import fastrl, json, importlib, sys\n"
        "modules = [importlib.import_module(name) for name in sys.argv[1:]]\n"
        "print(json.dumps([module.__file__ for module in modules]))"
    )
    names = ["fastrl", *(f"fastrl._native.{name}" for name in MODULES)]
    for file in json.loads(run(installed / "python", "-c", code, *names, cwd=tmp_path)):
        assert Path(file).is_relative_to(installed.parent), f"{file} is not of the fresh environment"

    settings = [
        "--preset",
        "smoke",
        "--total-timesteps",
        "4096",
        "--run.eval-episodes",
        "2",
        "--run-dir",
        "mine",
    ]
    run(installed / "fastrl-train", "cage2", *settings, cwd=tmp_path)
    summary = json.loads((tmp_path / "mine" / "summary.json").read_text())
    assert summary["status"] == "complete"
    assert summary["steps"] >= 4096
    output = run(
        *(installed / "fastrl", "eval", "mine", "--episodes", "2", "--ruleset", "main", "--json"),
        cwd=tmp_path,
    )
    evaluation, _ = json.loads(output)["runs"]
    assert evaluation["ruleset"] == "main"


def test_an_editable_install_imports_the_sources(sources: Path, wheel: Path, tmp_path: Path) -> None:
    # The call that `pip install -e` makes to the backend. With pip itself the new environment's own interpreter would
    # build, and PyO3 compiles everything again for each interpreter.
    code = (
        "import pyproject_hooks, sys\n"
        "hooks = pyproject_hooks.BuildBackendHookCaller(sys.argv[1], 'fastrl_backend', ['build_backend'])\n"
        "hooks.build_editable(sys.argv[2])"
    )
    run(sys.executable, "-c", code, sources, tmp_path, cwd=tmp_path, **QUICK_BUILD)
    (editable,) = tmp_path.glob("fastrl-*.whl")
    binaries = fresh_environment(tmp_path / "fresh", editable)
    code = (
        "import fastrl, fastrl._native._rust, fastrl._native._returns;"
        " print(fastrl.__file__, fastrl._native._returns.__file__)"
    )
    for file in run(binaries / "python", "-c", code, cwd=tmp_path).split():
        assert Path(file).is_relative_to(sources / "python" / "fastrl")


def test_a_cython_module_may_not_be_named_like_the_rust_one(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "build_backend", tmp_path / "build_backend")
    (tmp_path / "cython").mkdir()
    (tmp_path / "cython" / "_rusty.pyx").write_text("x = 1\n")
    backend = [sys.executable, "build_backend/fastrl_backend.py"]
    done = subprocess.run(backend, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "a Cython module's name may not begin with '_rust'" in done.stderr
