"""Commands of fastrl in processes of their own, which end with this one."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from fastrl.utils.import_path import module_command
from fastrl.utils.interrupts import StopSignals

# Option of prctl: the signal that a process gets when its parent dies.
_SET_PARENT_DEATH_SIGNAL = 1
# Seconds between two looks at a process.
_INTERVAL = 0.1


@dataclass(frozen=True)
class Ended:
    """A process that has ended.

    Attributes:
        code: its exit code; 128 + n where signal n ended it.
        seconds: that it took.
        memory_mib: the most main memory that it, or one of its own processes, has held, MiB.
        signal: the signal that this process was sent meanwhile, and has passed on; None.
    """

    code: int
    seconds: float
    memory_mib: float
    signal: signal.Signals | None


def start(
    command: Sequence[str],
    output: IO[Any] | None = None,
    *,
    pipes: bool = False,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a process. Ctrl-C does not reach it.

    Args:
        output: a file for all that it prints; None: it prints where this process does.
        pipes: its input and its standard output are pipes of this process, not the above; otherwise it has no input.
        environment: variables that it has beside those of this process.
    """
    return subprocess.Popen(
        command,
        env=None if environment is None else {**os.environ, **environment},
        stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
        stdout=subprocess.PIPE if pipes else output,
        stderr=output if pipes or output is None else subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_end_with_parent,  # it only sets a flag of the new process
    )


def run(arguments: Sequence[str], output: IO[Any] | None = None) -> Ended:
    """Runs a command of fastrl and waits for it; a signal to stop is passed on to it.

    Args:
        arguments: of the command, such as ``["train", "CartPole-v1"]``.
        output: as of `start`.
    """
    begin, passed_on = time.monotonic(), False
    with StopSignals() as stop:
        process = start(module_command("fastrl", *arguments), output)
        try:
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                if stop.received is not None and not passed_on:
                    os.kill(process.pid, stop.received)  # `send_signal` could take its exit status
                    passed_on = True
                time.sleep(_INTERVAL)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        code = os.waitstatus_to_exitcode(status)
        process.returncode = code
    code = 128 - code if code < 0 else code
    return Ended(code, time.monotonic() - begin, usage.ru_maxrss / 1024, stop.received)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
