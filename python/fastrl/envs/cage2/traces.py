"""Reference traces of CAGE Challenge 2: recorded episodes of the real CybORG, replayed by the simulator.

What must agree in every step: the observation, reward, red action, success, access, sessions and process counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.trace_files import Mode, Replayed, TraceError, one_line, read_arrays, seed_of

# Types of the columns, which have one row for each step or episode.
COLUMNS: dict[str, type] = {
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
# The column that a trace has whose red agent is "given": then red's actions are read, not chosen. It holds what red can
# name after each step: a bit for each subnet, for the address of each host, and for its name.
GIVEN_COLUMNS: dict[str, type] = {"red_known": np.int32}
# Names behind the numbers of a file; they must be the simulator's.
_TABLES: dict[str, list[str]] = {
    "hosts": _rust.CAGE2_HOSTS,
    "subnets": _rust.CAGE2_SUBNETS,
    "exploits": _rust.CAGE2_EXPLOITS,
    "blue_actions": _rust.CAGE2_ACTIONS,
}


@dataclass(frozen=True)
class Cage2Trace:
    """A trace file in memory."""

    ruleset: str
    red_agent: str
    blue: str
    seed: int
    arrays: dict[str, NDArray[Any]]

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Cage2Trace:
        """A trace of the contents of a file. Raises TraceError if they are of something else."""
        ruleset, red_agent, blue = (str(meta.get(key)) for key in ("version", "red", "blue"))
        columns = COLUMNS | (GIVEN_COLUMNS if red_agent == "given" else {})
        missing = [name for name in columns if name not in arrays]
        if missing:
            raise TraceError(f"not a CAGE 2 trace: it lacks {', '.join(missing)}")
        for name, table in _TABLES.items():
            if meta.get(name) != table:
                raise TraceError(f"not a trace of Scenario 2: its {name} are others")
        for name, dtype in columns.items():
            if arrays[name].dtype != dtype:
                raise TraceError(f"{name} is {arrays[name].dtype}, expected {np.dtype(dtype)}")
        return cls(ruleset, red_agent, blue, seed_of(meta), {name: arrays[name] for name in columns})

    def replay(self, mode: Mode) -> Replayed:
        """See `fastrl.envs.trace_files.Trace.replay`."""
        try:
            return _rust.replay_cage2(mode, self.ruleset, self.red_agent, self.seed, self.arrays)
        except (TypeError, ValueError) as error:
            raise TraceError(one_line(error)) from None


def load_trace(path: str | Path | BinaryIO) -> Cage2Trace:
    """Reads a trace file. Raises TraceError if it is missing, truncated, damaged or another kind of file."""
    return Cage2Trace.from_arrays(*read_arrays(path))
