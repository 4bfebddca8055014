"""Reference traces of CAGE Challenge 2: recorded episodes of the real CybORG, replayed by the simulator.

A trace is an `.npz` file: arrays with one row for each step or episode, and `meta`, a JSON text. It is replayed in two
ways: from the recorded decisions, and from the seed and blue's actions only. In both, every step must give exactly the
recorded observation, reward, red action, success, access, sessions and process counts.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.utils.files import open_file, parse_json

# Types of the columns, which have one row for each step or episode.
_COLUMNS: dict[str, type] = {
    "length": np.int32,
    "collided": np.bool_,
    "reset_obs": np.uint8,
    "obs": np.uint8,
    "reward": np.float32,
    "blue_action": np.int16,
    "red_kind": np.int8,
    "red_target": np.int8,
    "red_success": np.int8,
    "exploit": np.int8,
    "detected": np.int8,
    "session": np.int8,
    "red_access": np.uint8,
    "red_sessions": np.uint8,
    "processes": np.uint8,
}
# Names behind the numbers of a file; they must be the simulator's.
_TABLES: dict[str, list[str]] = {
    "hosts": _rust.CAGE2_HOSTS,
    "subnets": _rust.CAGE2_SUBNETS,
    "exploits": _rust.CAGE2_EXPLOITS,
    "blue_actions": _rust.CAGE2_ACTIONS,
}


class TraceError(ValueError):
    """A file is no trace, or is damaged; the message is one line."""


@dataclass(frozen=True)
class Trace:
    """A trace file in memory."""

    ruleset: str
    red_agent: str
    blue: str
    seed: int
    arrays: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class ReplayReport:
    """The result of the two replays of a file.

    Attributes:
        file: path.
        steps, mismatches: steps replayed from the recorded decisions, and those that differ.
        seed_steps, seed_mismatches: steps replayed from the seed, and those that differ.
        first_difference: a text.
        error: the reason why the file could not be replayed at all.
    """

    file: str
    steps: int = 0
    mismatches: int = 0
    seed_steps: int = 0
    seed_mismatches: int = 0
    first_difference: str | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and self.mismatches == 0 and self.seed_mismatches == 0


def load_trace(path: str | Path | BinaryIO) -> Trace:
    """Reads a trace file. Raises TraceError if it is missing, truncated, damaged or another kind of file."""
    try:
        if isinstance(path, str | Path):
            if not Path(path).exists():
                raise TraceError("no such file")
            # Reading a pipe would block for ever.
            open_file(Path(path)).close()
        if not zipfile.is_zipfile(path):
            raise TraceError("not a trace, or a truncated one: expected an .npz archive")
        file = np.load(path, allow_pickle=False)
        with file:
            missing = [name for name in ("meta", *_COLUMNS) if name not in file.files]
            if missing:
                raise TraceError(f"not a CAGE 2 trace: it lacks {', '.join(missing)}")
            meta = parse_json(str(file["meta"]))
            arrays = {name: np.ascontiguousarray(file[name]) for name in _COLUMNS}
    except TraceError:
        raise
    except Exception as error:
        # Depending on which byte is damaged, zipfile, zlib, numpy and json raise nearly anything.
        raise TraceError(f"not a trace, or a damaged one: {_one_line(error)}") from None
    if not isinstance(meta, dict):
        raise TraceError("not a CAGE 2 trace: its meta is no JSON object")
    for name, table in _TABLES.items():
        if meta.get(name) != table:
            raise TraceError(f"not a trace of Scenario 2: its {name} are others")
    for name, dtype in _COLUMNS.items():
        if arrays[name].dtype != dtype:
            raise TraceError(f"{name} is {arrays[name].dtype}, expected {np.dtype(dtype)}")
    seed = meta.get("seed")
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise TraceError(f"its seed is {seed!r}, expected an integer from 0 to 2**64 - 1")
    return Trace(str(meta.get("version")), str(meta.get("red")), str(meta.get("blue")), seed, arrays)


def replay(
    trace: Trace, mode: Literal["decisions", "seed"]
) -> tuple[int, int, tuple[int, int | None, str] | None]:
    """Replays a trace. Returns the numbers of steps and of mismatches, and the first difference: episode, step (None at
    the reset) and a text.

    Raises TraceError if the arrays do not fit each other or hold impossible values.
    """
    try:
        return _rust.replay_cage2(mode, trace.ruleset, trace.red_agent, trace.seed, trace.arrays)
    except (TypeError, ValueError) as error:
        raise TraceError(_one_line(error)) from None


def replay_file(path: str | Path) -> ReplayReport:
    """Replays one file in both ways."""
    try:
        trace = load_trace(path)
        steps, mismatches, first = replay(trace, "decisions")
        seed_steps, seed_mismatches, seed_first = replay(trace, "seed")
    except TraceError as error:
        return ReplayReport(file=str(path), error=str(error))
    text = None
    for source, difference in (("recorded decisions", first), ("seed", seed_first)):
        if text is None and difference is not None:
            episode, step, details = difference
            place = "reset" if step is None else f"step {step}"
            text = f"episode {episode}, {place}: {details} (replayed from the {source})"
    return ReplayReport(str(path), steps, mismatches, seed_steps, seed_mismatches, text)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
