"""A Sphinx extension that reads docstrings as they are written here, and the stubs of compiled modules.

The directive `.. stub:: fastrl._native._rust` documents a whole stub; `.. stub:: fastrl._native._rust.Producer` with
the option `:as: fastrl.queue.Producer` documents one class of it under its public name.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.util.docutils import SphinxDirective

import fastrl

PACKAGE = Path(fastrl.__file__).parent

Function = ast.FunctionDef


def setup(app: Sphinx) -> dict[str, Any]:
    # Before Napoleon, which has the priority 500.
    app.connect("autodoc-process-docstring", _prepare, priority=100)
    app.connect("doctree-read", _tidy_fields)
    app.add_directive("stub", Stub)
    return {"parallel_read_safe": True}


def _prepare(app: Sphinx, what: str, name: str, documented: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_rst(lines)
    if what in ("attribute", "property", "data"):
        # Napoleon would take what precedes a colon in the first line for a type.
        lines.insert(0, "")


def _tidy_fields(app: Sphinx, doctree: nodes.document) -> None:
    """Sets dashes between names and their descriptions, and calls attributes what they are."""
    texts = {" -- ": " – ", "Variables": "Attributes"}
    for text in list(doctree.findall(nodes.Text)):
        if text in texts and text.parent is not None:
            is_label = isinstance(text.parent, nodes.field_name)
            if is_label or text == " -- ":
                text.parent.replace(text, nodes.Text(texts[text]))


def as_rst(lines: Sequence[str]) -> list[str]:
    """A docstring in reStructuredText: fenced blocks of code; shapes such as [N, *S], which are no emphasis, and
    descriptions such as "K.", which are no item of a list."""
    shown, in_fence = [], False
    for line in lines:
        if line.startswith("```"):
            in_fence = not in_fence
            shown += [f".. code-block:: {line.removeprefix('```')}", ""] if in_fence else [""]
        elif in_fence:
            shown.append(f"   {line}")
        else:
            line = re.sub(r"(?<=[\[ ])\*(?=\w+\])", r"\\*", line)
            shown.append(re.sub(r"(: [A-Z]|: \d+)\.$", r"\1\\.", line))
    return shown


class Stub(SphinxDirective):
    """The classes, functions and constants of a stub, or one class."""

    required_arguments = 1
    option_spec: ClassVar = {"as": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        module, public = self.arguments[0], self.options.get("as", "")
        path = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".pyi")
        if path.exists():
            lines = described_module(ast.parse(path.read_text(encoding="utf-8")), module, self.config)
        else:
            module, _, name = module.rpartition(".")
            public_module = public.rpartition(".")[0] or module
            path = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".pyi")
            body = ast.parse(path.read_text(encoding="utf-8")).body
            (found,) = (node for node in body if isinstance(node, ast.ClassDef) and node.name == name)
            lines = described_class(found, public_module, self.config)
        return self.parse_text_to_nodes("\n".join(lines))


def described_module(tree: ast.Module, module: str, config: Config) -> list[str]:
    """Directives for all that a stub has."""
    lines = [*_docstring(tree, config), ""]
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef):
            lines += described_class(node, module, config)
        elif isinstance(node, Function):
            lines += described_function("function", node, config, [f"   :module: {module}"])
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines += [
                "",
                f".. py:data:: {node.target.id}",
                f"   :module: {module}",
                f"   :type: {ast.unparse(node.annotation)}",
                "",
            ]
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                lines += _indented(as_rst(inspect.cleandoc(str(following.value.value)).splitlines()))
    return lines


def described_class(node: ast.ClassDef, module: str, config: Config) -> list[str]:
    """A directive for a class and its public methods and properties."""
    functions = [each for each in node.body if isinstance(each, Function)]
    makers = [each for each in functions if each.name in ("__new__", "__init__")]
    arguments = _arguments(makers[0]) if makers else ""
    lines = ["", f".. py:class:: {node.name}{arguments}", f"   :module: {module}", ""]
    inner = [*_docstring(node, config), ""]
    for maker in makers:
        inner += [*_docstring(maker, config), ""]
    for each in functions:
        is_setter = any(isinstance(decorator, ast.Attribute) for decorator in each.decorator_list)
        if not each.name.startswith("_") and not is_setter:
            inner += described_function("method", each, config)
    return [*lines, *_indented(inner)]


def described_function(kind: str, node: Function, config: Config, options: Sequence[str] = ()) -> list[str]:
    """A directive for a function, a method or a property."""
    decorators = {ast.unparse(each) for each in node.decorator_list}
    if "property" in decorators:
        lines = ["", f".. py:property:: {node.name}"]
        lines += [f"   :type: {ast.unparse(node.returns)}"] if node.returns else []
    else:
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        lines = ["", f".. py:{kind}:: {node.name}{_arguments(node)}{returns}"]
        lines += [f"   :{each}:" for each in ("classmethod", "staticmethod") if each in decorators]
    return [*lines, *options, "", *_indented(_docstring(node, config))]


def _arguments(node: Function) -> str:
    return f"({re.sub(r'^(self|cls)(, /)?(, )?', '', ast.unparse(node.args))})"


def _docstring(node: ast.Module | ast.ClassDef | Function, config: Config) -> list[str]:
    return GoogleDocstring(as_rst((ast.get_docstring(node) or "").splitlines()), config).lines()


def _indented(lines: Sequence[str]) -> Iterator[str]:
    return (f"   {line}" if line else "" for line in lines)
