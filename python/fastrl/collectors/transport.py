"""A collecting process's end of the queue in shared memory through which its experience goes to the learner."""

import numpy as np
from numpy.typing import NDArray

from fastrl.queue import Producer, Queue, ShutDown


class TransportClosed(Exception):  # noqa: N818 - no error: it is how a run ends
    """The learner receives no more."""


class QueueSender:
    """A producer of the queue, with a ring to itself; a process receives it as a pickle and opens it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._producer: Producer | None = None

    def open(self) -> None:
        self._producer = self._queue.producer()

    def put(self, rows: NDArray[np.void]) -> None:
        """Sends rows in order.

        Raises:
            TransportClosed: the learner receives no more.
        """
        assert self._producer is not None
        try:
            self._producer.put_many(rows)
        except ShutDown:
            raise TransportClosed from None

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
