"""What a process of the executor does: tasks, one after the other, their arrays left in shared memory.

What it answers is small: the outcome of a task goes through its future, the steps that were played do not.
"""

from __future__ import annotations

import ctypes
import faulthandler
import math
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import util
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from fastrl.collectors.env_runner import PARTS, Arrays, Played, Player, Stopped, arrays_for
from fastrl.collectors.failures import last_line
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.collectors.running import Begun
from fastrl.collectors.weights import Weights
from fastrl.envs.spec import ElsewhereError, unpickled
from fastrl.utils import processes

# Asks a process for the traceback of what it is doing.
TELL = signal.SIGUSR1

# Where the arrays of a slot begin, so that no two share a cache line.
_LINE = 64


class Slots:
    """A worker's memory for what it plays, a fragment in each slot.

    It has no name: a process is handed it when it is started, and it is gone with the last of them.

    Args:
        rows: of a fragment.
        count: how many slots.

    Attributes:
        arrays: of each slot, as of `arrays_for`.
    """

    def __init__(self, context: BaseContext, plan: Plan, rows: int, count: int) -> None:
        like = arrays_for(plan, rows)
        self._layout = {name: (array.shape, array.dtype) for name, array in like.items()}
        self._count = count
        # A line more, as the memory need not begin with one.
        self._memory: Any = context.RawArray(ctypes.c_char, count * nbytes_of(like) + _LINE)
        self._attach()

    def _attach(self) -> None:
        at = -np.frombuffer(self._memory, np.uint8).ctypes.data % _LINE
        self.arrays: list[Arrays] = [{} for _ in range(self._count)]
        for views in self.arrays:
            for name, (shape, dtype) in self._layout.items():
                size = math.prod(shape)
                views[name] = np.frombuffer(self._memory, dtype, size, at).reshape(shape)
                at += _whole_lines(size * dtype.itemsize)

    def __getstate__(self) -> dict[str, Any]:
        return {"_layout": self._layout, "_count": self._count, "_memory": self._memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._attach()


def nbytes_of(arrays: Arrays) -> int:
    """Shared memory for a fragment's arrays."""
    return sum(_whole_lines(array.nbytes) for array in arrays.values())


def _whole_lines(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


class Task(NamedTuple):
    """What a process is to play next.

    Attributes:
        slots: into which ones, one for each fragment.
        numbers: with unit "episodes", which ones; otherwise empty: T steps of its rows.
        begin: for a process that has not played yet, the numbers that its rows begin with, and what has been played of
            these episodes.
        weights: pickled along, with their version; None: they are read from shared memory.
    """

    slots: tuple[int, ...]
    numbers: tuple[int, ...] = ()
    begin: tuple[tuple[int, Begun], ...] = ()
    weights: tuple[int, bytes] | None = None


class Outcome(NamedTuple):
    """What came of a task.

    Attributes:
        played: its fragments, up to the one that failed.
        version: of the weights.
        seconds: by `PARTS`, since the last answer.
        cause: what was raised, in one line; empty: all went well.
        traceback: of it.
        refused: whether it is of no use to try again.
        ready: `time.monotonic` when the process could play.
        anew, span: as of `fastrl.collectors.scheduler.Told`.
    """

    played: list[Played]
    version: int = 0
    seconds: tuple[float, ...] = ()
    cause: str = ""
    traceback: str = ""
    refused: bool = False
    ready: float = 0.0
    anew: tuple[int, ...] = ()
    span: tuple[float, float] | None = None


class _Process:
    """The state of a process: its player, and the weights that this has."""

    def __init__(
        self,
        plan: Plan,
        lanes: Sequence[int],
        slots: Slots,
        weights: Weights | None,
        stop: Any,
        report: Connection,
        rebuild: bool,
    ) -> None:
        self._new_player = lambda: Player(plan, lanes, np.frombuffer(stop, np.uint8).data)
        self._report = report
        self.player = self._make_player()
        self._slots = slots
        self._weights = weights
        self._buffer = bytearray(weights.nbytes if weights is not None else 0)
        self._version = 0
        self._rebuild = rebuild
        self._told = perf_counter()

    def _make_player(self) -> Player:
        player = self._new_player()
        player.closing = lambda: processes.close_deadline(self._report.fileno())
        return player

    def start(self) -> Outcome:
        """Builds what it plays with."""
        return self._answer(lambda played: self.player.build())._replace(ready=time.monotonic())

    def play(self, task: Task) -> Outcome:
        began = time.monotonic()
        self.player.seconds["waiting"] += perf_counter() - self._told

        def work(played: list[Played]) -> None:
            if self._rebuild:
                self.close()
                self.player, self._version = self._make_player(), 0
            if task.begin:
                self.player.numbers = [number for number, _ in task.begin]
                self.player.begun = [begun for _, begun in task.begin]
            self._update(task)
            slots = [self._slots.arrays[slot] for slot in task.slots]
            if not task.numbers:
                played.append(self.player.play_steps(slots[0]))
            for number, arrays in zip(task.numbers, slots, strict=False):
                played.append(self.player.play_episode(number, arrays))

        return self._answer(work)._replace(span=(began, time.monotonic()))

    def _update(self, task: Task) -> None:
        """Takes newer weights, if there are any."""
        if task.weights is not None:
            self._version, weights = task.weights
            self.player.load(weights)
        elif self._weights is not None and self._weights.version > self._version:
            start = perf_counter()
            self._version = self._weights.read(self._buffer)
            self.player.seconds["weights"] += perf_counter() - start
            self.player.load(self._buffer)

    def _answer(self, work: Callable[[list[Played]], None]) -> Outcome:
        """Does some work, and tells how it went."""
        played: list[Played] = []
        outcome = Outcome(played)
        try:
            work(played)
        except Stopped:
            outcome = Outcome(played, cause="stopped")
        except BaseException as error:  # an environment that calls sys.exit() has failed, too
            outcome = failed(error, played)
        seconds = tuple(self.player.seconds[part] for part in PARTS)
        self.player.seconds.update(dict.fromkeys(PARTS, 0.0))
        self._told = perf_counter()
        return outcome._replace(version=self._version, seconds=seconds, anew=self.player.anew)

    def close(self) -> None:
        self.player.close()


def failed(error: BaseException, played: list[Played]) -> Outcome:
    """What to tell of an exception."""
    told = traceback.format_exc()
    if isinstance(error, CollectError):
        return Outcome(played, cause=str(error), traceback=error.traceback, refused=True)
    if isinstance(error, ElsewhereError):
        return Outcome(played, cause=str(error), refused=True)
    return Outcome(played, cause=last_line(told), traceback=told)


_process: _Process | Outcome | None = None


def begin(
    payload: bytes,
    lanes: Sequence[int],
    slots: Slots,
    weights: Weights | None,
    stop: Any,
    report: Connection,
    rebuild: bool,
) -> None:
    """What a process does first.

    Args:
        payload: the pickled plan.
        weights: where the learner publishes.
        stop: a byte that is not 0 once everything is to end.
        report: gets the traceback if the process crashes, or is ended by `TELL`.
        rebuild: environment and actor for every task.
    """
    global _process
    processes.init_worker([weights.name] if weights is not None else [])
    faulthandler.enable(report.fileno())
    faulthandler.register(TELL, report.fileno(), chain=True)
    try:
        _process = _Process(unpickled(payload), lanes, slots, weights, stop, report, rebuild)
        # Unlike atexit, it is done in processes of every start method.
        util.Finalize(None, _process.close, exitpriority=10)
    except Exception as error:
        _process = failed(error, [])._replace(refused=True)


def start() -> Outcome:
    """The first task of each process."""
    assert _process is not None
    return _process if isinstance(_process, Outcome) else _process.start()


def play(task: Task) -> Outcome:
    assert _process is not None
    return _process if isinstance(_process, Outcome) else _process.play(task)
