"""The pixel pipeline measured beside two others that differ in one thing: how experience gets to the learner."""

import contextlib
import ctypes
import functools
import queue
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from fastrl.algorithms.dqn import DQN
from fastrl.collectors.counters import Times
from fastrl.collectors.pool import CONTEXT
from fastrl.collectors.transport import QueueTransport, Rows, Sender, Transport, TransportClosed
from fastrl.tasks.pixels.task import TASK
from fastrl.training.metrics import counted
from fastrl.training.replay_actors import ActorProcesses
from fastrl.utils.progress import Progress, silent
from fastrl.utils.timer import Stopwatch

# How often those who wait look whether they still should.
SLICE = 0.1


class _Waits:
    """Seconds that each sender has waited, which it writes itself."""

    def __init__(self, senders: int) -> None:
        self._free = [CONTEXT.RawValue(ctypes.c_double, 0.0) for _ in range(senders)]
        self._given: list[Any] = []

    def one(self) -> Any:
        self._given.append(self._free.pop())
        return self._given[-1]

    def total(self) -> float:
        return float(sum(value.value for value in self._given))


class PicklingTransport:
    """`multiprocessing.Queue`: fragments are pickled, a thread of each sender writes them to one pipe."""

    def __init__(self, row: np.dtype[Any], capacity: int, senders: int, fragment: int) -> None:
        self._queue: Any = CONTEXT.Queue(max(1, capacity * senders // fragment))
        self._closed: Any = CONTEXT.Event()
        self._fragment = fragment
        self._waits = _Waits(senders)

    def sender(self) -> "PicklingSender":
        return PicklingSender(self._queue, self._closed, self._waits.one())

    def drain(self, take: Callable[[Rows], object], timeout: float) -> int:
        try:
            rows = self._queue.get(timeout=timeout) if timeout else self._queue.get_nowait()
        except queue.Empty:
            return 0
        take(rows)
        return len(rows)

    def depth(self) -> int:
        return int(self._queue.qsize()) * self._fragment

    def dropped(self) -> int:
        return 0

    def waited(self) -> float:
        return self._waits.total()

    def shutdown(self) -> None:
        self._closed.set()

    def close(self) -> None:
        self._queue.close()
        self._queue.cancel_join_thread()


class PicklingSender:
    def __init__(self, queue: Any, closed: Any, waited: Any) -> None:
        self._queue = queue
        self._closed = closed
        self._waited = waited

    def open(self) -> None:
        pass

    def put(self, rows: Rows) -> None:
        # Pickled later, by another thread: the caller's array will be something else by then.
        rows = rows.copy()
        start = time.perf_counter()
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(rows, timeout=SLICE)
                self._waited.value += time.perf_counter() - start
                return
        raise TransportClosed

    def close(self) -> None:
        # Leaving with half a message in the pipe would block the learner for good; it still takes what comes.
        self._queue.close()
        self._queue.join_thread()


class LockedBuffer:
    """One ring of rows in shared memory for all, and a lock that is held while rows are copied in or out."""

    def __init__(self, row: np.dtype[Any], capacity: int) -> None:
        self._row = row
        self._memory: Any = CONTEXT.RawArray(ctypes.c_char, capacity * row.itemsize)
        self._numbers: Any = CONTEXT.RawArray(ctypes.c_longlong, 3)  # written, read, closed
        self.condition: Any = CONTEXT.Condition()

    def _rows(self) -> Rows:
        return np.frombuffer(self._memory, self._row)

    def put(self, rows: Rows) -> float:
        """The seconds that it took to get at the buffer and to find room there."""
        ring, numbers = self._rows(), self._numbers
        start = time.perf_counter()
        with self.condition:
            while not numbers[2] and numbers[0] + len(rows) - numbers[1] > len(ring):
                self.condition.wait(SLICE)
            if numbers[2]:
                raise TransportClosed
            waited = time.perf_counter() - start
            at = numbers[0] % len(ring)
            first = min(len(rows), len(ring) - at)
            ring[at : at + first] = rows[:first]
            ring[: len(rows) - first] = rows[first:]
            numbers[0] += len(rows)
            self.condition.notify_all()
        return waited

    def take(self, take: Callable[[Rows], object], timeout: float) -> int:
        ring, numbers = self._rows(), self._numbers
        with self.condition:
            if numbers[0] == numbers[1] and timeout:
                self.condition.wait(timeout)
            at = numbers[1] % len(ring)
            count = min(numbers[0] - numbers[1], len(ring) - at)
            if count:
                take(ring[at : at + count])
                numbers[1] += count
                self.condition.notify_all()
            return int(count)

    def depth(self) -> int:
        return int(self._numbers[0] - self._numbers[1])

    def shut_down(self) -> None:
        self._numbers[2] = 1

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__


class LockedTransport:
    """A `LockedBuffer` between senders and learner."""

    def __init__(self, row: np.dtype[Any], capacity: int, senders: int) -> None:
        self._buffer = LockedBuffer(row, capacity * senders)
        self._waits = _Waits(senders)

    def sender(self) -> "LockedSender":
        return LockedSender(self._buffer, self._waits.one())

    def drain(self, take: Callable[[Rows], object], timeout: float) -> int:
        return self._buffer.take(take, timeout)

    def depth(self) -> int:
        return self._buffer.depth()

    def dropped(self) -> int:
        return 0

    def waited(self) -> float:
        return self._waits.total()

    def shutdown(self) -> None:
        self._buffer.shut_down()

    def close(self) -> None:
        pass


class LockedSender:
    def __init__(self, buffer: LockedBuffer, waited: Any) -> None:
        self._buffer = buffer
        self._waited = waited

    def open(self) -> None:
        pass

    def put(self, rows: Rows) -> None:
        self._waited.value += self._buffer.put(rows)

    def close(self) -> None:
        pass


class NoTransport:
    """No transport: the speed that actors reach beside a learner that is as busy as in the other ways."""

    def sender(self) -> Sender:
        return NoSender()

    def drain(self, take: Callable[[Rows], object], timeout: float) -> int:
        return 0

    def depth(self) -> int:
        return 0

    def dropped(self) -> int:
        return 0

    def waited(self) -> float:
        return 0.0

    def shutdown(self) -> None:
        pass

    def close(self) -> None:
        pass


class NoSender:
    def open(self) -> None:
        pass

    def put(self, rows: Rows) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Flow:
    """Results of one way; rates per second, medians over the rounds.

    Attributes:
        way: which.
        experience: environment steps that the actors made.
        taken: those that the replay took in.
        batches: minibatches that were learnt from.
        handing_over: share of the actors' time, waiting for room included.
        waiting: share of their time that they waited for room or a lock.
        dropped: rows.
    """

    way: str
    experience: float
    taken: float
    batches: float
    handing_over: float
    waiting: float
    dropped: int


OURS = "fastrl.queue"


def make_transport(way: str, fragment: int, row: np.dtype[Any], capacity: int, senders: int) -> Transport:
    """One of `WAYS`; see `fastrl.training.replay_actors.TransportFactory`."""
    if way == OURS:
        return QueueTransport(row, capacity, senders)
    if way == "multiprocessing.Queue":
        return PicklingTransport(row, capacity, senders, fragment)
    return LockedTransport(row, capacity, senders) if way == "lock and buffer" else NoTransport()


WAYS = (OURS, "multiprocessing.Queue", "lock and buffer", "nothing")


def measure(way: str, settings: Any, seconds: float) -> Flow:
    """Lets actors and learner run for ``seconds``, after all of them are at work.

    Raises:
        RuntimeError: an actor died.
    """
    if settings.run.torch_threads:
        torch.set_num_threads(settings.run.torch_threads)
    source = TASK.make_source(settings, DQN, Console(quiet=True))
    source.make_transport = functools.partial(make_transport, way, settings.collect.fragment)
    dqn, watch = DQN(settings.dqn, source.problem(total_steps=1, seed=0, device="cpu")), Stopwatch()
    source.attach(dqn)
    batches = 0
    with source:
        actors = source.actors
        assert isinstance(actors, ActorProcesses) and source.replay is not None

        def learn(actors: ActorProcesses) -> None:
            nonlocal batches
            if isinstance(actors.transport, NoTransport):
                actors.ingest.steps = actors.counters.collected()
            batch = source.next(watch)
            if batch is not None:
                source.feedback(dqn.update(batch, watch))
                batches += 1
            if actors.restarts:
                raise RuntimeError("an actor died")

        def totals(actors: ActorProcesses) -> tuple[int, int, int, Times, float]:
            return (
                actors.counters.collected(),
                actors.steps,
                batches,
                actors.counters.times(),
                actors.transport.waited(),
            )

        if isinstance(actors.transport, NoTransport):
            # Transitions to learn from, which nobody brings.
            rows = settings.replay.learning_starts + settings.env.num_envs
            source.replay.append(np.zeros(rows, source.replay.dtype))
        while batches == 0 or not all(actors.counters.steps_of(i) for i in range(actors.counters.collectors)):
            learn(actors)

        before = totals(actors)
        start = time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds:
            learn(actors)
        after = totals(actors)
        times = after[3].since(before[3])
        return Flow(
            way=way,
            experience=(after[0] - before[0]) / passed,
            taken=(after[1] - before[1]) / passed,
            batches=(after[2] - before[2]) / passed,
            handing_over=times.shares()["queue"],
            waiting=(after[4] - before[4]) / max(times.seconds, 1e-9),
            dropped=actors.dropped,
        )


def compare(settings: Any, seconds: float, rounds: int, progress: Progress | None = None) -> list[Flow]:
    """All `WAYS` in turns, ``rounds`` times; medians. Each measurement adds 1 to the progress."""
    progress = progress or silent()
    flows: dict[str, list[Flow]] = {way: [] for way in WAYS}
    for i in range(rounds):
        for way in WAYS if i % 2 == 0 else reversed(WAYS):
            progress.describe(f"measuring {way}, round {i + 1} of {rounds}")
            flows[way].append(measure(way, settings, seconds))
            progress.advance()
    return [
        Flow(
            way=way,
            experience=statistics.median(flow.experience for flow in several),
            taken=statistics.median(flow.taken for flow in several),
            batches=statistics.median(flow.batches for flow in several),
            handing_over=statistics.median(flow.handing_over for flow in several),
            waiting=statistics.median(flow.waiting for flow in several),
            dropped=sum(flow.dropped for flow in several),
        )
        for way, several in flows.items()
    ]


def flow_table(flows: list[Flow], settings: Any) -> Table:
    """The measurements, for people."""
    ours = next(flow for flow in flows if flow.way == OURS)
    table = Table(
        title=f"{settings.env.id}, {counted(settings.collect.n_workers, 'actor')} with"
        f" {counted(settings.env.num_envs, 'game')}, fragments of {settings.collect.fragment}",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=0,
    )
    table.add_column("experience goes through")
    for name in ("steps/s", "ours is", "handing over", "waiting", "dropped", "batches/s"):
        table.add_column(name, justify="right")
    for flow in flows:
        table.add_row(
            flow.way,
            f"{flow.experience:,.0f}",
            f"{ours.experience / flow.experience:.2f} x" if flow.experience else "",
            f"{flow.handing_over:.2%}",
            f"{flow.waiting:.2%}",
            f"{flow.dropped:,}",
            f"{flow.batches:,.1f}",
        )
    return table
