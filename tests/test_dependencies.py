"""Tests that pyproject.toml declares what the code imports."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PACKAGE = [path for suffix in ("py", "pyi") for path in sorted((ROOT / "python/fastrl").rglob(f"*.{suffix}"))]
# Modules that are imported only where their extra is wanted.
NEED_EXTRA = {
    "pettingzoo": "pettingzoo",
    "sb3": "sb3",
    "gaussian_process": "workflow",
    **dict.fromkeys(
        ("episodes", "episode_columns", "episode_writer", "minari_files", "minari_sets"), "demos"
    ),
}
PROVIDERS = packages_distributions()


def distributions(requirements: Iterable[str]) -> set[str]:
    """Normalised names of the distributions that requirements name."""
    return {normalised(re.match(r"[\w.-]+", line)[0]) for line in requirements}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(body: Iterable[ast.AST], in_function: bool = False) -> Iterator[tuple[str, bool]]:
    """Top-level names that code imports, each with whether the import waits for a call (or for a type checker)."""
    for node in body:
        waits = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waits = True
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], waits) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.partition(".")[0], waits
        else:
            yield from imported(ast.iter_child_nodes(node), waits)


def undeclared(source: str, always: Iterable[str], on_call: Iterable[str], ours: Iterable[str]) -> set[str]:
    """Names that a module imports of others, and neither the requirements nor, in functions, those of extras name."""
    missing = set()
    for name, waits in imported(ast.parse(source).body):
        if name in sys.stdlib_module_names or name in ours:
            continue
        allowed = distributions(always) | (distributions(on_call) if waits else set())
        # A module that is not installed here is taken for a distribution of its own name.
        if allowed.isdisjoint({normalised(found) for found in PROVIDERS.get(name, [name])}):
            missing.add(name)
    return missing


def test_the_package_imports_what_is_declared() -> None:
    extras = [line for name, lines in EXTRAS.items() if name not in ("test", "dev") for line in lines]
    wrong = []
    for path in PACKAGE:
        always = [*PROJECT["dependencies"], *EXTRAS.get(NEED_EXTRA.get(path.stem, ""), [])]
        missing = undeclared(path.read_text(encoding="utf-8"), always, extras, {"fastrl"})
        wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in sorted(missing)]
    assert wrong == []


def provided(extra: str) -> set[str]:
    """Distributions of an extra, with those of the extras of ours that it includes."""
    lines = EXTRAS[extra]
    included = [name for line in lines for name in re.findall(r"^fastrl\[(.*)\]", line)]
    return distributions(lines).union(*(provided(each) for names in included for each in names.split(",")))


def distribution_of(module: str) -> str:
    """The distribution of a module; one that is not installed here is taken for a distribution of its own name."""
    name = module.partition(".")[0]
    return normalised(PROVIDERS.get(name, [name])[0])


def asked_for(source: str) -> dict[str, str]:
    """Modules without which tests are skipped, each with the reason that is printed."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return {
        ast.literal_eval(call.args[0]): "".join(ast.unparse(word.value) for word in call.keywords)
        for call in calls
        if ast.unparse(call.func) == "pytest.importorskip" and isinstance(call.args[0], ast.Constant)
    }


# Modules that tests import from their own folders and from the compiled example.
TEST_FILES = [path for folder in ("tests", "benches", "docs") for path in (ROOT / folder).rglob("*.py")]
OURS = {"fastrl", "fastrl_backend", "ferry"}
OURS |= {path.parent.name if path.stem == "__init__" else path.stem for path in TEST_FILES}


@pytest.mark.slow
def test_tests_import_what_their_extra_names() -> None:
    """Beyond it, tests are skipped, and say which extra they need."""
    declared = [*PROJECT["dependencies"], *EXTRAS["test"]]
    usual = distributions(PROJECT["dependencies"]) | provided("test")
    wrong = []
    for path in (ROOT / "tests").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        skips = asked_for(source) if "importorskip" in source else {}
        others = [*skips, *re.findall(r"find_spec\([\"'](\w+)", source)]
        if path.parent.name == "support":  # where a test of the slow ones looks for it
            others += ["libsumo"]
        wrong += [
            f"{path.name} imports {name}" for name in undeclared(source, [*declared, *usual], others, OURS)
        ]
        for module, reason in skips.items():
            needed = distribution_of(module)
            extras = [name for name in EXTRAS if needed in provided(name)]
            named = [name for name in extras if f"[{name}]" in reason]
            if (
                module not in OURS
                and needed not in usual
                and not (named if extras else "pip install" in reason)
            ):
                wrong.append(f"{path.name} skips without {module} and does not say how to get it: {reason}")
    assert wrong == []


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("import json, numpy.typing", set()),
        ("import lxml", {"lxml"}),
        ("from fastrl.training.run import start_run\nfrom . import x", set()),
        ("import ray", {"ray"}),
        ("def f():\n    import ray", set()),
        ("class C:\n    if x:\n        from ray.util import y", {"ray"}),
        ("if TYPE_CHECKING:\n    import ray", set()),
        ("import pygame", {"pygame"}),
        ("async def f():\n    with x:\n        import pygame, nes_py", set()),
    ],
)
def test_the_reader_of_dependencies_finds_what_is_not_declared(source: str, missing: set[str]) -> None:
    extras = [*EXTRAS["ray"], *EXTRAS["render"], *EXTRAS["mario"]]
    assert undeclared(source, PROJECT["dependencies"], extras, {"fastrl"}) == missing
