"""Presets in TOML files: how they extend each other, and that those of the package have nothing but settings."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fastrl.algorithms import algorithms
from fastrl.runs.settings import table_of
from fastrl.tasks import find, tasks
from fastrl.tasks.preset_file import PresetFile
from fastrl.utils.config import Leaf, Preset, leaves, load_toml

FILES = {
    name: path
    for name, folder in tasks().items()
    if (path := Path(folder.__file__).with_name("presets.toml")).exists()
}
FILE = """
[tables]
both = ["ppo", "async_ppo"]

[ids]
"Pole-*" = ["long", "deep"]
"Pole*" = []

[algorithms]
"Park-*" = "sac"

[parts.base]
env.num_envs = 4
both = { gamma = 0.9, hidden = [64, 64] }
with.both.run.seed = 1

[presets.long]
description = "long runs"
extends = ["base"]
env.options = ["x=1"]
ppo.gamma = 0.99

[presets.deep]
description = "long and deep"
extends = ["long", "base"]
for_any_algorithm = true
both.hidden = [8]
with.ppo.run.seed = 2
"""


@pytest.fixture
def presets(tmp_path: Path) -> PresetFile:
    path = tmp_path / "presets.toml"
    found = PresetFile(path)  # which is read when a preset is needed
    path.write_text(FILE)
    return found


def test_a_preset_goes_on_top_of_what_it_extends(presets: PresetFile) -> None:
    assert list(presets) == ["long", "deep"] and len(presets) == 2 and "base" not in presets
    seeds = {"ppo": {"run": {"seed": 1}}, "async_ppo": {"run": {"seed": 1}}}
    assert presets["long"] == Preset(
        "long runs",
        {
            "env": {"num_envs": 4, "options": ["x=1"]},
            "ppo": {"gamma": 0.99, "hidden": [64, 64]},
            "async_ppo": {"gamma": 0.9, "hidden": [64, 64]},
        },
        seeds,
    )
    assert presets["deep"] == Preset(
        "long and deep",
        {
            "env": {"num_envs": 4, "options": ["x=1"]},
            "ppo": {"gamma": 0.9, "hidden": [8]},
            "async_ppo": {"gamma": 0.9, "hidden": [8]},
        },
        seeds | {"ppo": {"run": {"seed": 2}}},
        for_any_algorithm=True,
    )


def test_the_first_pattern_that_fits_an_id_counts(presets: PresetFile) -> None:
    assert presets.presets_for("Pole-v1") == ("long", "deep")
    assert presets.presets_for("PoleBig-v1") == ()
    assert presets.presets_for("Car-v1") is None
    assert presets.algorithm_for("Park-v0") == "sac"
    assert presets.algorithm_for("Pole-v1") is None


def check_settings(known: Mapping[str, Leaf], tables: Mapping[str, Mapping[str, Any]], source: str) -> None:
    for table, values in tables.items():
        for name, value in values.items():
            key = f"{table}.{name}"
            assert key in known, f"{source}: {key}"
            known[key].convert(value, f"{source}: {key}")


@pytest.mark.parametrize("name", FILES)
def test_files_of_the_package_have_nothing_but_settings(name: str) -> None:
    task = find(name)
    known = {
        table_of(algorithm): leaves(task.settings_type(algorithm))
        for algorithm, found in algorithms().items()
        if task.takes(found)
    }
    of_any = {key: leaf for own in known.values() for key, leaf in own.items()}
    for preset, its in task.presets.items():
        check_settings(of_any, its.values, preset)
        for table, values in its.with_table.items():
            check_settings(known[table], values, f"{preset} with {table}")


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_files_of_the_package_name_what_they_have(path: Path) -> None:
    tree, presets = load_toml(path), PresetFile(path)
    parts, own = tree.get("parts", {}), tree["presets"]
    assert tree.keys() <= {"tables", "ids", "algorithms", "parts", "presets"}
    assert {name for names in tree.get("ids", {}).values() for name in names} <= set(presets)
    assert set(tree.get("algorithms", {}).values()) <= set(algorithms())
    assert not parts.keys() & own.keys()
    assert parts.keys() <= {
        name for each in (*parts.values(), *own.values()) for name in each.get("extends", ())
    }
    words = re.findall(r"\w+", path.read_text(encoding="utf-8"))
    assert all(words.count(name) > 1 for name in tree.get("tables", {}))
