"""Kills producers and the consumer of a queue at random times and accounts for every record.
`tests/queue/test_queue_processes.py` runs it in its own process, which forks its children:

    python queue_kills.py POLICY ORDER KILLS SEED

A record has the number of its producer (each restarted process gets a new one), its index among the records of that
producer, a payload that follows from these two, and a checksum. After each call a producer writes to shared memory how
many of its records are published. The consumer checks each batch inside the queue, writes down what it saw, and only
then releases the batch.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import time
import traceback

import numpy as np
from waiting import wait_until

from fastrl.queue import Empty, Full, Queue, ShutDown

WORDS = 125
RECORD = np.dtype([("producer", "u8"), ("number", "u8"), ("payload", "u8", WORDS), ("checksum", "u8")])
FACTORS = np.random.default_rng(0).integers(2**63, size=WORDS + 2, dtype=np.uint64) * 2 + 1
PRODUCERS = 3
BATCH = 30
SHOWN = 64
# The least number of records that the consumers see, however slow the machine is.
ENOUGH = 1000
CAPACITY = 64
CHILDREN: set[int] = set()
"""Process ids of children that have not been waited for."""


def checksums(rows):
    """A sum over all words before the checksum; every word changes it, because the factors are odd."""
    words = rows.view(np.uint64).reshape(len(rows), -1)[:, :-1]
    return (words * FACTORS).sum(axis=1, dtype=np.uint64) ^ np.uint64(0x9E3779B97F4A7C15)


def fill(rows, producer, first):
    rows["producer"] = producer
    rows["number"] = np.arange(first, first + len(rows), dtype=np.uint64)
    rows["payload"] = rows["number"][:, None] * FACTORS[:WORDS] + np.uint64(producer)
    rows["checksum"] = checksums(rows)


class Ledger:
    """Counts for each process that was ever a producer, in memory that all processes share and that survives kills."""

    def __init__(self, generations):
        table = np.frombuffer(mmap.mmap(-1, 8 * (4 * generations + 4)), np.int64)
        self.published = table[:generations]  # written by the producer, after the call that put them
        self.tried = table[generations : 2 * generations]  # written by the producer, before that call
        self.seen = table[2 * generations : 3 * generations]  # written by the consumer
        # Of whom the consumer reads at present, or read when it was killed: their records may come again, once.
        self.is_read = table[3 * generations : 4 * generations]
        self.stop, self.received, self.repeats = table[-3:-2], table[-2:-1], table[-1:]
        self.failures = table[-4:-3]  # of all processes; one may be killed before it can report more


def produce(queue, ledger, generation, rng):
    rows = np.zeros(BATCH, queue.dtype)
    count = 0
    with queue.producer() as p:
        while not ledger.stop[0]:
            size = rng.randint(1, BATCH)
            ledger.tried[generation] = count + size
            kind = rng.random()
            try:
                if kind < 0.4:
                    fill(rows[:size], generation, count)
                    size = p.put_many(rows[:size])
                elif kind < 0.7:
                    with p.reserve(size) as view:
                        fill(view, generation, count)
                else:
                    size = 1
                    fill(rows[:1], generation, count)
                    p.put(rows[0])
            except Full:
                continue
            except ShutDown:
                return
            count += size
            ledger.published[generation] = count


def consume(queue, ledger, rng):
    """Checks that no record is torn or repeated, and that none is missing that the policy does not drop."""
    drops = queue.policy.startswith("drop")
    while True:
        try:
            with queue.peek(SHOWN, timeout=1) as rows:
                if not (checksums(rows) == rows["checksum"]).all():
                    raise AssertionError(f"torn: {rows[checksums(rows) != rows['checksum']][:3]}")
                repeats = False
                producers = np.unique(rows["producer"])
                for producer in producers:
                    numbers = rows["number"][rows["producer"] == producer].astype(np.int64)
                    if not (np.diff(numbers) > 0 if drops else np.diff(numbers) == 1).all():
                        raise AssertionError(f"out of order: {numbers}")
                    seen = ledger.seen[producer]
                    if numbers[0] < seen:
                        if not ledger.is_read[producer]:
                            raise AssertionError(f"twice: {numbers} of {producer}")
                        repeats = True
                    elif numbers[0] > seen and not drops:
                        raise AssertionError(
                            f"lost: {numbers[0]} of producer {producer} came after {seen - 1}"
                        )
                    ledger.is_read[producer] = True
                    ledger.seen[producer] = max(seen, numbers[-1] + 1)
                ledger.repeats[0] += repeats
                ledger.received[0] += len(rows)
                if rng.random() < 0.01:
                    time.sleep(0.001)
            ledger.is_read[producers] = False
        except Empty:
            if ledger.stop[0]:
                continue
        except ShutDown:
            return


def fork(call, queue, ledger, *arguments):
    pid = os.fork()
    if pid:
        CHILDREN.add(pid)
        return pid
    status = 1
    try:
        call(queue, ledger, *arguments)
        status = 0
    except BaseException:
        ledger.failures[0] += 1
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def end(pid, expected):
    _, status = os.waitpid(pid, 0)
    CHILDREN.remove(pid)
    code = os.waitstatus_to_exitcode(status)
    if code not in expected:
        raise SystemExit(f"process {pid} ended with {code}")


def main(policy, order, kills, seed):
    rng = random.Random(seed)
    name = f"kills-{os.getpid()}"
    queue = Queue(RECORD, CAPACITY, max_producers=PRODUCERS, policy=policy, order=order, shared=name)
    ledger = Ledger(PRODUCERS + kills + 1)
    generations = 0

    def new_producer():
        nonlocal generations
        generations += 1
        return fork(produce, queue, ledger, generations - 1, random.Random(rng.random()))

    def new_consumer():
        return fork(consume, queue, ledger, random.Random(rng.random()))

    producers = [new_producer() for _ in range(PRODUCERS)]
    consumer = new_consumer()
    consumers = 1
    try:
        for _ in range(kills):
            time.sleep(rng.uniform(0, 0.004))
            if rng.random() < 0.25:
                os.kill(consumer, signal.SIGKILL)
                end(consumer, {-signal.SIGKILL})
                consumer = new_consumer()
                consumers += 1
            else:
                which = rng.randrange(PRODUCERS)
                os.kill(producers[which], signal.SIGKILL)
                if rng.random() < 0.5:
                    time.sleep(rng.uniform(0, 0.002))
                end(producers[which], {-signal.SIGKILL})
                producers[which] = new_producer()
        wait_until(lambda: ledger.seen.sum() > ENOUGH)
        time.sleep(0.05)
        ledger.stop[0] = 1
        for pid in producers:
            end(pid, {0})
        stats = queue.stats()
        queue.shutdown()
        end(consumer, {0})
        last = queue.stats()
    finally:
        # A failed test leaves no process behind.
        for pid in CHILDREN:
            os.kill(pid, signal.SIGKILL)
        queue.close()

    published, tried, seen = (row[:generations] for row in (ledger.published, ledger.tried, ledger.seen))
    drops = policy.startswith("drop")
    # Published and not yet noted: at most the batch of the call during which it was killed.
    assert (seen <= np.maximum(tried, published)).all(), "records that no producer put"
    if not drops:
        assert (seen >= published).all(), f"lost: {published - seen}"
    assert ledger.failures[0] == 0, "a process failed and was killed before it ended"
    assert last.depth == 0, last
    # Counters miss operations of processes that died before counting them; nothing else is missing.
    missing = last.put - last.dropped_oldest - int(ledger.received[0])
    uncounted = kills * BATCH + int(ledger.repeats[0]) * SHOWN
    assert abs(missing) <= uncounted, f"{missing} records are missing, {uncounted} may be"
    print(
        json.dumps(
            {
                "kills": kills,
                "consumers": consumers,
                "generations": generations,
                "seen": int(seen.sum()),
                "published": int(published.sum()),
                "unnoted": int(np.maximum(seen - published, 0).sum()),
                "repeats": int(ledger.repeats[0]),
                "abandoned": stats.abandoned,
                "dropped": last.dropped_newest + last.dropped_oldest,
                "left": os.path.exists(f"/dev/shm/fastrl-{name}"),  # noqa: PTH110
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
