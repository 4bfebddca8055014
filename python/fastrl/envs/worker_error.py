"""The error of worker processes that have died."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Death:
    """The end of a worker that crashed, or was killed because it gave no answer.

    Attributes:
        worker: its index.
        envs: indices of its environments.
        cause: one line.
        traceback: the worker's own; empty if it was killed, or ``refused``.
        refused: an environment broke Gymnasium's interface, so that a restart would not help.
    """

    worker: int
    envs: range
    cause: str
    traceback: str
    refused: bool = False


class WorkerError(RuntimeError):
    """Workers have died; the message has the first one's traceback, ``deaths`` all of them."""

    def __init__(self, deaths: Sequence[Death]) -> None:
        first = deaths[0]
        envs = f"environment {first.envs[0]}" + (f" to {first.envs[-1]}" if len(first.envs) > 1 else "")
        super().__init__(f"worker {first.worker} ({envs}): {first.cause}\n\n{first.traceback}".rstrip())
        self.deaths = tuple(deaths)
