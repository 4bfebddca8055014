"""The tests themselves: each asserts something, by what is public."""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
# Functions of others that raise if something is wrong begin like this, and pytest's own are named like this.
ASSERTING = ("check_", "assert_", "parallel_api_test")
OF_PYTEST = {"raises", "fail", "warns"}
# Names with an underscore that are public all the same, in `os` and of named tuples.
PUBLIC = {"_exit", "_replace", "_asdict", "_fields"}
# Private names that tests need. Of PyTorch and Stable-Baselines3: the random numbers, the number of gradient steps, and
# what runs after each step, which a comparison must know. Of multiprocessing: its server cannot be stopped otherwise.
NEEDED = {
    # PyTorch's fake tensors, and how modules hold parameters.
    "algorithms/test_devices.py": ["_apply", "_buffers", "_parameters", "_subclasses"],
    "conformance/test_stable_baselines3.py": ["_n_updates", "_on_step", "_standard_normal"],
    "demos/test_recording.py": ["_forkserver", "_stop"],
}


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def functions_of(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def name_of(called: ast.expr) -> str:
    """The last part of a dotted name."""
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def calls_of(function: ast.FunctionDef) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            yield name_of(node.func), node


def asserts(function: ast.FunctionDef, helpers: set[str]) -> bool:
    """True if a function has an ``assert``, or calls what raises if something is wrong, such as one of the helpers."""
    return any(isinstance(node, ast.Assert) for node in ast.walk(function)) or any(
        name.startswith(ASSERTING)
        or name in OF_PYTEST | helpers
        or any(keyword.arg == "check" and ast.unparse(keyword.value) == "True" for keyword in call.keywords)
        for name, call in calls_of(function)
    )


def asserting(functions: Iterable[ast.FunctionDef], known: set[str]) -> set[str]:
    """Names of the functions that assert, by themselves or through others; beside those that are known to."""
    more = {each.name for each in functions if asserts(each, known)} - known
    return asserting(functions, known | more) if more else known


def imported(tree: ast.AST, support: dict[str, set[str]]) -> set[str]:
    """The asserting helpers that a file imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names} & support.get(node.module or "", set())
        elif isinstance(node, ast.Import):
            found |= {name for alias in node.names for name in support.get(alias.name, ())}
    return found


def asserting_nothing(tree: ast.AST, support: dict[str, set[str]]) -> list[str]:
    """Names of the tests of a file that cannot fail but by an error."""
    functions = functions_of(tree)
    tests = [each for each in functions if each.name.startswith("test_")]
    helpers = asserting([each for each in functions if each not in tests], imported(tree, support))
    return [each.name for each in tests if not asserts(each, helpers)]


def test_each_test_asserts_something() -> None:
    support = {
        file.stem: asserting(functions_of(parsed(file)), set()) for file in (FOLDER / "support").glob("*.py")
    }
    found = {
        str(file.relative_to(FOLDER)): names
        for file in FOLDER.rglob("test_*.py")
        if (names := asserting_nothing(parsed(file), support))
    }
    assert not found


def test_one_that_asserts_nothing_is_found() -> None:
    source = """
from helpers import expect
def helper(): expect(1)
def idle(): print(1)
def test_a(): assert True
def test_b(): helper()
def test_c(): idle()
"""
    assert asserting_nothing(ast.parse(source), {"helpers": {"expect"}}) == ["test_c"]
    assert asserting_nothing(ast.parse(source), {}) == ["test_b", "test_c"]


def private_names(tree: ast.AST) -> list[str]:
    """Private names of others: attributes of something else than ``self``, imports, and what is replaced by name."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value.func if isinstance(node.value, ast.Call) else node.value
            if not (isinstance(owner, ast.Name) and owner.id in ("self", "cls", "super")):
                found.append(node.attr)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("fastrl._native"):
            found += [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call) and name_of(node.func).endswith(("attr", "setitem")):
            texts = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
            found += [text.rpartition(".")[2] for text in texts if isinstance(text, str)]
    return sorted(
        {name for name in found if re.fullmatch(r"_(?!_).+", name) is not None and name not in PUBLIC}
    )


def test_tests_read_nothing_private() -> None:
    found = {
        str(file.relative_to(FOLDER)): names
        for file in FOLDER.rglob("*.py")
        if (names := private_names(parsed(file)))
    }
    assert found == NEEDED


def test_private_names_are_found() -> None:
    source = """
from fastrl.a import _b
from fastrl.c._d import e
from fastrl._native import _rust
self._own, super()._own, self.other._f, g()._h, os._exit, __file__.__len__
monkeypatch.setattr(x, "_i", 1)
monkeypatch.setattr("fastrl.a._j", 1)
"""
    assert private_names(ast.parse(source)) == ["_b", "_d", "_f", "_h", "_i", "_j"]
