"""Wrong use of fastrl.queue and damaged memory: clear exceptions, and no torn records."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import queue_damage
from waiting import TIMEOUT, wait_until

from fastrl.collectors.weights import Weights
from fastrl.queue import Empty, Queue, QueueError

RECORD = np.dtype([("id", np.int64), ("obs", np.float32, 3)])
ROW = np.zeros(1, RECORD)[0]
needs_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="memory shared between processes needs Linux"
)


def rows_of(*ids):
    rows = np.zeros(len(ids), RECORD)
    rows["id"] = ids
    return rows


@pytest.fixture
def q():
    with Queue(RECORD, 8, max_producers=2) as q:
        yield q


@pytest.fixture
def p(q):
    with q.producer() as p:
        yield p


# Options


@pytest.mark.parametrize(
    ("dtype", "error", "words"),
    [
        (np.float32, TypeError, "structured"),
        ("f4", TypeError, "structured"),
        (None, TypeError, "structured"),
        (np.dtype((RECORD, 3)), TypeError, "structured"),
        (np.dtype("V8"), TypeError, "structured"),
        ([("a", object)], TypeError, "Python objects"),
        ([("a", [("b", "i4"), ("c", "O", 2)])], TypeError, "Python objects"),
        ({"a": object}, TypeError, "Python objects"),
        ([("a", "S0")], ValueError, "at least one byte"),
        ([("a", "f4", 0)], ValueError, "at least one byte"),
        ([], ValueError, "at least one byte"),
        ({}, ValueError, "at least one byte"),
        ("no such dtype", TypeError, "no such dtype"),
        ({"a": "no such dtype"}, TypeError, "no such dtype"),
        (3, TypeError, "data type"),
        ({3: "f4"}, TypeError, "nor str"),
    ],
)
def test_dtypes(dtype, error, words):
    with pytest.raises(error, match=words):
        Queue(dtype, 8)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"capacity": 0}, ValueError, "capacity: expected 1 to"),
        ({"capacity": -1}, ValueError, "got -1"),
        ({"capacity": 2**70}, ValueError, str(2**70)),
        ({"capacity": 2**62}, ValueError, "smaller capacity"),
        ({"capacity": 2**63 - 1}, ValueError, "smaller capacity"),
        ({"capacity": 8.0}, TypeError, "whole number, got float"),
        ({"capacity": "8"}, TypeError, "whole number, got str"),
        ({"capacity": None}, TypeError, "whole number, got NoneType"),
        ({"max_producers": 0}, ValueError, "max_producers: expected 1 to"),
        ({"max_producers": -3}, ValueError, "got -3"),
        ({"max_producers": 10**6}, ValueError, "max_producers must be from 1 to 4096"),
        ({"max_producers": 1.5}, TypeError, "max_producers: expected a whole number"),
        ({"policy": "wait"}, ValueError, "'block', 'error', 'drop_newest' or 'drop_oldest', got 'wait'"),
        ({"policy": None}, TypeError, "policy: expected a str"),
        ({"order": "fifo"}, ValueError, "'per_producer' or 'total', got 'fifo'"),
        ({"order": 1}, TypeError, "order: expected a str"),
        ({"shared": 1}, TypeError, "shared: expected True, False or a name"),
        ({"shared": b"name"}, TypeError, "shared: expected True, False or a name"),
        ({"shared": ""}, ValueError, "1 to 200 letters"),
        ({"shared": "../name"}, ValueError, "1 to 200 letters"),
        ({"shared": "a" * 300}, ValueError, "1 to 200 letters"),
        ({"shared": "a\0b"}, ValueError, "1 to 200 letters"),
        ({"no_such_option": 1}, TypeError, "no_such_option"),
    ],
)
def test_options(options, error, words):
    with pytest.raises(error, match=words):
        Queue(RECORD, **{"capacity": 8, **options})


def test_more_memory_than_available():
    with pytest.raises(OSError, match="cannot allocate"):
        Queue(RECORD, 2**44, max_producers=1)  # more than processors can address


# Records


@pytest.mark.parametrize(
    ("row", "error", "words"),
    [
        (None, TypeError, "a tuple of its fields' values or a mapping from their names, got NoneType"),
        (3, TypeError, "got int"),
        ([3, [1, 2, 3]], TypeError, "got list"),
        ("row", TypeError, "got str"),
        (np.float64(3), TypeError, "got float64"),
        ((1,), ValueError, "1"),
        ((1, [1, 2, 3], 4), ValueError, "3"),
        ((1, [1, 2]), ValueError, "shape"),
        (("x", [1, 2, 3]), ValueError, "x"),
        ({"id": 1}, ValueError, r"expected the fields \[.id., .obs.\], got \[.id.\]"),
        ({"id": 1, "obs": 0, "more": 0}, ValueError, "more"),
        ({"id": 1, "action": 0}, ValueError, "action"),
        (np.zeros(2, RECORD), ValueError, "expected one record, got an array of 2"),
        (np.zeros(0, RECORD), ValueError, "expected one record, got an array of 0"),
        (np.zeros(1), TypeError, "expected a C-contiguous array of dtype"),
        (np.zeros(1, [("id", "i8"), ("obs", "f4", 2)])[0], TypeError, "expected a record of dtype"),
        (np.zeros(1, [("id", "i8"), ("reward", "f4", 3)])[0], TypeError, "reward"),
        (np.zeros(1, "V20")[0], TypeError, "V20"),
        (np.zeros(1, RECORD.newbyteorder())[0], TypeError, ">"),
    ],
)
def test_put(q, p, row, error, words):
    with pytest.raises(error, match=words):
        p.put(row)
    assert q.stats().put == 0


WRONG_ARRAYS = {
    "list": ([(1, [1, 2, 3])], TypeError, "numpy.array"),
    "none": (None, TypeError, "NoneType"),
    "scalar": (ROW, TypeError, "void"),
    "dtype": (np.zeros(3), TypeError, "got dtype float64"),
    "fields": (np.zeros(3, [("id", "i8"), ("obs", "f4", 4)]), TypeError, "got dtype"),
    "order of fields": (np.zeros(3, [("obs", "f4", 3), ("id", "i8")]), TypeError, "got dtype"),
    "byte order": (np.zeros(3, RECORD.newbyteorder()), TypeError, "got dtype"),
    "objects": (np.zeros(3, [("id", "O"), ("obs", "f4", 3)]), TypeError, "got dtype"),
    "strides": (np.zeros(6, RECORD)[::2], ValueError, "numpy.ascontiguousarray"),
    "backwards": (np.zeros(6, RECORD)[::-1], ValueError, "numpy.ascontiguousarray"),
    "fortran": (np.zeros((2, 3), RECORD, order="F"), ValueError, "numpy.ascontiguousarray"),
}


@pytest.mark.parametrize(("rows", "error", "words"), WRONG_ARRAYS.values(), ids=WRONG_ARRAYS)
def test_put_many(q, p, rows, error, words):
    with pytest.raises(error, match=words):
        p.put_many(rows)
    assert q.stats().put == 0


@pytest.mark.parametrize(("out", "error", "words"), WRONG_ARRAYS.values(), ids=WRONG_ARRAYS)
def test_get_many_into(q, p, out, error, words):
    if out is None:
        out = 0
        words = "int"
    p.put_many(rows_of(1, 2, 3))
    with pytest.raises(error, match=words):
        q.get_many(2, out)
    assert q.stats().got == 0


def test_get_many_into_arrays_that_do_not_fit(q, p):
    p.put_many(rows_of(1, 2, 3))
    out = np.zeros(3, RECORD)
    with pytest.raises(ValueError, match="at least 4 records"):
        q.get_many(4, out)
    with pytest.raises(ValueError, match="one-dimensional"):
        q.get_many(3, out.reshape(1, 3))
    with pytest.raises(ValueError, match="one-dimensional"):
        q.get_many(1, out[0:1].reshape(()))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="writeable"):
        q.get_many(3, out)
    with pytest.raises(ValueError, match="writeable"):
        q.get_many(3, np.frombuffer(bytes(3 * RECORD.itemsize), RECORD))
    assert out["id"].tolist() == [0, 0, 0] and q.stats().got == 0


@pytest.mark.parametrize("call", ["get_many", "peek", "reserve"])
@pytest.mark.parametrize(
    ("count", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (2**80, ValueError),
        (1.5, TypeError),
        ("2", TypeError),
        ([], TypeError),
    ],
)
def test_counts(q, p, call, count, error):
    with pytest.raises(error, match=r"expected (1 to|a whole number)"):
        getattr(p if call == "reserve" else q, call)(count)


def test_reserving_more_than_half_of_the_ring(p):
    for count in (5, 8, 2**60):
        with pytest.raises(ValueError, match="1 to 4 records"), p.reserve(count):
            pass


@pytest.mark.parametrize("timeout", [-1, -1e-300, float("-inf"), float("nan")])
def test_negative_timeouts(q, p, timeout):
    for call in (
        lambda: q.get(timeout=timeout),
        lambda: q.get_many(1, timeout=timeout),
        lambda: q.peek(timeout=timeout),
        lambda: p.put(ROW, timeout),
        lambda: p.put_many(rows_of(1), timeout),
        lambda: p.reserve(1, timeout),
    ):
        with pytest.raises(ValueError, match="timeout: expected None or at least 0"):
            call()


@pytest.mark.parametrize("timeout", ["1", [], 1j])
def test_timeouts_that_are_not_numbers(q, p, timeout):
    for call in (lambda: q.get(timeout=timeout), lambda: p.put(ROW, timeout)):
        with pytest.raises(TypeError, match="timeout"):
            call()


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 1e18, 10**15])
def test_timeouts_longer_than_any_clock(q, timeout):
    threading.Timer(0.05, lambda: q.producer().put(ROW)).start()
    assert q.get(timeout=timeout) == ROW


# The wrong moment


def test_records_in_a_peek_must_be_consumed_first(q, p):
    p.put_many(rows_of(1, 2, 3))
    with q.peek(1) as view:
        for call in (q.get, lambda: q.get_many(1), lambda: q.peek().__enter__()):
            with pytest.raises(QueueError, match="peek"):
                call()
        assert view["id"].tolist() == [1]
    assert q.get()["id"] == 2


def test_reserved_records_must_be_published_first(q, p):
    with p.reserve(1) as view:
        for call in (lambda: p.put(ROW), lambda: p.put_many(rows_of(1)), lambda: p.reserve(1).__enter__()):
            with pytest.raises(QueueError, match="reserve"):
                call()
        view[:] = rows_of(5)
    assert q.get()["id"] == 5


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
def test_reserved_records_must_be_published_first_after_a_full_ring(policy):
    with Queue(RECORD, 2, policy=policy) as q, q.producer() as p:
        p.put_many(rows_of(1, 2))
        with q.peek(2), p.reserve(1) as view:
            view[:] = rows_of(3)
            for call in (lambda: p.put(ROW), lambda: p.reserve(1).__enter__()):
                with pytest.raises(QueueError, match="reserve"):
                    call()
        with pytest.raises(Empty):
            q.get(timeout=0)
        assert q.stats().dropped_newest == 1
        p.put(ROW)


def test_blocks_left_twice_or_never_entered(q, p):
    p.put_many(rows_of(1, 2, 3))
    look, room = q.peek(1), p.reserve(1)
    look.__exit__(None, None, None)
    with pytest.raises(QueueError, match="not open"):
        room.__exit__(None, None, None)
    with look, room as view:
        view[:] = rows_of(4)
    look.__exit__(None, None, None)
    with pytest.raises(QueueError, match="not open"):
        room.__exit__(None, None, None)
    assert q.get_many(9)["id"].tolist() == [2, 3, 4]


def test_closed_in_a_block(q):
    p = q.producer()
    with pytest.raises(QueueError, match="closed"), p.reserve(2) as view:
        p.close()
    assert not view.flags.writeable
    with pytest.raises(Empty):
        q.get(block=False)
    with q.producer() as p:
        p.put_many(rows_of(1, 2))
        with q.peek(1) as view:
            q.close()
            assert view["id"].tolist() == [1]


def test_calls_after_shutdown_and_close(q):
    p, other = q.producer(), q.producer()
    p.close()
    for call in (lambda: p.put(ROW), lambda: p.put_many(rows_of(1)), lambda: p.reserve(1).__enter__()):
        with pytest.raises(QueueError, match="this producer is closed"):
            call()
    q.close()
    q.close()
    p.close()
    for call in (
        q.producer,
        q.get,
        lambda: q.get_many(1),
        lambda: q.peek().__enter__(),
        q.stats,
        q.shutdown,
        lambda: next(iter(q)),
    ):
        with pytest.raises(QueueError, match="this queue is closed"):
            call()
    other.put(ROW)  # its memory is still there
    other.close()


def test_more_producers_than_max_producers(q):
    kept = [q.producer(), q.producer()]
    with pytest.raises(QueueError, match="2 living producers"):
        q.producer()
    kept[0].close()
    q.producer().close()


def test_two_threads_in_one_call():
    with Queue(RECORD, 2) as q, q.producer() as p:
        failures = []

        def wait(call):
            try:
                call()
            except QueueError as error:
                failures.append(str(error))

        def both(call):
            refused = len(failures)
            threads = [threading.Thread(target=wait, args=(call,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            wait_until(lambda: len(failures) > refused)
            return threads

        readers = both(lambda: q.get(timeout=TIMEOUT))
        with pytest.raises(QueueError, match="another thread"):
            q.close()
        p.put(ROW)
        for thread in readers:
            thread.join()
        p.put_many(rows_of(1, 2))
        writers = both(lambda: p.put(rows_of(3), timeout=TIMEOUT))
        with pytest.raises(QueueError, match="another thread"):
            p.close()
        assert [q.get()["id"] for _ in range(3)] == [1, 2, 3]
        for thread in writers:
            thread.join()
        assert len(failures) == 2 and all("another thread" in words for words in failures)


def test_two_consumers_in_one_process():
    with Queue(RECORD, 2, shared=True) as q, Queue.attach(q.name) as other, q.producer() as p:
        p.put(ROW)
        q.get()
        for call in (other.get, lambda: other.get_many(1), lambda: other.peek().__enter__()):
            with pytest.raises(QueueError, match="has a consumer already"):
                call()


def test_internal_classes_cannot_be_constructed():
    from fastrl._native import _rust

    for kind in (_rust.Producer, _rust.Peek, _rust.Reservation, _rust.QueueMemory):
        with pytest.raises(TypeError):
            kind()
    memory = _rust.QueueMemory.create(
        8, "", 4, max_producers=1, policy="block", order="per_producer", shared=False, name=None
    )
    with pytest.raises(QueueError, match="8 bytes"):
        _rust.Queue(memory, RECORD)
    for dtype in (np.dtype("O"), np.dtype("V8"), np.dtype([("a", "O")])):
        with pytest.raises(TypeError, match="structured"):
            _rust.Queue(memory, dtype)


# Memory that is not a queue's


@needs_linux
@pytest.mark.parametrize("name", ["", "/etc/passwd", "a/b", "a\0", "é", "a" * 300])
def test_invalid_names(name):
    with pytest.raises(ValueError, match="1 to 200 letters, digits, dots, dashes and underscores"):
        Queue.attach(name)


@needs_linux
@pytest.mark.parametrize("name", ["..", "no-such-queue", "fastrl-"])
def test_unknown_names(name):
    with pytest.raises(FileNotFoundError, match=re.escape(name)):
        Queue.attach(name)


@needs_linux
@pytest.mark.parametrize("name", [None, 3, b"name"])
def test_names_that_are_not_text(name):
    with pytest.raises(TypeError):
        Queue.attach(name)


@needs_linux
def test_a_foreign_file():
    name = f"test-foreign-{os.getpid()}"
    path = Path(f"/dev/shm/fastrl-{name}")
    try:
        for content in (b"", b"short", b"not ours" * 1000, bytes(100_000)):
            path.write_bytes(content)
            with pytest.raises(QueueError, match="it is no segment of fastrl"):
                Queue.attach(name)
        path.unlink()
        path.mkdir()
        with pytest.raises(OSError):
            Queue.attach(name)
        path.rmdir()
    finally:
        path.unlink(missing_ok=True)


@needs_linux
def test_memory_of_another_kind():
    with Weights(100) as w, Queue(RECORD, 8, shared=True) as q:
        with pytest.raises(QueueError, match="weights"):
            Queue.attach(w.name)
        with pytest.raises(RuntimeError, match="queue"):
            Weights.attach(q.name)


@needs_linux
@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, b"F", "no segment of fastrl"),
        (8, b"\x63", "another version"),
        (8, b"\0\0\0\2" if sys.byteorder == "little" else b"\2\0\0\0", "byte order"),
        (40, b"\xff", "damaged"),
        (200, b"", None),
        (300, b"?", "damaged"),
    ],
)
def test_a_damaged_header(place, value, words):
    name = f"test-damaged-{os.getpid()}"
    path = Path(f"/dev/shm/fastrl-{name}")
    with Queue(RECORD, 8, shared=True) as q:
        content = bytearray(Path(f"/dev/shm/fastrl-{q.name}").read_bytes())
    content[place : place + len(value)] = value
    path.write_bytes(content)
    try:
        if words is None:
            Queue.attach(name).close()
        else:
            with pytest.raises(QueueError, match=words) as caught:
                Queue.attach(name)
            assert "\n" not in str(caught.value) and name in str(caught.value)
    finally:
        path.unlink()


@needs_linux
@pytest.mark.parametrize(
    "schema", ["", "3", "[]", "{", '"f4"', '"O"', '{"base": "f4", "shape": "x"}', "[" * 100_000, '"\\ud800"']
)
def test_a_schema_that_is_not_a_dtype(schema):
    from fastrl._native import _rust

    name = f"test-schema-{os.getpid()}"
    memory = _rust.QueueMemory.create(
        8, schema, 4, max_producers=1, policy="block", order="per_producer", shared=True, name=name
    )
    with pytest.raises(QueueError, match="dtype of its records is damaged"):
        Queue.attach(name)
    del memory


@pytest.mark.slow
@needs_linux
def test_random_damage_neither_crashes_nor_hangs():
    command = [sys.executable, queue_damage.__file__, "600", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert set(results) == {"used", "refused"}, f"{' '.join(command)}\n{done.stderr}"
