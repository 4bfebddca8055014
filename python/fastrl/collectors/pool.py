"""A pool of collecting processes: started, watched, replaced when they die, and ended with their learner.

Each process calls a function of a job, shared counters, a sender and weights.
"""

import contextlib
import dataclasses
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Protocol, TypeVar

from fastrl.collectors.counters import SharedCounters
from fastrl.collectors.protocol import CollectError
from fastrl.collectors.transport import QueueSender, TransportClosed
from fastrl.collectors.weights import Weights
from fastrl.envs.contract import ContractError
from fastrl.utils import processes

# Forked processes would share locks, threads and a GPU with the learner.
CONTEXT = multiprocessing.get_context("spawn")

# A collector that dies more often than this within so many seconds is not started again.
MAX_RESTARTS = 5
RESTART_WINDOW_S = 600.0


class AnyJob(Protocol):
    """The fields of a job, a frozen dataclass, that a pool reads.

    Attributes:
        index: its number among the jobs.
        attempt: how many processes of this job have died before.
    """

    @property
    def index(self) -> int: ...
    @property
    def attempt(self) -> int: ...


J = TypeVar("J", bound=AnyJob)
Work = Callable[[J, SharedCounters, QueueSender, Weights | None], None]


class CollectorError(CollectError):
    """Collectors die repeatedly, or of a cause that would recur; the message has the last traceback."""


@dataclasses.dataclass(frozen=True)
class Death:
    """A collector that has died.

    Attributes:
        index: of its job.
        cause: one line.
        traceback: its own, empty if it was killed, or ``refused``.
        refused: its environment violates Gymnasium's interface, so a restart is useless.
    """

    index: int
    cause: str
    traceback: str
    refused: bool = False


@dataclasses.dataclass
class _Worker(Generic[J]):
    job: J
    process: BaseProcess
    report: Connection
    steps: int  # when it was started
    trace: str = ""  # its traceback, once it has died, or
    refused: str = ""  # the violation of Gymnasium's interface


class Pool(Generic[J]):
    """A process for each job.

    Args:
        work: called in each process, until `TransportClosed` or the counters say stop.
        jobs: one a process.
        senders: their ends of the queue.
        counters: made with `CONTEXT`.
        weights: the learner's broadcast, if there is one.
        names: of shared memory to remove if the learner is killed.
    """

    def __init__(
        self,
        work: Work[Any],
        jobs: Sequence[J],
        senders: Sequence[QueueSender],
        counters: SharedCounters,
        weights: Weights | None,
        names: Sequence[str] = (),
    ) -> None:
        self._do = work
        self._senders = list(senders)
        self._counters = counters
        self._weights = weights
        self._names = list(names)
        self._deaths: dict[int, list[float]] = {job.index: [] for job in jobs}
        self._workers: list[_Worker[J]] = []
        try:
            for job in jobs:
                self._workers.append(self._start(job))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids, in the order of the jobs."""
        return [pid for worker in self._workers if (pid := worker.process.pid) is not None]

    def _start(self, job: J) -> _Worker[J]:
        receiver, report = CONTEXT.Pipe(duplex=False)
        arguments = (
            self._do,
            job,
            self._counters,
            self._senders[job.index],
            self._weights,
            self._names,
            report,
        )
        # Not daemonic in multiprocessing's sense, whose environments could not start processes themselves.
        process = CONTEXT.Process(target=_work, args=arguments, name=f"collector {job.index}")
        with processes.starting_workers():
            process.start()
        report.close()
        return _Worker(job, process, receiver, self._counters.steps_of(job.index))

    def dead(self) -> list[Death]:
        """The collectors that have ended by themselves or were killed. `restart` replaces them."""
        return [self._death(worker) for worker in self._workers if not worker.process.is_alive()]

    def _death(self, worker: _Worker[J]) -> Death:
        with contextlib.suppress(EOFError, OSError):
            if worker.report.poll():
                worker.trace, worker.refused = worker.report.recv()
        if worker.refused:
            return Death(worker.job.index, worker.refused, "", refused=True)
        trace = worker.trace
        last = trace.strip().splitlines()[-1] if trace else ""
        cause = last or processes.exit_cause(worker.process.exitcode)
        return Death(worker.job.index, cause, trace)

    def restart(self, death: Death) -> None:
        """Starts a collector in place of a dead one.

        Raises:
            CollectorError: it has died too often, or a restart is useless.
        """
        if death.refused:
            raise CollectorError(death.cause)
        worker = self._workers[death.index]
        deaths = self._deaths[death.index]
        now = time.monotonic()
        deaths[:] = [*(at for at in deaths if now - at < RESTART_WINDOW_S), now]
        never_stepped = death.traceback and self._counters.steps_of(death.index) == worker.steps
        if len(deaths) > (1 if never_stepped else MAX_RESTARTS):
            raise CollectorError(
                f"collector {death.index} died {len(deaths)} times"
                + (
                    " before its first step"
                    if never_stepped
                    else f" within {RESTART_WINDOW_S / 60:.0f} minutes"
                )
                + f", the last time so: {death.cause}\n\n{death.traceback}".rstrip(),
                death.traceback,
            )
        worker.process.join()
        worker.report.close()
        self._workers[death.index] = self._start(
            dataclasses.replace(worker.job, attempt=worker.job.attempt + 1)  # type: ignore[type-var]
        )

    def close(self, grace_s: float = 5.0) -> None:
        """Stops all collectors; those that do not end in time are killed. The queue should be shut down before, so that
        none waits for room."""
        self._counters.set_stop()
        processes.join_or_kill([worker.process for worker in self._workers], grace_s)
        for worker in self._workers:
            worker.report.close()
        self._workers = []


def _work(
    work: Work[Any],
    job: AnyJob,
    counters: SharedCounters,
    sender: QueueSender,
    weights: Weights | None,
    names: Sequence[str],
    report: Connection,
) -> None:
    """Target of a collecting process."""
    processes.init_worker(names)
    try:
        sender.open()
        try:
            work(job, counters, sender, weights)
        finally:
            sender.close()
    except TransportClosed:
        pass
    except ContractError as error:
        report.send(("", str(error)))
        sys.exit(1)
    except BaseException:
        report.send((traceback.format_exc(), ""))
        sys.exit(1)
