"""A worker in the learner's process: one process with an executor of its own, which can be replaced."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from queue import SimpleQueue
from typing import Any

from fastrl.collectors import executor_task
from fastrl.collectors.executor_task import Slots, Task
from fastrl.collectors.scheduler import TaskWorker
from fastrl.collectors.worker_tasks import WorkerReply
from fastrl.utils import processes
from fastrl.utils.child_process import Child

# The most seconds that the executor's thread takes to end after its process.
_MANAGER_SECONDS = 10.0


class Worker(TaskWorker):
    """A process of the executor and its tasks.

    ``ProcessPoolExecutor`` gives up all its processes where one is killed. So each has one, and only that is replaced;
    the state of its environments' episodes stays.

    Args:
        index: its number.
        env_indices: its environments; empty with unit "episodes".
        slots: memory for its fragments.
        arguments: of `fastrl.collectors.executor_task.init_process`, but for the report; made again where
            the worker is restarted.
        done: receives ``(worker, generation, future)`` of each finished task, in order.

    Attributes:
        tasks: unfinished ones, in order; None is its start.
        free: slots that no task has.
        generation: number of its processes before this one.
    """

    def __init__(
        self,
        index: int,
        env_indices: Sequence[int],
        slots: Slots,
        context: BaseContext,
        arguments: Callable[["Worker", Connection], tuple[Any, ...]],
        done: "SimpleQueue[tuple[Worker, int, Future[WorkerReply]]]",
    ) -> None:
        super().__init__(index, env_indices)
        self.slots = slots
        self.tasks: deque[Task | None] = deque()
        self.generation = -1
        self._context = context
        self._arguments = arguments
        self._done = done
        self.start()

    def start(self) -> None:
        """Starts a process, in place of one that has ended, with nothing to do but to build its environment."""
        self.generation += 1
        self.resumed = False
        self.since = time.monotonic()
        self.tasks.clear()
        self.free = list(range(len(self.slots.arrays)))
        reader, report = self._context.Pipe(duplex=False)
        processes.start_tracker()
        self._executor = ProcessPoolExecutor(
            1, self._context, initializer=executor_task.init_process, initargs=self._arguments(self, report)
        )
        with processes.starting_workers():
            self.submit(None)
        # There is no other way to know it, before ``kill_workers`` of Python 3.14.
        self.process = Child(next(iter(self._executor._processes.values())), reader)
        report.close()

    def submit(self, task: Task | None) -> None:
        """Sends a task; None: it builds its environment.

        Raises:
            BrokenProcessPool: it has died.
        """
        future = (
            self._executor.submit(executor_task.build)
            if task is None
            else self._executor.submit(executor_task.run, task)
        )
        if not self.tasks:
            self.since = time.monotonic()
        self.tasks.append(task)
        if task is not None:
            self.free = [slot for slot in self.free if slot not in task.slots]
        generation = self.generation
        future.add_done_callback(lambda future: self._done.put((self, generation, future)))

    def done(self) -> Task | None:
        """Removes the oldest task, whose slots are free again, and returns it."""
        self.since = time.monotonic()
        task = self.tasks.popleft()
        self.free += task.slots if task is not None else ()
        return task

    def death_report(self) -> tuple[str, str]:
        """Cause of a death of the process, in one line, and its traceback, if it left one."""
        self._executor.shutdown(wait=True)
        return self.process.cause, self.process.traceback()

    def release(self) -> None:
        """Cancels the process's tasks, without waiting for it."""
        # Python forgets the thread that manages the process when it does not wait for it.
        self._manager: Any = self._executor._executor_manager_thread
        self._executor.shutdown(wait=False, cancel_futures=True)
        self.process.pipe.close()

    def join_manager(self) -> None:
        """Waits for the thread of the executor, after the process has ended: at the end of the interpreter Python would
        write to a pipe that this thread is closing."""
        if self._manager is not None:
            self._manager.join(_MANAGER_SECONDS)
