"""Results that pages of the documentation show: tables of trainings with seeds and spread, tables of speed."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
RESULTS = sorted((DOCS / "benchmarks" / "results").glob("*.toml"))
PRESETS = sorted((ROOT / "python" / "fastrl" / "tasks").glob("*/presets.toml"))
if not RESULTS:
    pytest.skip("a source distribution has no documentation", allow_module_level=True)


@pytest.fixture
def directives(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("sphinx", reason="pip install '.[docs]'")
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    return importlib.import_module("fastrl_results")


def shown(directive: str) -> set[str]:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    return {
        name for found in re.findall(rf"^```{{{directive}}} (.+)$", pages, re.M) for name in found.split()
    }


def test_a_table_has_each_seed_and_their_spread(directives: ModuleType) -> None:
    tree: dict[str, Any] = {
        "score": "share that arrives",
        "unit": "%",
        "digits": 1,
        "mark": "best",
        "groups": [
            {"contender": "ours", "steps": 20_000, "mark": 99, "note": "a note", "cpu_seconds": [4, 9]},
            {"contender": "theirs", "steps": 20_000, "digits": 0},
        ],
    }
    tree["groups"][0]["runs"] = [{"seed": seed, "score": 90.0 + seed} for seed in range(5)]
    tree["groups"][1]["runs"] = [{"score": 1000.0, "cpu_seconds": 7}]
    assert directives.results_table(tree).splitlines() == [
        "|  | steps | best | seeds | each seed | mean | CPU seconds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| ours (a note) | 20,000 | 99 | 0 to 4 | 90.0, 91.0, 92.0, 93.0, 94.0% | 92.0 ± 1.6% | 4 to 9 |",
        "| theirs | 20,000 |  | one | 1,000% | 1,000% | 7 |",
        "",
        "Share that arrives; ± is the standard deviation over seeds.",
    ]


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_a_file_of_results_makes_a_table_that_a_page_shows(file: Path, directives: ModuleType) -> None:
    tree = tomllib.loads(file.read_text(encoding="utf-8"))
    known = {"environment", "command", "contender", "steps", "mark", "note", "digits", "cpu_seconds", "runs"}
    for group in tree["groups"]:
        assert set(group) <= known
        seeds = [run["seed"] for run in group["runs"] if "seed" in run]
        assert group["runs"] and len(set(seeds)) == len(seeds)
    assert directives.results_table(tree).count("\n| ") == len(tree["groups"]) + 1
    assert file.stem in shown("results")


def test_every_table_that_a_page_shows_has_data(directives: ModuleType) -> None:
    assert shown("results") == {file.stem for file in RESULTS}
    speed = shown("speed")
    assert speed
    for name in speed:
        files = directives.found(name)
        tables = directives.speed_tables(files)
        for case, *_ in (directives.read(file).cases for file in files):
            # Many cases have a row each, few a column each.
            assert re.search(rf"^\| (.* \| )?{re.escape(next(iter(case.rates)))} \| ", tables, re.MULTILINE)
            assert f"| {case.name} |" in tables
    with pytest.raises(ValueError, match="there are no results none-such"):
        directives.found("none-such")


@pytest.mark.parametrize("file", PRESETS, ids=lambda file: file.parent.name)
def test_each_file_of_results_that_a_preset_cites_has_runs_of_it(file: Path, directives: ModuleType) -> None:
    presets = importlib.import_module("fastrl_presets")
    tree = tomllib.loads(file.read_text(encoding="utf-8"))
    table = presets.presets_table(tree)
    assert table.count("\n") == len(tree["presets"]) + 1
    for name, preset in tree["presets"].items():
        for cited in preset.get("results", ()):
            found = list(presets.reached(cited, name, presets.patterns_of(tree, name)))
            assert found, f"{file}: {name} cites {cited}, which has no run of it"
            assert all(text in table for text in found)


def test_results_of_peers_and_of_other_presets_are_not_those_of_a_preset(directives: ModuleType) -> None:
    presets = importlib.import_module("fastrl_presets")
    patterns = ["CartPole-*"]
    assert presets.is_of({"environment": "CartPole-v1", "contender": "fastrl, PPO"}, "classic", patterns)
    assert presets.is_of({"command": "fastrl train CartPole-v1 --algo dqn"}, "classic", patterns)
    assert presets.is_of({"command": "fastrl train CartPole-v1 --preset rainbow"}, "rainbow", [])
    for group in (
        {"environment": "CartPole-v1", "contender": "Stable-Baselines3, PPO"},
        {"environment": "Acrobot-v1", "contender": "fastrl, PPO"},
        {"command": "fastrl train CartPole-v1 --preset rainbow"},
    ):
        assert not presets.is_of(group, "classic", patterns)
