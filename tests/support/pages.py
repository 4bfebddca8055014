"""Code and commands of the README and of the documentation's pages."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
import types
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fastrl
from fastrl.model import Model

ROOT = Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# The largest budgets of trainings and evaluations of pages.
TIMESTEPS, EPISODES = 1000, 2


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


class Block(NamedTuple):
    """A fenced block of a page.

    Attributes:
        language: what follows the fence, such as "python", "sh" or "{code-block} python".
        reason: why it does not run: a line ``% not run: REASON`` before the fence; empty: it runs.
    """

    language: str
    code: str
    reason: str


def all_blocks(page: Path) -> list[Block]:
    """Fenced blocks of a page, also indented ones."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^(?:% not run: *(.*)\n)?( *)```(\S.*)\n((?:.*\n)*?)\2```$", text, re.MULTILINE)
    return [Block(language, textwrap.dedent(code), reason) for reason, _, language, code in found]


def blocks(page: Path, language: str) -> list[str]:
    """Fenced blocks of a language. Fragments that do not run by themselves are `{code-block} python`."""
    return [block.code for block in all_blocks(page) if block.language == language]


def commands(page: Path) -> list[list[str]]:
    """Every command of the shell examples, without comments, redirections and variables of the environment. What
    torchrun starts is a command of its own."""
    found: list[list[str]] = []
    for line in "".join(blocks(page, "sh")).replace("\\\n", "").splitlines():
        found.append([])
        for word in shlex.split(line, comments=True):
            if word in ("&&", ">") or (word == "-m" and found[-1][0] == "torchrun"):
                found.append([])
            elif found[-1] or not re.match(r"[A-Z_]+=", word):
                found[-1].append(word)
    return [command for command in found if command]


def with_small_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `learn` and `evaluate` of models, searches and films take a fraction of what a page asks for."""
    learn, evaluate, tune = Model.learn, Model.evaluate, fastrl.tune

    def short(self: Model, total_timesteps: int | None = None, **options: Any) -> Model:
        options.pop("ranks", None)  # processes of their own
        if options.get("total_episodes") is not None:
            options["total_episodes"] = min(options["total_episodes"], EPISODES)
        else:
            total_timesteps = min(total_timesteps or TIMESTEPS, TIMESTEPS)
        return learn(self, total_timesteps, **options)

    def scored(self: Model, episodes: int = EPISODES, **options: Any) -> tuple[float, float]:
        return evaluate(self, min(episodes, EPISODES), **options)

    def searched(env: str, **options: Any) -> Any:
        small = {"trials": 1, "n_workers": 1, "confirm": 0, "report_episodes": 0, "method": "random"}
        steps = {"total_timesteps": TIMESTEPS, "run__eval_episodes": EPISODES, "num_envs": 4}
        return tune(env, **options | small | steps)

    monkeypatch.setattr(fastrl, "tune", searched)
    monkeypatch.setattr(Model, "learn", short)
    monkeypatch.setattr(Model, "evaluate", scored)


def run_blocks(page: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs the Python of a page from top to bottom, as in a Python shell: classes belong to this process alone. The
    examples can be imported.

    Returns:
        The number of blocks.
    """
    number = 0
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for number, code in enumerate(blocks(page, "python"), 1):
        exec(compile(code, f"{name(page)}, block {number}", "exec"), module.__dict__)
    return number
