"""The actors that train the trials of a search on the nodes of a Ray cluster, each by a worker process of its own.

Run directories are on a file system that all nodes share, so a trial whose node is lost continues elsewhere.
"""

import contextlib
import dataclasses
import os
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastrl.collectors.failures import last_line
from fastrl.collectors.ray_cluster import connect, import_ray, shutdown
from fastrl.collectors.ray_collector import START_TIMEOUT_S, start_limit
from fastrl.tuning.pool import GRACE_S, MAX_START_FAILURES, WORKER, Answer, ProcessPool
from fastrl.tuning.study import is_study
from fastrl.tuning.trial import Trial, TuneError
from fastrl.utils.closing import Closing
from fastrl.utils.import_path import module_command

# Seconds in which the cluster should answer, and between two looks of an actor at its worker process.
_CONNECT_TIMEOUT_S, _INTERVAL_S = 10.0, 0.3

# The concurrency group of `stop`, which does not wait for the trial.
_ASIDE = "aside"

# Entries of a job that are files.
_PATHS = ("config", "run", "log", "fork")


class TrialActor:
    """A Ray actor with one worker process.

    Args:
        directory: of the search.
        folder: the current one of the search.
        trial_seconds, command: as of `ProcessPool`.
    """

    def __init__(
        self, directory: Path, folder: Path, trial_seconds: float | None, command: Sequence[str]
    ) -> None:
        self._directory, self._folder = directory, folder
        self._limit, self._command = trial_seconds, command
        self._pool: ProcessPool | None = None

    def begin(self) -> str:
        """Called before each trial. Returns what is missing on this node, or nothing."""
        if not is_study(self._directory):
            return f"the Ray node {socket.gethostname()} has no {self._directory}"
        if self._pool is None:
            with contextlib.suppress(OSError):
                os.chdir(self._folder)
            self._pool = ProcessPool(1, self._directory, self._limit, self._command)
        return ""

    def train(self, trial: Trial, job: Mapping[str, Any]) -> Answer:
        """Trains a trial to its end."""
        assert self._pool is not None, "begin was called"
        self._pool.start(trial, job)
        while not (found := self._pool.answers(_INTERVAL_S)):
            pass
        return found[0]

    def stop(self) -> None:
        """Asks the trial that runs to stop."""
        if self._pool is not None:
            for trial in self._pool.running():
                self._pool.stop(trial)


class _Job(NamedTuple):
    trial: Trial
    job: Mapping[str, Any]


@dataclasses.dataclass
class _Slot:
    """The search's state of an actor.

    Attributes:
        job: that it has; None: it waits for one.
        ref: of its reply.
        began: it has replied to `TrialActor.begin`, and trains.
        since: it was given the job, or has begun, seconds of the monotonic clock.
        stopped: it was asked to stop before it had begun.
    """

    actor: Any
    job: _Job | None = None
    ref: Any = None
    began: bool = False
    since: float = 0.0
    stopped: bool = False


class RayPool(Closing):
    """Actors on the nodes of a Ray cluster. They end with this process, whatever ends it.

    An actor that dies, alone or with its node, is replaced; its trial continues from its last checkpoint. If no node
    has processors for another one, those that are left do the work.

    Args:
        size: of the pool.
        directory: of the search, which all nodes see at the same path.
        address: of the cluster, ``"host:6379"``, or "auto" for the one on this machine.
        trial_seconds, command: as of `ProcessPool`.

    Attributes:
        cpus: processors that are set aside for each trial.

    Raises:
        CollectError: Ray is not installed, or no cluster answers.
        TuneError: it has fewer processors than trials run side by side.
    """

    def __init__(
        self,
        size: int,
        directory: Path,
        address: str,
        trial_seconds: float | None = None,
        command: Sequence[str] | None = None,
    ) -> None:
        self._ray = import_ray()
        self._ends_ray = not self._ray.is_initialized()
        if self._ends_ray:
            connect(address, _CONNECT_TIMEOUT_S)
        self.size = size
        self._slots: list[_Slot] = []
        self._waiting: deque[_Job] = deque()
        self._start_failures = 0
        try:
            nodes = [node for node in self._ray.nodes() if node["Alive"]]
            self.cpus = cpus_of_trials([int(node["Resources"].get("CPU", 0)) for node in nodes], size)
        except BaseException:
            self.close()
            raise
        self._arguments = (
            directory.absolute(),
            Path.cwd(),
            trial_seconds,
            module_command(WORKER) if command is None else command,
        )

    def running(self) -> list[Trial]:
        jobs = [slot.job for slot in self._slots if slot.job is not None]
        return [each.trial for each in (*jobs, *self._waiting)]

    def start(self, trial: Trial, job: Mapping[str, Any]) -> None:
        whole = {key: str(Path(value).absolute()) if key in _PATHS else value for key, value in job.items()}
        self._waiting.append(_Job(trial, whole))
        self._assign_waiting()

    def _assign_waiting(self) -> None:
        """Gives jobs that wait to actors that have none, and to new ones."""
        while self._waiting:
            slot = next((slot for slot in self._slots if slot.job is None), None)
            if slot is None:
                if len(self._slots) >= self.size:
                    return
                remote = self._ray.remote(concurrency_groups={_ASIDE: 1})(TrialActor).options(
                    num_cpus=self.cpus, max_restarts=0, scheduling_strategy="SPREAD"
                )
                slot = _Slot(remote.remote(*self._arguments))
                self._slots.append(slot)
            slot.job, slot.since = self._waiting.popleft(), time.monotonic()
            slot.began = slot.stopped = False
            slot.ref = slot.actor.begin.remote()

    def stop(self, trial: Trial) -> None:
        for slot in self._slots:
            if slot.job is None or slot.job.trial is not trial:
                continue
            if slot.began:
                slot.actor.stop.options(concurrency_group=_ASIDE).remote()
            slot.stopped = True

    def answers(self, seconds: float) -> list[Answer]:
        found: list[Answer] = []
        slots = {slot.ref: slot for slot in self._slots if slot.job is not None}
        if slots:
            ready, _ = self._ray.wait(list(slots), timeout=seconds)
            for ref in ready:
                found += self._receive(slots[ref])
        for slot in list(self._slots):
            waited = time.monotonic() - slot.since
            is_late = slot.job is not None and not slot.began and waited > START_TIMEOUT_S
            if is_late and waited > start_limit(self.cpus * len(self._slots)):
                self._drop(slot)
        self._assign_waiting()
        return found

    def _receive(self, slot: _Slot) -> list[Answer]:
        """Handles an actor's reply, or its death."""
        assert slot.job is not None, "it has replied"
        trial, errors = slot.job.trial, self._ray.exceptions
        try:
            reply = self._ray.get(slot.ref)
        except errors.RayTaskError as error:
            raise TuneError(f"a Ray actor has failed: {last_line(str(error))}") from error
        except errors.RayError as error:
            self._slots.remove(slot)
            if slot.began:
                return [Answer(trial, "killed", seconds=time.monotonic() - slot.since)]
            # Its trial has not started, so that another actor gets it.
            self._waiting.appendleft(slot.job)
            self._start_failures += 1
            if self._start_failures >= MAX_START_FAILURES:
                raise TuneError(
                    f"Ray cannot start an actor: {last_line(str(error))}; each node of the cluster should have fastrl"
                ) from error
            return []
        if not slot.began:
            if reply:
                raise TuneError(f"{reply}: give --dir on a file system that all nodes share")
            self._start_failures = 0
            if slot.stopped:
                slot.job = None
                return [Answer(trial, "interrupted")]
            slot.began, slot.since = True, time.monotonic()
            slot.ref = slot.actor.train.remote(trial, slot.job.job)
            return []
        slot.job = None
        return [dataclasses.replace(reply, trial=trial)]

    def _drop(self, slot: _Slot) -> None:
        """Removes an actor that no node has had processors for; the others do its work."""
        assert slot.job is not None, "it should start one"
        self._ray.kill(slot.actor)
        self._slots.remove(slot)
        self._waiting.appendleft(slot.job)
        self.size = len(self._slots)
        if not self.size:
            raise TuneError(
                f"no node of the Ray cluster has had {self.cpus} free processors for {START_TIMEOUT_S:.0f} s"
            )

    def close(self) -> None:
        """Ends all actors; trials that run save a checkpoint first."""
        if not self._ray.is_initialized():
            return
        refs = []
        for slot in self._slots:
            if slot.job is not None and slot.began:
                slot.actor.stop.options(concurrency_group=_ASIDE).remote()
                refs.append(slot.ref)
        with contextlib.suppress(self._ray.exceptions.RayError):
            if refs:
                self._ray.wait(refs, num_returns=len(refs), timeout=GRACE_S)
        for slot in self._slots:
            self._ray.kill(slot.actor)
        self._slots, self._waiting = [], deque()
        if self._ends_ray:
            shutdown()


def cpus_of_trials(nodes: Sequence[int], size: int) -> int:
    """The most processors that each of so many trials can have, where a trial is on one node.

    Args:
        nodes: processors of each.

    Raises:
        TuneError: there are fewer processors than trials.
    """
    for cpus in range(max(nodes, default=0), 0, -1):
        if sum(node // cpus for node in nodes) >= size:
            return cpus
    raise TuneError(
        f"--n-workers {size}: each trial needs a processor, the Ray cluster has {sum(nodes)}: give at most that many"
    )
