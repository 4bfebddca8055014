"""Online training: a simulation runs in a process of its own, and a learner learns from what happens there.

The simulation never waits for the learner. It reads the newest policy before each step
(`fastrl.collectors.weights`) and sends rollouts through a queue (`fastrl.queue`) that drops the oldest rollout when it
is full; dropped rollouts are counted. Rollouts are sent whole, so a dropped one leaves no gap within another. In real
time each step has a deadline, the start of the next step. After a late step the clock restarts: the simulation slows
down and does not catch up.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from fastrl.algorithms.protocol import Algorithm, MultiAgentAlgorithm
from fastrl.collectors.counters import SharedCounters, Times
from fastrl.collectors.multi_agent import MultiAgentCollector
from fastrl.collectors.pool import CONTEXT, CollectorError, Pool
from fastrl.collectors.protocol import CollectError, Report
from fastrl.collectors.transport import QueueSender, TransportClosed
from fastrl.collectors.weights import Weights
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.record_episodes import EPISODE, RecordEpisodeStatistics
from fastrl.networks.distributions import sampling_noise
from fastrl.networks.multi_agent import MultiAgentPolicy
from fastrl.queue import Empty, Queue
from fastrl.rollout.multi_agent import MultiAgentRollout
from fastrl.training.experience import Episodes
from fastrl.training.metrics import brief
from fastrl.training.multi_agent import Difficulty, MultiAgentSource, as_episodes
from fastrl.training.row import Number
from fastrl.utils.tables import print_lines
from fastrl.utils.timer import Stopwatch

# Arrays of a rollout that the simulation fills.
_ARRAYS = (
    "obs",
    "alive",
    "actions",
    "log_probs",
    "rewards",
    "terminations",
    "truncations",
    "final_obs",
)

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
        num_envs: environments of the vector environment.
        make_env: makes its vector environment.
        make_policy: makes the policy, with any weights.
        num_steps: of a rollout.
        period: seconds of a step; 0: as fast as possible.
        seed: of environments and actions.
    """

    index: int
    num_envs: int
    make_env: Callable[[], MultiAgentVectorEnv]
    make_policy: Callable[[], MultiAgentPolicy]
    num_steps: int
    period: float
    seed: int
    attempt: int = 0


def simulate(
    job: SimulationJob, counters: SharedCounters, sender: QueueSender, weights: Weights | None
) -> None:
    """Runs the simulation until it is asked to stop.

    Raises:
        TransportClosed: it was asked to stop.
    """
    assert weights is not None
    policy = job.make_policy()
    env = RecordEpisodeStatistics(job.make_env())
    seeds = np.random.SeedSequence([job.seed, _STREAM, job.attempt]).generate_state(job.num_envs + 1)
    generator = torch.Generator().manual_seed(int(seeds[-1]))
    newest = _Published(policy, env, weights)
    pace = Pace(job.period)
    rows = env.num_envs * env.num_agents
    (obs_dim,) = env.single_observation_space.shape or ()
    rollout = MultiAgentRollout(job.num_steps, rows, obs_dim, env.single_action_space)
    fragment = np.zeros(1, fragment_type(rollout, env.num_envs))
    row: Any = fragment[0]

    def act(rollout: MultiAgentRollout, t: int) -> NDArray[Any]:
        pace.next_step(lambda: counters.stop)
        if counters.stop:
            raise TransportClosed
        newest.read()
        row["versions"][t] = newest.version
        row["ages"][t] = time.monotonic() - newest.published
        return policy.act_into(rollout, t, sampling_noise(policy.actions, (rollout.num_rows,), generator))

    newest.read()
    collector = MultiAgentCollector(env, act, [int(seed) for seed in seeds[:-1]])
    watch = Stopwatch()
    steps, before = counters.steps_of(job.index), counters.times_of(job.index)
    start = time.monotonic()
    while True:
        collector.collect(rollout, watch)
        steps += rollout.num_steps * env.num_envs
        ended = env.take()
        for name in _ARRAYS:
            row[name] = getattr(rollout, name)
        row["ended"] = len(ended)
        row["episodes"][: len(ended)] = ended
        row["steps"], row["missed"], row["late"], row["latest"] = (
            pace.steps,
            pace.missed,
            pace.late,
            pace.latest,
        )
        with watch("queue"):
            sender.put(fragment)
        seconds = watch.seconds
        times = Times(
            seconds=time.monotonic() - start,
            environment=seconds["environment"],
            inference=seconds["inference"] - pace.waited,
            queue=seconds["queue"] + seconds["buffer"],
        )
        counters.report(job.index, steps, newest.version, before.plus(times))


class _Published:
    """Reads the policy and the difficulty that the learner publishes.

    Attributes:
        version: of the policy.
        published: time of its publication, time.monotonic.
    """

    def __init__(self, policy: MultiAgentPolicy, env: RecordEpisodeStatistics, weights: Weights) -> None:
        self.version = 0
        self.published = 0.0
        self._policy, self._env, self._weights = policy, env, weights
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
        self._policy.load(memoryview(self._buffer)[_HEADER.itemsize :])
        if self._level != int(header["level"]):
            self._level = self._env.level = int(header["level"])
            if header["num_agents"]:
                self._env.env.set_difficulty(
                    num_agents=int(header["num_agents"]), density=float(header["density"])
                )


def fragment_type(rollout: MultiAgentRollout, num_envs: int) -> np.dtype[np.void]:
    """The type of a whole rollout as one record: its arrays, the episodes that ended in it, the version of the policy
    that chose each step and its age in seconds, and the counts of `Pace`."""
    arrays = [(name, (array := getattr(rollout, name)).dtype, array.shape) for name in _ARRAYS]
    most = rollout.num_steps * num_envs
    others = [
        ("versions", np.int64, rollout.num_steps),
        ("ages", np.float64, rollout.num_steps),
        ("ended", np.int64),
        ("episodes", EPISODE, most),
        ("steps", np.int64),
        ("missed", np.int64),
        ("late", np.float64),
        ("latest", np.float64),
    ]
    return np.dtype([*arrays, *others])  # type: ignore[list-item]


class OnlineSource(MultiAgentSource):
    """Takes rollouts from a simulation in a process of its own, and publishes
    the policy to it after each update.

    Its state is the number of steps alone: a resumed run has other episodes.

    Args:
        make_env: makes the vector environment, in the simulation's process and once here; it pickles.
        env_id, episode_steps: as of `MultiAgentSource`.
        period: seconds of a step; 0: as fast as possible.
        queue: rollouts that may wait for the learner.
        timeout: seconds that `next` waits for a rollout.
        seed: of the simulation.
        console: gets a line when the simulation is restarted.

    Attributes:
        restarts: of the simulation, in this session.
        pool: the simulation's process, while it is a context.
    """

    collector = "online"

    def __init__(
        self,
        make_env: Callable[[], MultiAgentVectorEnv],
        env_id: str,
        episode_steps: int,
        *,
        period: float,
        queue: int,
        timeout: float,
        seed: int,
        console: Console,
    ) -> None:
        super().__init__(make_env(), env_id, episode_steps)
        self.restarts = 0
        self.make_env, self._period, self._queue_size, self._seed = make_env, period, queue, seed
        self._timeout = timeout
        self._console = console
        self._level = 0
        self._difficulty: Difficulty | None = None
        # None while the source does not run.
        self.pool: Pool[SimulationJob] | None = None
        # Closes the resources of `__enter__`, in reverse order.
        self._resources = contextlib.ExitStack()
        # Age of the policy that chose the actions of the newest rollout, in versions and in seconds.
        self._age_updates = self._age_seconds = float("nan")

    def attach(self, algorithm: Algorithm[Any]) -> None:
        assert isinstance(algorithm, MultiAgentAlgorithm), "it learns from rollouts of many agents"
        self._algorithm = algorithm
        self._fragment = np.zeros(1, fragment_type(algorithm.rollout, self.env.num_envs))
        self._ended = self._fragment["episodes"][0, :0]

    def set_difficulty(self, level: int, difficulty: Difficulty | None) -> None:
        # The environment of this process is never stepped; it raises the errors that the simulation's would raise.
        super().set_difficulty(level, difficulty)
        self._level, self._difficulty = level, difficulty
        if self.pool is not None:
            self._publish()

    def __enter__(self) -> Self:
        job = SimulationJob(
            index=0,
            num_envs=self.env.num_envs,
            make_env=self.make_env,
            make_policy=self._algorithm.actor_spec(),
            num_steps=self._algorithm.rollout.num_steps,
            period=self._period,
            seed=self._seed + self.steps,
        )
        with contextlib.ExitStack() as made:
            self._buffer = bytearray(_HEADER.itemsize + self._algorithm.weights_nbytes)
            self._weights = Weights(len(self._buffer))
            made.callback(self._weights.close)
            # Two producers: a new simulation may start before the slot of a killed one is free.
            self._queue = Queue(
                self._fragment.dtype, self._queue_size, max_producers=2, policy="drop_oldest", shared=True
            )
            made.callback(self._queue.close)
            self._counters = SharedCounters(CONTEXT, 1)
            self._publish()
            names = [name for name in (self._queue.name, self._weights.name) if name is not None]
            self.pool = Pool(
                simulate, [job], [QueueSender(self._queue)], self._counters, self._weights, names
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
        difficulty = self._difficulty or Difficulty(0, 0.0)
        header[0] = (time.monotonic(), self._level, difficulty.num_agents, difficulty.density)
        self._algorithm.write_weights(memoryview(self._buffer)[_HEADER.itemsize :])
        self._version = self._weights.publish(self._buffer)

    def next(self, watch: Stopwatch) -> MultiAgentRollout | None:
        """The oldest rollout in the queue; None if none arrives within ``timeout`` seconds."""
        end = time.monotonic() + self._timeout
        with watch("waiting"):
            while not self._take(min(_POLL_INTERVAL_S, max(end - time.monotonic(), 0.0))):
                self._replace_dead()
                if time.monotonic() >= end:
                    return None
        rollout = self._algorithm.rollout
        record: Any = self._fragment[0]
        for name in _ARRAYS:
            getattr(rollout, name)[...] = record[name]
        self._age_updates = float(self._version - record["versions"].mean())
        self._age_seconds = float(record["ages"].mean())
        self._ended = record["episodes"][: int(record["ended"])].copy()
        self.steps += rollout.num_steps * self.env.num_envs
        return rollout

    def feedback(self, result: Any) -> None:
        self._publish()

    def take_episodes(self) -> Episodes:
        ended, self._ended = self._ended, self._ended[:0]
        return as_episodes(ended)

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
