"""Common needs of all worker processes: quiet when a terminal interrupts or closes, one core each, gone when its
parent is. Loads no torch."""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path

from fastrl.utils.output import survive

# Each worker is to keep to one core: these are read when the libraries are loaded.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)

# Ctrl-C, and the end of a terminal.
_OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)

# Where ``fastrl.queue`` and ``fastrl.collectors.weights`` keep the memory that processes share.
SHARED_MEMORY = "/dev/shm/fastrl-"

# Seconds that a worker grants its environments to close, and what it ends with if they take longer.
CLOSING = 10.0
UNCLOSED = 80

# Exit code of a worker that would start workers itself, while it reads the program that has started it.
UNGUARDED = 79


def refuse_unguarded() -> None:
    """Ends this process if it is a worker that still reads the program which has started it, for there is no end to
    workers that start workers: what starts them should stand under ``if __name__ == "__main__":``. To be called before
    anything is made that would be left behind; `cause_of_death` tells the learner."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(UNGUARDED)


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Processes that are started meanwhile keep to one thread, and are left alone by Ctrl-C and by a terminal that
    closes, from their first moment on. They are to call `begin`."""
    refuse_unguarded()
    with _environment(ONE_THREAD), _without_interrupts():
        yield


def begin(names: Sequence[str] = ()) -> None:
    """Prepares a worker's process: Ctrl-C and a closing terminal are left to its parent, and it ends when that does.

    Args:
        names: of shared memory that is to be removed if the parent is killed and cannot; read when that happens, so
            more can be added to a list later.
    """
    # A terminal's signals reach all of its processes: it is for the parent to say what happens then.
    for number in _OF_TERMINALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name in ("stdout", "stderr"):
        survive(name)
    threading.Thread(target=_end_with_parent, args=(names,), daemon=True).start()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def cause_of_death(exitcode: int | None) -> str:
    """Of a process that said nothing itself, one line: ``"killed by SIGKILL"``, ``"exit code 3"``."""
    code = exitcode or 0
    if code == UNCLOSED:
        return f"its environment's close() took longer than {CLOSING:g} s"
    if code == UNGUARDED:
        return (
            "each process reads the program that has started it, and would start processes again; put what starts them"
            ' under `if __name__ == "__main__":`'
        )
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


@contextlib.contextmanager
def closing_in_time(fd: int) -> Iterator[None]:
    """Ends this process if what is done meanwhile, closing its environments, takes longer than `CLOSING` seconds.

    Args:
        fd: a file, gets the traceback of the exception that is being handled, if one is, and of all threads then.
    """
    raised = "" if sys.exc_info()[0] is None else traceback.format_exc()

    def end() -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            os.write(fd, raised.encode(errors="replace"))
        faulthandler.dump_traceback(fd)
        os._exit(UNCLOSED)

    timer = threading.Timer(CLOSING, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def end(processes: Sequence[BaseProcess], patience: float = 5.0) -> list[BaseProcess]:
    """Waits for processes that were told to end; those that have not after ``patience`` seconds are killed, and
    returned."""
    until = time.monotonic() + patience
    for process in processes:
        process.join(max(until - time.monotonic(), 0))
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        process.kill()
        process.join()
    return alive


def _end_with_parent(names: Sequence[str]) -> None:
    """Waits until the parent is gone; if it could not clear away its shared memory, does so."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
    for name in names:
        Path(SHARED_MEMORY + name).unlink(missing_ok=True)
    os._exit(1)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for processes that are started meanwhile, where they are not set already."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def start_tracker() -> None:
    """Starts the process that multiprocessing has for semaphores of the killed, left alone by a terminal that closes.
    To be called before semaphores are made; it runs once."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TERMINALS)
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """A process that is started meanwhile is left alone by its terminal, from its first moment on."""
    # Would be started along with the first process, and lets Ctrl-C through again when it is.
    start_tracker()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TERMINALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
