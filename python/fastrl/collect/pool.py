"""The collectors' processes: started, watched, replaced when they die, and gone when their learner is.

What a process does is a function of a job, a board, a sender and weights: `fastrl.collect.collector.collect`, unless
a pool is given another one.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from fastrl.collect.board import Board
from fastrl.collect.collector import collect
from fastrl.collect.feeds import FeedClosed, Sender
from fastrl.weights import Weights

# Forked processes would share locks, threads and a GPU with the learner.
CONTEXT = multiprocessing.get_context("spawn")

# Each collector is to keep to one core: these are read when the libraries are loaded.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)

# A collector that dies more often than this within so many seconds is not started again.
DEATHS = 5
WITHIN = 600.0

# Where ``fastrl.queue`` and ``fastrl.weights`` keep the memory that processes share.
SHARED_MEMORY = "/dev/shm/fastrl-"


class AnyJob(Protocol):
    """What a pool has to know of a job, a frozen dataclass: see `fastrl.collect.collector.Job`."""

    @property
    def index(self) -> int: ...
    @property
    def envs(self) -> range: ...
    @property
    def attempt(self) -> int: ...


J = TypeVar("J", bound=AnyJob)
Work = Callable[[J, Board, Sender, Weights | None], None]


class CollectorError(RuntimeError):
    """Collectors die again and again; the message has the last one's traceback."""


@dataclasses.dataclass(frozen=True)
class Death:
    """A collector that has died.

    Attributes:
        index: which.
        envs: the numbers of its environments.
        cause: one line.
        traceback: its own, empty if it was killed.
    """

    index: int
    envs: range
    cause: str
    traceback: str


@dataclasses.dataclass
class _Worker(Generic[J]):
    job: J
    process: BaseProcess
    report: Connection
    steps: int  # when it was started
    told: str = ""  # its traceback, once it has died


class Pool(Generic[J]):
    """A process for each job.

    Args:
        jobs: one a collector.
        senders: their ends of the feed.
        board: made with `CONTEXT`.
        weights: where the learner publishes, if it does.
        names: of shared memory that is to be removed if the learner is killed.
        work: what each process does, until `FeedClosed` or the board says stop.
    """

    def __init__(
        self,
        jobs: Sequence[J],
        senders: Sequence[Sender],
        board: Board,
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
            os.getpid(),
        )
        # Not daemonic in multiprocessing's sense, whose environments could not start processes themselves.
        process = CONTEXT.Process(target=_work, args=arguments, name=f"collector {job.index}")
        with _environment(ONE_THREAD), _without_interrupts():
            process.start()
        report.close()
        return _Worker(job, process, receiver, self._board.steps_of(job.index))

    def dead(self) -> list[Death]:
        """The collectors that have ended by themselves or were killed. They stay so until `restart`."""
        return [self._death(worker) for worker in self._workers if not worker.process.is_alive()]

    def _death(self, worker: _Worker[J]) -> Death:
        with contextlib.suppress(EOFError, OSError):
            if worker.report.poll():
                worker.told = worker.report.recv()
        told = worker.told
        code = worker.process.exitcode or 0
        if told:
            cause = told.strip().splitlines()[-1]
        else:
            cause = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Death(worker.job.index, worker.job.envs, cause, told)

    def restart(self, death: Death) -> None:
        """Starts a collector in place of a dead one. What the dead one has sent must be taken from the feed before:
        the new one begins new episodes in the same environments.

        Raises:
            CollectorError: it dies again and again.
        """
        worker = self._workers[death.index]
        deaths = self._deaths[death.index]
        now = time.monotonic()
        deaths[:] = [*(at for at in deaths if now - at < WITHIN), now]
        never_began = death.traceback and self._board.steps_of(death.index) == worker.steps
        if len(deaths) > (1 if never_began else DEATHS):
            raise CollectorError(
                f"collector {death.index} died {len(deaths)} times"
                + (" before its first step" if never_began else f" within {WITHIN / 60:.0f} minutes")
                + f", the last time so: {death.cause}\n\n{death.traceback}".rstrip()
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
        end = time.monotonic() + patience
        for worker in self._workers:
            worker.process.join(max(end - time.monotonic(), 0))
        for worker in self._workers:
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.report.close()
        self._workers = []


def _work(
    work: Work[Any],
    job: AnyJob,
    board: Board,
    sender: Sender,
    weights: Weights | None,
    names: Sequence[str],
    report: Connection,
    parent: int,
) -> None:
    """What a collector's process does."""
    # Ctrl-C reaches every process of a terminal: it is for the learner to say what happens then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(parent, names), daemon=True).start()
    try:
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)
        sender.open()
        try:
            work(job, board, sender, weights)
        finally:
            sender.close()
    except FeedClosed:
        pass
    except BaseException:
        report.send(traceback.format_exc())
        sys.exit(1)


def _end_with_parent(parent: int, names: Sequence[str]) -> None:
    """Waits until the learner's process is gone; if it could not clear away its shared memory, does so."""
    process = multiprocessing.parent_process()
    if process is not None and os.getppid() == parent:
        connection.wait([process.sentinel])
    for name in names:
        Path(SHARED_MEMORY + name).unlink(missing_ok=True)
    os._exit(1)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for processes that are started meanwhile, where they are not set already."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that is started meanwhile is not interrupted by Ctrl-C, from its first moment on."""
    # Would be started along with the first process, and lets interrupts through again when it is.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
