"""Transports of experience with which `compare_transports` compares the queue: pickles, a lock, and none."""

import contextlib
import ctypes
import queue
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fastrl.collectors.pool import CONTEXT
from fastrl.collectors.transport import Rows, Sender, TransportClosed

# Seconds between two looks of a waiting sender at whether the learner still receives.
POLL_INTERVAL_S = 0.1


class _Waits:
    """Seconds that each sender has waited, which it writes itself."""

    def __init__(self, senders: int) -> None:
        self._free = [CONTEXT.RawValue(ctypes.c_double, 0.0) for _ in range(senders)]
        self._given: list[Any] = []

    def one(self) -> Any:
        self._given.append(self._free.pop())
        return self._given[-1]

    def total(self) -> float:
        return float(sum(value.value for value in self._given))


class PicklingTransport:
    """`multiprocessing.Queue`: fragments are pickled, a thread of each sender writes them to one pipe."""

    def __init__(self, row: np.dtype[Any], capacity: int, senders: int, fragment: int) -> None:
        self._queue: Any = CONTEXT.Queue(max(1, capacity * senders // fragment))
        self._closed: Any = CONTEXT.Event()
        self._fragment = fragment
        self._waits = _Waits(senders)

    def sender(self) -> "PicklingSender":
        return PicklingSender(self._queue, self._closed, self._waits.one())

    def drain(self, take: Callable[[Rows], object], timeout: float) -> int:
        try:
            rows = self._queue.get(timeout=timeout) if timeout else self._queue.get_nowait()
        except queue.Empty:
            return 0
        take(rows)
        return len(rows)

    def depth(self) -> int:
        return int(self._queue.qsize()) * self._fragment

    def dropped(self) -> int:
        return 0

    def waited(self) -> float:
        return self._waits.total()

    def shutdown(self) -> None:
        self._closed.set()

    def close(self) -> None:
        self._queue.close()
        self._queue.cancel_join_thread()


class PicklingSender:
    def __init__(self, queue: Any, closed: Any, waited: Any) -> None:
        self._queue = queue
        self._closed = closed
        self._waited = waited

    def open(self) -> None:
        pass

    def put(self, rows: Rows) -> None:
        # Pickled later, by another thread: the caller's array will be something else by then.
        rows = rows.copy()
        start = time.perf_counter()
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(rows, timeout=POLL_INTERVAL_S)
                self._waited.value += time.perf_counter() - start
                return
        raise TransportClosed

    def close(self) -> None:
        # Leaving with half a message in the pipe would block the learner for good; it still takes what comes.
        self._queue.close()
        self._queue.join_thread()


class LockedBuffer:
    """One ring of rows in shared memory for all, and a lock that is held while rows are copied in or out."""

    def __init__(self, row: np.dtype[Any], capacity: int) -> None:
        self._row = row
        self._memory: Any = CONTEXT.RawArray(ctypes.c_char, capacity * row.itemsize)
        self._numbers: Any = CONTEXT.RawArray(ctypes.c_longlong, 3)  # written, read, closed
        self.condition: Any = CONTEXT.Condition()

    def _rows(self) -> Rows:
        return np.frombuffer(self._memory, self._row)

    def put(self, rows: Rows) -> float:
        """The seconds that it took to get at the buffer and to find room there."""
        ring, numbers = self._rows(), self._numbers
        start = time.perf_counter()
        with self.condition:
            while not numbers[2] and numbers[0] + len(rows) - numbers[1] > len(ring):
                self.condition.wait(POLL_INTERVAL_S)
            if numbers[2]:
                raise TransportClosed
            waited = time.perf_counter() - start
            at = numbers[0] % len(ring)
            first = min(len(rows), len(ring) - at)
            ring[at : at + first] = rows[:first]
            ring[: len(rows) - first] = rows[first:]
            numbers[0] += len(rows)
            self.condition.notify_all()
        return waited

    def take(self, take: Callable[[Rows], object], timeout: float) -> int:
        ring, numbers = self._rows(), self._numbers
        with self.condition:
            if numbers[0] == numbers[1] and timeout:
                self.condition.wait(timeout)
            at = numbers[1] % len(ring)
            count = min(numbers[0] - numbers[1], len(ring) - at)
            if count:
                take(ring[at : at + count])
                numbers[1] += count
                self.condition.notify_all()
            return int(count)

    def depth(self) -> int:
        return int(self._numbers[0] - self._numbers[1])

    def shut_down(self) -> None:
        self._numbers[2] = 1

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__


class LockedTransport:
    """A `LockedBuffer` between senders and learner."""

    def __init__(self, row: np.dtype[Any], capacity: int, senders: int) -> None:
        self._buffer = LockedBuffer(row, capacity * senders)
        self._waits = _Waits(senders)

    def sender(self) -> "LockedSender":
        return LockedSender(self._buffer, self._waits.one())

    def drain(self, take: Callable[[Rows], object], timeout: float) -> int:
        return self._buffer.take(take, timeout)

    def depth(self) -> int:
        return self._buffer.depth()

    def dropped(self) -> int:
        return 0

    def waited(self) -> float:
        return self._waits.total()

    def shutdown(self) -> None:
        self._buffer.shut_down()

    def close(self) -> None:
        pass


class LockedSender:
    def __init__(self, buffer: LockedBuffer, waited: Any) -> None:
        self._buffer = buffer
        self._waited = waited

    def open(self) -> None:
        pass

    def put(self, rows: Rows) -> None:
        self._waited.value += self._buffer.put(rows)

    def close(self) -> None:
        pass


class NoTransport:
    """No transport: the speed that actors reach beside a learner that is as busy as in the other ways."""

    def sender(self) -> Sender:
        return NoSender()

    def drain(self, take: Callable[[Rows], object], timeout: float) -> int:
        return 0

    def depth(self) -> int:
        return 0

    def dropped(self) -> int:
        return 0

    def waited(self) -> float:
        return 0.0

    def shutdown(self) -> None:
        pass

    def close(self) -> None:
        pass


class NoSender:
    def open(self) -> None:
        pass

    def put(self, rows: Rows) -> None:
        pass

    def close(self) -> None:
        pass
