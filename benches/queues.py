"""Queues between processes and threads: `fastrl.queue` beside what Python has, and faster-fifo.

Records of 64 bytes to 28 KiB go from producers to one consumer. Whatever the way, the consumer ends up with copies that
it may keep. "In batches" is 64 records a call (16 of 28 KiB); "packed" is one message whose bytes are a whole batch,
which a caller has to pack and unpack. The others get bytes, which they send fastest.
"""

from __future__ import annotations

import multiprocessing
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from fastrl.queue import Queue
from fastrl.utils.errors import UserError
from fastrl.utils.progress import Progress
from results import Benchmark, Case
from rounds import measure_in_turns


def _faster_fifo() -> Any:
    """The module; None where it is not installed."""
    try:
        import faster_fifo
    except ImportError:
        return None
    return faster_fifo


faster_fifo = _faster_fifo()
SIZES = {"64 B": 64, "512 B": 512, "28 KiB": 28 << 10}
RING_BYTES = 1 << 20
FORK: Any = multiprocessing.get_context("fork")
Begin = Callable[[], object]


class Way:
    """One way to send records. `send` and `receive` take a number of records, a multiple of the batch; `send` calls
    `begin` when it is ready to."""

    name = ""
    threads = False

    def __init__(self, size: int, producers: int) -> None:
        self.size, self.producers = size, producers
        self.batch = 64 if size <= 4096 else 16
        self.record = bytes(range(256)) * (size // 256) or bytes(range(size))
        self.packed = self.record * self.batch

    def send(self, records: int, begin: Begin) -> None:
        raise NotImplementedError

    def receive(self, records: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Fastrl(Way):
    name = "fastrl, in batches"
    shared = True

    def __init__(self, size: int, producers: int) -> None:
        super().__init__(size, producers)
        dtype = np.dtype([("data", np.uint8, size)])
        capacity = max(4 * self.batch, RING_BYTES // size)
        self.queue = Queue(dtype, capacity, max_producers=producers, shared=self.shared)
        self.rows = np.frombuffer(self.packed, dtype)

    def send(self, records: int, begin: Begin) -> None:
        with self.queue.producer() as p:
            begin()
            for _ in repeat(None, records // self.batch):
                p.put_many(self.rows)

    def receive(self, records: int) -> None:
        get_many, out = self.queue.get_many, np.empty(2 * self.batch, self.queue.dtype)
        while records:
            records -= len(get_many(len(out), out))

    def close(self) -> None:
        self.queue.close()


class FastrlOne(Fastrl):
    name = "fastrl, one by one"

    def send(self, records: int, begin: Begin) -> None:
        row = self.rows[0]
        with self.queue.producer() as p:
            begin()
            for _ in repeat(None, records):
                p.put(row)

    def receive(self, records: int) -> None:
        for _ in repeat(None, records):
            self.queue.get()


class FastrlThreads(Fastrl):
    name = "fastrl, in batches, threads"
    threads, shared = True, False


class Messages(Way):
    """Messages of bytes: a record each, or a whole batch packed into one. `put` sends one, `get` receives one."""

    is_packed = False
    put: Callable[[bytes], object]
    get: Callable[[], object]

    def __init__(self, size: int, producers: int) -> None:
        super().__init__(size, producers)
        self.message, self.per_message = (self.packed, self.batch) if self.is_packed else (self.record, 1)

    def send(self, records: int, begin: Begin) -> None:
        put, message = self.put, self.message
        begin()
        for _ in repeat(None, records // self.per_message):
            put(message)

    def receive(self, records: int) -> None:
        get = self.get
        for _ in repeat(None, records // self.per_message):
            get()


class FasterFifoOne(Messages):
    name = "faster-fifo, one by one"

    def __init__(self, size: int, producers: int) -> None:
        super().__init__(size, producers)
        self.queue: Any = faster_fifo.Queue(max(4 * self.batch * size, RING_BYTES), loads=bytes, dumps=bytes)
        self.put, self.get = self.queue.put, self.queue.get


class FasterFifoPacked(FasterFifoOne):
    name = "faster-fifo, packed"
    is_packed = True

    def receive(self, records: int) -> None:
        while records:
            records -= self.per_message * len(self.queue.get_many())


class FasterFifo(FasterFifoOne):
    name = "faster-fifo, in batches"

    def send(self, records: int, begin: Begin) -> None:
        put_many, batch = self.queue.put_many, [self.record] * self.batch
        begin()
        for _ in repeat(None, records // self.batch):
            put_many(batch)

    def receive(self, records: int) -> None:
        while records:
            records -= len(self.queue.get_many())


class FasterFifoArray(FasterFifo):
    name = "faster-fifo, in batches, into an array"

    def receive(self, records: int) -> None:
        # It gives `bytes`; what learns needs them in an array, where `fastrl` has put them already.
        size, out = self.size, memoryview(bytearray(2 * self.batch * self.size))
        while records:
            for i, record in enumerate(self.queue.get_many(max_messages_to_get=2 * self.batch)):
                out[i * size : (i + 1) * size] = record
                records -= 1


class ProcessQueue(Messages):
    name = "multiprocessing.Queue, one by one"

    def __init__(self, size: int, producers: int) -> None:
        super().__init__(size, producers)
        passed = FORK.Queue()
        self.put, self.get = passed.put, passed.get


class ProcessQueuePacked(ProcessQueue):
    name = "multiprocessing.Queue, packed"
    is_packed = True


class Pipe(Messages):
    name = "Pipe.send_bytes, one by one"

    def __init__(self, size: int, producers: int) -> None:
        super().__init__(size, producers)
        self.receiver, self.sender = FORK.Pipe(duplex=False)
        self.lock = FORK.Lock()
        self.put = self.sender.send_bytes if producers == 1 else self.put_alone
        self.get = self.receiver.recv_bytes

    def put_alone(self, message: bytes) -> None:
        with self.lock:
            self.sender.send_bytes(message)

    def close(self) -> None:
        self.receiver.close()
        self.sender.close()


class PipePacked(Pipe):
    name = "Pipe.send_bytes, packed"
    is_packed = True


class SimpleQueue(Messages):
    """Passes a reference: the record itself is not copied, and the producer may not use it again."""

    name = "queue.SimpleQueue, threads, references"
    threads = True

    def __init__(self, size: int, producers: int) -> None:
        super().__init__(size, producers)
        passed: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.put, self.get = passed.put, passed.get


# By how producer and consumer are separated; contenders of one kind are compared with one another.
OURS: dict[str, list[type[Way]]] = {"processes": [Fastrl, FastrlOne], "threads": [FastrlThreads]}
PEERS: dict[str, list[type[Way]]] = {
    "processes": [ProcessQueue, ProcessQueuePacked, Pipe, PipePacked],
    "threads": [SimpleQueue],
}
if faster_fifo is not None:
    PEERS["processes"][:0] = [FasterFifo, FasterFifoArray, FasterFifoOne, FasterFifoPacked]


def seconds_of(way: Way, records: int) -> float:
    """Seconds of sending that many records from each producer and receiving them all."""
    barrier = (threading if way.threads else FORK).Barrier(way.producers + 1)
    kind = threading.Thread if way.threads else FORK.Process
    producers = [kind(target=way.send, args=(records, barrier.wait)) for _ in range(way.producers)]
    for producer in producers:
        producer.start()
    barrier.wait()
    start = time.perf_counter()
    way.receive(records * way.producers)
    passed = time.perf_counter() - start
    for producer in producers:
        producer.join()
    return passed


def calibrated(way: Way, seconds: float) -> Callable[[], float]:
    """A measurement of records per second that takes about so long; the first runs are not counted."""
    records = 16 * way.batch
    while (passed := min(seconds_of(way, records) for _ in range(2))) < seconds / 4:
        records *= 2 if passed > 0.001 else 8
    records = max(1, round(records * seconds / passed / way.batch)) * way.batch
    return lambda: records * way.producers / seconds_of(way, records)


def measure_case(
    size: str, producers: int, kinds: Sequence[type[Way]], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Records per second in each round, by the name of the way."""
    ways = [kind(SIZES[size], producers) for kind in kinds]
    try:
        return measure_in_turns({way.name: calibrated(way, seconds) for way in ways}, rounds)
    finally:
        for way in ways:
            way.close()


def measure(rounds: int, seconds: float, progress: Progress) -> list[Benchmark]:
    """Records a second of all ways, for all sizes and one and two producers.

    Raises:
        UserError: the system is not Linux.
    """
    if sys.platform != "linux":
        raise UserError("this measures memory that processes share, which needs Linux")
    cases = []
    for size in SIZES:
        for producers in (1, 2):
            for kind in OURS:
                name = f"{size}, {producers} producer{'s' if producers > 1 else ''}, {kind}"
                progress.describe(f"queue, {name}")
                rates = measure_case(size, producers, [*OURS[kind], *PEERS[kind]], rounds, seconds)
                cases.append(Case(name, rates))
            progress.advance()
    return [
        Benchmark(
            topic="queue",
            name="records",
            title="Records from producers to one consumer",
            unit="records/s",
            about="The consumer ends up with a copy of each record; queue.SimpleQueue passes references.",
            cases=tuple(cases),
            ours=tuple(way.name for ways in OURS.values() for way in ways),
            left_out={} if faster_fifo else {"faster-fifo": "not installed: pip install faster-fifo"},
        )
    ]
