"""Worker processes: one thread, no interrupts, and an end with their parent."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from paths import import_path
from waiting import TIMEOUT, is_running, wait_until

from fastrl.utils import processes

METHODS = ["spawn", "forkserver"]


def tell(report: Connection, names: list[str]) -> None:
    """A worker: what it finds, then it waits for ever."""
    processes.init_worker(names)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    threads = [os.environ.get(name) for name in processes.ONE_THREAD]
    quiet = [
        number in blocked or signal.getsignal(number) is signal.SIG_IGN
        for number in (signal.SIGINT, signal.SIGHUP)
    ]
    report.send((os.getpid(), threads, quiet))
    time.sleep(10 * TIMEOUT)


def end(exitcode: int) -> None:
    os._exit(exitcode)


def test_threads_that_ask_at_once_see_the_same_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    process = multiprocessing.get_context("forkserver").Process(target=end, args=(processes.EXIT_UNGUARDED,))
    with processes.starting_workers():
        process.start()
    processes.share_exit_code(process)
    read = forkserver.read_signed

    def read_slowly(fd: int) -> int:
        time.sleep(0.3)
        return read(fd)

    with monkeypatch.context() as patch:
        patch.setattr(forkserver, "read_signed", read_slowly)
        other = threading.Thread(target=process.join)
        other.start()
        process.join()
        other.join()
    assert process.exitcode == processes.EXIT_UNGUARDED
    assert "if __name__" in processes.exit_cause(process.exitcode)


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_keeps_to_one_thread_and_is_not_interrupted(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in processes.ONE_THREAD:
        monkeypatch.delenv(name, raising=False)
    context = multiprocessing.get_context(method)
    receiver, report = context.Pipe(duplex=False)
    process = context.Process(target=tell, args=(report, []))
    with processes.starting_workers():
        process.start()
    pid, threads, quiet = receiver.recv()
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    process.join(0.2)
    assert process.is_alive()
    assert quiet == [True, True]
    if method == "spawn":  # a fork server that runs already has the environment that it was started with
        assert threads == ["1"] * len(processes.ONE_THREAD)
    assert not set(processes.ONE_THREAD) & set(os.environ)
    before = time.monotonic()
    processes.join_or_kill([process], timeout=0.1)
    assert not process.is_alive() and time.monotonic() - before < TIMEOUT
    assert processes.exit_cause(process.exitcode) == "killed by SIGKILL"


def test_no_signal_without_a_process_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 0 is the whole process group, and the number of one that has ended may be another's."""
    sent: list[int] = []
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=end, args=(0,))
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda pid, number: sent.append(pid))
        assert not processes.send_signal(process, signal.SIGUSR1)
        process.start()
        process.join()
        assert not processes.send_signal(process, signal.SIGUSR1)
    assert sent == []


def test_exit_causes() -> None:
    assert processes.exit_cause(3) == "exit code 3"
    assert processes.exit_cause(-signal.SIGSEGV) == "killed by SIGSEGV"


PARENT = """
import multiprocessing, sys, time
from pathlib import Path
from fastrl.utils import processes
from test_processes import tell

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    receiver, report = context.Pipe(duplex=False)
    with processes.starting_workers():
        context.Process(target=tell, args=(report, [sys.argv[2]])).start()
    print(receiver.recv()[0], flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_ends_with_its_killed_parent_and_removes_its_memory(method: str, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    name = f"test-{method}-{os.getpid()}"
    memory = Path(processes.SHARED_MEMORY + name)
    memory.write_bytes(b"left behind")
    arguments = [sys.executable, str(script), method, name]
    environment = {**os.environ, "PYTHONPATH": import_path(__file__)}
    parent = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert memory.exists() and is_running(worker)
        parent.kill()
        parent.wait()
        wait_until(lambda: not memory.exists(), "its memory is still there")
        wait_until(lambda: not is_running(worker), "the worker is still there")
    finally:
        parent.kill()
        parent.wait()
        memory.unlink(missing_ok=True)
