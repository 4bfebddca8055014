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

from fastrl.utils import child_process, processes
from fastrl.utils.child_process import Child

METHODS = ["spawn", "forkserver"]


def tell(names: list[str], report: Connection) -> None:
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


def end(exitcode: int, report: Connection) -> None:
    os._exit(exitcode)


def test_threads_that_ask_at_once_see_the_same_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("forkserver")
    child = Child.worker(context, end, processes.EXIT_UNGUARDED, name="ends")
    read = forkserver.read_signed

    def read_slowly(fd: int) -> int:
        time.sleep(0.3)
        return read(fd)

    with monkeypatch.context() as patch:
        patch.setattr(forkserver, "read_signed", read_slowly)
        other = threading.Thread(target=child.wait)
        other.start()
        child.wait()
        other.join()
    assert child.code == processes.EXIT_UNGUARDED
    assert "if __name__" in child.cause


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_keeps_to_one_thread_and_is_not_interrupted(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in processes.ONE_THREAD:
        monkeypatch.delenv(name, raising=False)
    child = Child.worker(multiprocessing.get_context(method), tell, [], name="tells")
    pid, threads, quiet = child.pipe.recv()
    assert pid == child.pid
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    assert not child.wait(0.2) and child.is_alive()
    assert quiet == [True, True]
    if method == "spawn":  # a fork server that runs already has the environment that it was started with
        assert threads == ["1"] * len(processes.ONE_THREAD)
    assert not set(processes.ONE_THREAD) & set(os.environ)
    before = time.monotonic()
    assert child_process.end([child], 0.1) == [child]
    assert not child.is_alive() and time.monotonic() - before < TIMEOUT
    assert child.cause == "killed by SIGKILL"


def test_no_signal_goes_to_a_process_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another's, and process 0 is the whole process group."""
    sent: list[int] = []
    context = multiprocessing.get_context("spawn")
    with pytest.raises(AssertionError, match="it has started"):
        Child(context.Process(target=end, args=(0, None)))
    children = [
        Child.worker(context, end, 0, name="ends"),
        Child.command([sys.executable, "-c", ""]),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda pid, number: sent.append(pid))
        for child in children:
            assert child.wait() and child.code == 0
            assert not child.send_signal(signal.SIGUSR1)
            child.kill()
    assert sent == []


def wait_for_ever(report: Connection) -> None:
    processes.init_worker(dump=report)
    report.send("ready")
    threading.Event().wait()


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_hangs_dumps_its_traceback(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "DUMP_GRACE_S", TIMEOUT)
    child = Child.worker(multiprocessing.get_context(method), wait_for_ever, name="hangs")
    assert child.pipe.recv() == "ready"
    child.kill_hanging(3.0)
    assert not child.is_alive() and child.cause == "no answer for 3 s"
    assert "wait_for_ever" in child.traceback()


def test_commands_are_asked_to_end_and_those_that_do_not_are_killed() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    children = [
        Child.command([sys.executable, "-c", f"{first}print(0, flush=True); input()"], pipes=True)
        for first in (deaf, "")
    ]
    assert [child.stdout.readline() for child in children] == [b"0\n"] * 2
    assert child_process.end(children, 1.0, signal.SIGTERM) == [children[0]]
    assert [child.cause for child in children] == ["killed by SIGKILL", "killed by SIGTERM"]
    for child in children:
        child.stdin.close()
        child.stdout.close()


def test_exit_causes() -> None:
    assert processes.exit_cause(3) == "exit code 3"
    assert processes.exit_cause(-signal.SIGSEGV) == "killed by SIGSEGV"


PARENT = """
import multiprocessing, sys, time
from fastrl.utils.child_process import Child
from test_processes import tell

if __name__ == "__main__":
    child = Child.worker(multiprocessing.get_context(sys.argv[1]), tell, [sys.argv[2]], name="tells")
    print(child.pipe.recv()[0], flush=True)
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
