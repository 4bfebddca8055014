"""Signals that ask a process to stop: noted until the process can stop; a second one ends waits."""

import signal
import threading
import types
from collections.abc import Callable
from typing import Any, Self


class Interrupted(KeyboardInterrupt):
    """A second signal has ended a wait, see `Interruptible`."""


class _Waits(threading.local):
    """State of a thread: it is in a wait that may be interrupted; a second signal asks it to interrupt its waits."""

    is_waiting = False
    is_interrupted = False


_waits = _Waits()


class Interruptible:
    """A context of a wait that can be given up without loss of what was learned before.

    Raises:
        Interrupted: a second signal comes, or has come (see `StopSignals`).
    """

    def __enter__(self) -> None:
        if _waits.is_interrupted:
            raise Interrupted
        self._before, _waits.is_waiting = _waits.is_waiting, True

    def __exit__(self, *error: object) -> None:
        _waits.is_waiting = self._before


class StopSignals:
    """Notes a signal that asks the process to stop: Ctrl-C, SIGTERM, or SIGHUP of a terminal that closes. A second
    Ctrl-C or SIGTERM stops it at once. (A terminal that closes sends SIGHUP twice, through its shell and by itself.)

    What is ignored stays ignored: SIGHUP under nohup, and SIGINT in a script's background, which a Ctrl-C for the
    script must not stop.

    Args:
        finishes: the second one ends waits that are `Interruptible` and is noted elsewhere; a third one stops the
            process at once.
    """

    def __init__(self, *, finishes: bool = False) -> None:
        self.received: signal.Signals | None = None
        self._finishes = finishes
        self._is_passed_on = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: types.FrameType | None) -> None:
        is_second = self.received is not None
        self.received = self.received or signal.Signals(number)
        if self._finishes and (not is_second or number == signal.SIGHUP):
            return
        for asked in self._before.keys() - {signal.SIGHUP}:
            signal.signal(asked, self._before[asked])
        if self._finishes:
            _waits.is_interrupted = True
            if _waits.is_waiting:
                raise Interrupted

    def pass_on(self, send: Callable[[signal.Signals], object]) -> None:
        """Calls ``send`` with the signal, once it has come, and only the first time."""
        if self.received is not None and not self._is_passed_on:
            self._is_passed_on = True
            send(self.received)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            _waits.is_interrupted = False
