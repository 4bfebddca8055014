"""fastrl.collectors.weights: the newest version, whole, in every process, even if others are killed."""

from __future__ import annotations

import array
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from shared_memory import segments
from waiting import TIMEOUT

from fastrl.collectors.weights import Weights

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory shared between processes needs Linux")

START_METHODS = ["fork", "forkserver", "spawn"]


@pytest.fixture(autouse=True)
def _no_segments_left():
    before = segments()
    yield
    assert segments() <= before


def filled(nbytes, version):
    """Bytes that all say which version they belong to."""
    return np.full(nbytes, version % 251, np.uint8)


# 1 and 13 are no whole words; the last is copied without the GIL.
@pytest.mark.parametrize("nbytes", [1, 13, 64, 4096, 1_000_003])
def test_what_is_published_is_read(nbytes):
    with Weights(nbytes) as w:
        out = filled(nbytes, 7)
        assert w.nbytes == nbytes and w.version == 0
        assert w.read(out) == 0 and (out == 7).all()
        rng = np.random.default_rng(0)
        for version in range(1, 8):
            data = rng.integers(256, size=nbytes, dtype=np.uint8)
            assert w.publish(data) == version == w.version
            assert w.read(out, newer_than=version) == 0
            for newer_than in (0, version - 1):
                out[:] = 0
                assert w.read(out, newer_than) == version
                np.testing.assert_array_equal(out, data)


def test_whatever_has_a_buffer():
    with Weights(24) as w:
        data = np.arange(6, dtype=np.float32).reshape(2, 3)
        for same in (data, data.tobytes(), bytearray(data), memoryview(data), array.array("f", range(6))):
            w.publish(np.zeros(3))
            w.publish(same)
            for out in (np.empty_like(data), bytearray(24), array.array("d", [0] * 3), np.empty(24, "u1")):
                assert w.read(out) == w.version
                assert bytes(out) == data.tobytes()


def test_torch_modules_fit():
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(3, 2)
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    with Weights(flat.numel() * 4) as w:
        w.publish(flat.numpy())
        out = torch.zeros_like(flat)
        assert w.read(out.numpy()) == 1
        torch.testing.assert_close(out, flat)


# Other processes


def answer(weights, pipe):
    """Reads whenever it is asked to."""
    out = np.zeros(weights.nbytes, np.uint8)
    seen = 0
    while pipe.recv():
        if version := weights.read(out, newer_than=seen):
            seen = version
        pipe.send((version, out.tolist()))


@pytest.mark.parametrize("method", START_METHODS)
def test_workers_of_every_kind_read(method):
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    with Weights(5) as w:
        w.publish(bytes([1] * 5))
        worker = context.Process(target=answer, args=(w, there))
        worker.start()

        def ask():
            here.send(True)
            assert here.poll(TIMEOUT)
            return here.recv()

        assert ask() == (1, [1] * 5)
        assert ask() == (0, [1] * 5)
        w.publish(bytes([2] * 5))
        w.publish(bytes([3] * 5))
        assert ask() == (3, [3] * 5)
        here.send(False)
        worker.join()
        assert worker.exitcode == 0


def test_an_unrelated_process_attaches_by_name():
    code = """
import sys
from fastrl.collectors.weights import Weights
with Weights.attach(sys.argv[1]) as w:
    out = bytearray(w.nbytes)
    print(w.read(out), bytes(out))
"""
    with Weights(3) as w:
        w.publish(b"abc")
        command = [sys.executable, "-c", code, w.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert (done.stdout, done.stderr) == ("1 b'abc'\n", "")
        assert Weights.attach(w.name).version == 1  # the reader that went took nothing with it
    with pytest.raises(FileNotFoundError, match=w.name):
        Weights.attach(w.name)
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickle.dumps(w))


def test_only_its_creator_publishes():
    with Weights(3) as w:
        copy = pickle.loads(pickle.dumps(w))
        for other in (copy, Weights.attach(w.name)):
            with pytest.raises(RuntimeError, match="only the process that made these weights"):
                other.publish(b"abc")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                w.publish(b"abc")
            except RuntimeError as error:
                code = 0 if "only the process" in str(error) else 2
            finally:
                w.close()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert w.version == 0
        w.publish(b"abc")
        assert copy.version == 1  # the child's close took no name away, nor this memory
        assert Weights.attach(w.name).version == 1


def read_until_stopped(weights, stop, enough, nbytes):
    """Says when it has read often enough."""
    out = np.zeros(nbytes, np.uint8)
    seen = reads = 0
    while not stop.is_set():
        version = weights.read(out, newer_than=seen)
        if version:
            assert version > seen, f"version {version} after {seen}"
            seen = version
            wrong = out[out != version % 251]
            assert wrong.size == 0, f"version {version} holds bytes of {set(wrong)}"
            reads += 1
        if reads > 3:
            enough.set()


@pytest.mark.parametrize("nbytes", [200, 300_000])
def test_nobody_reads_a_mixture(nbytes):
    context = multiprocessing.get_context("fork")
    with Weights(nbytes) as w:
        stop, enough = context.Event(), [context.Event() for _ in range(2)]
        readers = [
            context.Process(target=read_until_stopped, args=(w, stop, each, nbytes)) for each in enough
        ]
        for reader in readers:
            reader.start()
        begin = time.monotonic()
        version = 0
        while time.monotonic() < begin + 0.6 or version < 20 or not all(each.is_set() for each in enough):
            assert time.monotonic() < begin + TIMEOUT and all(reader.is_alive() for reader in readers)
            version += 1
            w.publish(filled(nbytes, version))
            if version % 3 == 0:  # a reader that is overtaken starts over
                time.sleep(0.002)
        stop.set()
        for reader in readers:
            reader.join()
            assert reader.exitcode == 0


def test_threads_of_the_writers_process_read_too():
    nbytes = 1_000_000
    with Weights(nbytes) as w:
        stop, enough = threading.Event(), threading.Event()
        failures = []

        def read():
            try:
                read_until_stopped(w, stop, enough, nbytes)
            except AssertionError as error:
                failures.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        version, end = 0, time.monotonic() + TIMEOUT
        while (version < 100 or not enough.is_set()) and reader.is_alive() and time.monotonic() < end:
            version += 1
            w.publish(filled(nbytes, version))
            if version % 3 == 0:  # a reader that is overtaken starts over
                time.sleep(0.01)
        stop.set()
        reader.join()
        assert not failures and enough.is_set()


@pytest.mark.slow
def test_a_killed_writer_leaves_a_whole_version():
    rng = random.Random(0)
    nbytes = 100_000
    out = np.zeros(nbytes, np.uint8)
    versions = set()
    kills, end = 0, time.monotonic() + TIMEOUT
    while kills < 40 or (len(versions) <= 5 and time.monotonic() < end):
        kills += 1
        began, begin = os.pipe()
        pid = os.fork()
        if pid == 0:
            w = Weights(nbytes)
            os.write(begin, w.name.encode())
            os.close(begin)
            version = 0
            while True:
                version += 1
                w.publish(filled(nbytes, version))
        os.close(begin)
        with os.fdopen(began) as file:
            w = Weights.attach(file.read())
        # Longer and longer where nothing gets done in so short a time.
        time.sleep(rng.uniform(0, 0.0001 * max(kills, 40)))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        version = w.read(out)
        assert version == 0 or (out == version % 251).all()
        versions.add(version)
        w.close()
    assert len(versions) > 5
    Weights(1).close()  # sweeps what the dead have left


# Bad input


@pytest.mark.parametrize(
    ("nbytes", "error", "words"),
    [
        (0, ValueError, "nbytes: expected 1 to"),
        (-4, ValueError, "got -4"),
        (2**70, ValueError, str(2**70)),
        (2**62, ValueError, "number of bytes"),
        (2**50, OSError, "no room for"),
        (1.5, TypeError, "whole number, got float"),
        ("3", TypeError, "whole number, got str"),
        (None, TypeError, "whole number, got NoneType"),
    ],
)
def test_sizes(nbytes, error, words):
    with pytest.raises(error, match=words):
        Weights(nbytes)


def test_buffers_of_another_kind():
    with Weights(8) as w:
        assert w.publish(bytes(8)) == 1
        for call in (w.publish, w.read):
            for wrong in (np.zeros(7, np.uint8), bytearray(9), bytearray(), np.zeros(2)):
                with pytest.raises(ValueError, match="contiguous buffer of 8 bytes"):
                    call(wrong)
            for strided in (np.zeros(16, np.uint8)[::2], np.zeros((2, 4), np.uint8, order="F")):
                with pytest.raises(ValueError, match="contiguous buffer of 8 bytes"):
                    call(strided)
            for no_buffer in (None, 3, "abcdefgh", [0] * 8):
                with pytest.raises(TypeError, match="contiguous buffer of 8 bytes, as numpy arrays are, got"):
                    call(no_buffer)
        frozen = np.zeros(8, np.uint8)
        frozen.flags.writeable = False
        for read_only in (bytes(8), frozen):
            with pytest.raises(ValueError, match="writeable"):
                w.read(read_only)
        for newer_than in (-1, 2**64):
            with pytest.raises(OverflowError):
                w.read(bytearray(8), newer_than)
        with pytest.raises(TypeError):
            w.read(bytearray(8), 1.5)
        assert w.read(bytearray(8), 2**64 - 1) == 0
        assert w.version == 1


def test_after_the_end():
    w = Weights(3)
    reader = Weights.attach(w.name)
    w.publish(b"abc")
    w.close()
    w.close()
    for call in (lambda: w.publish(b"abc"), lambda: w.read(bytearray(3)), lambda: w.version):
        with pytest.raises(RuntimeError, match="these weights are closed"):
            call()
    assert w.nbytes == 3 and w.name in repr(w)
    out = bytearray(3)
    assert reader.read(out) == 1 and out == b"abc"
    reader.close()


def test_two_threads_publish():
    data = np.zeros(8_000_000, np.uint8)
    with Weights(data.nbytes) as w:
        published, refused = [], []

        def publish():
            end = time.monotonic() + TIMEOUT
            while not refused and time.monotonic() < end:
                try:
                    published.append(w.publish(data))
                except RuntimeError as error:
                    refused.append(str(error))

        threads = [threading.Thread(target=publish) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused and all("another thread is publishing" in words for words in refused)
        assert sorted(published) == list(range(1, w.version + 1))


@pytest.mark.parametrize("name", ["", "a/b", "é"])
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match="1 to 200 letters"):
        Weights.attach(name)
