"""The worker processes of `ProcessVectorEnv`: started, attached to shared memory, run in lockstep, restarted, ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from numpy.typing import NDArray

from fastrl._native._rust import LockstepBarrier
from fastrl.envs.process_worker import Command, EnvsBuilt, Layout, Memory, Reply, WorkerTask, work
from fastrl.envs.worker_error import Death, WorkerError
from fastrl.utils import child_process
from fastrl.utils.child_process import Child

StartMethod = Literal["spawn", "forkserver"]

# Seconds between checks that workers which are not done are still alive.
POLL_INTERVAL_S = 0.05
# Seconds that workers have to end by themselves before they are killed.
SHUTDOWN_GRACE_S = 5.0


class WorkerPool:
    """W worker processes, each with its own environments.

    It holds no reference to the `ProcessVectorEnv` that owns it, whose finaliser closes it.

    Args:
        tasks: one for each worker.
        start_method: "spawn" or "forkserver".
        step_timeout: seconds after which a worker that is not done with a round is killed; None: no limit.
        start_timeout: seconds for building the environments.

    Attributes:
        deaths: workers that are dead now.
        memory: the shared arrays, after `share`.
    """

    memory: Memory

    def __init__(
        self,
        tasks: list[WorkerTask],
        start_method: StartMethod,
        *,
        step_timeout: float | None,
        start_timeout: float,
    ) -> None:
        self.tasks = tasks
        self.deaths: list[Death] = []
        self.step_timeout, self._start_timeout = step_timeout, start_timeout
        self._context: Any = multiprocessing.get_context(start_method)
        if start_method == "forkserver":
            # The server loads the modules once, and its processes share that memory.
            self._context.set_forkserver_preload([work.__module__])
        self._workers: list[Child] = []
        self._barrier: LockstepBarrier | None = None
        self._in_round = False
        self._owner = os.getpid()

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def start(self) -> list[EnvsBuilt]:
        """Starts the workers and waits until they have built their environments.

        Raises:
            WorkerError: a worker has died, or did not build its environments in time.
        """
        for task in self.tasks:
            self._workers.append(self._start(task))
        until = time.monotonic() + self._start_timeout
        return [self._recv(w, until) for w in range(len(self.tasks))]

    def _start(self, task: WorkerTask) -> Child:
        name = f"environments {task.index}"
        return Child.worker(self._context, work, task.index, pickle.dumps(task), name=name, duplex=True)

    def share(self, layout: Layout) -> Memory:
        """Creates the shared memory and attaches all workers to it.

        Raises:
            WorkerError: a worker has died.
        """
        self._layout = layout
        self._barrier = LockstepBarrier(len(self.tasks), layout.nbytes)
        self.memory = Memory(self._barrier, layout)
        until = time.monotonic() + self._start_timeout
        for w in range(len(self.tasks)):
            self._attach(w)
        for w in range(len(self.tasks)):
            self._recv(w, until)
        return self.memory

    def _attach(self, w: int) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._workers[w].pipe.send((self._barrier, self._layout))

    def _recv(self, w: int, until: float) -> Any:
        """The next message of a worker that starts.

        Raises:
            WorkerError: it has died, or sent nothing in time.
        """
        worker = self._workers[w]
        if not worker.pipe.poll(max(until - time.monotonic(), 0)):
            worker.kill()
            cause = f"its environments were not built within {self._start_timeout:g} s"
            raise WorkerError([Death(w, self.tasks[w].envs, cause, "")])
        try:
            message = worker.pipe.recv()
        except EOFError:
            message = ""
        if isinstance(message, str):
            raise WorkerError([self._death(w, message)])
        return message

    def _death(self, w: int, error: str) -> Death:
        """The death of a worker that has ended or is about to, from its last message."""
        worker = self._workers[w]
        child_process.end([worker], SHUTDOWN_GRACE_S)
        if error and "\n" not in error:
            # No traceback: a `ContractError`.
            return Death(w, self.tasks[w].envs, error, "", refused=True)
        last = error.strip().splitlines()[-1] if error else ""
        return Death(w, self.tasks[w].envs, last or worker.cause, error)

    def check_open(self) -> None:
        """Raises ClosedEnvironmentError after `close`."""
        self._open_barrier()

    def _open_barrier(self) -> LockstepBarrier:
        if self._barrier is None:
            raise ClosedEnvironmentError("this environment is closed: make a new one")
        return self._barrier

    def finish_round(self) -> None:
        """Waits for the end of a round that an interrupt has left running, so that the arrays may be written."""
        if self._in_round:
            self._await_round()
            self._recv_infos()

    def run_round(self, command: Command, mask: NDArray[np.bool_]) -> list[tuple[int, dict[str, Any]]]:
        """Runs a round in all workers and returns the infos of environments with their indices.

        Raises:
            WorkerError: workers have died, before or in this round; the others have finished it.
        """
        self.finish_round()
        memory = self.memory
        memory.command[0] = command
        memory.mask[...] = mask
        self._in_round = True
        self._open_barrier().start_round()
        self._await_round()
        infos = self._recv_infos() if memory.replies.any() else []
        if self.deaths:
            raise WorkerError(self.deaths)
        return infos

    def _await_round(self) -> None:
        """Waits until the round is complete, without workers that are dead or have exceeded the time limit."""
        barrier = self._open_barrier()
        interval = POLL_INTERVAL_S if self.step_timeout is None else min(POLL_INTERVAL_S, self.step_timeout)
        if not barrier.wait(interval):
            until = time.monotonic() + (self.step_timeout or float("inf")) - interval
            while not barrier.wait(interval):
                for w in barrier.missing():
                    worker = self._workers[w]
                    if worker.is_alive() and time.monotonic() >= until:
                        worker.kill()
                        cause = f"no answer for {self.step_timeout:g} s"
                        self._handle_death(Death(w, self.tasks[w].envs, cause, ""))
                    elif not worker.is_alive():
                        self._handle_death(self._death(w, ""))
        self._in_round = False

    def _handle_death(self, death: Death) -> None:
        barrier = self._open_barrier()
        self.deaths.append(death)
        self.memory.replies[death.worker] = Reply.NONE
        if death.worker in barrier.missing():
            barrier.mark_dead(death.worker)

    def _recv_infos(self) -> list[tuple[int, dict[str, Any]]]:
        infos = []
        for w in np.flatnonzero(self.memory.replies).tolist():
            try:
                message = self._workers[w].pipe.recv()
            except (EOFError, OSError):
                message = ""
            if isinstance(message, str):
                self._handle_death(self._death(w, message))
            else:
                infos += message
        return infos

    def send(self, message: Any) -> None:
        """Sends a message that all workers read in the next round."""
        for worker in self._workers:
            worker.pipe.send(message)

    def recv(self) -> list[Any]:
        """The answers of all workers to the last message."""
        return [worker.pipe.recv() for worker in self._workers]

    def restart(self, check: Callable[[WorkerTask, EnvsBuilt], None]) -> None:
        """Starts dead workers again.

        Args:
            check: called with the new worker's environments; it raises if they do not fit.

        Raises:
            WorkerError: a worker could not build its environments again.
        """
        self.check_open()
        until = time.monotonic() + self._start_timeout
        dead = [death.worker for death in self.deaths]
        for w in dead:
            # After an earlier attempt to restart the process may be alive.
            self._workers[w].kill()
            self._workers[w].pipe.close()
            self._workers[w] = self._start(self.tasks[w])
        for w in dead:
            check(self.tasks[w], self._recv(w, until))
            self._attach(w)
            self._recv(w, until)
        self.deaths = []

    def close(self, grace: float = SHUTDOWN_GRACE_S) -> None:
        """Ends the workers: they have `grace` seconds to close their environments, then they are killed."""
        if os.getpid() != self._owner:
            # A fork of the owner.
            return
        closing = False
        if self._barrier is not None:
            with contextlib.suppress(RuntimeError):
                # A dead worker takes part in no round, and one that hangs does not see the command.
                closing = self._barrier.wait(grace)
                if closing:
                    self.memory.command[0] = Command.CLOSE
                    self._barrier.start_round()
            self._barrier.close()
        for worker in self._workers:
            worker.pipe.close()
        child_process.end(self._workers, grace if closing or self._barrier is None else 0.0)
        self._workers, self._barrier = [], None
