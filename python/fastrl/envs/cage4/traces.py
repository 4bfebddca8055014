"""Reference traces of CAGE Challenge 4: recorded episodes of the real CybORG, replayed by the simulator.

What must agree in every step: observations, masks, rewards, actions and their outcomes, sessions, services, processes
and their ids, marks, blocks, red's knowledge, and, from the seed, each draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.cage4.env import RED_AGENTS
from fastrl.envs.trace_files import Mode, Replayed, TraceError, one_line, seed_of

# Generators of episodes: a new one of seed + e for episode e, or the first episode's that runs on.
_SEEDINGS = ("reset", "constructor")


@dataclass(frozen=True)
class Cage4Trace:
    """A trace file in memory."""

    red_agent: str
    seed: int
    seeding: str
    steps: int
    arrays: dict[str, NDArray[Any]]

    @classmethod
    def from_arrays(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Cage4Trace:
        """A trace of the contents of a file. Raises TraceError if they are of something else."""
        red_agent, seeding, steps = (meta.get(key) for key in ("red", "seeding", "steps"))
        for name, value, known in (("red", red_agent, RED_AGENTS), ("seeding", seeding, _SEEDINGS)):
            if value not in known:
                raise TraceError(f"its {name} is {value!r}, expected {' or '.join(map(repr, known))}")
        if not isinstance(steps, int) or not 0 <= steps < 2**32:
            raise TraceError(f"its steps are {steps!r}, expected a number")
        if meta.get("actions", _rust.CAGE4_ACTIONS) != _rust.CAGE4_ACTIONS:
            raise TraceError("not a trace of CAGE Challenge 4: its actions are others")
        flat = {name: array.reshape(-1) for name, array in arrays.items()}
        if "host" in flat and flat["host"].dtype == np.bool_:
            flat["host"] = flat["host"].view(np.uint8)
        return cls(str(red_agent), seed_of(meta), str(seeding), steps, flat)

    def replay(self, mode: Mode) -> Replayed:
        """See `fastrl.envs.trace_files.Trace.replay`."""
        is_chained = self.seeding == "constructor"
        try:
            return _rust.replay_cage4(mode, self.red_agent, self.seed, is_chained, self.steps, self.arrays)
        except KeyError as error:
            raise TraceError(f"not a CAGE 4 trace: {error.args[0]}") from None
        except (TypeError, ValueError) as error:
            raise TraceError(one_line(error)) from None
