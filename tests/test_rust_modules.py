"""Modules of a crate depend on each other in one direction: no folder of Rust sources holds a circle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

RUST = Path(__file__).resolve().parent.parent / "rust"

Module = tuple[str, ...]
"""Path of a module inside its crate: `("cage2", "blue")` for `crate::cage2::blue`, `()` for the crate itself."""

COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"', re.DOTALL)
TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:pub\(\w+\) )?mod \w+ \{.*?^\}", re.DOTALL | re.MULTILINE)
USE = re.compile(r"(\bpub(?:\(\w+\))? )?\buse ([^;]+);")
INLINE_PATH = re.compile(r"\b(?:crate|super)(?:::\w+)+")


def read_modules(src: Path) -> dict[Module, str]:
    """The code of each module of a crate, without comments, strings and unit tests."""
    modules = {}
    for path in sorted(src.rglob("*.rs")):
        module = path.relative_to(src).with_suffix("").parts
        if module[-1] in ("mod", "lib"):
            module = module[:-1]
        modules[module] = COMMENT_OR_STRING.sub("", TEST_MODULE.sub("", path.read_text(encoding="utf-8")))
    return modules


def expand(tree: str) -> Iterator[list[str]]:
    """Each path that a `use` tree stands for, split at `::`: `a::{b, c::d}` gives `a::b` and `a::c::d`."""
    head, brace, rest = tree.strip().partition("{")
    if not brace:
        yield [part.strip() for part in head.split(" as ")[0].split("::")]
        return
    start, depth = 0, 0
    inner = rest.rpartition("}")[0] + ","
    for i, letter in enumerate(inner):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            if inner[start:i].strip():
                for tail in expand(inner[start:i]):
                    yield [*(part.strip() for part in head.split("::") if part.strip()), *tail]
            start = i + 1


def absolute(path: list[str], module: Module, modules: dict[Module, str]) -> Module | None:
    """A path, seen from a module, as one from the crate's root; None if it belongs to another crate."""
    if path[0] == "crate":
        return tuple(path[1:])
    base = module
    while path[0] in ("super", "self"):
        base = base[:-1] if path[0] == "super" else base
        path = path[1:]
        if not path:
            return base
    if base is module and (*module, path[0]) not in modules:
        return None
    return (*base, *path)


def owner(path: Module, modules: dict[Module, str]) -> Module:
    """The module that an absolute path leads to, re-exports followed."""
    depth = max(n for n in range(len(path) + 1) if path[:n] in modules)
    module, name = path[:depth], path[depth : depth + 1]
    for _, tree in USE.findall(modules[module]):
        for inner in expand(tree):
            target = absolute(inner, module, modules)
            if name and target and target[-1:] == name and target != path:
                return owner(target, modules)
    return module


def dependencies(modules: dict[Module, str]) -> set[tuple[Module, Module]]:
    """Pairs of modules where the first names something of the second."""
    found = set()
    for module, code in modules.items():
        paths = [path for _, tree in USE.findall(code) for path in expand(tree)]
        paths += [path.split("::") for path in INLINE_PATH.findall(code)]
        for path in paths:
            target = absolute(path, module, modules)
            if target is not None:
                found.add((module, owner(target, modules)))
    return found


def find_circle(modules: dict[Module, str]) -> list[str]:
    """Siblings that depend on each other in a circle, the first one again at its end; empty if there are none.

    A parent and its children are no circle: the parent is made of them, and they may name what it declares.
    """
    edges: dict[Module, set[Module]] = {module: set() for module in modules}
    for source, target in dependencies(modules):
        depth = next((i for i, (a, b) in enumerate(zip(source, target, strict=False)) if a != b), None)
        if depth is not None:
            edges[source[: depth + 1]].add(target[: depth + 1])
    finished: set[Module] = set()

    def visit(module: Module, above: list[Module]) -> list[Module]:
        if module in above:
            return [*above[above.index(module) :], module]
        if module not in finished:
            for below in sorted(edges[module]):
                if circle := visit(below, [*above, module]):
                    return circle
            finished.add(module)
        return []

    for module in sorted(edges):
        if circle := visit(module, []):
            return ["::".join(step) for step in circle]
    return []


@pytest.mark.parametrize("crate", ["binding", "core", "python"])
def test_no_modules_depend_on_each_other_in_a_circle(crate: str) -> None:
    circle = find_circle(read_modules(RUST / crate / "src"))
    assert not circle, f"fastrl-{crate}: " + " -> ".join(circle)


@pytest.mark.parametrize(
    ("files", "circle"),
    [
        ({"a.rs": "use crate::b::B;", "b.rs": "use super::a::{A, C};"}, list("aba")),
        ({"a.rs": "use crate::b::B;", "b.rs": "// use crate::a::A;"}, []),
        ({"a.rs": "use crate::b::B;", "b.rs": "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}"}, []),
        ({"a.rs": "fn f() { super::b::f() }", "b.rs": "use crate::c;", "c.rs": "use crate::a;"}, list("abca")),
        ({"a.rs": "use crate::B;", "b.rs": "use crate::a::A;", "lib.rs": "mod a; mod b; pub use b::B;"}, list("aba")),
        ({"a/mod.rs": "pub struct A;", "a/x.rs": "use crate::b::B;", "b.rs": "use crate::a::A;"}, list("aba")),
        (
            {"a/mod.rs": "use x::X;", "a/x.rs": "use super::{A, y::Y};", "a/y.rs": "use super::x;"},
            ["a::x", "a::y", "a::x"],
        ),
        ({"a/mod.rs": "mod x; use x::X; pub struct A;", "a/x.rs": "use super::A;"}, []),
    ],
)  # fmt: skip
def test_a_circle_is_found(files: dict[str, str], circle: list[str], tmp_path: Path) -> None:
    for name, code in ({"lib.rs": ""} | files).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code)
    assert find_circle(read_modules(tmp_path)) == circle
