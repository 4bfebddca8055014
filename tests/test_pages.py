"""README and documentation: their Python runs, their commands and options exist, their links lead somewhere."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pages
import pytest

import fastrl
from fastrl.cli import main
from fastrl.envs.cage2.baselines import BASELINES

ROOT, README = pages.ROOT, pages.README
if not (ROOT / "docs").exists():
    pytest.skip("a source distribution has no documentation", allow_module_level=True)
OURS = ("fastrl", "fastrl-train")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of what pages use: the run `runs/mine`, the episodes `demos/cart`, the exported policy `cart.onnx`."""
    where = tmp_path_factory.mktemp("pages")
    settings = [
        "--total-timesteps",
        "4096",
        "--run.eval-episodes",
        "0",
        "--run-dir",
        str(where / "runs/mine"),
    ]
    assert main.main_train(["cage2", "--preset", "smoke", *settings]) == 0
    fastrl.demos.record("CartPole-v1", "random", episodes=10, out=where / "demos" / "cart")
    if importlib.util.find_spec("onnxruntime"):
        model = fastrl.PPO("CartPole-v1", num_envs=2, collector="sequential", eval_episodes=0)
        fastrl.export(model, where / "cart.onnx")
    return where


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in pages.PAGES if pages.blocks(page, "python")], ids=pages.name
)
def test_python_of_a_page_runs(
    page: Path, workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pages.name(page) == "docs/guides/export.md":
        pytest.importorskip("onnxruntime", reason="pip install '.[export]'")
    # Pages write runs of the same names.
    own = tmp_path / "work"
    shutil.copytree(workplace, own)
    monkeypatch.chdir(own)
    pages.with_small_budgets(monkeypatch)
    assert pages.run_blocks(page, monkeypatch) > 0


def of(*names: str) -> list[tuple[Path, list[str]]]:
    """The commands of all pages that begin with one of these names, each once."""
    found: dict[tuple[str, ...], Path] = {}
    for page in pages.PAGES:
        for command in pages.commands(page):
            if command[0] in names:
                found.setdefault(tuple(command), page)
    return [(page, list(command)) for command, page in found.items()]


@pytest.mark.parametrize("command", [command for _, command in of(*OURS)], ids=" ".join)
def test_commands_and_their_options_exist(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *words = command
    trains = name == "fastrl-train" or words[0] == "train"
    words = words[1:] if name == "fastrl" and trains else words
    needs_code = any(re.match(r"(my|own|toy|echo)_\w+[.:]|balance:|ferry:|mpe2", word) for word in words)
    files = {"--resume", "--demos"} & set(words)
    if trains and not needs_code and not files:
        # Names and values are checked by the command itself.
        if "--config" in words:
            assert main.main_train([words[0], "--print-config"]) == 0
            file = tmp_path / words[words.index("--config") + 1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(capsys.readouterr().out)
        assert main.main_train([*words, "--print-config"]) == 0
        return
    help_of = ["cage2"] if trains else words[: 2 if words[0] == "demos" else 1]
    with pytest.raises(SystemExit) as left:
        # A run that resumes has the options of its kind.
        (main.main_train if trains else main.main)([*help_of, "--help-all" if trains else "--help"])
    assert left.value.code == 0
    known = set(re.findall(r"--[\w.-]+", capsys.readouterr().out))
    if not (trains and (needs_code or files)):
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known
    for word in words:
        if word.startswith("baseline:"):
            assert word.removeprefix("baseline:") in BASELINES
        if "*" in word:
            assert list(ROOT.glob(word)), f"{word} matches no file"


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for _, c in of("python") if c[2:]], ids=" ".join)
def test_options_of_scripts_exist(command: list[str]) -> None:
    if command[1] == "-m":
        return
    options = {word for word in command if word.startswith("--")}
    script = [sys.executable, str(ROOT / command[1]), "--help"]
    done = subprocess.run(script, check=True, capture_output=True, text=True)
    assert options <= set(re.findall(r"--[\w.-]+", done.stdout))


def test_extras_and_scripts_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {
        extra
        for _, command in of("pip")
        for word in command
        for group in re.findall(r"\[([\w,]+)\]", word)
        for extra in group.split(",")
    }
    assert extras <= set(project["optional-dependencies"])
    assert {command[0] for _, command in of(*OURS)} == set(project["scripts"])


def test_paths_exist() -> None:
    for page, command in of("pytest", "python", "bash"):
        for word in itertools.takewhile(lambda word: not word.startswith("-"), command[1:]):
            assert (ROOT / word).exists(), f"{pages.name(page)}, {' '.join(command)}: there is no {word}"
    folders = "rust|cython|python|tests|benches|build_backend|examples|docs"
    for page in pages.PAGES:
        text = page.read_text(encoding="utf-8")
        for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", text):
            assert (ROOT / path).exists(), f"{pages.name(page)}: there is no {path}"
        for link in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text):
            assert (page.parent / link).exists(), f"{pages.name(page)}: there is no {link}"


def test_the_readme_is_short_and_has_the_commands_that_ci_runs() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert "\npip install . && fastrl-train cage2 " in text
    assert "\npip install '.[test]' && pytest " in text
    assert "\npip install '.[test]' && pytest\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
