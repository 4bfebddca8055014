"""Damages the files of queues and of weight broadcasts at random and uses them in forked children, which must neither
crash nor hang. `tests/queue/test_queue_bad_input.py` runs it in its own process:

    python queue_damage.py CASES SEED
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import traceback
from pathlib import Path

import numpy as np

from fastrl.collectors.weights import Weights
from fastrl.queue import Empty, Full, Queue, QueueError, ShutDown

RECORD = np.dtype([("id", np.int64), ("obs", np.float32, 3)])
FOLDER = Path("/dev/shm")
NAME = f"damage-{os.getpid()}"
WORDS = [0, 1, 2, 3, 5, 8, 9, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]


def samples():
    """Yields a name, the content of an intact file, and the function that opens and uses it."""
    for policy, order in [
        ("block", "per_producer"),
        ("drop_oldest", "per_producer"),
        ("block", "total"),
        ("drop_oldest", "total"),
    ]:
        with (
            Queue(RECORD, 8, max_producers=2, policy=policy, order=order, shared=True) as q,
            q.producer() as p,
        ):
            p.put_many(np.zeros(6, RECORD))
            q.get_many(4)
            with p.reserve(2):
                pass
            p.put_many(np.ones(1, RECORD))
            yield f"{policy} {order}", (FOLDER / f"fastrl-{q.name}").read_bytes(), use_queue
    with Weights(100) as w:
        w.publish(bytes(100))
        w.publish(bytes(100))
        yield "weights", (FOLDER / f"fastrl-{w.name}").read_bytes(), use_weights


def use_queue(name):
    q = Queue.attach(name)
    expected = (ShutDown, Empty, Full, QueueError)
    for call in (lambda: q.get(timeout=0.01), lambda: q.peek(timeout=0).__enter__().copy(), q.stats):
        with contextlib.suppress(expected):
            call()
    for _ in range(2):
        with contextlib.suppress(expected), q.producer() as p:
            for _ in range(3):
                p.put_many(np.zeros(5, q.dtype), timeout=0.01)
                with p.reserve(2, timeout=0.01):
                    pass
    q.close()
    q = Queue.attach(name)
    for _ in range(4):
        with contextlib.suppress(expected):
            q.get_many(5, timeout=0.01)
    q.shutdown()
    q.close()


def use_weights(name):
    w = Weights.attach(name)
    out = bytearray(w.nbytes)
    for newer_than in (0, 1, 2, 2**64 - 1):
        w.read(out, newer_than)
    w.close()


def damage(content, rng):
    content = bytearray(content)
    if rng.random() < 0.05:
        return content[: rng.randrange(len(content))]
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        # The header and its words, up to the end of the first page; records follow.
        place = rng.randrange(rng.choice([16, 256, 4096, len(content)]))
        if rng.random() < 0.7:
            place = (
                min(place if rng.random() < 0.3 else 4096 + 128 * rng.randrange(60), len(content) - 8)
                // 8
                * 8
            )
            value = rng.choice([*WORDS, rng.getrandbits(64)])
            content[place : place + 8] = value.to_bytes(8, sys.byteorder)
        else:
            content[place] ^= 1 << rng.randrange(8)
    return content


def run(use, name):
    """Uses the file in a child. Returns "used" or "refused", or a text for an outcome that is a failure."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(120)
        try:
            use(name)
            os._exit(0)
        except (QueueError, RuntimeError):
            os._exit(1)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(2)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    names = {0: "used", 1: "refused", 2: "unexpected exception", -signal.SIGALRM: "hung"}
    return names.get(code, f"ended with {code}")


def main(cases, seed):
    rng = random.Random(seed)
    kinds = list(samples())
    results = {}
    path = FOLDER / f"fastrl-{NAME}"
    for case in range(cases):
        kind, content, use = kinds[case % len(kinds)]
        broken = damage(content, rng)
        path.write_bytes(broken)
        result = run(use, NAME)
        path.unlink(missing_ok=True)
        results[result] = results.get(result, 0) + 1
        if result not in ("used", "refused"):
            places = [i for i in range(0, len(broken), 8) if broken[i : i + 8] != content[i : i + 8]]
            words = {i: int.from_bytes(broken[i : i + 8], sys.byteorder) for i in places[:10]}
            print(f"{kind}, length {len(broken)} of {len(content)}, words {words}: {result}", file=sys.stderr)
    print(json.dumps(results))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
