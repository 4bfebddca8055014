"""The learner's side of a run with collectors: a thread that takes experience in, and batch after batch."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fastrl.algorithms.protocol import OffPolicyAlgorithm, ReplaySpec
from fastrl.collectors.counters import SharedCounters
from fastrl.collectors.transport import Rows, Transport
from fastrl.collectors.weights import Weights
from fastrl.replay import PrioritizedSampler, Replay, UniformSampler
from fastrl.replay.prefetch import Prefetcher
from fastrl.utils.timer import Stopwatch

# Seconds between two looks at the feed. Each look takes the interpreter away from the learner, whose many small steps
# suffer from it; rings are long enough for what comes in between.
PAUSE = 0.005


class Inflow:
    """Takes rows from a feed into a replay, on a thread of its own: collectors do not wait for an update to end.

    Args:
        feed: of which this is the consumer.
        take: what is done with rows, such as ``replay.append``; called with one batch at a time.
        board: learns of the steps.
        steps: environment steps before.

    Attributes:
        steps: environment steps taken in.
        version: the learner sets it to the newest published version.
        limit: no more is taken in once as many steps are; collectors wait then.
    """

    def __init__(
        self, feed: Transport, take: Callable[[Rows], object], board: SharedCounters, steps: int = 0
    ) -> None:
        self._feed = feed
        self._take = take
        self._board = board
        self.steps = board.steps = steps
        self.version = 0
        self.limit: float = np.inf
        self._lag = [0, 0]
        self._lock = threading.Lock()
        self._fresh = threading.Event()
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="inflow", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended:
                time.sleep(PAUSE)
                while not self._ended and self.steps < self.limit:
                    with self._lock:
                        if not self._feed.drain(self._receive, 0.0):
                            break
        except BaseException as error:
            self._error = error
        finally:
            self._fresh.set()

    def _receive(self, rows: Rows) -> None:
        taken = len(rows)
        steps = taken - int(np.count_nonzero(rows["end"]))
        self._lag[0] += self.version * taken - int(rows["version"].sum(dtype=np.int64))
        self._lag[1] += taken
        self._take(rows)
        self.steps += steps
        self._board.steps = self.steps
        self._fresh.set()

    def wait(self, seconds: float) -> None:
        """Waits for new rows.

        Raises:
            Whatever ended the thread.
        """
        self._fresh.wait(seconds)
        self._fresh.clear()
        self.check()

    def check(self) -> None:
        """Raises what ended the thread, if something did."""
        if self._error is not None:
            raise self._error

    def take_lag(self) -> float:
        """How many versions behind the newest one the policy was that chose the actions taken in since the last
        call: the mean; NaN without any."""
        lag, rows = self._lag
        self._lag = [0, 0]
        return lag / rows if rows else float("nan")

    def flush(self) -> None:
        """Takes in all that waits now. What others send meanwhile may come too, but is not waited for."""
        with self._lock:
            # Feeds take turns among senders: after so many, each sender's ring has been emptied.
            for _ in range(8 * (self._board.collectors + 1)):
                if not self._feed.drain(self._receive, 0.0):
                    break

    def close(self) -> None:
        self._ended = True
        self._thread.join()


def make_sampler(spec: ReplaySpec, replay: Replay, seed: int) -> UniformSampler | PrioritizedSampler:
    """Draws from a replay as an algorithm wants it."""
    common: dict[str, Any] = {"n_step": spec.n_step, "gamma": spec.gamma, "seed": seed}
    if spec.prioritized is None:
        return UniformSampler(replay, spec.batch_size, **common)
    alpha, beta = spec.prioritized.alpha, spec.prioritized.beta(0)
    return PrioritizedSampler(replay, spec.batch_size, alpha=alpha, beta=beta, **common)


def learn_batch(
    algorithm: OffPolicyAlgorithm, spec: ReplaySpec, batches: Any, steps: int, watch: Stopwatch
) -> None:
    """Learns from the next minibatch.

    Args:
        spec: of the algorithm.
        batches: a sampler that `make_sampler` made for it, or a `Prefetcher` of one.
        steps: of the environments so far.
        watch: measures ``sampling`` and ``update``.
    """
    prefetched = isinstance(batches, Prefetcher)
    with watch("sampling"):
        if spec.prioritized is not None:
            batches.beta = spec.prioritized.beta(steps)
        batch = batches.sample()
    td_errors = algorithm.update(batch, watch)
    with watch("update"):
        if spec.prioritized is not None:
            batches.update_priorities(batch.indices, td_errors if prefetched else td_errors.cpu())
        elif not prefetched and algorithm.device.type == "cuda":
            # The GPU reads the batch later, and only so many more leave its memory as it is.
            torch.cuda.current_stream().synchronize()


class Learner:
    """Learns from a replay while an `Inflow` fills it.

    How fast it learns is bounded by how fast experience comes in, both ways: at most ``updates_per_step`` batches for
    each environment step since learning began (None: as fast as both go), and at least ``min_updates_per_step``,
    for which collectors are held back (0: never).

    Args:
        algorithm: learns.
        replay: is filled by ``inflow``.
        sampler: draws from it, made by `make_sampler`.
        inflow: running.
        weights: where the collectors read.
        starts: transitions in the replay before learning begins.
        updates_per_step, min_updates_per_step: see above.
        publish_every: gradient steps between publications of the weights.
        prefetch: draw the next batch while one is learnt from, on a thread of its own.

    Attributes:
        batches: learnt from so far.
        watch: seconds spent ``waiting`` for experience, ``sampling``, in ``update`` and ``publishing`` weights.
    """

    def __init__(
        self,
        algorithm: OffPolicyAlgorithm,
        replay: Replay,
        sampler: UniformSampler | PrioritizedSampler,
        inflow: Inflow,
        weights: Weights,
        *,
        starts: int,
        updates_per_step: float | None = None,
        min_updates_per_step: float = 0.0,
        publish_every: int = 100,
        prefetch: bool = False,
    ) -> None:
        self.algorithm = algorithm
        self._spec = algorithm.replay_spec()
        self.replay = replay
        self.batches = 0
        self.watch = Stopwatch()
        self._prefetcher = Prefetcher(sampler, algorithm.device) if prefetch else None
        self._batches: Any = self._prefetcher or sampler
        self._inflow = inflow
        self._weights = weights
        self._buffer = bytearray(algorithm.weights_nbytes)
        self._starts = starts
        self._most, self._least = updates_per_step, min_updates_per_step
        self._publish_every = publish_every
        # Environment steps and batches when learning began: what was before counts for no ratio.
        self._began: tuple[int, int] | None = None
        self.publish()

    def publish(self) -> None:
        """Gives the collectors the weights as they are."""
        self.algorithm.write_weights(self._buffer)
        self._inflow.version = self._weights.publish(self._buffer)

    def learn(self) -> bool:
        """Learns from a batch, or waits a little for experience; whether it learnt."""
        self._inflow.check()
        if not self._may():
            with self.watch("waiting"):
                self._inflow.wait(0.02)
            return False
        updates = self.algorithm.updates
        learn_batch(self.algorithm, self._spec, self._batches, self._inflow.steps, self.watch)
        self.batches += 1
        if self.algorithm.updates != updates and self.algorithm.updates % self._publish_every == 0:
            with self.watch("publishing"):
                self.publish()
        return True

    def _may(self) -> bool:
        if self._began is None:
            if len(self.replay) < self._starts:
                return False
            self._began = self._inflow.steps, self.batches
        steps = self._inflow.steps - self._began[0]
        batches = self.batches - self._began[1]
        if self._least > 0:
            self._inflow.limit = self._began[0] + self._starts + batches / self._least
        return self._most is None or batches < steps * self._most

    def close(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()
