"""Online training: a simulation runs on in a process of its own, and a learner learns from what happens there.

The simulation never waits for the learner. It reads the newest policy before each step
(`fastrl.collectors.weights`), and hands
over rollouts through a queue that drops the oldest when the learner does not keep up (`fastrl.queue`); what is dropped
is counted. Rollouts are handed over whole, so that dropping one leaves no gap within another. In real time a step is
taken when it is due; one that is not done when the next is due is late, and then the clock is set anew: the simulation
slows down rather than rush.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from fastrl.algorithms.multi_agent import MultiAgentLearner
from fastrl.collectors.counters import SharedCounters, Times
from fastrl.collectors.multi_agent import TeamCollector
from fastrl.collectors.pool import CONTEXT, Pool
from fastrl.collectors.protocol import Report
from fastrl.collectors.transport import QueueSender, Sender, TransportClosed
from fastrl.collectors.weights import Weights
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.record_episodes import EPISODE, RecordEpisodeStatistics
from fastrl.networks.distributions import sampling_noise
from fastrl.networks.multi_agent import MultiAgentPolicy
from fastrl.queue import Empty, Queue
from fastrl.rollout.multi_agent import MultiAgentRollout
from fastrl.tasks.traffic.curriculum import Difficulty
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

# Goes before the weights: when they were published (time.monotonic, which all processes share), and how hard the
# next episodes are to be.
_HEADER = np.dtype([("published", "f8"), ("level", "i8"), ("vehicles", "i8"), ("density", "f8")])

# Keeps the seeds of the simulation apart from those of other things.
_STREAM = 2

# Seconds between looks at whether the simulation is alive, and at whether it is to end.
_LOOK = 0.1


class Pace:
    """Steps that are due at a fixed rate.

    Args:
        period: seconds from one step to the next; 0: each is due at once, and none is late.
        wait: sleeps; clock: tells the time in seconds.

    Attributes:
        steps, missed: taken so far, and how many of them were not done when the next was due.
        late: seconds that these came late, all together; latest: the most of one.
        waited: seconds, for steps to be due.
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
        """Waits until the next step is due, or ``stop`` says so; the one before is done."""
        now = self._clock()
        if self._due is not None and self.period:
            # The deadline of the step before is when this one is due.
            self._due += self.period
            if now > self._due:
                self.missed += 1
                self.late += now - self._due
                self.latest = max(self.latest, now - self._due)
                self._due = now
            while (left := self._due - self._clock()) > 0 and not stop():
                self._wait(min(left, _LOOK))
            self.waited += max(self._clock() - now, 0.0)
        else:
            self._due = now
        self.steps += 1


@dataclass(frozen=True)
class Simulation:
    """What the simulation's process has to do; it is pickled into it.

    Attributes:
        index, envs, attempt: for `fastrl.collectors.pool.Pool`.
        make_env: makes its worlds.
        policy: to begin with, as ``MultiAgentLearner.policy_state`` gives it.
        num_steps: of a rollout.
        period: seconds of a step; 0: as fast as it can.
        adjusts: whether the difficulty may change.
        seed: of worlds and actions.
    """

    index: int
    envs: range
    make_env: Callable[[], MultiAgentVectorEnv]
    policy: Mapping[str, Any]
    num_steps: int
    period: float
    adjusts: bool
    seed: int
    attempt: int = 0


def simulate(job: Simulation, board: SharedCounters, sender: Sender, weights: Weights | None) -> None:
    """Runs until the board says stop.

    Raises:
        TransportClosed: it is to end.
    """
    assert weights is not None
    policy = MultiAgentPolicy.from_state(job.policy)
    worlds = RecordEpisodeStatistics(job.make_env())
    seeds = np.random.SeedSequence([job.seed, _STREAM, job.attempt]).generate_state(len(job.envs) + 1)
    generator = torch.Generator().manual_seed(int(seeds[-1]))
    newest = _Newest(policy, worlds, weights, job.adjusts)
    pace = Pace(job.period)
    rollout = _rollout(worlds, job.num_steps)
    fragment = np.zeros(1, fragment_type(rollout, worlds.num_envs))
    row: Any = fragment[0]

    def act(rollout: MultiAgentRollout, t: int) -> NDArray[Any]:
        pace.next_step(lambda: board.stop)
        if board.stop:
            raise TransportClosed
        newest.read()
        row["versions"][t] = newest.version
        row["ages"][t] = time.monotonic() - newest.published
        return policy.act_into(rollout, t, sampling_noise(policy.actions, (rollout.num_rows,), generator))

    newest.read()
    collector = TeamCollector(worlds, act, [int(seed) for seed in seeds[:-1]])
    watch = Stopwatch()
    steps, before = board.steps_of(job.index), board.times_of(job.index)
    start = time.monotonic()
    while True:
        steps += collector.collect(rollout, watch).steps
        ended = worlds.take()
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
        spent = watch.seconds
        times = Times(
            seconds=time.monotonic() - start,
            environment=spent["environment"],
            inference=spent["inference"] - pace.waited,
            queue=spent["queue"] + spent["buffer"],
        )
        board.report(job.index, steps, newest.version, before.plus(times))


class _Newest:
    """The newest policy and difficulty, as the learner publishes them."""

    def __init__(
        self, policy: MultiAgentPolicy, worlds: RecordEpisodeStatistics, weights: Weights, adjusts: bool
    ) -> None:
        self.version = 0
        self.published = 0.0
        self._policy, self._worlds, self._weights, self._adjusts = policy, worlds, weights, adjusts
        self._buffer = bytearray(weights.nbytes)

    def read(self) -> None:
        newer = self._weights.read(self._buffer, newer_than=self.version)
        if not newer:
            return
        self.version = newer
        header = np.frombuffer(self._buffer, _HEADER, 1)[0]
        self.published = float(header["published"])
        self._policy.load(memoryview(self._buffer)[_HEADER.itemsize :])
        if self._adjusts and self._worlds.level != int(header["level"]):
            self._worlds.level = int(header["level"])
            self._worlds.env.set_difficulty(
                num_agents=int(header["vehicles"]), density=float(header["density"])
            )


def _rollout(worlds: RecordEpisodeStatistics | MultiAgentVectorEnv, num_steps: int) -> MultiAgentRollout:
    (obs_dim,) = worlds.single_observation_space.shape or ()
    return MultiAgentRollout(
        num_steps, worlds.num_envs * worlds.num_agents, obs_dim, worlds.single_action_space
    )


def fragment_type(rollout: MultiAgentRollout, num_envs: int) -> np.dtype[np.void]:
    """A whole rollout as one record: its arrays, the episodes that ended in it, which version of the policy chose each
    step and how many seconds old that was, and how the simulation keeps pace so far."""
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


class OnlineWorlds:
    """The learner's side: starts the simulation, takes what it hands over, and tells it the newest policy.

    Args:
        learner: whose rollouts are filled.
        make_env: makes the worlds in the simulation's process; it is pickled.
        num_envs: how many.
        period: seconds of a step; 0: as fast as it can.
        queue: rollouts that may wait for the learner.
        adjusts: whether the difficulty may change.
        seed: of the simulation.
        console: where a line goes when it is restarted.

    Attributes:
        restarts: how often the simulation was started again.
    """

    def __init__(
        self,
        learner: MultiAgentLearner,
        make_env: Callable[[], MultiAgentVectorEnv],
        num_envs: int,
        *,
        period: float,
        queue: int,
        adjusts: bool,
        seed: int,
        console: Console,
    ) -> None:
        self._learner = learner
        self._rollout = learner.rollout
        self._console = console
        self.restarts = 0
        self._pool: Pool[Simulation] | None = None
        self._row = np.zeros(1, fragment_type(self._rollout, num_envs))
        self._job = Simulation(
            index=0,
            envs=range(num_envs),
            make_env=make_env,
            policy=learner.policy_state(),
            num_steps=self._rollout.num_steps,
            period=period,
            adjusts=adjusts,
            seed=seed,
        )
        self._queue_size = queue
        # Ends what `start` has made, the last first.
        self._made = contextlib.ExitStack()
        # Of the newest rollout: how many publications behind its policy was, and how many seconds old it had become.
        self._age_updates = self._age_seconds = float("nan")

    def start(self, level: int, difficulty: Difficulty) -> None:
        """Begins; what is made here ends with `close`."""
        self._buffer = bytearray(_HEADER.itemsize + self._learner.weights_nbytes)
        self._weights = Weights(len(self._buffer))
        self._made.callback(self._weights.close)
        # A lane more: a simulation that was killed may be followed before its lane is free again.
        self._queue = Queue(
            self._row.dtype, self._queue_size, max_producers=2, policy="drop_oldest", shared=True
        )
        self._made.callback(self._queue.close)
        self._board = SharedCounters(CONTEXT, 1)
        self.publish(level, difficulty)
        names = [name for name in (self._queue.name, self._weights.name) if name is not None]
        self._pool = Pool(
            [self._job], [QueueSender(self._queue)], self._board, self._weights, names, simulate
        )
        self._made.callback(self._pool.close)
        self._made.callback(self._queue.shutdown, immediate=True)

    def publish(self, level: int, difficulty: Difficulty) -> None:
        """Gives the simulation the policy as it is, and what its next episodes are to be like."""
        header = np.frombuffer(self._buffer, _HEADER, 1)
        header[0] = (time.monotonic(), level, difficulty.vehicles, difficulty.density)
        self._learner.write_weights(memoryview(self._buffer)[_HEADER.itemsize :])
        self._version = self._weights.publish(self._buffer)

    def collect(self, watch: Stopwatch, seconds: float) -> NDArray[np.void] | None:
        """Fills the learner's rollout with the oldest one that waits; returns the episodes that ended in it, `EPISODE`
        [E]. None if there was none for so many seconds.

        Raises:
            CollectorError: the simulation dies again and again.
        """
        end = time.monotonic() + seconds
        with watch("waiting"):
            while not self._take(min(_LOOK, max(end - time.monotonic(), 0.0))):
                self._replace_dead()
                if time.monotonic() >= end:
                    return None
        row: Any = self._row[0]
        for name in _ARRAYS:
            getattr(self._rollout, name)[...] = row[name]
        self._age_updates = float(self._version - row["versions"].mean())
        self._age_seconds = float(row["ages"].mean())
        episodes: NDArray[np.void] = row["episodes"][: int(row["ended"])].copy()
        return episodes

    def _take(self, seconds: float) -> bool:
        try:
            return len(self._queue.get_many(1, timeout=seconds, out=self._row)) > 0
        except Empty:
            return False

    def _replace_dead(self) -> None:
        assert self._pool is not None
        for death in self._pool.dead():
            self._pool.restart(death)
            self.restarts += 1
            self._console.print(
                f"the simulation died ({death.cause}): started again, its episodes begin anew",
                highlight=False,
                soft_wrap=True,
            )

    def numbers(self) -> dict[str, float]:
        """How it goes, for a row of metrics.

        `policy_age_updates`: how many publications behind the policy was that chose the actions learnt from last;
        `policy_age_seconds`: how old it was when it chose them. `simulated`, `missed`: steps taken, and those of them
        that were late; `late_mean`, `late_max`: by how many seconds these were late. The counts are of the rollouts
        that came through since the simulation was started last. `dropped`, `waiting`: rollouts; `restarts`.
        """
        row: Any = self._row[0]
        missed = int(row["missed"])
        stats = self._queue.stats()
        return {
            "policy_age_updates": self._age_updates,
            "policy_age_seconds": self._age_seconds,
            "simulated": int(row["steps"]),
            "missed": missed,
            "late_mean": float(row["late"]) / missed if missed else 0.0,
            "late_max": float(row["latest"]),
            "dropped": stats.dropped_newest + stats.dropped_oldest + stats.abandoned,
            "waiting": stats.depth,
            "restarts": self.restarts,
        }

    def report(self) -> Report:
        """Where the simulation's time went; what it does nothing in, it waits for steps to be due."""
        times = self._board.times()
        spent = {"environment": times.environment, "inference": times.inference, "buffer": times.queue}
        waiting = max(times.seconds - sum(spent.values()), 0.0)
        return Report(workers=1, restarts=self.restarts, seconds=spent | {"waiting": waiting})

    def close(self) -> None:
        """Ends the simulation; leaves no process and no shared memory."""
        self._made.close()
