"""Run directories seen from outside: their settings, progress and metrics, without PyTorch."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fastrl.runs.directory import is_run
from fastrl.runs.facts import FILE as FACTS
from fastrl.runs.facts import RunFacts, State
from fastrl.runs.row import STEPS
from fastrl.utils.config import ConfigError, load_toml
from fastrl.utils.files import DamagedFileError, parse_json, read_json, read_lines

# The mean return of the episodes that ended since the row before.
RETURN = "rollout/ep_rew_mean"
# The mean return of an evaluation on the way.
EVALUATION = "eval/mean_reward"
# Bytes of the end of a run's metrics in which the newest rows lie.
_TAIL = 1 << 18


@dataclass(frozen=True)
class RunInfo:
    """Facts about a run.

    Attributes:
        path: the run directory.
        env, algo, seed: of the run.
        steps: environment steps of the newest row of metrics, while it runs; else of the newest checkpoint.
        total: the goal in steps; None: it is in episodes.
        last_return: mean return of the newest episodes, up to 100, at the newest checkpoint; before one, of the newest
            row in which episodes ended; NaN without any.
        state: see `fastrl.runs.facts.RunFacts`; "damaged": its files cannot be read.
        error: why not, one line.
    """

    path: Path
    env: str
    algo: str
    seed: int
    steps: int
    total: int | None
    last_return: float
    state: State | Literal["damaged"]
    error: str = ""

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**self.__dict__, "path": str(self.path)}


def find_runs(folder: Path) -> Iterator[Path]:
    """Run directories below a folder, or the folder itself if it is one, by name; unreadable folders are left out."""
    if is_run(folder):
        yield folder
    elif folder.is_dir():
        for path in sorted(folder.iterdir()):
            # A run of several seeds is a folder of runs.
            with contextlib.suppress(PermissionError):
                if path.is_dir() and not path.name.startswith("."):
                    yield from [path] if is_run(path) else filter(is_run, sorted(path.iterdir()))


def runs_in(folder: Path) -> list[Path]:
    """The run directories that `find_runs` finds.

    Raises:
        ConfigError: there are none.
    """
    found = list(find_runs(folder))
    if not found:
        there = "is no run directory, and has none in it" if folder.exists() else "no such run directory"
        raise ConfigError(f"{folder}: {there}")
    return found


def read_run(path: Path) -> RunInfo:
    """Reads settings, newest metrics and state of a run.

    Raises:
        ConfigError: its settings cannot be read.
    """
    tree = load_toml(path / "config.toml")
    run, env, kind = tree.get("run", {}), tree.get("env", {}), tree.get("kind", "")
    if not isinstance(run, dict) or not isinstance(env, dict) or not isinstance(run.get("seed", 0), int):
        raise ConfigError(f"{path / 'config.toml'}: it is damaged, run and env are no tables of settings")
    rows = _newest_rows(path / "metrics.jsonl")
    steps: Any = rows[-1].get(STEPS) if rows else 0
    last_return: Any = [math.nan, *(row[RETURN] for row in rows if _is_number(row.get(RETURN)))][-1]
    # Passes over a data set count samples, and end by epochs.
    is_of_dataset = "demos" in tree and "collect" not in tree
    total = None if is_of_dataset else run.get("total_timesteps")
    facts = RunFacts.read(path)
    error = f"{path / FACTS}: it is damaged" if facts is None and (path / FACTS).exists() else ""
    if facts is not None and facts.mean_return is not None:
        last_return = facts.mean_return
    if facts is not None and facts.state != "running":
        # Rows after the newest checkpoint are lost.
        steps = facts.total_timesteps
    return RunInfo(
        path=path,
        env=str(env.get("id", kind)),
        algo=str(run.get("algo", "")),
        seed=int(run.get("seed", 0)),
        steps=int(steps) if steps is not None and _is_number(steps) else 0,
        total=total if isinstance(total, int) else None,
        last_return=float(last_return),
        state="damaged" if error else "interrupted" if facts is None else facts.state,
        error=error,
    )


def list_runs(folder: Path) -> list[RunInfo]:
    """The runs that `find_runs` finds; damaged ones with as much as is known."""
    found = []
    for path in find_runs(folder):
        try:
            found.append(read_run(path))
        except (ConfigError, OSError) as error:
            found.append(RunInfo(path, "?", "?", 0, 0, None, math.nan, "damaged", str(error)))
    return found


def read_curve(path: Path, metric: str = RETURN) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Environment steps and values of a metric in all rows of a run that have it, float64 [rows] each.

    Raises:
        ConfigError: no row has it.
    """
    points: list[tuple[float, float]] = []
    names: set[str] = set()
    for row in map(_parsed, read_lines(path / "metrics.jsonl")):
        names |= row.keys()
        if _is_number(row.get(metric)) and _is_number(row.get(STEPS)):
            points.append((row[STEPS], row[metric]))
    if not points:
        from fastrl.utils.names import suggestion

        hint = f"; {suggestion(metric, sorted(names))}" if names and metric not in names else ""
        raise ConfigError(f"{path} has no values of {metric}{hint}")
    steps, values = np.array(points, np.float64).T
    return steps, values


def _newest_rows(file: Path) -> list[dict[str, Any]]:
    try:
        # The first line may be cut, and the last one half written.
        return [row for row in map(_parsed, read_lines(file, start=-_TAIL)) if row]
    except (OSError, DamagedFileError):
        return []


def _parsed(line: str) -> dict[str, Any]:
    try:
        return parse_json(line)
    except DamagedFileError:
        return {}


def _is_number(value: Any) -> bool:
    # Comparing takes whole numbers of any length.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e308


def read_summary(run: Path) -> dict[str, Any]:
    """The ``summary.json`` of a run directory; empty if it cannot be read."""
    try:
        return cast("dict[str, Any]", read_json(run / "summary.json"))
    except (OSError, DamagedFileError):
        return {}


def score_in(summary: Mapping[str, Any]) -> float:
    """The score of the evaluation at the end, of a run's ``summary.json``; NaN without one."""
    evaluation = summary.get("evaluation")
    value = None
    if isinstance(evaluation, dict):
        value = evaluation.get("mean", evaluation.get("total", evaluation.get("mean_return")))
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
