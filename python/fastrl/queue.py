"""The experience queue: fixed-size records from any number of producers, threads or processes, to one consumer.

```python
q = Queue({"obs": (np.float32, 52), "action": np.int64, "reward": np.float32}, capacity=4096, shared=True)

with q.producer() as p:                    # in each process or thread that produces
    p.put((obs, action, reward))           # one: a record, a tuple of the fields' values, or a mapping
    p.put_many(rows)                       # many: an array of q.dtype; the fastest way for data that exist already
    with p.reserve(64) as rows:            # many, filled in place; published at the end of the block
        rows["obs"] = ...

row = q.get()                              # the consumer: one record
rows = q.get_many(1024, out=buffer)        # up to 1024 records, copied into the caller's array
with q.peek(1024) as rows:                 # a read-only view into the queue; consumed at the end of the block
    replay.append(rows)
```

**Order.** With `order="per_producer"`, the default, each producer has its own ring, so producers never wait for each
other, not even for one that was killed; the records of one producer keep their order. With `order="total"` all
producers share one ring, and all records have one order.

**Full rings.** `policy` decides what a producer does when its ring is full: `"block"` waits and raises `Full` after its
timeout, `"error"` raises `Full` at once, `"drop_newest"` drops the new records, `"drop_oldest"` drops the records that
have waited longest. `stats()` counts dropped records. All but `"block"` ignore the timeout and never wait.

**Processes.** A queue with `shared=True` lies in shared memory (`/dev/shm`). It can be pickled and passed to workers
of any start method; `Queue.attach(name)` opens it in an unrelated process. The creator removes the name with `close()`
or when it ends. If the creator was killed, the next one that makes a queue, of the same user and PID namespace, does.
A killed producer loses only the batch that it had not yet published. After the consumer was killed any process may
consume: it continues where the old consumer stopped, and may get the batch again that was being taken or shown.
Records that the old consumer had already taken are lost with it; use `peek` where that matters.

**Access.** The memory is a file in `/dev/shm` that only its user can read and write (mode 0600). Others see its name,
which contains a process id, its size and its times. Generated names cannot be guessed. Only regular files of this user
are opened, without blocking, so files of others delay nobody. Other programs of this user that write into the memory
may cause wrong records or `QueueError`, but no crash, and no call that exceeds its timeout; truncating the file ends
each process that accesses the missing part, by SIGBUS.

**Containers.** A process can tell which others are alive only in its PID namespace. Containers that share `/dev/shm`
(`--ipc=host`) cannot attach to each other's queues (`QueueError`) and do not remove them, so the memory of a killed
container stays. Memory is allocated when a queue is made: a `/dev/shm` that is too small is an OSError (ENOSPC) at that
point, not a SIGBUS later.

**One consumer, one thread per producer.** The process that takes records first is the consumer until `close()`. A
second consumer, two threads that use one producer, and a producer or consumer that a forked child inherits raise
`QueueError`: make a producer in the process that uses it.

**Timeouts** are in seconds: None waits without limit, 0 does not wait. Other threads and signal handlers run meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from queue import Empty, Full
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from fastrl._native import _rust
from fastrl._native._rust import Producer, QueueError, ShutDown
from fastrl.utils.dtypes import describe_dtype, dtype_of

__all__ = ["Empty", "Full", "Producer", "ProducerStats", "Queue", "QueueError", "QueueStats", "ShutDown"]


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """Counters of one producer index, over all producers that ever had it."""

    producer: int | None
    """Process id of the producer that has this index, or had it when it died; None if there is none."""
    put: int
    dropped_newest: int
    dropped_oldest: int
    full_waits: int
    wait_seconds: float
    depth: int
    """Records that wait; 0 with `order="total"`, where all producers share a ring."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counters of a queue since it was made, in records unless stated otherwise. They are read one after the other
    while producers and consumer continue, so they may not agree exactly."""

    put: int
    """Published by producers, including records that were later dropped as the oldest."""
    got: int
    """Taken by consumers."""
    depth: int
    """Waiting now."""
    high_water: int
    """The most that the consumer ever found waiting in one ring."""
    dropped_newest: int
    dropped_oldest: int
    full_waits: int
    """Number of times that a producer found no room."""
    wait_seconds: float
    """Time that all producers together waited for room."""
    consumer_wait_seconds: float
    """Time that the consumer waited for records."""
    abandoned: int
    """Reserved by producers that died before they published them."""
    producers: int
    """Number of producers."""
    consumer: int | None
    """Process id of the consumer; None if there is none."""
    per_producer: tuple[ProducerStats, ...]


class Queue(_rust.Queue):
    """A queue of records.

    Args:
        dtype: a structured numpy dtype without Python objects, or a mapping from field names to a dtype or to a pair
            (dtype, shape), whose fields are aligned as in C.
        capacity: the most records of each producer that may wait; with `order="total"`, of all producers together.
            Rounded up to a power of two. Memory is allocated at once: max_producers x capacity x dtype.itemsize bytes.
            A ring should hold at least four batches.
        max_producers: the largest number of producers at a time.
        policy, order: as the module describes.
        shared: True for use by other processes; a str also names the memory (letters, digits, dots, dashes and
            underscores).

    Raises:
        ValueError, TypeError: an argument that makes no sense.
        FileExistsError: the name is taken.
        OSError: there is not enough memory, or not enough room in /dev/shm.

    After `close()` every call except `close()` raises `QueueError`; the attributes remain.
    """

    def __new__(
        cls,
        dtype: DTypeLike | Mapping[str, Any],
        capacity: int,
        *,
        max_producers: int = 8,
        policy: Literal["block", "error", "drop_newest", "drop_oldest"] = "block",
        order: Literal["per_producer", "total"] = "per_producer",
        shared: bool | str = False,
    ) -> Queue:
        record = _record_dtype(dtype)
        if not isinstance(shared, (bool, str)):
            raise TypeError(f"shared: expected True, False or a name, got {shared!r}")
        for argument, value in (("policy", policy), ("order", order)):
            if not isinstance(value, str):
                raise TypeError(f"{argument}: expected a str, got {value!r}")
        memory = _rust.QueueMemory.create(
            record.itemsize,
            json.dumps(describe_dtype(record)),
            capacity,
            max_producers=max_producers,
            policy=policy,
            order=order,
            shared=bool(shared) or isinstance(shared, str),
            name=shared if isinstance(shared, str) else None,
        )
        return super().__new__(cls, memory, record)

    @classmethod
    def attach(cls, name: str) -> Queue:
        """Opens the queue of this name.

        Raises:
            FileNotFoundError: there is none.
            QueueError: it is damaged, is not a queue, or belongs to another version of fastrl, user or PID namespace.
        """
        memory = _rust.QueueMemory.attach(name)
        try:
            return super().__new__(cls, memory, dtype_of(json.loads(memory.schema)))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise QueueError(
                f"cannot attach to {name!r}: the dtype of its records is damaged: {error}"
            ) from error

    def __iter__(self) -> Iterator[np.void]:
        """Yields records until the queue is shut down and empty."""
        while True:
            try:
                row = self.get()
            except ShutDown:
                return
            yield row

    def stats(self) -> QueueStats:
        """Reads the counters; cheap, and allowed in any process that has the queue, at any time."""
        queue, producers = self.counters()
        of_all = dict(queue)
        each = tuple(_producer_stats(dict(counters)) for counters in producers)
        of_producers = ("put", "dropped_newest", "dropped_oldest", "full_waits", "wait_seconds")
        return QueueStats(
            **{name: sum(getattr(stats, name) for stats in each) for name in of_producers},
            consumer_wait_seconds=of_all.pop("consumer_wait_ns") * 1e-9,
            producers=sum(stats.producer is not None for stats in each),
            consumer=of_all.pop("consumer") or None,
            per_producer=each,
            **of_all,
        )

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.name is None:
            raise TypeError("this queue is in the memory of its own process: make it with shared=True")
        return type(self).attach, (self.name,)

    def __repr__(self) -> str:
        where = "" if self.name is None else f", shared={self.name!r}"
        return (
            f"Queue({self.dtype}, capacity={self.capacity}, max_producers={self.max_producers}, policy={self.policy!r},"
            f" order={self.order!r}{where})"
        )


def _producer_stats(counters: dict[str, int]) -> ProducerStats:
    wait_seconds, owner = counters.pop("wait_ns") * 1e-9, counters.pop("owner")
    return ProducerStats(producer=owner or None, wait_seconds=wait_seconds, **counters)


def _record_dtype(dtype: DTypeLike | Mapping[str, Any]) -> np.dtype:
    record: np.dtype[Any]
    if isinstance(dtype, Mapping) and not {"names", "formats"} <= dtype.keys():
        fields = [(name, *(kind if isinstance(kind, tuple) else (kind,))) for name, kind in dtype.items()]
        record = np.dtype(fields, align=True)
    else:
        kind: Any = dtype
        record = np.dtype(kind)
    if record.names is None:
        raise TypeError(
            f"dtype: expected a structured dtype or a mapping from names to dtypes, got {record}: name its fields"
        )
    if record.hasobject:
        raise TypeError(f"dtype: expected no Python objects, got {record}: they cannot be copied as bytes")
    if record.itemsize == 0:
        raise ValueError(f"dtype: expected records of at least one byte, got {record}")
    if dtype_of(describe_dtype(record)) != record:
        raise TypeError(f"dtype: expected one that can be described as text, got {record}")
    return record
