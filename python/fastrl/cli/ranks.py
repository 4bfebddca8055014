"""``fastrl train ... --ranks N``: N processes of this machine that train one policy together."""

import contextlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

from fastrl.cli.arguments import print_error
from fastrl.cli.seeds import without
from fastrl.utils import child_process
from fastrl.utils.child_process import Child
from fastrl.utils.heartbeat import EXIT_LOST, EXIT_TRAINED, LAUNCHED
from fastrl.utils.import_path import module_command
from fastrl.utils.interrupts import StopSignals

# Seconds that ranks have to end by themselves once one has ended, and between two checks of them.
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
        if not processes[failed].is_alive():
            # They end by themselves once they miss one.
            child_process.end(processes, _GRACE)
        code, first = processes[failed].code, processes[0].code
        if first not in (None, EXIT_TRAINED, EXIT_LOST) and first > 0:
            # It has said why itself, also where others have failed in the same way.
            return first
        if code is None:
            why = "does not answer any more (run.rank_timeout)"
        elif code < 0:
            why = f"was {processes[failed].cause}"
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
def _started(command: Sequence[str], outputs: Sequence[IO[Any] | None]) -> Iterator[list[Child]]:
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
    processes: list[Child] = []
    try:
        for rank, output in enumerate(outputs):
            environment = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(Child.command(command, output, environment=environment))
        yield processes
    finally:
        child_process.end(processes, 0.0)


def _first_failed(processes: Sequence[Child], stop: StopSignals) -> int | None:
    """Waits until a rank fails, or all have ended; passes a signal to stop on to rank 0, which tells the others.

    Returns:
        The rank that failed first, and not because of another one; or that does not end although others have lost one.
        None: none has.
    """
    lost_at = None
    while True:
        codes = [process.code for process in processes]
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
        stop.pass_on(processes[0].send_signal)
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
