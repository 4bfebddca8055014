"""Queues between processes and threads. Run: ``pytest benches/bench_queue.py -s`` on an otherwise idle machine.

`queues` says what is compared. Beside that, what copying blocks of 28 KiB costs without any queue.
"""

import mmap
import statistics
import sys
import time
from itertools import repeat

import numpy as np
import pytest

from queues import FORK, OURS, PEERS, SIZES, Fastrl, measure_case
from results import Case

ROUNDS = 5
SECONDS = 0.2  # of a round

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory shared between processes needs Linux")


def copies_per_second(size):
    """Copies of a block in the cache, one call each."""
    source, target = np.zeros((2, size), np.uint8)
    best = 0.0
    for _ in range(20):
        start = time.perf_counter()
        for _ in repeat(None, 2000):
            np.copyto(target, source)
        best = max(best, 2000 / (time.perf_counter() - start))
    return best


def copies_between_processes(size, blocks):
    """Blocks per second that are copied as a queue has to copy: one process into a ring of blocks that another one
    reads, all the time and without ever waiting for each other; those of the slower one."""
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


@pytest.mark.parametrize("producers", [1, 2])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", OURS)
def test_records_per_second(kind, size, producers, record):
    rates = measure_case(size, producers, [*OURS[kind], *PEERS[kind]], ROUNDS, SECONDS)
    case = Case(f"{size}, {producers} producer(s)", rates)
    record(f"Records between {kind}", "records/s", [case], [way.name for way in OURS[kind]])
    if SIZES[size] > 4096 and kind == "processes":
        ours = statistics.median(rates[Fastrl.name])
        bounds = {
            "one copy of such a block in the cache": copies_per_second(SIZES[size]),
            "two processes that copy in and out, with no queue": copies_between_processes(SIZES[size], 64),
        }
        for name, copies in bounds.items():
            gigabytes = copies * SIZES[size] / 1e9
            print(
                f"  {name}: {copies / 1e6:.3f} M/s ({gigabytes:.1f} GB/s); in batches: {ours / copies:.0%} of it"
            )
