"""The experience queue: fixed-size records from any number of producers, threads or processes, to one consumer.

```python
q = Queue({"obs": (np.float32, 52), "action": np.int64, "reward": np.float32}, capacity=4096, shared=True)

with q.producer() as p:                    # in each process or thread that produces
    p.put((obs, action, reward))           # one: a record, a tuple of the fields' values, or a mapping
    p.put_many(rows)                       # many: an array of q.dtype; the fastest way for data that exist already
    with p.reserve(64) as rows:            # many, filled in place; published at the end of the block
        rows["obs"] = ...

row = q.get()                              # the consumer: one record
rows = q.get_many(1024, out=buffer)        # what is there, up to 1024, copied into the caller's array
with q.peek(1024) as rows:                 # a read-only view of records where they lie; consumed at the end
    replay.append(rows)
```

**Order.** With `order="per_producer"`, the default, each producer has a ring of its own, so producers never wait for
each other, not even for one that was killed; the records of one producer come in the order in which it put them. With
`order="total"` all share one ring and there is one order for all.

**No room.** `policy` says what a producer then does: `"block"` waits (raises `Full` after its timeout), `"error"`
raises `Full` at once, `"drop_newest"` drops what it was given, `"drop_oldest"` drops what has waited longest. What is
dropped is counted in `stats()`; the last three never wait, whatever their timeout.

**Processes.** A queue with `shared=True` lies in shared memory (`/dev/shm`). It can be pickled, so it can be handed to
workers of any start method, and `Queue.attach(name)` opens it from a process that has nothing else to do with this
one. Its creator removes the name with `close()` or when it ends; if it was killed, the next creator of any queue does,
if it is of the same user and PID namespace.
A killed producer takes nothing with it but the batch that it had not yet published. After a killed consumer any
process may consume; it goes on where the dead one was, and may get again the batch that the dead one was taking or
being shown. (What that one had taken before is gone with it; who cannot afford this uses `peek`.)

**Access.** The memory is a file in `/dev/shm` that only this user can read and write (mode 0600); others see its name,
which holds a process's number, its size and its times. Names that are made up cannot be guessed. A file is opened only
if it is a regular one of this user, and at once: whatever others put there keeps nobody waiting. What this user's own
programs write into it may give wrong records or `QueueError`, but no crash and no call beyond its timeout; who cuts the
file off (`truncate`) ends each process that reaches for the missing part, by SIGBUS.

**Containers.** Who is alive can only be known within one PID namespace. Containers that share `/dev/shm` (`--ipc=host`)
leave each other's memory alone and cannot attach to it: `QueueError`. So nobody removes what a killed container has
left there. Memory is allocated when a queue is made, so a small `/dev/shm` is an OSError (ENOSPC) then, and no SIGBUS
later.

**One consumer, one thread per producer.** The first call that takes records makes an object's process the consumer,
until `close()`. A second consumer, two threads in one producer, or a producer or consumer that was inherited by a
forked child raise `QueueError`: make a producer in the process that uses it.

**Timeouts** are in seconds: None waits for ever, 0 not at all. Waiting lets other threads and signal handlers run.
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

__all__ = ["Empty", "Full", "Producer", "ProducerStats", "Queue", "QueueError", "QueueStats", "ShutDown"]


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """Counters of one producer index, over all producers that ever had it."""

    producer: int | None
    """Process that has this index now, or died having it."""
    put: int
    dropped_newest: int
    dropped_oldest: int
    full_waits: int
    wait_seconds: float
    depth: int
    """Records that wait. 0 with `order="total"`, where they lie in one ring for all."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What a queue has counted since it was made, in records unless it says otherwise. The counters are read one
    after the other while producers and consumer go on, so they may differ from each other by what happened between."""

    put: int
    """Published by producers, those included that were dropped later as the oldest."""
    got: int
    depth: int
    """That wait now."""
    high_water: int
    """The most that the consumer ever found waiting in one ring."""
    dropped_newest: int
    dropped_oldest: int
    full_waits: int
    """Number of times that a producer found no room."""
    wait_seconds: float
    """That producers spent waiting for room, all together."""
    consumer_wait_seconds: float
    """That the consumer spent waiting for records."""
    abandoned: int
    """That producers which died had begun to put and not published."""
    producers: int
    """Lanes with a producer."""
    consumer: int | None
    """Process that consumes."""
    per_producer: tuple[ProducerStats, ...]


class Queue(_rust.Queue):
    """A queue of records.

    dtype: a structured numpy dtype without Python objects, or a mapping from fields' names to a dtype or to a pair
        (dtype, shape); such fields are aligned as a C compiler would.
    capacity: records that each producer may have waiting; with `order="total"`, all producers together. Rounded up
        to a power of two. Memory is allocated at once: max_producers x capacity x dtype.itemsize bytes. A
        queue whose ring holds at least four batches runs smoothly.
    max_producers: the largest number of producers at a time.
    policy, order: see the module.
    shared: True for other processes; a str names the memory (letters, digits, dots, dashes and underscores).

    ValueError, TypeError: an argument that makes no sense. FileExistsError: the name is taken. OSError: there is not
    enough memory, or not enough room in /dev/shm.

    After `close()` every call but `close()` raises `QueueError`; the attributes stay.
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
            json.dumps(_describe(record)),
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
        """Opens the queue of this name. FileNotFoundError: there is none. QueueError: it is damaged, of another
        version of fastrl, user or PID namespace, or no queue."""
        memory = _rust.QueueMemory.attach(name)
        try:
            return super().__new__(cls, memory, _rebuild(json.loads(memory.schema)))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise QueueError(
                f"cannot attach to {name!r}: the dtype of its records is damaged: {error}"
            ) from error

    def __iter__(self) -> Iterator[np.void]:
        """Records, until the queue is shut down and empty."""
        while True:
            try:
                row = self.get()
            except ShutDown:
                return
            yield row

    def stats(self) -> QueueStats:
        """The counters; cheap, from any process that has the queue, at any time."""
        queue, producers = self.counters()
        rows = [dict(counters) for counters in producers]
        of_all = dict(queue)
        total = {name: sum(row[name] for row in rows) for name in rows[0]}
        return QueueStats(
            put=total["put"],
            got=of_all["got"],
            depth=of_all["depth"],
            high_water=of_all["high_water"],
            dropped_newest=total["dropped_newest"],
            dropped_oldest=total["dropped_oldest"],
            full_waits=total["full_waits"],
            wait_seconds=total["wait_ns"] * 1e-9,
            consumer_wait_seconds=of_all["consumer_wait_ns"] * 1e-9,
            abandoned=of_all["abandoned"],
            producers=sum(row["owner"] > 0 for row in rows),
            consumer=of_all["consumer"] or None,
            per_producer=tuple(
                ProducerStats(
                    producer=row["owner"] or None,
                    put=row["put"],
                    dropped_newest=row["dropped_newest"],
                    dropped_oldest=row["dropped_oldest"],
                    full_waits=row["full_waits"],
                    wait_seconds=row["wait_ns"] * 1e-9,
                    depth=row["depth"],
                )
                for row in rows
            ),
        )

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.name is None:
            raise TypeError("this queue lies in the memory of its process alone: make it with shared=True")
        return type(self).attach, (self.name,)

    def __repr__(self) -> str:
        where = "" if self.name is None else f", shared={self.name!r}"
        return (
            f"Queue({self.dtype}, capacity={self.capacity}, max_producers={self.max_producers}, policy={self.policy!r},"
            f" order={self.order!r}{where})"
        )


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
    if _rebuild(_describe(record)) != record:
        raise TypeError(f"dtype: expected one that can be written down as text, got {record}")
    return record


def _describe(dtype: np.dtype) -> Any:
    """A dtype as JSON holds it, with offsets and alignment."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": _describe(base), "shape": list(shape)}
    if dtype.names is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names] if dtype.fields is not None else []
    return {
        "names": list(dtype.names),
        "formats": [_describe(field[0]) for field in fields],
        "offsets": [int(field[1]) for field in fields],
        "titles": [field[2] if len(field) > 2 else None for field in fields],
        "itemsize": dtype.itemsize,
        "align": dtype.isalignedstruct,
    }


def _rebuild(description: Any) -> np.dtype:
    if isinstance(description, str):
        return np.dtype(description)
    if "base" in description:
        return np.dtype((_rebuild(description["base"]), tuple(description["shape"])))
    fields: Any = {name: description[name] for name in ("names", "offsets", "titles", "itemsize")}
    fields["formats"] = [_rebuild(field) for field in description["formats"]]
    if not any(fields["titles"]):
        del fields["titles"]
    return np.dtype(fields, align=description["align"])
