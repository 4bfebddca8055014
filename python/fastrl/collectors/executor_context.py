"""Contexts of ``multiprocessing`` for executors of one process, which leave nothing behind.

By themselves the queues of an executor have semaphores with names, ``/dev/shm/sem.mp-*``, which stay where all of its
processes are killed at once, their tracker too. Here the one semaphore of a queue is a file descriptor, which ends with
them. Its locks keep threads of one process apart: one process reads from the queue, and one writes to it.
"""

import contextlib
import os
import select
import threading
import time
from multiprocessing import context, reduction
from multiprocessing.context import BaseContext, ForkServerContext, SpawnContext
from typing import Any, Self


class ProcessLocalLock:
    """A lock between the threads of one process: each process that gets the queue has another."""

    def __init__(self) -> None:
        lock = threading.Lock()
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcessLocalLock, ()


class EventSemaphore:
    """A semaphore without a name, for processes that are started with it.

    Args:
        value: at first.
        fd: of the semaphore; None: a new one.
    """

    def __init__(self, value: int, fd: int | None = None) -> None:
        self._fd = (
            os.eventfd(value, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC) if fd is None else fd
        )

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Takes one; False if there is none, after ``timeout`` seconds if it blocks."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                os.eventfd_read(self._fd)
                return True
            except BlockingIOError:
                left = None if until is None else max(until - time.monotonic(), 0.0)
                if not block or left == 0.0:
                    return False
                self._wait(left)

    def release(self) -> None:
        """Returns one."""
        os.eventfd_write(self._fd, 1)

    def _wait(self, seconds: float | None) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000.0))

    # `multiprocessing.queues.Queue.full` calls these.

    @property
    def _semlock(self) -> Self:
        return self

    def _is_zero(self) -> bool:
        return not self._wait(0.0)

    def __reduce__(self) -> tuple[Any, ...]:
        context.assert_spawning(self)
        return _received, (reduction.DupFd(self._fd),)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # there was no descriptor left
            os.close(self._fd)


def _received(fd: Any) -> EventSemaphore:
    return EventSemaphore(0, fd.detach())


class _Nameless:
    """Makes the parts of queues."""

    def Lock(self) -> ProcessLocalLock:  # noqa: N802 - the name of multiprocessing's
        return ProcessLocalLock()

    def BoundedSemaphore(self, value: int = 1) -> EventSemaphore:  # noqa: N802
        return EventSemaphore(value)


class _Spawn(_Nameless, SpawnContext):  # type: ignore[misc]
    pass


class _ForkServer(_Nameless, ForkServerContext):  # type: ignore[misc]
    pass


def executor_context(start_method: str) -> BaseContext:
    """The context of ``"spawn"`` or ``"forkserver"``, for `concurrent.futures.ProcessPoolExecutor` with one process."""
    return _Spawn() if start_method == "spawn" else _ForkServer()
