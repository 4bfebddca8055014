"""Tests that what the README shows works: its Python runs, its commands and their options exist."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fastrl.cli import main
from fastrl.envs.cage2.baselines import BASELINES

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """Every command of the shell examples, without comments and redirections."""
    found: list[list[str]] = []
    for line in "".join(blocks("sh")).splitlines():
        found.append([])
        for word in shlex.split(line, comments=True):
            if word in ("&&", ">"):
                found.append([])
            else:
                found[-1].append(word)
    return [command for command in found if command]


def of(*names: str) -> list[list[str]]:
    chosen = [command for command in commands() if command[0] in names]
    assert chosen, f"the README shows no {names}"
    return chosen


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the README's run, `runs/mine`."""
    where = tmp_path_factory.mktemp("readme")
    settings = [
        "--total-timesteps",
        "4096",
        "--run.eval-episodes",
        "0",
        "--run-dir",
        str(where / "runs" / "mine"),
    ]
    assert main.main_train(["cage2", "--preset", "smoke", *settings]) == 0
    return where


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.splitlines()[-1][:40])
def test_python_examples_run(code: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_the_last_observations_of_the_example_are_there() -> None:
    (code,) = (code for code in blocks("python") if "step_into" in code)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    truncations = names["truncations"]
    assert truncations.any(axis=0).all()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "command", [c for c in commands() if c[0] in ("fastrl", "fastrl-train")], ids=" ".join
)
def test_commands_and_their_options_exist(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *words = command
    command_main = main.main_train if name == "fastrl-train" else main.main
    if name == "fastrl-train" and "--resume" not in words:
        # Names and values are checked by the command itself.
        assert main.main_train(["cage2", "--print-config"]) == 0
        (tmp_path / "mine.toml").write_text(capsys.readouterr().out)
        assert command_main([*words, "--print-config"]) == 0
        return
    subcommand = words[: 2 if words[0] == "demos" else 1]
    with pytest.raises(SystemExit) as left:
        # A run that resumes has the options of its kind.
        command_main([*(subcommand if name == "fastrl" else ["cage2"]), "--help"])
    assert left.value.code == 0
    known = set(re.findall(r"--[\w.-]+", capsys.readouterr().out))
    assert {word for word in words if word.startswith("--")} <= known
    for word in words:
        if word.startswith("baseline:"):
            assert word.removeprefix("baseline:") in BASELINES
        if "*" in word:
            assert list(ROOT.glob(word)), f"{word} matches no file"


@pytest.mark.parametrize("command", [c for c in commands() if c[0] == "python" and c[2:]], ids=" ".join)
def test_options_of_scripts_exist(command: list[str]) -> None:
    options = {word for word in command if word.startswith("--")}
    script = [sys.executable, str(ROOT / command[1]), "--help"]
    done = subprocess.run(script, check=True, capture_output=True, text=True)
    assert options <= set(re.findall(r"--[\w.-]+", done.stdout))


def test_extras_and_scripts_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {extra for command in of("pip") for word in command for extra in re.findall(r"\[(\w+)\]", word)}
    assert extras <= set(project["optional-dependencies"])
    assert {command[0] for command in commands() if command[0].startswith("fastrl")} == set(
        project["scripts"]
    )


def test_paths_exist() -> None:
    for command in of("pytest", "python", "bash"):
        for word in itertools.takewhile(lambda word: not word.startswith("--"), command[1:]):
            assert (ROOT / word).exists(), f"{' '.join(command)}: there is no {word}"
    for path in re.findall(r"`((?:rust|cython|python|tests|benches|build_backend)/[\w./]*)`", TEXT):
        assert (ROOT / path).exists(), f"there is no {path}"
    for link in re.findall(r"\]\(([\w./]+)\)", TEXT):
        assert (ROOT / link).exists(), f"there is no {link}"


def test_the_two_commands_are_those_that_ci_runs() -> None:
    assert "pip install '.[test]' && pytest" in TEXT
    assert "\npip install '.[test]' && pytest\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
