"""Queues between processes and threads. Run: ``pytest benches/bench_queue.py -s`` on an otherwise idle machine.

Records of 64 bytes, 512 bytes and 28 KiB go from producers to one consumer: through `fastrl.queue`, through what
Python has for it, and through `faster-fifo` where it is installed. Whatever the way, the consumer ends up with copies
that it may keep. "In batches" is 64 records a call (16 of 28 KiB); "packed" is one message whose bytes are a whole
batch, which a caller has to pack and unpack. The others get bytes, which they send fastest. Rates are medians of
several rounds, the first of which is not counted.
"""

import mmap
import multiprocessing
import queue
import statistics
import sys
import threading
import time
from itertools import repeat

import numpy as np
import pytest

from fastrl.queue import Queue

try:
    import faster_fifo
except ImportError:
    faster_fifo = None

ROUNDS = 5
SECONDS = 0.2  # of a round
SIZES = {"64 B": 64, "512 B": 512, "28 KiB": 28 << 10}
RING_BYTES = 1 << 20
FORK = multiprocessing.get_context("fork")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory shared between processes needs Linux")


class Way:
    """One way to send records. `send` and `receive` take a number of records, a multiple of the batch; `send` calls
    `begin` when it is ready to."""

    threads = False
    one_by_one = False

    def __init__(self, size, producers):
        self.size, self.producers = size, producers
        self.batch = 64 if size <= 4096 else 16
        self.record = bytes(range(256)) * (size // 256) or bytes(range(size))
        self.records = [self.record] * self.batch
        self.packed = self.record * self.batch

    def close(self):
        pass


class Fastrl(Way):
    name = "fastrl, in batches"
    shared = True

    def __init__(self, size, producers):
        super().__init__(size, producers)
        dtype = np.dtype([("data", np.uint8, size)])
        capacity = max(4 * self.batch, RING_BYTES // size)
        self.queue = Queue(dtype, capacity, max_producers=producers, shared=self.shared)
        self.rows = np.frombuffer(self.packed, dtype)

    def send(self, records, begin):
        with self.queue.producer() as p:
            begin()
            for _ in repeat(None, records // self.batch):
                p.put_many(self.rows)

    def receive(self, records):
        get_many, out = self.queue.get_many, np.empty(2 * self.batch, self.queue.dtype)
        while records:
            records -= len(get_many(len(out), out))

    def close(self):
        self.queue.close()


class FastrlOne(Fastrl):
    name = "fastrl, one by one"
    one_by_one = True

    def send(self, records, begin):
        row = self.rows[0]
        with self.queue.producer() as p:
            begin()
            for _ in repeat(None, records):
                p.put(row)

    def receive(self, records):
        for _ in repeat(None, records):
            self.queue.get()


class FastrlThreads(Fastrl):
    name = "fastrl, in batches, threads"
    threads, shared = True, False


class FasterFifo(Way):
    name = "faster-fifo, in batches"

    def __init__(self, size, producers):
        super().__init__(size, producers)
        self.queue = faster_fifo.Queue(max(4 * self.batch * size, RING_BYTES), loads=bytes, dumps=bytes)

    def send(self, records, begin):
        begin()
        for _ in repeat(None, records // self.batch):
            self.queue.put_many(self.records)

    def receive(self, records):
        while records:
            records -= len(self.queue.get_many())


class FasterFifoArray(FasterFifo):
    name = "faster-fifo, in batches, into an array"

    def receive(self, records):
        # It gives `bytes`; what learns needs them in an array, where `fastrl` has put them already.
        size, out = self.size, memoryview(bytearray(2 * self.batch * self.size))
        while records:
            for i, record in enumerate(self.queue.get_many(max_messages_to_get=2 * self.batch)):
                out[i * size : (i + 1) * size] = record
                records -= 1


class FasterFifoOne(FasterFifo):
    name = "faster-fifo, one by one"
    one_by_one = True

    def send(self, records, begin):
        begin()
        for _ in repeat(None, records):
            self.queue.put(self.record)

    def receive(self, records):
        for _ in repeat(None, records):
            self.queue.get()


class FasterFifoPacked(FasterFifo):
    name = "faster-fifo, packed"

    def send(self, records, begin):
        begin()
        for _ in repeat(None, records // self.batch):
            self.queue.put(self.packed)

    def receive(self, records):
        while records:
            records -= self.batch * len(self.queue.get_many())


class ProcessQueue(Way):
    name = "multiprocessing.Queue, one by one"
    one_by_one = True

    def __init__(self, size, producers):
        super().__init__(size, producers)
        self.queue = FORK.Queue()

    def send(self, records, begin):
        begin()
        for _ in repeat(None, records):
            self.queue.put(self.record)

    def receive(self, records):
        for _ in repeat(None, records):
            self.queue.get()


class ProcessQueuePacked(ProcessQueue):
    name = "multiprocessing.Queue, packed"
    one_by_one = False

    def send(self, records, begin):
        begin()
        for _ in repeat(None, records // self.batch):
            self.queue.put(self.packed)

    def receive(self, records):
        for _ in repeat(None, records // self.batch):
            self.queue.get()


class Pipe(Way):
    name = "Pipe.send_bytes, one by one"
    one_by_one = True

    def __init__(self, size, producers):
        super().__init__(size, producers)
        self.receiver, self.sender = FORK.Pipe(duplex=False)
        self.lock = FORK.Lock()

    def message(self):
        return self.record

    def per_message(self):
        return 1

    def send(self, records, begin):
        begin()
        message = self.message()
        for _ in repeat(None, records // self.per_message()):
            if self.producers == 1:
                self.sender.send_bytes(message)
            else:
                with self.lock:
                    self.sender.send_bytes(message)

    def receive(self, records):
        for _ in repeat(None, records // self.per_message()):
            self.receiver.recv_bytes()

    def close(self):
        self.receiver.close()
        self.sender.close()


class PipePacked(Pipe):
    name = "Pipe.send_bytes, packed"
    one_by_one = False

    def message(self):
        return self.packed

    def per_message(self):
        return self.batch


class SimpleQueue(Way):
    """Passes a reference: the record itself is not copied, and the producer may not use it again."""

    name = "queue.SimpleQueue, threads, references"
    threads = one_by_one = True

    def __init__(self, size, producers):
        super().__init__(size, producers)
        self.queue = queue.SimpleQueue()

    def send(self, records, begin):
        begin()
        for _ in repeat(None, records):
            self.queue.put(self.record)

    def receive(self, records):
        for _ in repeat(None, records):
            self.queue.get()


OURS = [Fastrl, FastrlOne, FastrlThreads]
PEERS = [ProcessQueue, ProcessQueuePacked, Pipe, PipePacked, SimpleQueue]
if faster_fifo is not None:
    PEERS = [FasterFifo, FasterFifoArray, FasterFifoOne, FasterFifoPacked, *PEERS]


def seconds_of(way, records):
    """Of sending that many records from each producer and receiving them all."""
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


def rate(kind, size, producers):
    """Records per second: the median of the rounds, the least and the most."""
    way = kind(size, producers)
    records = 16 * way.batch
    while (passed := min(seconds_of(way, records) for _ in range(2))) < SECONDS / 4:
        records *= 2 if passed > 0.001 else 8
    records = max(1, round(records * SECONDS / passed / way.batch)) * way.batch
    rates = sorted(records * producers / seconds_of(way, records) for _ in range(ROUNDS + 1))[-ROUNDS:]
    way.close()
    return statistics.median(rates), rates[0], rates[-1]


def copies_per_second(size):
    """Of a block in the cache, one call each."""
    source, target = np.zeros((2, size), np.uint8)
    best = 0.0
    for _ in range(20):
        start = time.perf_counter()
        for _ in repeat(None, 2000):
            np.copyto(target, source)
        best = max(best, 2000 / (time.perf_counter() - start))
    return best


def copies_between_processes(size, blocks):
    """As a queue has to copy: one process into a ring of blocks that another one reads, all the time and without ever
    waiting for each other. Blocks per second of the slower one."""
    ring = np.frombuffer(mmap.mmap(-1, blocks * size), np.uint8).reshape(blocks, size)
    counts = np.frombuffer(mmap.mmap(-1, 4096), np.int64)
    slots, own = list(ring), list(np.zeros((16, size), np.uint8))

    def write():
        while not counts[1]:
            for i, slot in enumerate(slots):
                np.copyto(slot, own[i % 16])
            counts[0] += blocks

    writer = FORK.Process(target=write)
    writer.start()
    while counts[0] == 0:
        pass
    written, read, start = int(counts[0]), 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < 1:
        for i, slot in enumerate(slots):
            np.copyto(own[i % 16], slot)
        read += blocks
    slower = min(read, int(counts[0]) - written) / passed
    counts[1] = 1
    writer.join()
    return slower


def show(title, lines):
    print(f"\n{title}")
    for name, (middle, least, most) in lines.items():
        print(f"  {name:40s} {middle / 1e6:9.3f} M/s  ({least / 1e6:.3f} to {most / 1e6:.3f})")


@pytest.mark.parametrize("producers", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_records_per_second(size, producers):
    lines = {kind.name: rate(kind, SIZES[size], producers) for kind in [*OURS, *PEERS]}
    show(f"{size}, {producers} producer(s), million records per second", lines)
    ours = lines[Fastrl.name][0]
    if faster_fifo is not None:
        theirs = max(lines[kind.name][0] for kind in (FasterFifo, FasterFifoOne))
        alike = ours / lines[FasterFifoArray.name][0]
        print(f"  in batches: {ours / theirs:.1f} times faster-fifo's best, whose packed messages are apart")
        print(f"  in batches: {alike:.1f} times faster-fifo where its records end up in an array too")
    if SIZES[size] > 4096:
        bounds = {
            "one copy of such a block in the cache": copies_per_second(SIZES[size]),
            "two processes that copy in and out, with no queue": copies_between_processes(SIZES[size], 64),
        }
        for name, copies in bounds.items():
            gigabytes = copies * SIZES[size] / 1e9
            print(
                f"  {name}: {copies / 1e6:.3f} M/s ({gigabytes:.1f} GB/s); in batches: {ours / copies:.0%} of it"
            )
