"""Start of Ray on this machine, or connection to a cluster.

From `ray.init` on, Ray's C++ library aborts the process at SIGTERM and ignores Python's handler; `ray.shutdown` leaves
the system's default. So both are called in this module only, which restores Python's handler after them.
"""

import contextlib
import importlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastrl.collectors.protocol import CollectError
from fastrl.utils.import_path import python_command

# The most seconds that importing Ray takes on a busy machine.
IMPORT_SECONDS = 60.0


def import_ray() -> Any:
    """Imports Ray.

    Raises:
        CollectError: it is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise CollectError("this needs Ray, which is not installed: pip install 'fastrl[ray]'") from None


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Restores this process's handler of SIGTERM at the end."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


class _ImportFolders(list[str]):
    """Folders that Ray's workers import from first, of those that Ray adds: only what this process imports from, and
    not always the current one."""

    def extend(self, folders: Iterable[str]) -> None:
        super().extend(folder for folder in folders if folder in sys.path)


def _init(**options: Any) -> None:
    """Calls ``ray.init``, quietly."""
    ray = import_ray()
    config = ray.job_config.JobConfig()
    config._py_driver_sys_path = _ImportFolders()
    while True:
        try:
            with _own_sigterm():
                ray.init(job_config=config, log_to_driver=False, logging_level=logging.ERROR, **options)
            return
        except SystemExit as ended:
            if ended.code != signal.SIGTERM:
                raise
        # SIGTERM came while Ray's handler was set. The restored handler gets it; if it returns, Ray is started again.
        shutdown()
        signal.raise_signal(signal.SIGTERM)


def shutdown() -> None:
    """Disconnects from Ray, and stops it if it was started here."""
    with _own_sigterm():
        import_ray().shutdown()


def connect(address: str, timeout: float) -> None:
    """Connects to a Ray cluster.

    Args:
        timeout: seconds in which it should answer.

    Raises:
        CollectError: no answer, or not one of Ray's.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not colon or not port.isdigit():
            raise CollectError(f"ray_address should be 'host:port' or 'auto', got {address!r}")
        start_time = time.monotonic()
        try:
            socket.create_connection((host, int(port)), timeout).close()
        except OSError as error:
            why = f"no answer within {timeout:.0f} s" if isinstance(error, TimeoutError) else str(error)
            raise CollectError(_no_cluster(address, why)) from None
        if not address.startswith("ray://"):
            try_out(address, max(timeout - (time.monotonic() - start_time), 1.0))
    try:
        _init(address=address)
    except Exception as error:
        raise CollectError(_no_cluster(address, _first_line(error))) from None


# `ray.init` waits for minutes for a cluster that accepts connections and does not answer, and then ends its process. So
# another process tries it first.
_TRY = """
import logging, os, sys, threading
import ray
timer = threading.Timer(float(sys.argv[2]), os._exit, (3,))
timer.daemon = True
timer.start()
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
except Exception as error:
    sys.stdout.write(str(error).strip().partition("\\n")[0])
    sys.stdout.flush()
    os._exit(4)
os._exit(0)
"""


def try_out(address: str, timeout: float) -> None:
    """Tries to connect in another process.

    Raises:
        CollectError: it fails.
    """
    try:
        done = subprocess.run(
            python_command(_TRY, address, str(timeout)),
            capture_output=True,
            text=True,
            timeout=timeout + IMPORT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise CollectError(_no_cluster(address, f"no answer within {timeout:.0f} s")) from None
    if done.returncode and "InvalidAuthToken" in done.stderr:
        raise CollectError(
            _no_cluster(address, "it asks for a token, see RAY_AUTH_MODE=token in Ray's manual")
        )
    if done.returncode:
        why = done.stdout.strip() or f"no answer within {timeout:.0f} s"
        raise CollectError(_no_cluster(address, why))


def _no_cluster(address: str, why: str) -> str:
    return (
        f"no Ray cluster answers at {address}: {why}; give the address that `ray start --head` printed, or none to"
        " start Ray on this machine"
    )


def start(count: int, store: int) -> None:
    """Starts Ray on this machine, quietly.

    Args:
        count: its number of processors, one for each worker.
        store: bytes of shared memory for its objects, at least 75 MiB.

    Raises:
        CollectError: it does not start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray would lower the priority of its workers, for which the learner waits.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Workers import from the same folders as this process, as those of multiprocessing do.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
    try:
        _init(address="local", num_cpus=count, object_store_memory=store, include_dashboard=False)
    except Exception as error:
        raise CollectError(f"Ray could not be started on this machine: {_first_line(error)}") from error
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
