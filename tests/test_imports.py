"""Imports point down only: the packages in order, kept true."""

from __future__ import annotations

import ast
import graphlib
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fastrl.tasks import with_experts

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "fastrl"
MODULES = sorted(PACKAGE.rglob("*.py"))

# The parts of the package, packages and single modules, from the top down. Each may import those below it.
ORDER = [
    "__main__",
    "cli",
    "__init__",
    "exports",
    "model_loading",
    "model_types",
    "model",
    "model_arguments",
    "demos",
    "tuning",
    "autotune",
    "tasks",
    "callbacks",
    "loggers",
    "training",
    "sources",
    "play",
    "runs",
    "algorithms",
    "collectors",
    "networks",
    "replay",
    "queue",
    "rollout",
    "envs",
    "testing",
    "utils",
    "runtime",
    "_native",
]


def test_the_order_names_what_exists() -> None:
    """A new part of the package needs a place in `ORDER`."""
    assert {part_of(path) for path in MODULES} == set(ORDER)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


class WithoutTypes(ast.NodeTransformer):
    """Leaves out what only type checkers read."""

    def visit_If(self, node: ast.If) -> ast.If | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else node


def imported_names(path: Path, *, types: bool = True) -> set[str]:
    """Full names of all imports of a module, also those inside functions and, with ``types``, for type checkers."""
    found: set[str] = set()
    module = ("fastrl", *path.relative_to(PACKAGE).with_suffix("").parts)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree if types else WithoutTypes().visit(tree)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = [*module[: len(module) - node.level]] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{stem}.{alias.name}" for alias in node.names}
    return found


def imported_parts(path: Path) -> set[str]:
    """The parts of fastrl that a module imports."""
    found = set()
    for name in imported_names(path):
        parts = name.split(".")
        if parts[0] == "fastrl":
            found.add(parts[1] if len(parts) > 1 and parts[1] in ORDER else "__init__")
    return found - {part_of(path)}


def test_modules_import_what_is_below_them() -> None:
    wrong = [
        f"fastrl.{part} stands below {other}, which {path.relative_to(PACKAGE)} imports"
        for path in MODULES
        for part, other in itertools.product([part_of(path)], sorted(imported_parts(path)))
        if ORDER.index(other) < ORDER.index(part)
    ]
    assert wrong == []


def test_no_module_imports_what_imports_it() -> None:
    """Imports within functions count; those for type checkers do not."""
    names = (".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in MODULES)
    paths = dict(zip((name.removesuffix(".__init__") for name in names), MODULES, strict=True))
    imports = {
        name: paths.keys()
        & {part for each in imported_names(path, types=False) for part in (each, each.rpartition(".")[0])}
        for name, path in paths.items()
    }
    # The run of a seed is a command in a process of its own.
    imports["fastrl.cli.seeds"].remove("fastrl.cli.main")
    # A circle is a CycleError that names its modules.
    assert {*graphlib.TopologicalSorter(imports).static_order()} == paths.keys()


FOLDERS = [
    f"fastrl.{part}.{folder.name}"
    for part in ("envs", "tasks")
    for folder in (PACKAGE / part).iterdir()
    if (folder / "__init__.py").exists()
]


@pytest.mark.parametrize("path", sorted((PACKAGE / "demos").glob("*.py")), ids=lambda path: path.name)
def test_demonstrations_know_no_single_simulator(path: Path) -> None:
    assert {"fastrl.envs.cage2", "fastrl.envs.traffic", "fastrl.tasks.cage2"} <= set(FOLDERS)
    of_one = {
        name for name in imported_names(path) if f"{name}.".startswith(tuple(f"{each}." for each in FOLDERS))
    }
    assert not of_one, f"{path.name} imports what belongs into a task's folder: {sorted(of_one)}"
    source = path.read_text(encoding="utf-8").lower()
    assert not [word for word in ("cage", "traffic", "highway", "baseline:", "driver:") if word in source]


def test_compiled_modules_import_nothing_of_ours() -> None:
    for source in (ROOT / "cython").glob("*.p[yx]*"):
        for line in source.read_text(encoding="utf-8").splitlines():
            words = line.split()[:2]
            ours = words and words[0] in ("from", "import", "cimport") and words[1].startswith("fastrl")
            assert not ours, f"{source.name}: {line}"
    core = (ROOT / "rust" / "core" / "Cargo.toml").read_text(encoding="utf-8")
    assert "pyo3" not in core, "fastrl-core knows nothing of Python"


# Without PyTorch: `sys.modules[name] = None` makes the import of a name fail, as if it were not installed.
WITHOUT_TORCH = """
import sys
sys.modules.update(dict.fromkeys(["torch", "stable_baselines3", "matplotlib", "sklearn", "tensorboardX"]))
import numpy as np
import fastrl, fastrl.envs, fastrl.queue, fastrl.replay, fastrl.runtime, fastrl.testing
env = fastrl.envs.Cage2VectorEnv(2)
obs, _ = env.reset(seed=0)
later, _, terminated, truncated, _ = env.step(np.zeros(2, np.int64))
replay = fastrl.replay.Replay(100, (52,), np.float32, num_envs=2)
replay.add_many(obs, np.zeros(2, np.int64), np.ones(2, np.float32), later, terminated, truncated)
queue = fastrl.queue.Queue({"obs": (np.float32, 52)}, capacity=8)
with queue.producer() as producer, producer.reserve(2) as rows:
    rows["obs"] = later
print(len(queue.get_many(2)), len(replay))
"""


def test_environments_queue_replay_and_runtime_need_no_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=False, capture_output=True, text=True)
    assert done.stdout.split() == ["2", "2"], done.stderr


# Modules that workers and commands import, and what these must not load; in one process, from the lightest on.
LIGHT = {
    **{f"{folder.__name__}.experts": ("torch", "pydantic") for folder in with_experts()},
    "fastrl.demos": ("torch", "pyarrow", "minari"),
    "fastrl.networks.compiled_actor": ("torch",),
    "fastrl.collectors.executor": ("torch",),
    "fastrl.collectors.executor_task": ("torch",),
}


def test_what_workers_import_is_light() -> None:
    code = (
        "import importlib, json, sys\n"
        "for name, heavy in json.loads(sys.argv[1]).items():\n"
        "    importlib.import_module(name)\n"
        "    assert not set(heavy) & set(sys.modules), name"
    )
    command = [sys.executable, "-c", code, json.dumps(LIGHT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import numpy", set()),
        ("from fastrl.training.run import start_run", {"training"}),
        ("import fastrl.collectors.protocol", {"collectors"}),
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
