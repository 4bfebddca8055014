"""Transport of experience from collecting processes to their learner: the protocol, and the queue in shared memory.

``benches/compare_transports.py`` compares other transports with it.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastrl.queue import Empty, Producer, Queue, ShutDown

Rows = NDArray[np.void]


class TransportClosed(Exception):  # noqa: N818 - no error: it is how a run ends
    """The learner receives no more."""


class Sender(Protocol):
    """A collecting process's end, which receives it as a pickle and opens it."""

    def open(self) -> None: ...

    def put(self, rows: Rows) -> None:
        """Sends rows in order; waits for room.

        Raises:
            TransportClosed: the learner receives no more.
        """
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    """The learner's end."""

    def sender(self) -> Sender:
        """Makes the end of one collector."""
        ...

    def drain(self, take: Callable[[Rows], object], timeout: float) -> int:
        """Calls ``take`` with waiting rows, which are valid until it returns; returns how many. Waits up to
        ``timeout`` seconds for the first."""
        ...

    def depth(self) -> int:
        """Rows that wait."""
        ...

    def dropped(self) -> int:
        """Rows that were lost for want of room."""
        ...

    def waited(self) -> float:
        """Seconds that all senders together have waited for room."""
        ...

    def shutdown(self) -> None:
        """Wakes senders that wait for room: they raise `TransportClosed`."""
        ...

    def close(self) -> None: ...


class QueueTransport:
    """`fastrl.queue.Queue`: each collector has a ring of its own and does not wait for others.

    Args:
        row: the rows' type.
        capacity: rows that each collector may have waiting.
        senders: collectors.
    """

    def __init__(self, row: np.dtype[Any], capacity: int, senders: int) -> None:
        # One ring more: a collector that was killed may be replaced before its ring is free again.
        self._queue = Queue(row, capacity, max_producers=senders + 1, policy="block", shared=True)
        # Half a ring at a time: the other half can be filled meanwhile.
        self._batch = max(1, self._queue.capacity // 2)

    @property
    def name(self) -> str:
        """Name of the shared memory."""
        name = self._queue.name
        assert name is not None
        return name

    def sender(self) -> "QueueSender":
        return QueueSender(self._queue)

    def drain(self, take: Callable[[Rows], object], timeout: float) -> int:
        try:
            with self._queue.peek(self._batch, timeout) as rows:
                take(rows)
                return len(rows)
        except (Empty, ShutDown):
            return 0

    def depth(self) -> int:
        return self._queue.stats().depth

    def dropped(self) -> int:
        stats = self._queue.stats()
        return stats.dropped_newest + stats.dropped_oldest + stats.abandoned

    def waited(self) -> float:
        return self._queue.stats().wait_seconds

    def shutdown(self) -> None:
        self._queue.shutdown(immediate=True)

    def close(self) -> None:
        self._queue.close()


class QueueSender:
    """A producer of the queue, with a ring to itself."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._producer: Producer | None = None

    def open(self) -> None:
        self._producer = self._queue.producer()

    def put(self, rows: Rows) -> None:
        assert self._producer is not None
        try:
            self._producer.put_many(rows)
        except ShutDown:
            raise TransportClosed from None

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
