"""A worker's tasks, one after the other, and its replies; of the collectors "executor", "ray" and "live"."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

from fastrl.collectors.failures import last_line
from fastrl.collectors.fragment_arrays import Arrays, FragmentMeta
from fastrl.collectors.local_runner import LocalRunner
from fastrl.collectors.protocol import CollectError, Stopped
from fastrl.envs.spec import ElsewhereError

Collected = tuple[Arrays, FragmentMeta]
"""A fragment, as a worker has collected it; without arrays where these are in shared memory."""


class WorkerReply(NamedTuple):
    """A worker's reply to a task.

    Attributes:
        fragments: those of the task, up to one that failed.
        version: of the weights.
        seconds: by `ACTIVITIES`, since its last reply.
        cause: the exception in one line; empty without one. ``traceback``: of it.
        refused: whether a retry is useless.
        restarted: its rows whose running episodes were restarted with this reply, as replaying them diverged.
        span: start and end of the task, by this machine's `time.monotonic`; None if not known.
        ready: `time.monotonic` when the environment was built; 0 if not known.
        memory_mib: of its process; 0 if not known.
    """

    fragments: Sequence[Collected] = ()
    version: int = 0
    seconds: tuple[float, ...] = ()
    cause: str = ""
    traceback: str = ""
    refused: bool = False
    restarted: tuple[int, ...] = ()
    span: tuple[float, float] | None = None
    ready: float = 0.0
    memory_mib: float = 0.0


def failure_reply(error: BaseException, fragments: Sequence[Collected] = ()) -> WorkerReply:
    """The reply to a task that has raised, inside the ``except`` block."""
    if isinstance(error, CollectError):
        return WorkerReply(fragments, cause=str(error), traceback=error.traceback, refused=True)
    if isinstance(error, ElsewhereError):
        return WorkerReply(fragments, cause=str(error), refused=True)
    trace = traceback.format_exc()
    return WorkerReply(fragments, cause=last_line(trace), traceback=trace)


class TaskRunner:
    """Base of what runs the tasks of a worker.

    Attributes:
        runner: of its environments.
        version: of the weights that the actor has.
    """

    def __init__(self, runner: LocalRunner) -> None:
        self.runner = runner
        self.version = 0
        self._replied_at = perf_counter()

    def count_waiting(self) -> None:
        """Counts the time since the last reply, at the start of a task."""
        self.runner.seconds["waiting"] += perf_counter() - self._replied_at

    def reply(self, work: Callable[[list[Collected]], object]) -> WorkerReply:
        """Does some work, which appends the fragments that it collects to its argument; returns the reply."""
        fragments = list[Collected]()
        reply = WorkerReply(fragments)
        try:
            work(fragments)
        except Stopped:
            reply = WorkerReply(fragments, cause="stopped")
        except BaseException as error:  # an environment that calls sys.exit() has failed, too
            reply = failure_reply(error, fragments)
        self._replied_at = perf_counter()
        seconds, restarted = self.runner.take_seconds(), self.runner.restarted
        return reply._replace(version=self.version, seconds=seconds, restarted=restarted)
