"""Actor processes that fill a replay through a queue, while the learner learns from it.

Actors, the thread that takes their rows into the replay and the learner run at the same time, each at its own pace.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from fastrl.algorithms.protocol import OffPolicyAlgorithm
from fastrl.collectors.actor_process import Job
from fastrl.collectors.counters import SharedCounters
from fastrl.collectors.pool import CONTEXT, Pool
from fastrl.collectors.protocol import Report
from fastrl.collectors.transport import Rows, Transport
from fastrl.collectors.weights import Weights
from fastrl.replay import Replay
from fastrl.training.experience import Episodes
from fastrl.training.row import Number
from fastrl.utils.tables import print_lines
from fastrl.utils.timer import Stopwatch

# Seconds between reads of the queue. Each read takes the interpreter lock from the learner, whose many small steps are
# delayed by it; the queue's rings are long enough for the rows that come in between.
INGEST_INTERVAL_S = 0.005
# Most seconds of one wait of the learner for rows.
WAIT_S = 0.02
# Seconds between checks that actors are alive.
LIVENESS_INTERVAL_S = 0.25

# Makes the transport from actors to the replay, from the dtype of rows, the rows that each actor may have waiting, and
# the number of actors.
TransportFactory = Callable[[np.dtype[Any], int, int], Transport]


class ReplayIngest:
    """Takes rows from a queue into a replay, on a thread of its own: actors do not wait for an update to end.

    Args:
        transport: its one consumer is this thread.
        take: what is done with rows, such as ``replay.append``; called with one batch at a time.
        counters: gets the number of steps.
        steps: environment steps before.

    Attributes:
        steps: environment steps taken in.
        version: of the newest published weights; the learner sets it.
        limit: no more is taken in once as many steps are; actors wait then.
    """

    def __init__(
        self, transport: Transport, take: Callable[[Rows], object], counters: SharedCounters, steps: int = 0
    ) -> None:
        self._transport = transport
        self._take = take
        self._counters = counters
        self.steps = counters.steps = steps
        self.version = 0
        self.limit: float = np.inf
        # Sum of the rows' staleness in versions, and number of rows.
        self._staleness = [0, 0]
        self._lock = threading.Lock()
        self._has_new_rows = threading.Event()
        self._is_closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="replay ingest", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_closed:
                time.sleep(INGEST_INTERVAL_S)
                while not self._is_closed and self.steps < self.limit:
                    with self._lock:
                        if not self._transport.drain(self._receive, 0.0):
                            break
        except BaseException as error:
            self._error = error
        finally:
            self._has_new_rows.set()

    def _receive(self, rows: Rows) -> None:
        taken = len(rows)
        steps = taken - int(np.count_nonzero(rows["end"]))
        self._staleness[0] += self.version * taken - int(rows["version"].sum(dtype=np.int64))
        self._staleness[1] += taken
        self._take(rows)
        self.steps += steps
        self._counters.steps = self.steps
        self._has_new_rows.set()

    def wait(self, seconds: float) -> None:
        """Waits for new rows.

        Raises:
            Whatever ended the thread.
        """
        self._has_new_rows.wait(seconds)
        self._has_new_rows.clear()
        self.check()

    def check(self) -> None:
        """Raises what ended the thread, if something did."""
        if self._error is not None:
            raise self._error

    def take_staleness(self) -> float:
        """Mean number of versions that the policy which chose the actions was behind the newest one, of rows taken in
        since the last call; NaN without any."""
        behind, rows = self._staleness
        self._staleness = [0, 0]
        return behind / rows if rows else float("nan")

    def flush(self) -> None:
        """Takes in all rows that are in the queue. Rows that arrive during the call may be taken in, too."""
        with self._lock:
            # Rings take turns: after so many drains each actor's ring has been emptied.
            for _ in range(8 * (self._counters.collectors + 1)):
                if not self._transport.drain(self._receive, 0.0):
                    break

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()


class ActorProcesses:
    """Processes that step environments by the newest weights; they run from the start to `close`.

    How fast is learnt is bounded by how fast experience comes in, both ways: at most ``updates_per_step`` minibatches
    for each environment step since learning started (None: as fast as both go), and at least ``min_updates_per_step``,
    for which actors are held back (0: never).

    Args:
        jobs: one for each process.
        replay: is filled.
        algorithm: gives the weights.
        console: gets a line when a process is restarted.
        make_transport: makes the transport of experience.
        queue: rows that each actor may have waiting.
        publish_every: gradient steps between publications of the weights.
        learning_starts: transitions in the replay before learning starts.
        updates_per_step, min_updates_per_step: see above.
        steps: environment steps before.

    Attributes:
        steps: environment steps in the replay so far, earlier sessions included.
        taken: the same.
        restarts: processes that died and were replaced.
        dropped: rows that were lost on their way to the replay.
    """

    name = "actors"

    def __init__(
        self,
        jobs: Sequence[Job],
        replay: Replay,
        algorithm: OffPolicyAlgorithm,
        console: Console,
        *,
        make_transport: TransportFactory,
        queue: int,
        publish_every: int,
        learning_starts: int,
        updates_per_step: float | None,
        min_updates_per_step: float,
        steps: int,
    ) -> None:
        self.restarts = 0
        self._replay, self._algorithm, self._console = replay, algorithm, console
        self._publish_every, self._learning_starts = publish_every, learning_starts
        self._most, self._least = updates_per_step, min_updates_per_step
        for env in range(replay.num_envs):
            replay.cut(env)
        self.counters = SharedCounters(CONTEXT, len(jobs))
        self.transport = make_transport(replay.dtype, queue, len(jobs))
        self.weights = Weights(algorithm.explorer.weights_nbytes)
        self._buffer = bytearray(algorithm.explorer.weights_nbytes)
        self._pool: Pool[Job] | None = None
        self.ingest = ReplayIngest(self.transport, replay.append, self.counters, steps)
        self._is_closed = False
        # Steps at the last read of the actors' counters, and time of the last check of their processes.
        self._read_at, self._checked_at = -1, time.perf_counter()
        try:
            self._publish()
            senders = [self.transport.sender() for _ in jobs]
            memory = [getattr(self.transport, "name", ""), self.weights.name]
            self._pool = Pool(jobs, senders, self.counters, self.weights, [name for name in memory if name])
        except BaseException:
            self.close()
            raise

    @property
    def steps(self) -> int:
        return self.ingest.steps

    taken = steps

    @property
    def dropped(self) -> int:
        return self.transport.dropped()

    def _publish(self) -> None:
        self._algorithm.explorer.write_weights(self._buffer)
        self.ingest.version = self.weights.publish(self._buffer)
        self._published_at = self._algorithm.updates

    def refresh(self, watch: Stopwatch) -> None:
        """Publishes weights when they are due, and replaces processes that have died.

        Raises:
            CollectorError: they die again and again.
        """
        updates = self._algorithm.updates
        if updates != self._published_at and updates % self._publish_every == 0:
            with watch("publishing"):
                self._publish()
        self.ingest.check()
        now = time.perf_counter()
        if now - self._checked_at > LIVENESS_INTERVAL_S:
            self._checked_at = now
            self._replace_dead()

    def collect(self, watch: Stopwatch) -> None:
        """Waits a little for experience."""
        with watch("waiting"):
            self.ingest.wait(WAIT_S)

    def is_due(self, started_at: int | None, minibatches: int) -> bool:
        """True if a minibatch may be learned from, after so many since learning started.

        Args:
            started_at: ``steps`` when learning started; None: it has not.
        """
        if started_at is None:
            return False
        if self._least > 0:
            self.ingest.limit = started_at + self._learning_starts + minibatches / self._least
        return self._most is None or minibatches < (self.ingest.steps - started_at) * self._most

    def take_episodes(self) -> Episodes | None:
        """Episodes that have ended since the last call; None without any."""
        if self.ingest.steps == self._read_at:
            return None
        self._read_at = self.ingest.steps
        ended = self.counters.new_episodes()
        returns, lengths = [each.value for each in ended], [each.length for each in ended]
        return Episodes(np.array(returns), np.array(lengths, np.int64)) if ended else None

    def _replace_dead(self) -> None:
        assert self._pool is not None
        for death in self._pool.dead():
            # Rows that it sent before it died are taken into the replay before its environments start new episodes.
            self.ingest.flush()
            for env in death.envs:
                self._replay.cut(env)
            self._pool.restart(death)
            self.restarts += 1
            print_lines(self._console, f"actor {death.index} died ({death.cause}): started again")

    def report(self) -> Report:
        times, waited = self.counters.times(), self.transport.waited()
        return Report(
            workers=self.counters.collectors,
            restarts=self.restarts,
            seconds={
                "environment": times.environment,
                "inference": times.inference,
                # Actors report their time at intervals, the queue reports at once.
                "buffer": max(times.queue - waited, 0.0),
                "waiting": min(waited, times.queue),
            },
        )

    def numbers(self) -> dict[str, Number]:
        return {
            "collect/staleness": self.ingest.take_staleness(),
            "collect/queue_depth": self.transport.depth(),
        }

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.transport.shutdown()
        if self._pool is not None:
            self._pool.close()
        self.ingest.close()
        self.transport.close()
        self.weights.close()
