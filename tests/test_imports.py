"""Imports point down only: the table of who may import whom, kept true."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "fastrl"

# Each part of the package (a module or a folder of modules), from the top down: what it may import of the
# others. Only what stands below it here, so that there are no circles.
MAY_IMPORT = {
    "__init__": {"policy", "_rust"},
    "__main__": {"cli"},
    "cli": {
        "metrics",
        "layout",
        "progress",
        "collect",
        "output",
        "cli_train",
        "gym_run",
        "summary",
        "pixel_settings",
        "bench_pixels",
        "bench",
        "cli_bench",
        "cli_render",
        "traffic",
        "traffic_scores",
        "checkpoint",
        "evaluate",
        "policy",
        "config",
        "files",
        "envs",
        "processes",
        "_rust",
    },
    "cli_bench": {
        "layout",
        "progress",
        "output",
        "cli_train",
        "collecting",
        "bench_collect",
        "files",
        "config",
        "envs",
    },
    "bench_collect": {"metrics", "progress", "actor", "collect", "config", "envs"},
    "cli_render": {"progress", "cli_train", "render", "config"},
    "cli_train": {
        "trust",
        "progress",
        "workflow",
        "workflow_settings",
        "envs",
        "train",
        "gym_run",
        "gym_settings",
        "pixels",
        "pixel_settings",
        "traffic",
        "traffic_settings",
        "summary",
        "profile",
        "checkpoint",
        "rundir",
        "session",
        "output",
        "config",
    },
    "render": {
        "metrics",
        "progress",
        "output",
        "traffic",
        "actions",
        "team_networks",
        "traffic_settings",
        "traffic_scores",
        "episodes",
        "trajectories",
        "video",
        "config",
        "envs",
        "_rust",
    },
    "bench_pixels": {
        "metrics",
        "progress",
        "pixels",
        "pixel_settings",
        "learner",
        "algorithms",
        "collect",
        "replay",
        "weights",
        "config",
        "envs",
    },
    "workflow": {
        "layout",
        "progress",
        "train",
        "session",
        "summary",
        "rundir",
        "checkpoint",
        "workflow_settings",
        "cage2_settings",
        "workflow_report",
        "workflow_scores",
        "workflow_search",
        "workflow_training",
        "profile",
        "evaluate",
        "policy",
        "gpu",
        "metrics",
        "files",
        "algorithms",
        "config",
        "envs",
    },
    "workflow_settings": {"cage2_settings", "workflow_search", "workflow_training", "config", "envs"},
    "pixels": {
        "networks",
        "q_networks",
        "progress",
        "session",
        "summary",
        "rundir",
        "pixel_settings",
        "turns",
        "learner",
        "gpu",
        "metrics",
        "profile",
        "files",
        "algorithms",
        "collect",
        "replay",
        "weights",
        "config",
        "envs",
    },
    "turns": {
        "pixel_settings",
        "learner",
        "algorithms",
        "collect",
        "replay",
        "stopwatch",
        "streams",
        "envs",
    },
    "pixel_settings": {"trust", "algorithms", "config"},
    "traffic": {
        "actions",
        "networks",
        "trust",
        "progress",
        "session",
        "summary",
        "rundir",
        "checkpoint",
        "traffic_settings",
        "traffic_scores",
        "online",
        "team_networks",
        "episodes",
        "curriculum",
        "gpu",
        "metrics",
        "profile",
        "files",
        "algorithms",
        "collect",
        "stopwatch",
        "config",
        "envs",
    },
    "traffic_settings": {"curriculum", "algorithms", "config", "envs"},
    "online": {
        "algorithms",
        "collect",
        "curriculum",
        "envs",
        "episodes",
        "queue",
        "stopwatch",
        "networks",
        "team_networks",
        "team_rollout",
        "weights",
    },
    "gym_run": {
        "trust",
        "progress",
        "session",
        "summary",
        "rundir",
        "checkpoint",
        "gym_settings",
        "collecting",
        "metrics",
        "files",
        "algorithms",
        "collect",
        "networks",
        "actor",
        "actions",
        "profile",
        "gpu",
        "stopwatch",
        "config",
        "envs",
    },
    "gym_settings": {"trust", "collecting", "algorithms", "config"},
    "learner": {"algorithms", "collect", "replay", "prefetch", "weights", "stopwatch"},
    "train": {
        "progress",
        "cage2_settings",
        "collecting",
        "session",
        "summary",
        "rundir",
        "files",
        "gpu",
        "profile",
        "evaluate",
        "policy",
        "metrics",
        "algorithms",
        "collect",
        "envs",
        "stopwatch",
        "config",
    },
    "cage2_settings": {"config", "envs"},
    "collecting": {"trust", "session", "collect", "networks", "actor", "config", "envs"},
    "session": {"trust", "rundir", "checkpoint", "collect", "sinks", "metrics", "profile", "files", "config"},
    "sinks": {"metrics", "files"},
    "profile": {"layout", "collect", "files"},
    "summary": {
        "layout",
        "workflow_report",
        "workflow_scores",
        "workflow_training",
        "evaluate",
        "traffic_scores",
        "metrics",
    },
    "workflow_report": {
        "metrics",
        "workflow_scores",
        "workflow_search",
        "workflow_training",
        "evaluate",
        "files",
        "envs",
    },
    "workflow_scores": {"evaluate", "policy", "envs"},
    "workflow_search": {"workflow_training", "permutation_gp", "config"},
    "permutation_gp": set(),
    "workflow_training": {"algorithms", "envs", "networks", "stopwatch", "config"},
    "evaluate": {"metrics", "policy", "envs"},
    "policy": {"checkpoint", "networks", "actions", "config"},
    "rundir": {"files", "config"},
    "checkpoint": {"files", "config"},
    "metrics": set(),
    "progress": {"output"},
    "layout": set(),
    "gpu": set(),
    "bench": {"envs"},
    "trajectories": {"files", "config", "_rust"},
    "video": {"config"},
    "files": set(),
    "algorithms": {
        "actions",
        "collect",
        "team_networks",
        "team_rollout",
        "rollout",
        "streams",
        "q_networks",
        "networks",
        "stopwatch",
        "config",
        "envs",
    },
    "collect": {
        "actions",
        "team_rollout",
        "rollout",
        "actor",
        "streams",
        "stopwatch",
        "queue",
        "weights",
        "processes",
        "envs",
    },
    "team_networks": {"team_rollout", "networks", "actions"},
    "team_rollout": {"_returns"},
    "queue": {"_rust"},
    "weights": {"_rust"},
    "rollout": {"_returns", "_rows"},
    "replay": {"_replay", "_replay_samplers"},
    "prefetch": set(),
    "q_networks": {"networks"},
    "networks": {"actions"},
    "actor": {"actions", "streams", "_rust"},
    "actions": set(),
    "streams": set(),
    "stopwatch": set(),
    "traffic_scores": {"episodes", "envs"},
    "episodes": {"envs"},
    "curriculum": {"config"},
    "trust": {"config"},
    "config": set(),
    "testing": set(),
    "envs": {"processes", "_rust", "_pixels"},
    "processes": {"output"},
    "output": set(),
    "_pixels": set(),
    "_priorities": set(),
    "_replay": set(),
    "_replay_samplers": set(),
    "_returns": set(),
    "_rows": set(),
    "_rust": set(),
}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """The parts of fastrl that a module imports anywhere, inside functions and for type checkers too."""
    found = set()
    module = ("fastrl", *path.relative_to(PACKAGE).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*module[: len(module) - node.level]] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{stem}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "fastrl":
                found.add(parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "__init__")
    return found - {part_of(path)}


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_a_module_imports_what_its_part_may(path: Path) -> None:
    part = part_of(path)
    assert part in MAY_IMPORT, f"fastrl.{part} is new: say in MAY_IMPORT what it may import"
    allowed = MAY_IMPORT[part]
    too_many = imported_parts(path) - allowed
    assert not too_many, f"fastrl.{part} may import {sorted(allowed)}; {path.name} imports {sorted(too_many)}"


def test_the_table_points_down_and_names_what_exists() -> None:
    order = list(MAY_IMPORT)
    for part, below in MAY_IMPORT.items():
        assert all(order.index(part) < order.index(other) for other in below), part
    compiled = {source.stem for source in (ROOT / "cython").glob("*.pyx")} | {"_rust"}
    there = {part_of(path) for path in PACKAGE.rglob("*.py")} | compiled
    assert there == set(MAY_IMPORT)


def test_compiled_modules_import_nothing_of_ours() -> None:
    for source in (ROOT / "cython").glob("*.p[yx]*"):
        for line in source.read_text(encoding="utf-8").splitlines():
            words = line.split()[:2]
            ours = words and words[0] in ("from", "import", "cimport") and words[1].startswith("fastrl")
            assert not ours, f"{source.name}: {line}"
    core = (ROOT / "rust" / "core" / "Cargo.toml").read_text(encoding="utf-8")
    assert "pyo3" not in core, "fastrl-core knows nothing of Python"


@pytest.mark.parametrize("module", ["fastrl", "fastrl.envs", "fastrl.testing"])
def test_importing_environments_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; print(*{{'torch', 'stable_baselines3'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import numpy", set()),
        ("from fastrl.train import run", {"train"}),
        ("import fastrl.collect.native", {"collect"}),
        ("def f():\n    from ..networks import ActorCritic", {"networks"}),
        ("from .. import rollout", {"rollout"}),
        ("from .replay_ratio import x", set()),
        ("from fastrl import __version__", {"__init__"}),
    ],
)
def test_the_reader_of_imports_finds_them(
    source: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "algorithms").mkdir()
    module = tmp_path / "algorithms" / "some.py"
    module.write_text(source)
    assert imported_parts(module) == expected
