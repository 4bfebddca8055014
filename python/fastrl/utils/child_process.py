"""Child processes: workers of multiprocessing, and commands of fastrl. All end with this process, whatever ends it."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import IO, Any, Self

from fastrl.utils.import_path import module_command
from fastrl.utils.interrupts import StopSignals
from fastrl.utils.processes import DUMP_SIGNAL, exit_cause, share_exit_code, starting_workers

# Option of prctl: the signal that a process gets when its parent dies.
_SET_PARENT_DEATH_SIGNAL = 1
# Seconds between two checks of a process.
_INTERVAL = 0.1
# Seconds that a hanging worker has to dump its traceback.
DUMP_GRACE_S = 2.0


class Child:
    """A process that this one has started: it is watched, asked to stop, and killed if it does not.

    Args:
        process: a worker, or a command.
        pipe: this process's end of a worker's pipe.

    Attributes:
        pid: its process id.
        hangs: why it was killed, if `kill_hanging` has done so.
        pipe: that of a worker.
        stdin, stdout: pipes of a command that was started with them.
    """

    pipe: Connection
    stdin: IO[bytes]
    stdout: IO[bytes]

    def __init__(
        self, process: BaseProcess | subprocess.Popen[bytes], pipe: Connection | None = None
    ) -> None:
        self._process = process
        assert process.pid is not None, "it has started"
        self.pid: int = process.pid
        if isinstance(process, BaseProcess):
            share_exit_code(process)
        elif process.stdin is not None and process.stdout is not None:
            self.stdin, self.stdout = process.stdin, process.stdout
        if pipe is not None:
            self.pipe = pipe
        self.hangs = ""
        self._dumped = bytearray()

    @classmethod
    def worker(
        cls,
        context: Any,
        target: Callable[..., object],
        *arguments: Any,
        name: str,
        duplex: bool = False,
        one_thread: bool = True,
    ) -> Self:
        """Starts a worker.

        Args:
            context: of ``multiprocessing``.
            target: its function, which is given its end of a pipe after the arguments. It calls
                `fastrl.utils.processes.init_worker`.
            duplex: the pipe goes both ways; otherwise the worker writes.
            one_thread: it keeps to one core.
        """
        ours, theirs = context.Pipe(duplex)
        # Not daemonic in multiprocessing's sense: daemonic processes could not start processes themselves.
        process = context.Process(target=target, args=(*arguments, theirs), name=name)
        with starting_workers(one_thread=one_thread):
            process.start()
        theirs.close()
        return cls(process, ours)

    @classmethod
    def command(
        cls,
        command: Sequence[str],
        output: IO[Any] | None = None,
        *,
        pipes: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Starts a command. Ctrl-C does not reach it.

        Args:
            output: a file for all that it prints; None: it prints where this process does.
            pipes: its input and its standard output are pipes of this process, and ``output`` gets its errors alone;
                otherwise it has no input.
            environment: variables that it has beside those of this process.
        """
        process = subprocess.Popen(
            command,
            env=None if environment is None else {**os.environ, **environment},
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else output,
            stderr=output if pipes or output is None else subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # it only sets a flag of the new process
        )
        return cls(process)

    @property
    def code(self) -> int | None:
        """The exit code, -n where signal n has killed it; None while it runs."""
        return self._process.exitcode if isinstance(self._process, BaseProcess) else self._process.poll()

    @property
    def cause(self) -> str:
        """Why it has ended, in one line: ``"killed by SIGKILL"``, ``"exit code 3"``, ``"no answer for 30 s"``."""
        return self.hangs or exit_cause(self.code)

    @property
    def sentinel(self) -> int:
        """A descriptor of a worker, for ``multiprocessing.connection.wait``: it is ready once the worker has ended."""
        assert isinstance(self._process, BaseProcess), "it is a worker"
        return self._process.sentinel

    def is_alive(self) -> bool:
        return self.code is None

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until it has ended; False if it has not after so many seconds."""
        if isinstance(self._process, BaseProcess):
            self._process.join(seconds)
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        return not self.is_alive()

    def send_signal(self, number: signal.Signals) -> bool:
        """Sends a signal; False if it has ended."""
        # The number of a process that has ended may be another's.
        if not self.is_alive():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        return True

    def kill(self) -> None:
        """Ends it at once, if it runs."""
        self._process.kill()
        self.wait()

    def kill_hanging(self, seconds: float) -> None:
        """Kills a worker that has not answered for so many seconds. Before that it dumps its traceback, if it can."""
        self.hangs = f"no answer for {seconds:g} s"
        if self.send_signal(DUMP_SIGNAL):
            self._listen(DUMP_GRACE_S)
            self.kill()

    def traceback(self) -> str:
        """Traceback that a worker has dumped before it ended, see `fastrl.utils.processes.init_worker`."""
        self._listen(0)
        return self._dumped.decode(errors="replace")

    def _listen(self, seconds: float) -> None:
        """Reads a dump, in pieces, until the process has ended or the time is over."""
        until = time.monotonic() + seconds
        with contextlib.suppress(OSError, EOFError):
            while self.pipe.poll(max(until - time.monotonic(), 0)):
                piece = os.read(self.pipe.fileno(), 65536)
                if not piece:
                    break
                self._dumped += piece


def end(children: Sequence[Child], grace: float, number: signal.Signals | None = None) -> list[Child]:
    """Ends processes.

    Args:
        grace: seconds after which those that still run are killed.
        number: a signal that asks them to end; None: they have been asked.

    Returns:
        Those that were killed.
    """
    if number is not None:
        for child in children:
            child.send_signal(number)
    until = time.monotonic() + grace
    killed = [child for child in children if not child.wait(max(until - time.monotonic(), 0))]
    for child in killed:
        child.kill()
    return killed


@dataclass(frozen=True)
class Ended:
    """A command that has ended.

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


def run(arguments: Sequence[str], output: IO[Any] | None = None) -> Ended:
    """Runs a command of fastrl and waits for it; a signal to stop is passed on to it.

    Args:
        arguments: of the command, such as ``["train", "CartPole-v1"]``.
        output: as of `Child.command`.
    """
    begin = time.monotonic()
    with StopSignals() as stop:
        child = Child.command(module_command("fastrl", *arguments), output)
        try:
            # Until it has ended; its exit status stays where it is.
            while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                stop.pass_on(lambda number: os.kill(child.pid, number))
                time.sleep(_INTERVAL)
        except BaseException:
            child.send_signal(signal.SIGTERM)
            child.wait()
            raise
        _, status, usage = os.wait4(child.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert isinstance(child._process, subprocess.Popen), "it is a command"
    child._process.returncode = code
    code = 128 - code if code < 0 else code
    return Ended(code, time.monotonic() - begin, usage.ru_maxrss / 1024, stop.received)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
