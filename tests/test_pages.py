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
from typing import Any

import pages
import pytest

import fastrl
from fastrl.cli import main
from fastrl.envs.cage2 import baselines as cage2_baselines
from fastrl.envs.cage4 import baselines as cage4_baselines
from fastrl.utils.command_line import ArgumentParser

ROOT, README = pages.ROOT, pages.README
if not (ROOT / "docs").exists():
    pytest.skip("a source distribution has no documentation", allow_module_level=True)
OURS = ("fastrl", "fastrl-train")
BASELINES = {*cage2_baselines.BASELINES, *cage4_baselines.BASELINES}


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


class ParsedError(Exception):
    """A command line was understood, and the command is not run."""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules that commands import: the examples', and `my_module`, in an empty folder."""
    for folder in (ROOT / "examples", ROOT / "examples" / "recipes", tmp_path):
        monkeypatch.syspath_prepend(str(folder))
    (tmp_path / "my_module.py").write_text(
        "from own_environment import Balance\nfrom own_network import Net\nEnv = make_env = Balance\n"
    )
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", [command for _, command in of(*OURS)], ids=" ".join)
def test_commands_and_their_options_exist(
    command: list[str],
    modules: None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, *words = command
    if "mpe2" in " ".join(words):
        pytest.importorskip("mpe2", reason="pip install '.[pettingzoo]'")
    for word in words:
        if word.startswith("baseline:"):
            assert word.removeprefix("baseline:") in BASELINES
        if "*" in word:
            assert list(ROOT.glob(word)), f"{word} matches no file"
    if name == "fastrl-train" or words[0] == "train":
        # Names and values are checked by the command itself.
        words = words[1:] if name == "fastrl" else words
        if "--resume" in words:
            at = words.index("--resume")
            words[at : at + 2] = ["CartPole-v1"]  # a run that resumes has the options of its kind
        if words[0].startswith("ferry:"):
            words[0] = "CartPole-v1"  # a crate that has to be built
        if "--config" in words:
            assert main.main_train([words[0], "--print-config"]) == 0
            file = tmp_path / words[words.index("--config") + 1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(capsys.readouterr().out)
        assert main.main_train([*words, "--print-config"]) == 0
        return
    parse = ArgumentParser.parse_args

    def stop(*arguments: Any) -> None:
        parse(*arguments)
        raise ParsedError

    monkeypatch.setattr(ArgumentParser, "parse_args", stop)
    with pytest.raises(ParsedError):
        main.main(words)


CODE = ("{code-block}", "{code}", "{sourcecode}")
# Tests run these, ask their commands whether the options exist, or look their lines up in the example.
CHECKED = ("python", "sh", "rust")
NO_CODE = ("text", "bibtex")


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_every_block_runs_or_says_why_not(page: Path) -> None:
    """A block is Python that runs, commands that exist, an excerpt of the compiled example, or follows a line
    ``% not run: REASON``, which readers do not see."""
    crate = ROOT / "examples" / "compiled-env" / "src"
    source = "".join(same_lines(file.read_text(encoding="utf-8")) for file in sorted(crate.glob("*.rs")))
    for block in pages.all_blocks(page):
        kind = block.language.partition(" ")[0]
        what = f"{pages.name(page)}, the block that begins with {block.code.splitlines()[:1]}"
        if block.reason:
            assert kind in CODE or kind == "rust", f"{what} runs: remove the line before it"
            continue
        assert kind not in CODE, f"{what}: let it run, as python or sh, or say why not: % not run: REASON"
        known = (*CHECKED, *NO_CODE)
        assert kind in known or kind.startswith("{"), f"{what}: {kind} should be one of {', '.join(known)}"
        if kind == "rust":
            assert same_lines(block.code) in source, f"{what} is not in examples/compiled-env"
    text = page.read_text(encoding="utf-8")
    fences = len(re.findall(r"^ *```", text, re.MULTILINE))
    assert fences == 2 * len(pages.all_blocks(page)), f"{pages.name(page)} has a fence without a language"


def same_lines(code: str) -> str:
    """The lines without indentation and empty ones."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip()) + "\n"


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
