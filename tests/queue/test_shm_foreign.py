"""Shared memory of another PID namespace or user, files that are no segments, and too little memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waiting import TIMEOUT

from fastrl.collectors.weights import Weights
from fastrl.queue import Queue, QueueError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory shared between processes needs Linux")

FOLDER = Path("/dev/shm")
RECORD = np.dtype([("id", np.int64)])


def unshare(*flags: str) -> list[str]:
    """A command that runs another one in new namespaces, as root there."""
    command = ["unshare", "--user", "--map-root-user", *flags]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"{' '.join(command)} is not allowed here")
    return command


def run(code: str, *arguments: str, within: list[str], stdin: str = "") -> str:
    done = subprocess.run(
        [*within, sys.executable, "-c", code, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


IN_CONTAINER = """
import os, sys
from fastrl._native._rust import LockstepBarrier
from fastrl.queue import Queue, QueueError
from fastrl.collectors.weights import Weights

queue, weights, barrier = sys.argv[1:]
own = Queue({"id": "i8"}, 8, shared=True)  # sweeps
for attach, name in ((Queue.attach, queue), (Weights.attach, weights), (LockstepBarrier.attach, barrier)):
    try:
        attach(name)
    except RuntimeError as error:
        print(error)
print(own.name, flush=True)
sys.stdin.read()
"""


def test_another_pid_namespace_neither_sweeps_nor_attaches() -> None:
    """As containers that share /dev/shm: the numbers of the one's processes mean nothing to the other."""
    from fastrl._native._rust import LockstepBarrier

    within = unshare("--pid", "--fork", "--mount-proc", "--kill-child")
    with Queue(RECORD, 8, shared=True) as q, Weights(8) as w, q.producer() as p:
        barrier = LockstepBarrier(1, 8)
        names = [str(q.name), w.name, barrier.name]
        with subprocess.Popen(
            [*within, sys.executable, "-c", IN_CONTAINER, *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as container:
            assert container.stdout is not None
            lines = [container.stdout.readline() for _ in range(4)]
            for name, line in zip(names, lines, strict=False):
                assert line.startswith(
                    f'cannot attach to shared memory "{name}": it was made in another PID namespace'
                )
            theirs = lines[3].strip()
            Weights(8).close()  # sweeps
            assert (FOLDER / f"fastrl-{theirs}").exists()
            assert all((FOLDER / f"fastrl-{name}").exists() for name in names)
            with pytest.raises(QueueError, match="another PID namespace"):
                Queue.attach(theirs)
            # Closes its queue as it ends.
            container.communicate(timeout=TIMEOUT)
        assert not (FOLDER / f"fastrl-{theirs}").exists()
        p.put((7,))
        assert q.get()["id"] == 7
        barrier.close()


USE = """
import sys
from fastrl.queue import Queue, QueueError
from fastrl.collectors.weights import Weights

with Queue({"id": "i8"}, 8, shared=True), Weights(8):
    pass
for name in sys.argv[1:]:
    for attach in (Queue.attach, Weights.attach):
        try:
            attach(name)
        except (QueueError, RuntimeError) as error:
            print(error)
"""


def test_a_fifo_or_a_link_with_our_prefix_does_not_block(tmp_path: Path) -> None:
    fifo, link = (FOLDER / f"fastrl-test-{kind}-{os.getpid()}" for kind in ("fifo", "link"))
    with Queue(RECORD, 8, shared=True) as q:
        os.mkfifo(fifo)
        try:
            link.symlink_to(FOLDER / f"fastrl-{q.name}")
            names = [path.name.removeprefix("fastrl-") for path in (fifo, link)]
            lines = run(USE, *names, within=[]).splitlines()
            assert len(lines) == 4
            assert all(line.endswith("it is no regular file") for line in lines)
            assert fifo.is_fifo()
            assert link.is_symlink()
        finally:
            # Another version of fastrl may run beside this test, which would wait for who opens the other end.
            os.close(os.open(fifo, os.O_RDWR))
            fifo.unlink()
            link.unlink(missing_ok=True)


SMALL = """
from fastrl._native._rust import LockstepBarrier
from fastrl.queue import Queue
from fastrl.collectors.weights import Weights

makers = [lambda: Queue({"id": "i8"}, 100_000, shared=True), lambda: Weights(100_000)]
for make in (*makers, lambda: LockstepBarrier(2, 100_000)):
    try:
        make()
    except OSError as error:
        print(error.errno, error.strerror)
Weights(8).close()
"""


def test_little_room_is_reported_in_one_line(tmp_path: Path) -> None:
    """As in a container, whose /dev/shm is small."""
    script = tmp_path / "mount.sh"
    script.write_text('mount -t tmpfs -o size=64k small /dev/shm && exec "$@"\n')
    lines = run(SMALL, within=[*unshare("--mount"), "sh", str(script)]).splitlines()
    assert len(lines) == 3
    for line, size in zip(lines, ("8.4 MB", "0.2 MB", "0.1 MB"), strict=True):
        assert line == (
            f"28 no room for {size} of shared memory: /dev/shm has 0.1 MB free; ask for less, such as a smaller"
            " capacity, or enlarge it (in a container with docker run --shm-size)"
        )
