"""Worker processes: each keeps to one core, ignores the signals of its terminal and ends with its parent.

This module loads no torch.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import connection, popen_forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fastrl.utils.import_path import importing_as_here
from fastrl.utils.main_module import main_on_demand
from fastrl.utils.output import ignore_write_errors

# Libraries read these when they are loaded, so that each worker keeps to one core.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)

# Ctrl-C, and a terminal that closes.
_TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGHUP)

# The prefix of the files in which ``fastrl.queue`` and ``fastrl.collectors.weights`` share memory.
SHARED_MEMORY = "/dev/shm/fastrl-"

# Asks a worker for the traceback of what it is doing.
DUMP_SIGNAL = signal.SIGUSR1

# Seconds in which a worker's environments must close, and the worker's exit code if they do not.
CLOSE_TIMEOUT = 10.0
EXIT_UNCLOSED = 80

# Exit code of a worker whose import of the main program would start workers again.
EXIT_UNGUARDED = 79


def require_main_guard() -> None:
    """Ends this process if it is a worker that is importing the program which started it.

    Without a guard, ``if __name__ == "__main__":``, workers would train, and start workers without end. Call this
    before making anything that outlives the process; `exit_cause` explains the exit code to the parent.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(EXIT_UNGUARDED)


@contextlib.contextmanager
def starting_workers(*, one_thread: bool = True) -> Iterator[None]:
    """A context in which to start worker processes: from the first instruction on they use one thread, and neither
    Ctrl-C nor a terminal that closes reaches them, they import from the same folders as this process, and the program
    that starts them only if they need something of it. Each worker must call `init_worker`.

    Args:
        one_thread: False: they use as many threads as this process would.
    """
    require_main_guard()
    # The tracker would start along with the first process, and unblock Ctrl-C.
    start_tracker()
    with (
        _environment(ONE_THREAD if one_thread else {}),
        _without_terminal_signals(),
        main_on_demand(),
        importing_as_here(),
    ):
        yield


def init_worker(names: Sequence[str] = (), dump: Connection | None = None) -> None:
    """Prepares this worker process: it ignores Ctrl-C and a closing terminal, and ends when its parent ends.

    Args:
        names: shared memory that the worker removes if its parent is killed. The sequence is read at that moment, so
            names can be appended to a list later.
        dump: gets the traceback if this process crashes, or is ended by `DUMP_SIGNAL`.
    """
    # A terminal signals all of its processes; the parent decides what its workers do then.
    for number in _TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name in ("stdout", "stderr"):
        ignore_write_errors(name)
    threading.Thread(target=_end_with_parent, args=(names,), daemon=True).start()
    if dump is not None:
        faulthandler.enable(dump.fileno())
        faulthandler.register(DUMP_SIGNAL, dump.fileno(), chain=True)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def share_exit_code(process: BaseProcess) -> None:
    """Lets several threads ask for the exit code of a process that the fork server has started.

    The code can be read once. Of two threads that read at the same time, as a pool's thread and one that starts another
    process do, the second would find nothing, and both would then see 255.
    """
    popen: Any = process._popen  # type: ignore[attr-defined]
    if popen.method != popen_forkserver.Popen.method:
        return
    poll, lock = popen.poll, threading.Lock()

    def poll_alone(flag: int = os.WNOHANG) -> int | None:
        # They may wait together, but not read.
        if popen.returncode is None and connection.wait([popen.sentinel], 0 if flag == os.WNOHANG else None):
            with lock:
                poll(os.WNOHANG)
        code: int | None = popen.returncode
        return code

    popen.poll = poll_alone


def exit_cause(exitcode: int | None) -> str:
    """One line on why a process ended that reported no error: ``"killed by SIGKILL"``, ``"exit code 3"``."""
    code = exitcode or 0
    if code == EXIT_UNCLOSED:
        return f"its environment's close() took longer than {CLOSE_TIMEOUT:g} s"
    if code == EXIT_UNGUARDED:
        return (
            "it needs something that is defined in the program itself, so it imports the program, which would start"
            ' processes again; put the code that starts them under `if __name__ == "__main__":`, or what they need into'
            " a module"
        )
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


@contextlib.contextmanager
def close_deadline(fd: int) -> Iterator[None]:
    """A context in which to close environments: if that takes longer than `CLOSE_TIMEOUT` seconds, the process ends.

    Args:
        fd: file descriptor to which the process then writes the traceback of the exception that is being handled, if
            there is one, and those of all threads.
    """
    raised = "" if sys.exc_info()[0] is None else traceback.format_exc()

    def end() -> None:
        with contextlib.suppress(OSError):  # the reader has gone
            os.write(fd, raised.encode(errors="replace"))
        faulthandler.dump_traceback(fd)
        os._exit(EXIT_UNCLOSED)

    timer = threading.Timer(CLOSE_TIMEOUT, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_with_parent(names: Sequence[str]) -> None:
    """Waits until the parent has ended, removes the shared memory that it may have left, and ends this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
    for name in names:
        Path(SHARED_MEMORY + name).unlink(missing_ok=True)
    os._exit(1)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """A context in which these environment variables are set, except for those that already were."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def start_tracker() -> None:
    """Starts multiprocessing's resource tracker, which removes the semaphores of killed processes, out of reach of the
    terminal's signals. Call it before semaphores are made; only the first call has an effect."""
    with _without_terminal_signals(), importing_as_here():
        resource_tracker.ensure_running()


@contextlib.contextmanager
def _without_terminal_signals() -> Iterator[None]:
    """A context in which processes are started with the terminal's signals blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TERMINAL_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
