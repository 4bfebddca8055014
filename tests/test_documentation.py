"""The documentation's checks, and its reference: every public name is in it, every command, every setting."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fastrl.algorithms import algorithms
from fastrl.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
MODULES = [
    "fastrl",
    "fastrl.callbacks",
    "fastrl.demos",
    "fastrl.envs",
    "fastrl.envs.adapters",
    "fastrl.envs.roads",
    "fastrl.loggers",
    "fastrl.queue",
    "fastrl.replay",
    "fastrl.runtime",
    "fastrl.testing",
]

pytestmark = pytest.mark.skipif(not REFERENCE.exists(), reason="a source distribution has no docs")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def documented() -> set[str]:
    """Full names of all that the pages of the API describe, each by a directive of its own."""
    pages = (path.read_text(encoding="utf-8") for path in (REFERENCE / "api").glob("*.md"))
    text = "\n".join(pages)
    return {
        *re.findall(r"^\.\. (?:auto\w+|py:\w+):: ([\w.]+)", text, re.M),
        *re.findall(r"^   :as: ([\w.]+)", text, re.M),
    }


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    module = importlib.import_module(name)
    own = [each for each, value in vars(module).items() if getattr(value, "__module__", "") == name]
    public = getattr(module, "__all__", [each for each in own if not each.startswith("_")])
    assert public
    assert sorted(f"{name}.{each}" for each in public if f"{name}.{each}" not in documented()) == []


def test_no_name_of_the_reference_is_gone() -> None:
    for full in documented():
        module, _, name = full.rpartition(".")
        is_module = module == "" or full in MODULES or full.startswith("fastrl._native")
        assert is_module or hasattr(importlib.import_module(module), name), f"there is no {full}"


def test_every_stub_is_in_the_reference() -> None:
    stubs = (ROOT / "python" / "fastrl" / "_native").glob("*.pyi")
    text = (REFERENCE / "api" / "native.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"stub:: fastrl\._native\.(\w+)", text)) == sorted(path.stem for path in stubs)


def test_every_command_and_algorithm_has_a_page() -> None:
    commands = (REFERENCE / "command-line.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"\n```{{command}} fastrl {command}" in commands, command
    for algorithm in algorithms():
        page = (ROOT / "docs" / "algorithms" / f"{algorithm}.md").read_text(encoding="utf-8")
        assert f"\n```{{settings}} {algorithm}\n" in page, algorithm


def test_every_section_of_settings_is_in_the_reference() -> None:
    """Those of algorithms are on their pages; bases are listed as a part of what is made of them."""
    text = (REFERENCE / "settings.md").read_text(encoding="utf-8")
    shown = {name.partition(":")[2] for name in re.findall(r"{settings} (\S+:\w+)", text)}
    package = ROOT / "python" / "fastrl"
    found = {
        name
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] != "algorithms"
        for name in re.findall(r"^@section\nclass (\w+)", path.read_text(encoding="utf-8"), re.M)
    }
    assert found - shown == {"DrawConfig", "GameConfig", "OpponentsConfig", "TuneSettings"}


def test_long_sentences_and_doubled_words_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prose = script("prose")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        f"# Title\n\n{'Some `of the` words. ' * 40}\n\n```sh\n{'word ' * 60}\n```\n\n- The the end.\n"
    )
    assert list(prose.problems(page)) == []
    page.write_text(f"A page. It has {'many other ' * 22}words\n\n- It has the\n  the end.\n")
    long, doubled = prose.problems(page)
    assert long.startswith("page.md:1: a sentence of 47 words") and doubled.startswith("page.md:3: the the")


def test_dead_links_are_found(tmp_path: Path) -> None:
    links = script("links")
    (tmp_path / "b.html").write_text('<h1 id="here">B</h1><a href="#gone">x</a>')
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">x</a><a href="b.html#there">x</a><img src="c.png"><a href="https://x.org/y">x</a>'
    )
    assert list(links.dead_links(tmp_path)) == [
        "a.html: b.html#there leads to no heading",
        "a.html: c.png leads to no file",
        "b.html: #gone leads to no heading",
    ]
    assert links.main(str(tmp_path)) == 1


def test_tables_of_settings_and_stubs_have_what_the_code_has(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx", reason="pip install '.[docs]'")
    monkeypatch.syspath_prepend(ROOT / "docs" / "_extensions")
    tables = importlib.import_module("fastrl_tables")
    table = tables.settings_table(algorithms()["ppo"].config_type)
    assert "| `num_epochs` | `4` | passes over the rollout in an update (`INT`, ≥ 1) |" in table
    assert "| `memory` | `none` |" in table and "(`none\\|gru\\|lstm`)" in table
    assert "| actions | Discrete, Box |\n| collectors | sequential, sync," in tables.uses_table("sac")
    assert "usage: fastrl eval" in tables.help_text(["eval"])
    docstrings = importlib.import_module("fastrl_docstrings")
    fence = ["A queue.", "```python", "q.get()", "```", "of [N, *S]", "n: K."]
    assert docstrings.as_rst(fence) == [
        "A queue.",
        ".. code-block:: python",
        "",
        "   q.get()",
        "",
        "of [N, \\*S]",
        "n: K\\.",
    ]


def test_every_environment_has_a_picture_that_the_script_draws() -> None:
    pages = ROOT / "docs" / "environments"
    texts = {path.stem: path.read_text(encoding="utf-8") for path in pages.glob("*.md")}
    # Three pages more about CAGE 2, two about CAGE 4, and the table of all.
    without = {name for name, text in texts.items() if "](pictures/" not in text}
    more = {"cage2-observations", "cage2-scenarios", "cage2-cyborg", "cage4-training", "cage4-cyborg"}
    assert without == {"index", *more}
    drawn = set(importlib.import_module("draw_environments").PICTURES)
    assert {path.stem for path in (pages / "pictures").glob("*.png")} == drawn
    assert set(re.findall(r"\]\(pictures/([\w-]+)\.png\)", "".join(texts.values()))) == drawn
