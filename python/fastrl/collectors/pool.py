"""A pool of collecting processes: started, watched, replaced when they die, and ended with their learner.

Each process calls a function of a job, shared counters, a sender and weights, by default
`fastrl.collectors.actor_process.collect`.
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

from fastrl.collectors.actor_process import collect
from fastrl.collectors.counters import SharedCounters
from fastrl.collectors.protocol import CollectError
from fastrl.collectors.transport import Sender, TransportClosed
from fastrl.collectors.weights import Weights
from fastrl.envs.contract import ContractError
from fastrl.utils import processes

# Forked processes would share locks, threads and a GPU with the learner.
CONTEXT = multiprocessing.get_context("spawn")

# A collector that dies more often than this within so many seconds is not started again.
MAX_RESTARTS = 5
RESTART_WINDOW_S = 600.0


class AnyJob(Protocol):
    """What a pool has to know of a job, a frozen dataclass: see `fastrl.collectors.actor_process.Job`."""

    @property
    def index(self) -> int: ...
    @property
    def envs(self) -> range: ...
    @property
    def attempt(self) -> int: ...


J = TypeVar("J", bound=AnyJob)
Work = Callable[[J, SharedCounters, Sender, Weights | None], None]


class CollectorError(CollectError):
    """Collectors die again and again, or of something that comes again; the message has the last one's traceback."""


@dataclasses.dataclass(frozen=True)
class Death:
    """A collector that has died.

    Attributes:
        index: which.
        envs: the numbers of its environments.
        cause: one line.
        traceback: its own, empty if it was killed, or ``refused``.
        refused: its environment does not keep to Gymnasium's interface: to start it again is of no use.
    """

    index: int
    envs: range
    cause: str
    traceback: str
    refused: bool = False


@dataclasses.dataclass
class _Worker(Generic[J]):
    job: J
    process: BaseProcess
    report: Connection
    steps: int  # when it was started
    told: str = ""  # its traceback, once it has died, or
    refused: str = ""  # what its environment did


class Pool(Generic[J]):
    """A process for each job.

    Args:
        jobs: one a collector.
        senders: their ends of the feed.
        board: made with `CONTEXT`.
        weights: where the learner publishes, if it does.
        names: of shared memory that is to be removed if the learner is killed.
        work: what each process does, until `TransportClosed` or the board says stop.
    """

    def __init__(
        self,
        jobs: Sequence[J],
        senders: Sequence[Sender],
        board: SharedCounters,
        weights: Weights | None,
        names: Sequence[str] = (),
        work: Work[Any] = collect,
    ) -> None:
        self._do = work
        self._senders = list(senders)
        self._board = board
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
        """Of the processes, in the order of the jobs."""
        return [worker.process.pid or 0 for worker in self._workers]

    def _start(self, job: J) -> _Worker[J]:
        receiver, report = CONTEXT.Pipe(duplex=False)
        arguments = (
            self._do,
            job,
            self._board,
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
        return _Worker(job, process, receiver, self._board.steps_of(job.index))

    def dead(self) -> list[Death]:
        """The collectors that have ended by themselves or were killed. They stay so until `restart`."""
        return [self._death(worker) for worker in self._workers if not worker.process.is_alive()]

    def _death(self, worker: _Worker[J]) -> Death:
        with contextlib.suppress(EOFError, OSError):
            if worker.report.poll():
                worker.told, worker.refused = worker.report.recv()
        if worker.refused:
            return Death(worker.job.index, worker.job.envs, worker.refused, "", refused=True)
        told = worker.told
        last = told.strip().splitlines()[-1] if told else ""
        cause = last or processes.exit_cause(worker.process.exitcode)
        return Death(worker.job.index, worker.job.envs, cause, told)

    def restart(self, death: Death) -> None:
        """Starts a collector in place of a dead one. What the dead one has sent must be taken from the feed before:
        the new one begins new episodes in the same environments.

        Raises:
            CollectorError: it dies again and again, or is of no use.
        """
        if death.refused:
            raise CollectorError(death.cause)
        worker = self._workers[death.index]
        deaths = self._deaths[death.index]
        now = time.monotonic()
        deaths[:] = [*(at for at in deaths if now - at < RESTART_WINDOW_S), now]
        never_began = death.traceback and self._board.steps_of(death.index) == worker.steps
        if len(deaths) > (1 if never_began else MAX_RESTARTS):
            raise CollectorError(
                f"collector {death.index} died {len(deaths)} times"
                + (
                    " before its first step"
                    if never_began
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

    def close(self, patience: float = 5.0) -> None:
        """Stops all collectors; those that do not listen are killed. The feed should be shut down before, so that
        none waits for room."""
        self._board.set_stop()
        processes.join_or_kill([worker.process for worker in self._workers], patience)
        for worker in self._workers:
            worker.report.close()
        self._workers = []


def _work(
    work: Work[Any],
    job: AnyJob,
    board: SharedCounters,
    sender: Sender,
    weights: Weights | None,
    names: Sequence[str],
    report: Connection,
) -> None:
    """What a collector's process does."""
    processes.init_worker(names)
    try:
        sender.open()
        try:
            work(job, board, sender, weights)
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
