"""``fastrl train ... --ranks N``: N processes of this machine that train one policy together."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

from fastrl.cli.arguments import print_error
from fastrl.cli.seeds import without
from fastrl.utils.child_process import start
from fastrl.utils.heartbeat import EXIT_LOST, EXIT_TRAINED, LAUNCHED
from fastrl.utils.import_path import module_command
from fastrl.utils.interrupts import StopSignals

# Seconds that ranks have to end by themselves once one has ended, and between two looks at them.
_GRACE, _INTERVAL = 10.0, 0.05


def launch(prog: str, arguments: Sequence[str], count: int) -> int:
    """Trains with so many ranks, and ends all of them if one fails.

    Args:
        arguments: of the command, with ``--ranks``.

    Returns:
        The exit code: 0 if all have trained, otherwise that of rank 0, or 1 where another one failed first.
    """
    command = module_command("fastrl", "train", *without(arguments, "--ranks"))
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        # What ranks but the first one print matters only if they fail.
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(count - 1)]
        processes = stack.enter_context(_started(command, [None, *outputs]))
        failed = _first_failed(processes, stop)
        if failed is None:
            return 0
        if processes[failed].poll() is not None:
            _end_all(processes)
        code, first = processes[failed].poll(), processes[0].poll()
        if first not in (None, EXIT_TRAINED, EXIT_LOST) and first > 0:
            # It has said why itself, also where others have failed in the same way.
            return first
        if code is None:
            why = "does not answer any more (run.rank_timeout)"
        elif code < 0:
            why = f"was killed by {signal.Signals(-code).name}"
        elif code == 0:
            why = "ended without training"
        else:
            if failed:
                _print_end(outputs[failed - 1])
            why = f"failed with exit code {code}"
        print_error(
            prog,
            f"rank {failed} of {count} {why}, so all have ended; --resume RUN --ranks {count} continues from the last"
            " checkpoint",
        )
        return 1


@contextlib.contextmanager
def _started(
    command: Sequence[str], outputs: Sequence[IO[Any] | None]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of all ranks, which are killed at the end if they still run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        LAUNCHED: "1",
        "WORLD_SIZE": str(len(outputs)),
        "LOCAL_WORLD_SIZE": str(len(outputs)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, output in enumerate(outputs):
            environment = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(start(command, output, environment=environment))
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _first_failed(processes: Sequence[subprocess.Popen[bytes]], stop: StopSignals) -> int | None:
    """Waits until a rank fails, or all have ended; passes a signal to stop on to rank 0, which tells the others.

    Returns:
        The rank that failed first, and not because of another one; or that does not end although others have lost one.
        None: none has.
    """
    passed_on, lost_at = False, None
    while True:
        codes = [process.poll() for process in processes]
        causes = [rank for rank, code in enumerate(codes) if code not in (None, EXIT_TRAINED, EXIT_LOST)]
        if causes:
            return causes[0]
        if all(code is not None for code in codes):
            return next((rank for rank, code in enumerate(codes) if code != EXIT_TRAINED), None)
        if EXIT_LOST in codes:
            # The one that was lost is about to be seen, if it has died. If it hangs it is the one that stays.
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > _GRACE:
                return codes.index(None)
        if stop.received is not None and not passed_on:
            processes[0].send_signal(stop.received)
            passed_on = True
        time.sleep(_INTERVAL)


def _end_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Waits for ranks to end, which they do once they miss one; `_started` kills those that do not."""
    until = time.monotonic() + _GRACE
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        time.sleep(_INTERVAL)


def _print_end(output: IO[Any]) -> None:
    """Prints the last lines that a rank has printed."""
    output.seek(0)
    lines = output.read().decode(errors="replace").splitlines()
    for line in lines[-20:]:
        print(line, file=sys.stderr)


def is_launched() -> bool:
    """True in a rank that `launch` has started."""
    return LAUNCHED in os.environ
