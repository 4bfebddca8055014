"""The processes that train the trials of a search, and are replaced when they die."""

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fastrl.tuning.trial import Trial, TuneError
from fastrl.utils import child_process
from fastrl.utils.child_process import Child
from fastrl.utils.closing import Closing
from fastrl.utils.files import append_file
from fastrl.utils.import_path import module_command

# Seconds that a trial has to stop after it was asked to, before its process is killed.
GRACE_S = 20.0
# Workers that may die in a row before their first answer.
MAX_START_FAILURES = 3
# The module that a worker runs.
WORKER = "fastrl.tuning.worker"


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer of a worker about a trial.

    Attributes:
        trial: that it had.
        status: "complete", "interrupted", "failed", or "killed": the process has died.
        error: why it failed; empty: it has not.
        disk_full: that is why.
        score: of an evaluation.
        seconds: since it was given the trial.
    """

    trial: Trial
    status: str
    error: str = ""
    disk_full: bool = False
    score: float | None = None
    seconds: float = 0.0


class Pool(Protocol):
    """Trains several trials at a time."""

    size: int

    def running(self) -> Sequence[Trial]:
        """The trials that run."""
        ...

    def start(self, trial: Trial, job: Mapping[str, Any]) -> None:
        """Starts one."""
        ...

    def stop(self, trial: Trial) -> None:
        """Asks one to stop; its answer follows."""
        ...

    def answers(self, seconds: float) -> Sequence[Answer]:
        """The answers of trials that have ended, after at most so many seconds."""
        ...


@dataclasses.dataclass
class _Worker:
    """A process.

    Attributes:
        trial: that it has; None: it waits for one.
        began: when it was given that, seconds of the monotonic clock.
        kill_at: when it is killed, if it has not stopped before.
        done: it has answered at least once.
    """

    process: Child
    trial: Trial | None = None
    began: float = 0.0
    kill_at: float | None = None
    done: bool = False
    buffer: bytes = b""


class ProcessPool(Closing):
    """Worker processes, see `fastrl.tuning.worker`. They end with this process, whatever ends it.

    Args:
        size: of the pool.
        directory: where their log goes.
        trial_seconds: after which a trial is killed; None: never.
        command: of a worker; None: that of `WORKER`.
    """

    def __init__(
        self,
        size: int,
        directory: Path,
        trial_seconds: float | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        self.size, self._limit = size, trial_seconds
        self._command = module_command(WORKER) if command is None else command
        self._log = append_file(directory / "workers.log")
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._start_failures = 0

    def running(self) -> list[Trial]:
        return [worker.trial for worker in self._workers if worker.trial is not None]

    def busy(self) -> list[int]:
        """The process ids of the workers that have a trial."""
        return [
            worker.process.pid
            for worker in list(self._workers)
            if worker.trial is not None and worker.process.is_alive()
        ]

    def start(self, trial: Trial, job: Mapping[str, Any]) -> None:
        idle = [worker for worker in self._workers if worker.trial is None]
        worker = idle[0] if idle else self._new()
        worker.trial, worker.began, worker.kill_at = trial, time.monotonic(), None
        # A worker that has died is found by its closed output.
        with contextlib.suppress(OSError):
            worker.process.stdin.write(json.dumps(dict(job)).encode() + b"\n")
            worker.process.stdin.flush()

    def stop(self, trial: Trial) -> None:
        for worker in self._workers:
            if worker.trial is trial and worker.kill_at is None:
                worker.kill_at = time.monotonic() + GRACE_S
                worker.process.send_signal(signal.SIGINT)

    def answers(self, seconds: float) -> list[Answer]:
        found = []
        for key, _ in self._selector.select(seconds):
            found += self._read(key.data)
        for worker in list(self._workers):
            now = time.monotonic()
            over = self._limit is not None and worker.trial is not None and now - worker.began > self._limit
            if over or (worker.kill_at is not None and now > worker.kill_at):
                worker.process.kill()
                answers = self._end(worker)
                if over:
                    why = f"it took more than {self._limit:g} s"
                    answers = [dataclasses.replace(each, status="failed", error=why) for each in answers]
                found += answers
        return found

    def _new(self) -> _Worker:
        process = Child.command(self._command, self._log, pipes=True)
        worker = _Worker(process)
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)
        self._workers.append(worker)
        return worker

    def _read(self, worker: _Worker) -> list[Answer]:
        data = os.read(worker.process.stdout.fileno(), 1 << 16)
        if not data:
            return self._end(worker)
        *lines, worker.buffer = (worker.buffer + data).split(b"\n")
        found = []
        for line in lines:
            assert worker.trial is not None, "an answer follows a job"
            found.append(Answer(worker.trial, **json.loads(line), seconds=time.monotonic() - worker.began))
            worker.trial, worker.kill_at, worker.done = None, None, True
            self._start_failures = 0
        return found

    def _end(self, worker: _Worker) -> list[Answer]:
        """Removes a worker that has died; returns the answer of the trial that it had, if any."""
        self._workers.remove(worker)
        self._selector.unregister(worker.process.stdout)
        for pipe in (worker.process.stdin, worker.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        worker.process.wait()
        if (worker.process.code or 0) >= 0 and not worker.done:
            self._start_failures += 1
            if self._start_failures >= MAX_START_FAILURES:
                raise TuneError(f"worker processes end as soon as they start, see {self._log.name}")
        if worker.trial is None:
            return []
        return [Answer(worker.trial, "killed", seconds=time.monotonic() - worker.began)]

    def close(self, grace: float = GRACE_S) -> None:
        """Ends all workers; trials that run save a checkpoint first."""
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.process.stdin.close()
            if worker.trial is not None:
                worker.process.send_signal(signal.SIGINT)
        child_process.end([worker.process for worker in self._workers], grace)
        for worker in self._workers:
            worker.process.stdout.close()
        self._workers.clear()
        self._selector.close()
        self._log.close()
