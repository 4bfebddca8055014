"""fastrl.queue in one process: records, their order, and full rings."""

from __future__ import annotations

import gc
import os
import pickle
import queue as python_queue
import signal
import sys
import threading
import time
import tracemalloc
from contextlib import contextmanager
from itertools import repeat

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_records import ORDERS, RECORD, ids_of, rows_of
from shared_memory import segments
from waiting import TIMEOUT, wait_until

from fastrl.queue import Empty, Full, Queue, QueueStats, ShutDown


@pytest.fixture(params=ORDERS)
def order(request):
    return request.param


@contextmanager
def deadline(seconds):
    """Fails instead of hanging."""

    def stop(signum, frame):
        raise TimeoutError(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def _no_hang():
    with deadline(TIMEOUT):
        yield


# Records


def test_records_come_out_as_they_were_put(order):
    with Queue(RECORD, 8, order=order) as q, q.producer() as p:
        p.put(rows_of(1)[0])
        p.put(rows_of(2))
        p.put(rows_of(3).reshape(()))
        p.put((4, [4.25, 4.5, 4.75], False))
        p.put({"done": True, "id": 5, "obs": np.array([5.25, 5.5, 5.75])})
        assert p.put_many(rows_of(6, 7)) == 2
        with p.reserve(1) as view:
            view[:] = rows_of(8)
        row = q.get()
        assert isinstance(row, np.void) and row.dtype == RECORD
        assert [row["id"], *ids_of(q.get_many(100))] == list(range(1, 9))


def test_put_many_takes_any_shape_in_c_order(order):
    with Queue(RECORD, 16, order=order) as q, q.producer() as p:
        assert p.put_many(rows_of(*range(6)).reshape(2, 3)) == 6
        assert p.put_many(rows_of()) == 0
        assert ids_of(q.get_many(100)) == list(range(6))


def test_records_are_copies():
    with Queue(RECORD, 8) as q, q.producer() as p:
        rows = rows_of(1, 2)
        p.put(rows[0])
        p.put_many(rows)
        rows["id"] = -1
        row = q.get()
        taken = q.get_many(2)
        p.put_many(rows_of(*range(8)))
        assert row["id"] == 1 and ids_of(taken) == [1, 2]
        row["id"] = 7
        assert ids_of(q.get_many(8)) == list(range(8))


def test_get_many_writes_into_the_callers_array(order):
    with Queue(RECORD, 16, order=order) as q, q.producer() as p:
        out = rows_of(*[-1] * 6)
        p.put_many(rows_of(*range(5)))
        part = q.get_many(3, out)
        assert ids_of(out) == [0, 1, 2, -1, -1, -1]
        assert np.shares_memory(part, out) and len(part) == 3
        assert ids_of(q.get_many(6, out=out)) == [3, 4]
        p.put_many(rows_of(*range(6)))
        assert q.get_many(6, out) is out


def test_large_copies_without_the_gil(order):
    dtype = np.dtype([("pixels", np.uint8, 100_000)])
    with Queue(dtype, 8, order=order) as q, q.producer() as p:
        rows = np.zeros(8, dtype)
        rows["pixels"] = np.random.default_rng(0).integers(256, size=(8, 100_000))
        assert p.put_many(rows) == 8
        np.testing.assert_array_equal(q.get_many(8), rows)


def test_equivalent_dtypes_are_the_same():
    with Queue(RECORD, 8) as q, q.producer() as p:
        other = np.dtype([("id", "i8"), ("obs", "f4", (3,)), ("done", "?")])
        assert other is not q.dtype
        row = np.zeros(1, other)
        row["id"] = 3
        p.put(row[0])
        p.put_many(row.view(np.recarray))
        assert [q.get()["id"], q.get()["id"]] == [3, 3]


def test_a_mapping_gives_aligned_fields():
    with Queue({"flag": np.bool_, "obs": (np.float64, (2, 2)), "action": "i4"}, 4) as q:
        assert q.dtype.names == ("flag", "obs", "action")
        assert q.dtype.fields["obs"][1] == 8 and q.dtype["obs"].shape == (2, 2)
        assert q.dtype.isalignedstruct


SIMPLE = st.one_of(
    hnp.scalar_dtypes(), hnp.byte_string_dtypes(max_len=5), hnp.unicode_string_dtypes(max_len=5)
)
DTYPES = hnp.nested_dtypes(SIMPLE, max_leaves=6, max_itemsize=500).map(
    lambda dtype: dtype if dtype.names else np.dtype([("x", dtype)])
)


def contents(dtype):
    """All that numpy can see in records of this dtype: names, kinds, places, padding apart."""
    if dtype.subdtype:
        return contents(dtype.subdtype[0]), dtype.subdtype[1]
    if not dtype.names:
        return dtype.str
    fields = [(name, contents(dtype.fields[name][0]), *dtype.fields[name][1:]) for name in dtype.names]
    return fields, dtype.itemsize, dtype.isalignedstruct


@pytest.mark.slow
@given(DTYPES.filter(lambda dtype: dtype.itemsize > 0))
def test_any_dtype_is_attached_with_the_queue(dtype):
    with Queue(dtype, 2, max_producers=1, shared=True) as q, Queue.attach(q.name) as attached:
        assert contents(attached.dtype) == contents(dtype)


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype({"names": ["b", "a"], "formats": ["i4", "f8"], "offsets": [16, 3], "itemsize": 40}),
        np.dtype({"names": ["whole", "low"], "formats": ["u8", "u4"], "offsets": [0, 0]}),
        np.dtype([("a", "i1"), ("b", [("c", "f8", (2,)), ("d", "i2")], (2, 1))], align=True),
        np.dtype([(("a title", "a"), "i4"), ("b", ">M8[ms]"), ("é\n", "V3")]),
    ],
    ids=["offsets", "overlap", "nested", "titles"],
)
def test_unusual_dtypes_are_attached_too(dtype):
    with Queue(dtype, 2, max_producers=1, shared=True) as q, Queue.attach(q.name) as attached:
        assert attached.dtype == dtype and contents(attached.dtype) == contents(dtype)
        rows = np.frombuffer(bytes(range(dtype.itemsize)), dtype)
        with q.producer() as p:
            p.put_many(rows)
        assert attached.get_many(1).tobytes() == rows.tobytes()


# Attributes


def test_attributes_and_words():
    with Queue(RECORD, 5, max_producers=3, policy="error", order="total", shared=True) as q:
        assert (q.capacity, q.max_producers, q.policy, q.order) == (8, 3, "error", "total")
        assert q.dtype is RECORD
        assert q.name in repr(q) and "capacity=8" in repr(q)
        assert Queue.attach(q.name).name == q.name
    assert q.capacity == 8  # attributes stay after the end
    with Queue(RECORD, 5) as q:
        assert q.name is None


# No room, nothing there


def test_get_from_an_empty_queue(order):
    with Queue(RECORD, 4, order=order) as q:
        with pytest.raises(Empty):
            q.get(block=False)
        with pytest.raises(Empty):
            q.get(timeout=0)
        with pytest.raises(python_queue.Empty):
            q.get(timeout=0.01)
        with pytest.raises(Empty):
            q.get_many(4, timeout=0)
        with pytest.raises(Empty), q.peek(timeout=0.001):
            pass
        assert q.stats().consumer_wait_seconds > 0.005


def test_a_blocked_producer_raises_after_its_timeout(order):
    with Queue(RECORD, 4, order=order) as q, q.producer() as p:
        assert p.put_many(rows_of(*range(6)), timeout=0) == 4
        with pytest.raises(Full):
            p.put(rows_of(9)[0], timeout=0)
        with pytest.raises(python_queue.Full):
            p.put_many(rows_of(9), timeout=0.02)
        with pytest.raises(Full), p.reserve(1, timeout=0.001):
            pass
        stats = q.stats()
        assert stats.put == stats.depth == stats.high_water == 4
        assert stats.full_waits > 0 and stats.wait_seconds > 0.01
        assert ids_of(q.get_many(9)) == [0, 1, 2, 3]
        p.put(rows_of(4), timeout=0)


def test_a_wait_in_slices_counts_once(order):
    with Queue(RECORD, 4, order=order) as q, q.producer() as p:
        p.put_many(rows_of(*range(4)))
        before = time.monotonic()
        with pytest.raises(Full):
            p.put(rows_of(4), timeout=0.2)
        passed = time.monotonic() - before
        stats = q.stats()
        assert stats.full_waits == stats.per_producer[0].full_waits == 1
        assert 0.15 < stats.wait_seconds <= passed


def test_policy_error_puts_all_or_nothing(order):
    with Queue(RECORD, 4, order=order, policy="error") as q, q.producer() as p:
        assert p.put_many(rows_of(0, 1, 2)) == 3
        with pytest.raises(Full):
            p.put_many(rows_of(3, 4))
        p.put(rows_of(3))
        with pytest.raises(Full):
            p.put(rows_of(4))
        with pytest.raises(Full), p.reserve(1):
            pass
        assert ids_of(q.get_many(9)) == [0, 1, 2, 3]
        assert q.stats().full_waits == 3


def test_drop_newest(order):
    with Queue(RECORD, 4, order=order, policy="drop_newest") as q, q.producer() as p:
        assert p.put_many(rows_of(*range(7))) == 7
        p.put(rows_of(7))
        with p.reserve(2) as view:
            view[:] = rows_of(8, 9)
        with pytest.raises(ZeroDivisionError), p.reserve(2):
            1 / 0  # noqa: B018
        assert ids_of(q.get_many(9)) == [0, 1, 2, 3]
        stats = q.stats()
        assert (stats.put, stats.got, stats.dropped_newest, stats.dropped_oldest) == (4, 4, 6, 0)


def test_drop_oldest(order):
    with Queue(RECORD, 4, order=order, policy="drop_oldest") as q, q.producer() as p:
        assert p.put_many(rows_of(*range(3))) == 3
        assert p.put_many(rows_of(*range(3, 6))) == 3
        assert q.get()["id"] == 2
        assert p.put_many(rows_of(*range(10, 20))) == 10
        assert ids_of(q.get_many(9)) == [16, 17, 18, 19]
        stats = q.stats()
        assert stats.dropped_newest == 0 and stats.got == 5
        assert stats.dropped_oldest == 16 - 5


def test_records_in_a_peek_are_not_dropped(order):
    with Queue(RECORD, 4, order=order, policy="drop_oldest") as q, q.producer() as p:
        p.put_many(rows_of(0, 1, 2, 3))
        with q.peek(2) as view:
            p.put_many(rows_of(4, 5))
            p.put(rows_of(6))
            assert ids_of(view) == [0, 1]
        got = ids_of(q.get_many(9))
        stats = q.stats()
        assert got == sorted(got) and stats.dropped_oldest + stats.dropped_newest == 7 - 2 - len(got)


# In place


def test_peek_shows_and_consumes(order):
    with Queue(RECORD, 8, order=order) as q, q.producer() as p:
        p.put_many(rows_of(*range(6)))
        with q.peek(4) as view:
            assert ids_of(view) == [0, 1, 2, 3]
            assert not view.flags.writeable and not view["obs"].flags.writeable
            with pytest.raises(ValueError, match="WRITEABLE"):
                view.flags.writeable = True
            assert q.stats().depth == 6
        assert q.stats().depth == 2
        with pytest.raises(ZeroDivisionError), q.peek() as view:
            assert ids_of(view) == [4, 5 / 0]
        with pytest.raises(Empty):
            q.get(block=False)


def test_peek_ends_at_the_end_of_the_ring(order):
    with Queue(RECORD, 4, order=order) as q, q.producer() as p:
        p.put_many(rows_of(0, 1, 2))
        q.get_many(2)
        p.put_many(rows_of(3, 4, 5))
        shown = []
        while q.stats().depth:
            with q.peek() as view:
                shown += ids_of(view)
        assert shown == [2, 3, 4, 5]


def test_reserve_publishes_at_the_end(order):
    with Queue(RECORD, 8, order=order) as q, q.producer() as p:
        with p.reserve(3) as view:
            view[:] = rows_of(0, 1, 2)
            part = view["id"]
            with pytest.raises(Empty):
                q.get(block=False)
        assert ids_of(q.get_many(9)) == [0, 1, 2]
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            view["id"] = 9
        del part
        with pytest.raises(ZeroDivisionError), p.reserve(3) as view:
            view["id"] = 1 / 0
        assert not view.flags.writeable
        p.put(rows_of(3))
        assert ids_of(q.get_many(9)) == [3]


def test_reservations_are_contiguous_at_any_position_of_the_ring(order):
    with Queue(RECORD, 8, order=order) as q, q.producer() as p:
        count = 0
        for i in range(50):
            size = 1 + i % 4
            with p.reserve(size) as view:
                view[:] = rows_of(*range(count, count + size))
            got = []
            while len(got) < size:
                got += ids_of(q.get_many(9))
            assert got == list(range(count, count + size))
            count += size


def test_views_outlive_the_queue():
    q = Queue(RECORD, 256, shared=True)
    p = q.producer()
    p.put_many(rows_of(*range(200)))
    with q.peek() as shown:
        part = shown["obs"][10]
    with p.reserve(100) as reserved:
        reserved[:] = rows_of(*range(100))
    p.close()
    q.close()
    del p, q
    gc.collect()
    assert shown["id"].sum() >= 0 and part.shape == (3,)
    assert ids_of(reserved) == list(range(100))


def test_a_block_can_be_entered_again():
    with Queue(RECORD, 8) as q, q.producer() as p:
        room, look = p.reserve(2), q.peek(2)
        for i in range(10):
            with room as view:
                view[:] = rows_of(i, i + 1)
            with look as view:
                assert ids_of(view) == [i, i + 1]


# The end


def test_shutdown_leaves_the_remaining_records(order):
    with Queue(RECORD, 8, order=order) as q, q.producer() as p:
        p.put_many(rows_of(0, 1, 2))
        q.shutdown()
        for call in (
            lambda: p.put(rows_of(3)),
            lambda: p.put_many(rows_of(3)),
            lambda: p.reserve(1).__enter__(),
        ):
            with pytest.raises(ShutDown):
                call()
        assert q.get()["id"] == 0
        assert [row["id"] for row in q] == [1, 2]
        for call in (q.get, lambda: q.get(block=False), lambda: q.get_many(2), lambda: q.peek().__enter__()):
            with pytest.raises(ShutDown):
                call()


def test_shutdown_at_once(order):
    with Queue(RECORD, 8, order=order) as q, q.producer() as p:
        p.put_many(rows_of(0, 1, 2))
        q.shutdown(immediate=True)
        with pytest.raises(ShutDown):
            q.get()
        with pytest.raises(ShutDown):
            p.put(rows_of(3))
        assert list(q) == []


def test_shutdown_is_pythons_own_where_python_has_it():
    assert ShutDown is getattr(python_queue, "ShutDown", ShutDown)
    assert issubclass(ShutDown, Exception) and ShutDown.__name__ == "ShutDown"


@pytest.mark.parametrize("immediate", [False, True])
def test_shutdown_wakes_waiters(order, immediate):
    ended = []

    def run(call):
        try:
            call()
        except ShutDown:
            ended.append(call)

    with Queue(RECORD, 2, order=order) as full, Queue(RECORD, 2, order=order) as empty:
        p = full.producer()
        p.put_many(rows_of(0, 1))
        calls = [empty.get, lambda: p.put(rows_of(2))]
        threads = [threading.Thread(target=run, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        for q in (full, empty):
            q.shutdown(immediate)
        for thread in threads:
            thread.join(TIMEOUT)
        assert len(ended) == 2
        p.close()


# Threads and signals


def test_a_blocked_call_lets_other_threads_run(order):
    def produce(q):
        with q.producer() as p:
            time.sleep(0.05)
            p.put_many(rows_of(*range(50)))

    def waited():
        with Queue(RECORD, 2, order=order) as q:
            thread = threading.Thread(target=produce, args=(q,))
            thread.start()
            assert [q.get()["id"] for _ in range(50)] == list(range(50))
            thread.join()
            return q.stats().consumer_wait_seconds

    # The consumer may come late to it.
    wait_until(lambda: waited() > 0.01)


@pytest.mark.parametrize("side", ["get", "get_many", "peek", "put", "put_many", "reserve"])
def test_a_signal_ends_a_blocked_call(side):
    with Queue(RECORD, 2) as empty, Queue(RECORD, 2) as full, full.producer() as p:
        p.put_many(rows_of(0, 1))
        calls = {
            "get": empty.get,
            "get_many": lambda: empty.get_many(1),
            "peek": lambda: empty.peek().__enter__(),
            "put": lambda: p.put(rows_of(2)),
            "put_many": lambda: p.put_many(rows_of(2, 3)),
            "reserve": lambda: p.reserve(1).__enter__(),
        }
        with pytest.raises(TimeoutError), deadline(0.05):
            calls[side]()
        # Nothing is held back by the call that was given up.
        assert ids_of(full.get_many(9)) == [0, 1]
        p.put(rows_of(3), timeout=0)
        assert full.get(block=False)["id"] == 3


def test_many_threads(order):
    threads, each = 6, 5_000

    def produce(number):
        with q.producer() as p:
            ids = np.arange(each) + number * each
            for begin in range(0, each, 37):
                rows = rows_of(*ids[begin : begin + 37])
                if begin % 2:
                    p.put_many(rows)
                else:
                    for row in rows:
                        p.put(row)

    with Queue(RECORD, 64, max_producers=threads, order=order) as q:
        running = [threading.Thread(target=produce, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        seen = [[] for _ in range(threads)]
        for _ in range(threads * each):
            row = q.get(timeout=TIMEOUT)
            seen[row["id"] // each].append(int(row["id"] % each))
        for thread in running:
            thread.join()
        assert all(ids == list(range(each)) for ids in seen)
        stats = q.stats()
        assert stats.put == stats.got == threads * each and stats.depth == stats.producers == 0


# Counters


def test_stats_add_up():
    with Queue(RECORD, 8, max_producers=3, policy="drop_newest") as q:
        first, second = q.producer(), q.producer()
        first.put_many(rows_of(*range(10)))
        second.put_many(rows_of(*range(5)))
        q.get_many(3)
        stats = q.stats()
        assert isinstance(stats, QueueStats)
        assert (stats.put, stats.got, stats.depth, stats.dropped_newest) == (13, 3, 10, 2)
        assert (stats.producers, stats.consumer) == (2, os.getpid())
        assert [producer.put for producer in stats.per_producer] == [8, 5, 0]
        assert [producer.dropped_newest for producer in stats.per_producer] == [2, 0, 0]
        assert [producer.producer for producer in stats.per_producer] == [os.getpid(), os.getpid(), None]
        assert sum(producer.depth for producer in stats.per_producer) == 10
        assert stats.high_water == 8 and stats.abandoned == 0
        with pytest.raises(AttributeError):
            stats.put = 0
        first.close()
        assert q.stats().producers == 1
        second.close()


def test_places_of_closed_producers_are_reused():
    with Queue(RECORD, 8, max_producers=1) as q:
        for i in range(5):
            with q.producer() as p:
                p.put(rows_of(i))
        p = q.producer()
        p.put(rows_of(5))
        del p
        q.producer().close()
        assert ids_of(q.get_many(9)) == list(range(6))


@pytest.mark.parametrize("copies_without_the_gil", [False, True])
def test_batches_allocate_nothing(order, copies_without_the_gil):
    """numpy reports all its memory to tracemalloc, as Python does."""
    dtype = np.dtype([("data", np.uint8, 20_000 if copies_without_the_gil else 64)])
    rows, out = np.zeros((2, 16), dtype)
    with Queue(dtype, 64, order=order) as q, q.producer() as p:

        def pass_on(count):
            for _ in repeat(None, count):
                p.put_many(rows)
                q.get_many(16, out)

        def allocated():
            """Bytes that 100 batches leave, and their peak."""
            tracemalloc.start()
            try:
                pass_on(10)
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                pass_on(100)
                after, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            return after - before, peak - before

        # Other threads of the process, such as the test runner's, may allocate meanwhile: they do not each time.
        assert any(left < 100 and peak < 1000 for left, peak in (allocated() for _ in range(3)))


def test_nothing_is_leaked():
    """References, memory and names."""
    before = segments()
    references = sys.getrefcount(RECORD)
    for _ in range(50):
        q = Queue(RECORD, 1024, shared=True)
        p = q.producer()
        p.put_many(rows_of(*range(100)))
        for row in (q.get(), q.get()):
            assert row["id"] < 2
        with q.peek(5) as view, p.reserve(5) as room:
            assert len(view) == len(room)
        q.get_many(2)
        pickle.loads(pickle.dumps(q)).close()
        p.close()
        q.close()
    del q, p, row, view, room
    gc.collect()
    assert sys.getrefcount(RECORD) - references < 10
    assert segments() <= before
