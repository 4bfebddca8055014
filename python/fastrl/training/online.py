"""Online training: a simulation runs in a process of its own, and a learner learns from what happens there.

The simulation never waits for the learner. It reads the newest policy before each step
(`fastrl.collectors.weights`) and sends rollouts through a queue (`fastrl.queue`) that drops the oldest rollout when it
is full; dropped rollouts are counted. Rollouts are sent whole, so a dropped one leaves no gap within another. In real
time each step has a deadline, the start of the next step. After a late step the clock restarts: the simulation slows
down and does not catch up.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from fastrl.algorithms.protocol import Algorithm
from fastrl.collectors.counters import SharedCounters, Times
from fastrl.collectors.failures import Failures
from fastrl.collectors.fragment_arrays import FragmentMeta, allocate_steps, fragment_of
from fastrl.collectors.pool import CONTEXT, CollectorError, Pool
from fastrl.collectors.protocol import CollectError, Plan, Report
from fastrl.collectors.team_backend import Difficulty, TeamBackend
from fastrl.collectors.team_spec import TeamSpec
from fastrl.collectors.transport import QueueSender, TransportClosed
from fastrl.collectors.vector_runner import VectorEnvRunner
from fastrl.collectors.weights import Weights
from fastrl.networks.team_actor import TeamActor
from fastrl.queue import Empty, Queue
from fastrl.rollout.fragment import Fragment
from fastrl.training.errors import TrainError
from fastrl.training.metrics import brief
from fastrl.training.multi_agent import MultiAgentSource
from fastrl.training.rollouts import CollectConfig, ended_in
from fastrl.training.row import Number
from fastrl.utils.seeding import stream
from fastrl.utils.tables import print_lines
from fastrl.utils.timer import Stopwatch

# Header of published weights: the time of publication (time.monotonic, which all processes share) and the difficulty
# of the next episodes; with 0 agents the difficulty does not change.
_HEADER = np.dtype([("published", "f8"), ("level", "i8"), ("num_agents", "i8"), ("density", "f8")])

# Stream of the simulation's seeds; other parts of a run derive theirs from the same seed.
_STREAM = 2

# Seconds between checks that the simulation is alive, and of the request to stop.
_POLL_INTERVAL_S = 0.1


class Pace:
    """Steps that are due at a fixed rate.

    Args:
        period: seconds from one step to the next; 0: each is due at once, and none is late.
        wait: sleeps; clock: returns the time in seconds.

    Attributes:
        steps: taken so far; missed: those of them that missed their deadline.
        late: seconds of delay, summed over these; latest: the longest delay.
        waited: seconds of waiting for steps to be due.
    """

    def __init__(
        self,
        period: float,
        wait: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.period = period
        self.steps = self.missed = 0
        self.late = self.latest = self.waited = 0.0
        self._wait, self._clock = wait, clock
        self._due: float | None = None

    def next_step(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Ends the step before and waits until the next one is due, or until ``stop`` returns true."""
        now = self._clock()
        if self._due is not None and self.period:
            # This step is due at the deadline of the step before.
            self._due += self.period
            if now > self._due:
                self.missed += 1
                self.late += now - self._due
                self.latest = max(self.latest, now - self._due)
                self._due = now
            while (left := self._due - self._clock()) > 0 and not stop():
                self._wait(min(left, _POLL_INTERVAL_S))
            self.waited += max(self._clock() - now, 0.0)
        else:
            self._due = now
        self.steps += 1


@dataclass(frozen=True)
class SimulationJob:
    """Arguments of the simulation's process; it pickles.

    Attributes:
        index, attempt: for `fastrl.collectors.pool.Pool`.
        plan: of its environments.
        period: seconds of a step; 0: as fast as possible.
    """

    index: int
    plan: Plan
    period: float
    attempt: int = 0


class _PacedActor:
    """Acts in a simulation: waits until a step is due, and reads the newest policy and difficulty before it.

    Args:
        versions: int64 [T], of the policy of each step of a fragment; written. ages: float64 [T], seconds since its
            publication; written.
        stop: true once the simulation is to end.
    """

    state_size = 0

    def __init__(
        self,
        actor: TeamActor,
        newest: "_Published",
        pace: Pace,
        versions: NDArray[np.int64],
        ages: NDArray[np.float64],
        stop: Callable[[], bool],
    ) -> None:
        self._actor, self._newest, self._pace = actor, newest, pace
        self._versions, self._ages, self._stop = versions, ages, stop
        self._t = 0
        self.weights_nbytes = actor.weights_nbytes

    def load(self, weights: Any) -> None:
        self._actor.load(weights)

    def act(self, *arguments: Any, **options: Any) -> None:
        """See `TeamActor.act`.

        Raises:
            TransportClosed: the simulation is to end.
        """
        self._pace.next_step(self._stop)
        if self._stop():
            raise TransportClosed
        newest = self._newest
        newest.read()
        t, self._t = self._t, (self._t + 1) % len(self._versions)
        self._versions[t], self._ages[t] = newest.version, time.monotonic() - newest.published
        self._actor.act(*arguments, **options)


def simulate(
    job: SimulationJob, counters: SharedCounters, sender: QueueSender, weights: Weights | None
) -> None:
    """Runs the simulation until it is asked to stop.

    Raises:
        TransportClosed: it was asked to stop.
    """
    assert weights is not None
    # Each attempt has other episodes.
    plan = dataclasses.replace(
        job.plan, seed=int(stream(job.plan.seed, _STREAM, job.attempt) >> np.uint64(1))
    )
    backend = TeamBackend(plan)
    fragment = np.zeros(1, fragment_type(plan))
    row: Any = fragment[0]
    arrays = {name: row[name] for name in allocate_steps(plan, 1, 1)}
    actor: Any = plan.make_actor()
    newest, pace = _Published(actor, backend, weights), Pace(job.period)
    paced = _PacedActor(actor, newest, pace, row["versions"], row["ages"], lambda: counters.stop)
    newest.read()
    runner = VectorEnvRunner(plan, backend, paced, Failures(1))
    watch = Stopwatch()
    steps, before = counters.steps_of(job.index), counters.times_of(job.index)
    start = time.monotonic()
    while True:
        ends = runner.run_steps(arrays)
        steps += plan.num_steps * plan.num_envs
        row["ended"] = len(ends)
        for i, (_, _, _, total, length, _, info) in enumerate(ends):
            row["episodes"][i] = total, length, *info
        row["steps"], row["missed"], row["late"], row["latest"] = (
            pace.steps,
            pace.missed,
            pace.late,
            pace.latest,
        )
        with watch("queue"):
            sender.put(fragment)
        times = Times(
            seconds=time.monotonic() - start,
            environment=runner.seconds["environment"],
            inference=runner.seconds["inference"] - pace.waited,
            queue=watch.seconds["queue"] + runner.seconds["buffer"],
        )
        counters.report(job.index, steps, newest.version, before.plus(times))


class _Published:
    """Reads the policy and the difficulty that the learner publishes.

    Attributes:
        version: of the policy.
        published: time of its publication, time.monotonic.
    """

    def __init__(self, actor: TeamActor, backend: TeamBackend, weights: Weights) -> None:
        self.version = 0
        self.published = 0.0
        self._actor, self._backend, self._weights = actor, backend, weights
        self._buffer = bytearray(weights.nbytes)
        # Level of the difficulty that was set; None: none was, the environment has its own.
        self._level: int | None = None

    def read(self) -> None:
        """Loads the newest policy and difficulty, unless they are loaded."""
        version = self._weights.read(self._buffer, newer_than=self.version)
        if not version:
            return
        self.version = version
        header = np.frombuffer(self._buffer, _HEADER, 1)[0]
        self.published = float(header["published"])
        self._actor.load(memoryview(self._buffer)[_HEADER.itemsize :])
        if self._level != int(header["level"]):
            self._level = int(header["level"])
            difficulty = Difficulty(int(header["num_agents"]), float(header["density"]))
            self._backend.set_difficulty(self._level, difficulty if difficulty.num_agents else None)


def fragment_type(plan: Plan) -> np.dtype[np.void]:
    """The type of a fragment as one record: its arrays, the episodes that ended in it, the version of the policy that
    chose each step and its age in seconds, and the counts of `Pace`."""
    steps = plan.num_steps
    arrays = allocate_steps(plan, steps, plan.num_envs)
    others = [
        ("versions", np.int64, steps),
        ("ages", np.float64, steps),
        ("ended", np.int64),
        ("episodes", np.float64, (steps * plan.num_envs, 2 + len(plan.episode_info))),
        ("steps", np.int64),
        ("missed", np.int64),
        ("late", np.float64),
        ("latest", np.float64),
    ]
    fields = [*((name, each.dtype, each.shape) for name, each in arrays.items()), *others]
    # The widest come first, so that each is aligned.
    return np.dtype(sorted(fields, key=lambda each: -np.dtype(each[1]).itemsize))  # type: ignore[arg-type]


class OnlineSource(MultiAgentSource):
    """Takes rollouts from a simulation in a process of its own, and publishes
    the policy to it after each update.

    Its state is the number of steps alone: a resumed run has other episodes.

    Args:
        spec, num_envs, episode_steps, seed, console: as of `MultiAgentSource`; the console gets a line when the
            simulation is restarted, too.
        period: seconds of a step; 0: as fast as possible.
        queue: rollouts that may wait for the learner.
        timeout: seconds that `next` waits for a rollout.

    Attributes:
        restarts: of the simulation, in this session.
        pool: the simulation's process, while it is a context.
    """

    collector = "online"

    def __init__(
        self,
        spec: TeamSpec,
        num_envs: int,
        *,
        episode_steps: int,
        period: float,
        queue: int,
        timeout: float,
        seed: int,
        console: Console,
    ) -> None:
        super().__init__(
            spec, num_envs, CollectConfig(), episode_steps=episode_steps, seed=seed, console=console
        )
        self.collector = "online"
        self.restarts = 0
        self._period, self._queue_size, self._timeout = period, queue, timeout
        self._buffer = bytearray()
        # None while the source does not run.
        self.pool: Pool[SimulationJob] | None = None
        # Closes the resources of `__enter__`, in reverse order.
        self._resources = contextlib.ExitStack()
        # Age of the policy that chose the actions of the newest rollout, in versions and in seconds.
        self._age_updates = self._age_seconds = float("nan")

    def attach(self, algorithm: Algorithm[Any]) -> None:
        super().attach(algorithm)
        self._fragment = np.zeros(1, fragment_type(self.plan))

    def check_ranks(self) -> None:
        raise TrainError(
            f"--ranks {self.ranks.count}: there is one simulation; leave --ranks or --online.enabled out"
        )

    def _give_difficulty(self) -> None:
        if self.pool is not None:
            self._publish()

    def __enter__(self) -> Self:
        job = SimulationJob(0, dataclasses.replace(self.plan, seed=self.seed + self.steps), self._period)
        with contextlib.ExitStack() as made:
            self._buffer = bytearray(_HEADER.itemsize + self._algorithm.weights_nbytes)
            self._published = Weights(len(self._buffer))
            made.callback(self._published.close)
            # Two producers: a new simulation may start before the slot of a killed one is free.
            self._queue = Queue(
                self._fragment.dtype, self._queue_size, max_producers=2, policy="drop_oldest", shared=True
            )
            made.callback(self._queue.close)
            self._counters = SharedCounters(CONTEXT, 1)
            self._publish()
            names = [name for name in (self._queue.name, self._published.name) if name is not None]
            self.pool = Pool(
                simulate, [job], [QueueSender(self._queue)], self._counters, self._published, names
            )
            made.callback(self.pool.close)
            made.callback(self._queue.shutdown, immediate=True)
            self._resources = made.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool = None
        self._resources.close()

    def _publish(self) -> None:
        """Publishes the present policy and the difficulty of the next episodes."""
        header = np.frombuffer(self._buffer, _HEADER, 1)
        level, difficulty = self._difficulty
        header[0] = (time.monotonic(), level, *(difficulty or Difficulty(0, 0.0)))
        self._algorithm.write_weights(memoryview(self._buffer)[_HEADER.itemsize :])
        self._version = self._published.publish(self._buffer)

    def next(self, watch: Stopwatch) -> list[Fragment] | None:
        """The oldest rollout in the queue; None if none arrives within ``timeout`` seconds."""
        end = time.monotonic() + self._timeout
        with watch("waiting"):
            while not self._take(min(_POLL_INTERVAL_S, max(end - time.monotonic(), 0.0))):
                self._replace_dead()
                if time.monotonic() >= end:
                    return None
        record: Any = self._fragment[0]
        arrays = {name: record[name] for name in allocate_steps(self.plan, 1, 1)}
        self._age_updates = float(self._version - record["versions"].mean())
        self._age_seconds = float(record["ages"].mean())
        ended = record["episodes"][: int(record["ended"])]
        meta = FragmentMeta(
            self.plan.num_steps,
            returns=ended[:, 0].tolist(),
            lengths=ended[:, 1].astype(np.int64).tolist(),
            episodes=[(0, 0)] * len(ended),
            info=[tuple(row) for row in ended[:, 2:].tolist()],
        )
        env_indices = np.array(self.plan.env_indices)
        fragment = fragment_of(self.plan, arrays, meta, int(record["versions"][0]), env_indices)
        self._episodes.append(ended_in(fragment))
        self.steps += len(fragment)
        return [fragment]

    def feedback(self, result: Any) -> None:
        self._publish()

    def _take(self, seconds: float) -> bool:
        try:
            return len(self._queue.get_many(1, timeout=seconds, out=self._fragment)) > 0
        except Empty:
            return False

    def _replace_dead(self) -> None:
        assert self.pool is not None, "it runs as a context"
        for death in self.pool.dead():
            try:
                self.pool.restart(death)
            except CollectorError as error:
                raise CollectError(f"the simulation keeps dying: {error}", error.traceback) from None
            self.restarts += 1
            print_lines(self._console, f"the simulation died ({death.cause}): restarted with new episodes")

    def numbers(self) -> Mapping[str, Number]:
        """Numbers of the simulation, in the group ``collect``.

        ``policy_age_updates``, ``policy_age_seconds``: staleness of the policy that chose the actions of the last
        rollout, in versions and in seconds. ``simulated``, ``missed``: steps, and those of them that were late;
        ``late_mean``, ``late_max``: their delay in seconds. These count since the simulation was last started.
        ``dropped``, ``waiting``: rollouts; ``restarts``.
        """
        record: Any = self._fragment[0]
        missed = int(record["missed"])
        stats = self._queue.stats()
        return {
            "collect/policy_age_updates": self._age_updates,
            "collect/policy_age_seconds": self._age_seconds,
            "collect/simulated": int(record["steps"]),
            "collect/missed": missed,
            "collect/late_mean": float(record["late"]) / missed if missed else 0.0,
            "collect/late_max": float(record["latest"]),
            "collect/dropped": stats.dropped_newest + stats.dropped_oldest + stats.abandoned,
            "collect/waiting": stats.depth,
            "collect/restarts": self.restarts,
        }

    def highlights(self) -> list[str]:
        numbers = self.numbers()
        if not numbers["collect/simulated"]:
            return ["waiting for the first rollout"]
        return [
            f"policy age {brief(numbers['collect/policy_age_seconds'])} s",
            f"late {numbers['collect/missed']} of {numbers['collect/simulated']}",
            f"dropped {numbers['collect/dropped']}",
        ]

    def report(self) -> Report:
        """Times of the simulation. The time that it does not measure is waiting for steps to be due."""
        times = self._counters.times()
        seconds = {"environment": times.environment, "inference": times.inference, "buffer": times.queue}
        waiting = max(times.seconds - sum(seconds.values()), 0.0)
        return Report(workers=1, restarts=self.restarts, seconds=seconds | {"waiting": waiting})

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]
