"""The tests themselves: each asserts something."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
# Functions of others that raise if something is wrong begin like this, and pytest's own are named like this.
ASSERTING = ("check_", "assert_", "parallel_api_test")
OF_PYTEST = {"raises", "fail", "warns"}


def functions_of(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def calls_of(function: ast.FunctionDef) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func).rpartition(".")[2], node


def asserts(function: ast.FunctionDef, helpers: set[str]) -> bool:
    """True if a function has an ``assert``, or calls what raises if something is wrong, such as one of the helpers."""
    return any(isinstance(node, ast.Assert) for node in ast.walk(function)) or any(
        name.startswith(ASSERTING)
        or name in OF_PYTEST | helpers
        or any(ast.unparse(keyword) == "check=True" for keyword in call.keywords)
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
        file.stem: asserting(functions_of(ast.parse(file.read_text(encoding="utf-8"))), set())
        for file in (FOLDER / "support").glob("*.py")
    }
    found = {
        str(file.relative_to(FOLDER)): names
        for file in FOLDER.rglob("test_*.py")
        if (names := asserting_nothing(ast.parse(file.read_text(encoding="utf-8")), support))
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
