"""fastrl.queue between processes: attaching, ownership, and killed processes."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import queue_kills
from shared_memory import segments, shared_memory_of
from waiting import TIMEOUT, wait_until

from fastrl.queue import Empty, Full, Queue, QueueError, ShutDown

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory shared between processes needs Linux")

RECORD = np.dtype([("id", np.int64), ("obs", np.float32, 3)])
START_METHODS = ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)]
KILLS = 100


def rows_of(*ids):
    rows = np.zeros(len(ids), RECORD)
    rows["id"] = ids
    rows["obs"] = rows["id"][:, None]
    return rows


@pytest.fixture(autouse=True)
def _no_segments_left():
    before = segments()
    yield
    assert segments() <= before


def in_fork(call):
    """The result of `call` in a forked child, or the name of its exception and the message."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                result = "returned", call()
            except BaseException as error:
                result = type(error).__name__, str(error)
            os.write(writer, pickle.dumps(result))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return pickle.loads(answer)


class Child:
    """A forked child that runs `call` and then waits to be killed or released."""

    def __init__(self, call):
        began, begin = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                kept = call()
                os.write(begin, b"!")
                time.sleep(TIMEOUT)
                del kept
            finally:
                os._exit(1)
        os.close(begin)
        assert os.read(began, 1) == b"!", "the child failed"
        os.close(began)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def run_script(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip()


# Producers in other processes


def produce(queue, number, count):
    with queue.producer() as p:
        for i in range(0, count, 10):
            p.put_many(rows_of(*range(number * count + i, number * count + i + 10)))


def consume(queue, out):
    out.put([int(row["id"]) for row in queue])


@pytest.mark.parametrize("order", ["per_producer", "total"])
@pytest.mark.parametrize("method", START_METHODS)
def test_workers_of_every_kind_produce(method, order):
    context = multiprocessing.get_context(method)
    with Queue(RECORD, 32, max_producers=2, order=order, shared=True) as q:
        workers = [context.Process(target=produce, args=(q, number, 500)) for number in range(2)]
        for worker in workers:
            worker.start()
        seen = [[], []]
        for _ in range(1000):
            row = q.get(timeout=TIMEOUT)
            assert (row["obs"] == row["id"]).all()
            seen[row["id"] // 500].append(row["id"] % 500)
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        assert seen == [list(range(500))] * 2


@pytest.mark.parametrize("method", START_METHODS)
def test_a_worker_consumes(method):
    context = multiprocessing.get_context(method)
    with Queue(RECORD, 32, shared=True) as q:
        out = context.Queue()
        worker = context.Process(target=consume, args=(q, out))
        worker.start()
        produce(q, 0, 300)
        q.shutdown()
        assert out.get(timeout=TIMEOUT) == list(range(300))
        worker.join()
        assert worker.exitcode == 0


def test_an_unrelated_process_attaches_by_name():
    code = """
import sys
import numpy as np
from fastrl.queue import Queue
with Queue.attach(sys.argv[1]) as q, q.producer() as p:
    rows = np.zeros(3, q.dtype)
    rows["id"] = [4, 5, 6]
    p.put_many(rows)
    print(q.policy, q.capacity, q.dtype.names)
"""
    name = f"a-name.of_ours-{os.getpid()}"
    with Queue(RECORD, 32, policy="error", shared=name) as q:
        assert q.name == name
        out, errors = run_script(code, q.name)
        assert out == "error 32 ('id', 'obs')" and errors == ""
        # Whoever attached and went took nothing with it, the name included.
        with Queue.attach(q.name) as again:
            assert again.get_many(9)["id"].tolist() == [4, 5, 6]
        with pytest.raises(FileExistsError, match="a-name"):
            Queue(RECORD, 32, shared=name)
    with pytest.raises(FileNotFoundError, match="a-name"):
        Queue.attach(name)


def test_pickles_only_where_others_can_reach_it():
    with Queue(RECORD, 8) as q, pytest.raises(TypeError, match="shared=True"):
        pickle.dumps(q)
    with Queue(RECORD, 8, shared=True) as q, q.producer() as p:
        copy = pickle.loads(pickle.dumps(q))
        p.put(rows_of(1))
        assert copy.get()["id"] == 1
        copy.close()
        for mine in (p, q.peek(), p.reserve(1)):
            with pytest.raises(TypeError, match="pickle"):
                pickle.dumps(mine)
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickle.dumps(q))


# Ownership


def test_a_forked_child_cannot_use_its_parents_producer():
    with Queue(RECORD, 8, shared=True) as q, q.producer() as p:
        for call in (
            lambda: p.put(rows_of(1)),
            lambda: p.put_many(rows_of(1)),
            lambda: p.reserve(1).__enter__(),
        ):
            assert in_fork(call)[0] == "QueueError"
        assert in_fork(p.close) == ("returned", None)
        p.put(rows_of(2))
        assert q.stats().producers == 1 and q.get()["id"] == 2


def test_a_forked_child_can_make_producers():
    with Queue(RECORD, 8, shared=True) as q, q.producer() as p:

        def put():
            with q.producer() as own:
                own.put(rows_of(1))

        assert in_fork(put) == ("returned", None)
        p.put(rows_of(2))
        assert sorted(q.get_many(9)["id"]) == [1, 2]


def test_leaving_a_parents_block_in_a_forked_child_changes_nothing():
    with Queue(RECORD, 8, shared=True) as q, q.producer() as p:
        p.put_many(rows_of(1, 2))
        block, look = p.reserve(2), q.peek(1)
        view, _ = block.__enter__(), look.__enter__()
        view[:] = rows_of(3, 4)
        assert in_fork(lambda: block.__exit__(None))[0] == "QueueError"
        assert in_fork(lambda: look.__exit__(None)) == ("returned", None)
        assert q.stats().depth == 2
        block.__exit__(None)
        look.__exit__(None)
        assert q.get_many(9)["id"].tolist() == [2, 3, 4]


def test_one_process_consumes():
    with Queue(RECORD, 8, shared=True) as q, q.producer() as p:
        p.put_many(rows_of(*range(4)))
        assert q.get()["id"] == 0
        name, words = in_fork(q.get)
        assert name == "QueueError" and str(os.getpid()) in words
        assert in_fork(lambda: Queue.attach(q.name).get())[0] == "QueueError"
        with Queue.attach(q.name) as other, pytest.raises(QueueError, match="consumer"):
            other.get()
        # A child that ends does not end its parent's role, nor the queue.
        assert in_fork(q.close) == ("returned", None)
        assert q.get()["id"] == 1
        with Queue.attach(q.name) as other:
            q.close()
            assert other.get()["id"] == 2


def test_a_forked_child_consumes_where_its_parent_does_not():
    with Queue(RECORD, 8, shared=True) as q, q.producer() as p:
        p.put_many(rows_of(7, 8))
        assert in_fork(lambda: int(q.get()["id"])) == ("returned", 7)
        assert q.get()["id"] == 8


def test_a_queue_that_is_not_shared_stays_with_its_process():
    with Queue(RECORD, 8) as q:
        for call in (q.producer, q.get):
            name, words = in_fork(call)
            assert name == "QueueError" and "shared=True" in words
        with q.producer() as p:
            p.put(rows_of(1))
            assert q.get()["id"] == 1


def test_shutdown_reaches_other_processes():
    with Queue(RECORD, 2, shared=True) as q:

        def wait():
            try:
                q.get(timeout=TIMEOUT)
            except ShutDown:
                return "shut down"

        reader = multiprocessing.get_context("fork").Process(target=wait)
        reader.start()
        wait_until(lambda: q.stats().consumer is not None)
        q.shutdown()
        reader.join(TIMEOUT)
        assert reader.exitcode == 0
        with pytest.raises(ShutDown), q.producer() as p:
            p.put(rows_of(1))


# Killed processes


def test_places_of_killed_producers_are_reused():
    with Queue(RECORD, 8, max_producers=1, shared=True) as q:
        for i in range(3):
            child = Child(lambda i=i: (p := q.producer()).put_many(rows_of(i)) and p)
            with pytest.raises(QueueError, match="living producers"):
                q.producer()
            child.kill()
        with q.producer() as p:
            p.put(rows_of(3))
        assert q.get_many(9)["id"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("order", ["per_producer", "total"])
def test_unpublished_records_of_a_killed_producer_never_appear(order):
    with Queue(RECORD, 8, order=order, shared=True) as q, q.producer() as p:

        def begin():
            own = q.producer()
            own.put(rows_of(1))
            block = own.reserve(3)
            block.__enter__()[:] = rows_of(7, 8, 9)
            return own, block

        child = Child(begin)
        p.put(rows_of(2))
        child.kill()
        p.put(rows_of(3))
        got = [int(q.get(timeout=TIMEOUT)["id"]) for _ in range(3)]
        assert sorted(got) == [1, 2, 3]
        with pytest.raises(Empty):
            q.get(timeout=0.05)
        assert q.stats().abandoned == 3


@pytest.mark.parametrize("order", ["per_producer", "total"])
@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
def test_a_new_consumer_continues_after_a_killed_one(order, policy):
    with Queue(RECORD, 16, order=order, policy=policy, shared=True) as q, q.producer() as p:
        p.put_many(rows_of(*range(6)))

        def begin():
            assert q.get()["id"] == 0
            look = q.peek(2)
            assert look.__enter__()["id"].tolist() == [1, 2]
            return look

        child = Child(begin)
        with pytest.raises(QueueError, match=str(child.pid)):
            q.get()
        child.kill()
        # Records that the killed consumer was reading are read again.
        assert q.get_many(9)["id"].tolist() == [1, 2, 3, 4, 5]


def test_a_name_says_which_process_made_the_memory():
    """Other tests rely on it to find what a run has left."""
    before = shared_memory_of(os.getpid())
    child = Child(lambda: Queue(RECORD, 8, shared=True))
    with Queue(RECORD, 8, shared=True) as q:
        assert shared_memory_of(os.getpid()) - before == {f"fastrl-{q.name}"}
        assert len(shared_memory_of(child.pid)) == 1
        child.kill()
    with Queue(RECORD, 8, shared=True):
        assert shared_memory_of(child.pid) == set()
    assert shared_memory_of(os.getpid()) == before


def test_segments_of_killed_creators_are_swept():
    before = segments()
    name = f"test-orphan-{os.getpid()}"
    child = Child(lambda: Queue(RECORD, 8, shared=name))
    with Queue.attach(name) as q:
        p = q.producer()
        child.kill()
        with Queue(RECORD, 8, shared=True):
            assert f"fastrl-{name}" in segments()  # somebody still uses it
        p.put(rows_of(5))
        assert q.get()["id"] == 5
        p.close()
    assert f"fastrl-{name}" in segments()
    with Queue(RECORD, 8, shared=True):
        assert f"fastrl-{name}" not in segments()
    assert segments() <= before


@pytest.mark.slow
def test_creators_killed_at_any_instant_leave_nothing():
    before = segments()
    rng = random.Random(0)
    for _ in range(30):
        pid = os.fork()
        if pid == 0:
            kept = []
            while True:
                kept.append(Queue(RECORD, 64, max_producers=2, shared=True))
                if len(kept) > 5:
                    kept.clear()
        time.sleep(rng.uniform(0, 0.01))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for name in segments() - before:
            # Whatever has a name is complete, as long as it has it.
            with contextlib.suppress(FileNotFoundError), Queue.attach(name.removeprefix("fastrl-")) as q:
                assert q.stats().put == 0
    with Queue(RECORD, 8, shared=True) as q:
        assert segments() - before == {f"fastrl-{q.name}"}


def test_a_full_dev_shm_is_an_error_at_creation():
    before = segments()
    room = os.statvfs("/dev/shm")
    records = room.f_blocks * room.f_frsize // RECORD.itemsize
    with pytest.raises(OSError, match="capacity") as caught:
        Queue(RECORD, records, max_producers=1, shared=True)
    assert caught.value.errno == errno.ENOSPC
    assert segments() == before


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        pytest.param("block", "per_producer", marks=pytest.mark.slow),
        ("block", "total"),
        pytest.param("error", "per_producer", marks=pytest.mark.slow),
        pytest.param("drop_newest", "total", marks=pytest.mark.slow),
        pytest.param("drop_oldest", "per_producer", marks=pytest.mark.slow),
        pytest.param("drop_oldest", "total", marks=pytest.mark.slow),
    ],
)
def test_random_kills_lose_and_repeat_no_record(policy, order):
    command = [sys.executable, queue_kills.__file__, policy, order, str(KILLS), "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    report = json.loads(done.stdout)
    assert report["generations"] + report["consumers"] == queue_kills.PRODUCERS + 1 + KILLS
    assert report["seen"] > queue_kills.ENOUGH and not report["left"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [("torn", "torn"), ("lost", "lost"), ("twice", "twice"), ("swapped", "out of order"), (None, None)],
)
def test_the_checks_of_random_kills_find_errors(fault, words):
    rows = np.zeros(queue_kills.SHOWN * 2, queue_kills.RECORD)
    queue_kills.fill(rows, 0, 0)
    if fault == "torn":
        rows["payload"][70, 3] ^= np.uint64(1 << 40)
    if fault == "lost":
        rows = np.delete(rows, queue_kills.SHOWN)
    if fault == "twice":
        # One repetition is allowed after a killed consumer.
        rows = rows[[*range(64), *range(64), *range(64)]]
    if fault == "swapped":
        rows = rows[[1, 0]]
    ledger = queue_kills.Ledger(1)
    with Queue(queue_kills.RECORD, 1024, max_producers=1) as q, q.producer() as p:
        p.put_many(rows)
        q.shutdown()
        rng = queue_kills.random.Random(0)
        if fault is None:
            queue_kills.consume(q, ledger, rng)
            assert ledger.seen[0] == ledger.received[0] == len(rows)
        else:
            with pytest.raises(AssertionError, match=words):
                queue_kills.consume(q, ledger, rng)


def test_full_is_raised_in_every_process():
    with Queue(RECORD, 2, policy="error", shared=True) as q:

        def put():
            with q.producer() as p:
                p.put_many(rows_of(1, 2, 3))

        assert in_fork(put)[0] == Full.__name__
