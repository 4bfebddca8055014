"""docs/reference/metrics.md names what the code logs, and nothing else."""

import ast
import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_runs import trainer_of

from fastrl.envs.record_episodes import MEANS

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "python" / "fastrl"
GROUPS = ("rollout", "train", "eval", "time", "collect", "curriculum", "search", "dataset")


def documented() -> set[str]:
    """Names and patterns of the first columns of the page's tables."""
    lines = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    return {name for cell in cells for name in re.findall("`([^`]+)`", cell)}


def literals() -> Iterator[str]:
    """Names that the package writes as text."""
    for path in PACKAGE.rglob("*.py"):
        yield from re.findall(rf'"((?:{"|".join(GROUPS)})/\w+)"', path.read_text(encoding="utf-8"))


def of_algorithms() -> Iterator[str]:
    """Names of the metrics of algorithms: fields of classes of metrics, keys of dicts of them, and means of losses."""
    for path in (PACKAGE / "algorithms").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Metrics"):
                for each in node.body:
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                        yield f"train/{each.target.id}"
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "LossMeans":
                for each in ast.walk(node):
                    if isinstance(each, ast.Constant):
                        yield f"train/{each.value}"
            if isinstance(node, ast.Dict):
                keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
                if "grad_norm" in keys:
                    yield from (f"train/{key}" for key in keys)


def is_documented(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in documented())


def test_what_is_logged_is_documented() -> None:
    others = {f"rollout/ep_{name}" for name in MEANS if name not in ("mean_return", "mean_length")}
    names = {*literals(), *of_algorithms(), *others}
    assert {"rollout/ep_rew_mean", "time/fps", "train/approx_kl", "train/td_error", "train/alive"} <= names
    assert sorted(name for name in names if not is_documented(name)) == []


@pytest.mark.parametrize("options", [["--algo=ppo"], ["--algo=impala"]])
def test_rows_have_documented_names(options: list[str]) -> None:
    trainer = trainer_of("gym", "--env=CartPole-v1", *options, "--total-timesteps=2048", "--run.eval-freq=1")
    names = {name for row in trainer.rows() for name in row.record()}
    assert sorted(name for name in names if not is_documented(name)) == []
    # A pattern that takes everything would hide what is missing.
    assert not is_documented("rollout/no_such_number")


@pytest.mark.slow
def test_what_is_documented_is_logged() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    lasts = {
        name: re.sub(r"^(ep|mean_ep|share)_", "", name.partition("/")[2])
        for name in documented()
        if "*" not in name
    }
    gone = [name for name, last in lasts.items() if not re.search(rf"\b(\w+_)?{last}\b", source)]
    assert gone == []
