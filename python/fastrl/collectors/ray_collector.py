"""Collects on Ray actors: on this machine or on a cluster of machines, `pip install 'fastrl[ray]'`.

Each worker is a Ray actor with its own `fastrl.collectors.local_runner.LocalRunner`. Weights go into Ray's object store
once an update, and each machine fetches them once; fragments come back through the store, too. A free worker gets the
next episodes; with unit "steps", each worker steps its own environments. Ray restarts a worker that has died, and this
module sends it what it needs to resume; its task is done again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np

from fastrl.collectors.failures import last_line
from fastrl.collectors.fragment_arrays import arrays_for
from fastrl.collectors.protocol import CollectError, Plan, partition_envs
from fastrl.collectors.ray_cluster import connect, import_ray, shutdown, start
from fastrl.collectors.ray_worker import RunnerActor
from fastrl.collectors.resources import MIB, WorkerCount, available_memory, count_workers
from fastrl.collectors.scheduler import TaskScheduler, TaskWorker

# Seconds of a task of several short episodes, long beside the time that sending it takes.
TASK_SECONDS = 0.05

# Seconds after which a worker that has not started never will, where the cluster lacks processors and where not.
START_TIMEOUT_S, SLOW_START_S = 120.0, 600.0

# The concurrency group of a worker's methods that do not wait for its tasks.
_ASIDE = "aside"

# Seconds that a hanging worker has to send its traceback.
DUMP_GRACE_S = 3.0

# Bytes of Ray's object store beside those that are known to be needed (Ray's minimum is 75 MiB), and its largest share
# of the free memory.
_LEAST_STORE = 100 * MIB
_STORE_SHARE = 0.25

# Seconds between checks whether Ray has restarted a worker.
_RESTART_INTERVAL_S = 0.1

_DIED = "its process died"


def start_limit(cpus: float) -> float:
    """Seconds after which a worker of a cluster that has not started never will. Where the cluster has processors for
    all workers by now, the machine is only slow.

    Args:
        cpus: that all workers need.
    """
    there: float = import_ray().cluster_resources().get("CPU", 0)
    return SLOW_START_S if there >= cpus else START_TIMEOUT_S


@dataclasses.dataclass
class _Call:
    """A call of a worker's method that has no reply yet.

    Attributes:
        what: the method.
        ref: of its reply.
        episode_numbers: of the task's episodes; none with unit "steps".
    """

    what: Literal["begin", "build", "run"]
    ref: Any
    episode_numbers: tuple[int, ...] = ()


class _Worker(TaskWorker):
    """The learner's state of a worker.

    Attributes:
        calls: without a reply, oldest first.
        life: how often it was restarted.
        pid: of its process, once it is known. ``ready``: whether it has built environment and actor.
        memory_mib: of its process, as of its last reply.
    """

    def __init__(self, index: int, env_indices: Iterable[int], actor: Any) -> None:
        super().__init__(index, env_indices)
        self.actor = actor
        self.calls: deque[_Call] = deque()
        self.life = 0
        self.pid: int | None = None
        self.ready = False
        self.memory_mib = 0.0


class RayCollector(TaskScheduler[_Worker]):
    """See `fastrl.collectors.protocol.Collector`. Use ``collect`` or ``take``, not both.

    A worker whose environment raises continues with a new environment. Ray restarts a worker that has died, or was
    killed after ``task_timeout`` seconds without a reply. Its task is done again; with unit "steps", its
    running episodes are restarted.

    Args:
        n_workers: a number, or "auto": as many as have a processor and memory, here or on the cluster.
        ray_address: of a Ray cluster, ``"host:6379"``; or "auto" for the one that runs on this machine. None: Ray is
            started here for this collector, unless the program has called ``ray.init`` itself. On each machine of a
            cluster there should be fastrl, and what makes the environment.
        connect_timeout: seconds in which the cluster should answer.
        cpus_per_worker: processors of a cluster that are set aside for each worker. Workers are spread over machines.
        task_timeout: seconds that an episode, or a fragment, may take; None: no limit.
        max_failures: failures of workers at the same episode that stop the run.
        max_pending: for `take`, fragments that may be running or wait to be taken, which bounds their staleness.
            None: two for each worker, or an update's worth of episodes, if that is more.
        measure: returns the bytes of memory that one worker takes; called only where memory could be short. None:
            memory is not checked.

    Raises:
        CollectError: Ray is not installed, or the cluster does not answer, or it has too few processors.
        TypeError, ValueError: an argument that makes no sense.
    """

    name = "ray"

    def __init__(
        self,
        plan: Plan,
        *,
        n_workers: WorkerCount = "auto",
        ray_address: str | None = None,
        connect_timeout: float = 10.0,
        cpus_per_worker: float = 1.0,
        task_timeout: float | None = 300.0,
        max_failures: int = 3,
        max_pending: int | None = None,
        measure: Callable[[], int] | None = None,
    ) -> None:
        for option, value, unit in (
            ("cpus_per_worker", cpus_per_worker, ""),
            ("connect_timeout", connect_timeout, " s"),
        ):
            if not value > 0:
                raise ValueError(f"{option} should be more than 0{unit}, got {value}")
        super().__init__(
            plan,
            task_timeout=task_timeout,
            max_failures=max_failures,
            max_pending=max_pending,
            task_seconds=TASK_SECONDS,
        )
        self._weights: Any = None
        self._ray: Any = import_ray()
        # A Ray that is started here has a processor for each worker, so workers are counted first.
        self._ends_ray = not self._ray.is_initialized()
        local = ray_address is None and self._ends_ray
        self._cpus = 1.0 if local else cpus_per_worker
        if local:
            count = count_workers(n_workers, useful=self._useful_workers, measure=measure)
            self._expect(count)
            start(count, self._store())
        elif self._ends_ray:
            assert ray_address is not None
            connect(ray_address, connect_timeout)
        try:
            if not local:
                self._expect(self._count_on_cluster(n_workers, cpus_per_worker, measure))
            remote = self._ray.remote(concurrency_groups={_ASIDE: 1})(RunnerActor).options(
                num_cpus=self._cpus,
                max_restarts=-1,
                scheduling_strategy="SPREAD",
            )
            for index, env_indices in enumerate(partition_envs(plan, self._n_workers)):
                worker = _Worker(index, env_indices, remote.remote(plan, env_indices))
                self.workers.append(worker)
                self._begin(worker)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int | None]:
        """Process ids of the workers, on their machines; None for one that has not built its environment yet."""
        return [worker.pid if worker.ready else None for worker in self.workers]

    def _store(self) -> int:
        """Bytes for Ray's objects: pending fragments and weights, as far as there is memory."""
        rows = 1 if self._whole else -(-self.plan.num_envs // self._n_workers)
        fragment = sum(array.nbytes for array in arrays_for(self.plan, rows).values())
        wanted = (2 * self._n_workers + self._max_pending) * fragment + 4 * self._nbytes
        return _LEAST_STORE + min(wanted, int(_STORE_SHARE * available_memory()))

    def _count_on_cluster(self, asked: WorkerCount, cpus: float, measure: Callable[[], int] | None) -> int:
        there = self._ray.cluster_resources()
        places = int(there.get("CPU", 0) / cpus)
        count = count_workers(
            asked,
            useful=self._useful_workers,
            measure=measure,
            available=int(there.get("memory", 0)),
            num_cores=places,
        )
        if count > places:
            raise CollectError(
                f"{count} workers need {count * cpus:g} processors, the Ray cluster has {there.get('CPU', 0):g}:"
                " give a smaller n_workers, or fewer cpus_per_worker"
            )
        return count

    # Scheduling

    def _send(self, weights: Any, version: int) -> None:
        if self._nbytes:
            self._weights = self._ray.put(np.frombuffer(self._bytes_of(weights), np.uint8))
        if self._mode == "take":
            for worker in self.workers:
                worker.actor.offer.options(concurrency_group=_ASIDE).remote(version, self._weights)

    def _room(self, worker: _Worker, depth: int) -> int:
        return self._left() if worker.ready and len(worker.calls) < depth else 0

    def _submit(self, worker: _Worker, numbers: tuple[int, ...]) -> None:
        if not worker.calls:
            worker.since = time.monotonic()
        ref = worker.actor.run.remote(worker.life, numbers, self._difficulty, self.version, self._weights)
        worker.calls.append(_Call("run", ref, numbers))

    def _begin(self, worker: _Worker) -> None:
        """Asks a worker that is new or was restarted to build environment and actor."""
        worker.pid, worker.ready = None, False
        worker.since = time.monotonic()
        worker.calls = deque([self._call_begin(worker)])

    def _call_begin(self, worker: _Worker) -> _Call:
        ref = worker.actor.begin.remote(worker.life, worker.episode_numbers, self._running_episodes(worker))
        return _Call("begin", ref)

    # Replies of workers

    def _wait(self, timeout: float) -> None:
        # A worker's replies are taken in the order of its calls, so that an error belongs to the oldest one.
        waiting = {worker.calls[0].ref: worker for worker in self.workers if worker.calls}
        if waiting:
            ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=timeout)
            if ready:
                # Others that are ready as well.
                ready, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
            for ref in ready:
                self._receive_reply(waiting[ref])

    def _receive_reply(self, worker: _Worker) -> None:
        """Handles the reply to a worker's oldest call, or its death."""
        call = worker.calls[0]
        try:
            answer = self._ray.get(call.ref)
        except self._ray.exceptions.ActorUnavailableError as error:
            if call.what == "begin":
                # Ray is about to start it.
                time.sleep(_RESTART_INTERVAL_S)
                worker.calls[0] = self._call_begin(worker)
                return
            self._restarted(worker, _DIED, str(error))
            return
        except self._ray.exceptions.RayError as error:
            # Workers that die come back. One that does not has failed to make its actor.
            trace = str(error).strip()
            raise CollectError(
                f"Ray cannot make worker {worker.index}: {last_line(trace)}; each machine of the cluster should"
                f" have fastrl, and what makes the environment\n\n{trace}",
                trace,
            ) from None
        if answer is None:
            self._restarted(worker, _DIED, "")
            return
        worker.calls.popleft()
        worker.since = time.monotonic()
        if call.what == "begin":
            worker.pid = answer
            worker.calls.append(_Call("build", worker.actor.build.remote(worker.life)))
            return
        worker.memory_mib = answer.memory_mib
        if call.what == "run":
            self._task_finished(worker, call.episode_numbers, answer.fragments, answer.version, answer)
            return
        worker.ready = not answer.cause
        if answer.cause:
            self._begin(worker)
        self._worker_started(worker, answer, self._failures.elapsed())

    # Failures

    def _restarted(self, worker: _Worker, cause: str, trace: str) -> None:
        """Handles the death of a worker, which Ray restarts: its calls are repeated."""
        given = [call.episode_numbers if call.what == "run" else None for call in worker.calls]
        worker.life += 1
        self._running_of(worker).forget()
        self._begin(worker)
        self._worker_replaced(worker, given, cause, trace)

    def _limit(self, worker: _Worker) -> float:
        if not worker.calls:
            return math.inf
        call = worker.calls[0]
        return self._timeout * max(1, len(call.episode_numbers)) if call.what == "run" else START_TIMEOUT_S

    def _end_hanging(self, worker: _Worker) -> None:
        limit = self._limit(worker)
        if worker.calls[0].what == "begin":
            limit = start_limit(self._n_workers * self._cpus)
            if time.monotonic() - worker.since <= limit:
                return
            # There is no process yet to dump or kill.
            raise CollectError(
                f"worker {worker.index} did not start within {limit:g} s: the Ray cluster should have a free processor"
                " for each worker"
            )
        trace = ""
        with contextlib.suppress(self._ray.exceptions.RayError):
            ref = worker.actor.where.options(concurrency_group=_ASIDE).remote()
            trace = self._ray.get(ref, timeout=DUMP_GRACE_S)
        self._ray.kill(worker.actor, no_restart=False)
        self._restarted(worker, f"no answer for {limit:g} s", trace)

    # Reports

    def _memory(self) -> tuple[float, ...]:
        return tuple(worker.memory_mib for worker in self.workers if worker.memory_mib)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if not self._whole:
            # They have started with other numbers.
            for worker in self.workers:
                worker.life += 1
                self._begin(worker)

    def close(self) -> None:
        if self._ray.is_initialized():
            for worker in self.workers:
                self._ray.kill(worker.actor)
            if self._ends_ray:
                shutdown()
        self.workers = []
        self._weights = None
