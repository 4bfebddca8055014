"""Run directories seen from outside: their settings, progress and metrics, without PyTorch."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.training.row import STEPS
from fastrl.training.run_directory import is_run
from fastrl.training.run_facts import RunFacts, State
from fastrl.utils.config import ConfigError, load_toml

# The mean return of the episodes that ended since the row before.
RETURN = "rollout/ep_rew_mean"
# Bytes of the end of a run's metrics in which the newest rows lie.
_TAIL = 1 << 18


@dataclass(frozen=True)
class RunInfo:
    """Facts about a run.

    Attributes:
        path: the run directory.
        env, algo, seed: of the run.
        steps, total: environment steps of the newest row of metrics, and the goal; None: the goal is in episodes.
        last_return: mean return of the newest row in which episodes ended; NaN without one.
        state: see `fastrl.training.run_facts.RunFacts`.
    """

    path: Path
    env: str
    algo: str
    seed: int
    steps: int
    total: int | None
    last_return: float
    state: State

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**self.__dict__, "path": str(self.path)}


def find_runs(folder: Path) -> Iterator[Path]:
    """The run directories below a folder, or the folder itself if it is one, in the order of their names."""
    if is_run(folder):
        yield folder
    elif folder.is_dir():
        for path in sorted(folder.iterdir()):
            # A run of several seeds is a folder of runs.
            if path.is_dir() and not path.name.startswith("."):
                yield from find_runs(path) if is_run(path) else filter(is_run, sorted(path.iterdir()))


def read_run(path: Path) -> RunInfo:
    """Reads settings, newest metrics and state of a run.

    Raises:
        ConfigError: its settings cannot be read.
    """
    tree = load_toml(path / "config.toml")
    run, env, kind = tree.get("run", {}), tree.get("env", {}), tree.get("kind", "")
    rows = _newest_rows(path / "metrics.jsonl")
    steps = int(rows[-1].get(STEPS, 0)) if rows else 0
    returns = [row[RETURN] for row in rows if _is_number(row.get(RETURN))]
    # Passes over a data set count samples, and end by epochs.
    is_of_dataset = "demos" in tree and "collect" not in tree
    total = None if is_of_dataset else run.get("total_timesteps")
    facts = RunFacts.read(path)
    return RunInfo(
        path=path,
        env=str(env.get("id", kind)),
        algo=str(run.get("algo", "")),
        seed=int(run.get("seed", 0)),
        steps=steps,
        total=total if isinstance(total, int) else None,
        last_return=float(returns[-1]) if returns else math.nan,
        state="interrupted" if facts is None else facts.state,
    )


def read_curve(path: Path, metric: str = RETURN) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Environment steps and values of a metric in all rows of a run that have it, float64 [rows] each.

    Raises:
        ConfigError: no row has it.
    """
    points: list[tuple[float, float]] = []
    names: set[str] = set()
    with (path / "metrics.jsonl").open() as file:
        for row in map(_parsed, file):
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
        with file.open("rb") as data:
            size = data.seek(0, os.SEEK_END)
            data.seek(max(size - _TAIL, 0))
            lines = data.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    # The first line may be cut, and the last one half written.
    return [row for row in map(_parsed, lines) if row]


def _parsed(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
