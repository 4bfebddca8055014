"""Files of reference traces: recorded episodes of an original program, which a simulator replays.

A trace is an `.npz` file: arrays with one row for each step or episode, and `meta`, a JSON text. It is replayed in two
ways: from the recorded decisions, and from the seed and blue's actions only. In both, every step must give exactly what
was recorded.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fastrl.utils.files import open_file, parse_json

Mode = Literal["decisions", "seed"]
# The numbers of steps and of mismatches, and the first difference: episode, step (None at the reset) and a text.
Replayed = tuple[int, int, tuple[int, int | None, str] | None]


class TraceError(ValueError):
    """A file is no trace, or is damaged; the message is one line."""


class Trace(Protocol):
    """A trace in memory."""

    def replay(self, mode: Mode) -> Replayed:
        """Replays it. Raises TraceError if the arrays do not fit each other or hold impossible values."""
        ...


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


def read_arrays(path: str | Path | BinaryIO) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The meta data and the arrays of a file. Raises TraceError if it is missing, truncated, damaged or no archive."""
    try:
        if isinstance(path, str | Path):
            if not Path(path).exists():
                raise TraceError("no such file")
            # Reading a pipe would block for ever.
            open_file(Path(path)).close()
        if not zipfile.is_zipfile(path):
            raise TraceError("not a trace, or a truncated one: expected an .npz archive")
        with np.load(path, allow_pickle=False) as file:
            if "meta" not in file.files:
                raise TraceError("not a trace: it lacks meta")
            arrays = {name: np.ascontiguousarray(file[name]) for name in file.files if name != "meta"}
            meta = parse_json(str(file["meta"]))
    except TraceError:
        raise
    except Exception as error:
        # Depending on which byte is damaged, zipfile, zlib, numpy and json raise nearly anything.
        raise TraceError(f"not a trace, or a damaged one: {one_line(error)}") from None
    if not isinstance(meta, dict):
        raise TraceError("not a trace: its meta is no JSON object")
    return meta, arrays


def seed_of(meta: Mapping[str, Any]) -> int:
    """The seed of a trace. Raises TraceError if there is none."""
    seed = meta.get("seed")
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise TraceError(f"its seed is {seed!r}, expected an integer from 0 to 2**64 - 1")
    return seed


def replay_file(path: str | Path, load: Callable[[str | Path], Trace]) -> ReplayReport:
    """Replays one file, which `load` reads, in both ways."""
    try:
        trace = load(path)
        steps, mismatches, first = trace.replay("decisions")
        seed_steps, seed_mismatches, seed_first = trace.replay("seed")
    except TraceError as error:
        return ReplayReport(file=str(path), error=str(error))
    text = None
    for source, difference in (("recorded decisions", first), ("seed", seed_first)):
        if text is None and difference is not None:
            episode, step, details = difference
            place = "reset" if step is None else f"step {step}"
            text = f"episode {episode}, {place}: {details} (replayed from the {source})"
    return ReplayReport(str(path), steps, mismatches, seed_steps, seed_mismatches, text)


def one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
