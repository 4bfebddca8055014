"""Collectors in processes of their own: what they send, and what happens when they or their learner die."""

import dataclasses
import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray
from paths import import_path
from waiting import TIMEOUT, wait_until
from waiting import is_running as alive

from fastrl.collectors.actor_process import Job, Stacks, collect
from fastrl.collectors.counters import KEPT_EPISODES, EndedEpisode, SharedCounters, Times
from fastrl.collectors.pool import CONTEXT, CollectorError, Pool
from fastrl.collectors.transport import QueueTransport, TransportClosed
from fastrl.collectors.weights import Weights
from fastrl.envs.contract import ContractError
from fastrl.replay import Replay, UniformSampler

ROOT = Path(__file__).resolve().parents[2]


class Walk(gymnasium.Env[Any, Any]):
    """Frames [2, 2] filled with the step's number; each third episode is truncated after 5 steps, the others end
    after 3; the reward is the action."""

    def __init__(self, dies_at: int = -1) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(4)
        self.dies_at, self.total, self.episode = dies_at, 0, -1

    def frame(self) -> NDArray[np.uint8]:
        return np.full((2, 2), 10 * self.episode + self.time, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time, self.episode = 0, (self.episode + 1) % 20
        return self.frame(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        self.total += 1
        if self.total == self.dies_at:
            raise ValueError("this game is broken")
        long = self.episode % 3 == 2
        return self.frame(), float(action), self.time == 3 and not long, self.time == 5, {}


class Plan:
    """An actor whose action is its newest weight, or the number of frames in its stack that are not zero."""

    weights_nbytes = 8

    def __init__(self, seed: int) -> None:
        self.weight = 0
        self.seen: list[NDArray[Any]] = []

    def act(self, obs: NDArray[Any], epsilon: NDArray[np.float64]) -> NDArray[np.int64]:
        self.seen.append(obs.copy())
        return np.full(len(obs), self.weight, np.int64)

    def load(self, weights: Any) -> None:
        self.weight = int(np.frombuffer(weights, np.int64)[0])


def no_epsilon(steps: int) -> float:
    return 0.5


def replay(num_envs: int = 2, stack: int = 3) -> Replay:
    return Replay(4000, (2, 2), np.uint8, num_envs=num_envs, stack=stack, extra={"version": (np.uint32, ())})


def job(index: int = 0, dies_at: int = -1, fragment: int = 8, make_env: Any = None) -> Job:
    return Job(
        index=index,
        envs=range(2 * index, 2 * index + 2),
        make_env=make_env or functools.partial(Walk, dies_at),
        has_episode_info=False,
        make_actor=Plan,
        row=replay().dtype,
        stack=3,
        epsilon=no_epsilon,
        powers=np.ones(2),
        fragment=fragment,
        weights_every=1,
        seed=0,
    )


class Kept:
    """A sender that keeps what it gets, and closes after so many rows."""

    def __init__(self, most: int) -> None:
        self.rows: list[Any] = []
        self.most = most

    def open(self) -> None:
        pass

    def put(self, rows: Any) -> None:
        self.rows.extend(rows.copy())
        if len(self.rows) >= self.most:
            raise TransportClosed

    def close(self) -> None:
        pass


def test_rows_are_what_the_replay_expects() -> None:
    sender, counters = Kept(200), SharedCounters(CONTEXT, 1)
    with pytest.raises(TransportClosed):
        collect(job(), counters, sender, None)
    for env in (0, 1):
        rows = [row for row in sender.rows if row["env"] == env]
        episode, time_ = 0, 0
        for row in rows:
            assert (row["obs"] == 10 * episode + time_).all()
            long = episode % 3 == 2
            if row["end"]:
                assert time_ == (5 if long else 3)
                episode, time_ = (episode + 1) % 20, 0
                continue
            time_ += 1
            assert row["terminated"] == (not long and time_ == 3)
            assert row["truncated"] == (time_ == 5)
    episodes = counters.new_episodes()
    assert {each.length for each in episodes} == {3, 5}
    assert counters.new_episodes() == []


def test_the_actor_sees_what_the_replay_gives() -> None:
    """Stacks as they are acted on are stacks as they are learnt from, episode beginnings included."""
    actors: list[Plan] = []

    def make_actor(seed: int) -> Plan:
        actors.append(Plan(seed))
        return actors[0]

    sender = Kept(100)
    with pytest.raises(TransportClosed):
        collect(dataclasses.replace(job(), make_actor=make_actor), SharedCounters(CONTEXT, 1), sender, None)
    seen = {obs.tobytes() for both in actors[0].seen for obs in both}
    storage = replay()
    storage.append(np.array(sender.rows, storage.dtype))
    batch = UniformSampler(storage, 256).sample()
    given = {obs.numpy().tobytes() for obs in batch.obs}
    assert len(given) > 20 and given <= seen


class Odd(Walk):
    """Gives something else than its space has in its second step."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.given = given

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        if self.time == 2:
            obs, reward = self.given.get("obs", obs), self.given.get("reward", reward)
        return obs, reward, *rest


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"obs": [0.5]}, r"expected integers of shape \(2, 2\), got a list"),
        ({"obs": None}, r"expected integers of shape \(2, 2\), got None"),
        (
            {"obs": np.uint8([7])},
            r"expected integers of shape \(2, 2\), got an array of uint8 of shape \(1,\)",
        ),
        ({"obs": np.full((2, 2), 300)}, "expected uint8, got 300"),
        ({"reward": None}, "a number as reward, got None"),
        ({"reward": np.nan}, "rewards should be finite float32 numbers, .* gave nan"),
    ],
)
def test_what_a_space_does_not_have_is_not_learnt_from(given: dict[str, Any], said: str) -> None:
    sender = Kept(200)
    odd = job(make_env=functools.partial(Odd, **given))
    with pytest.raises(ContractError, match=f"^Odd: .*{said}"):
        collect(odd, SharedCounters(CONTEXT, 1), sender, None)
    assert sender.rows == []


def test_stacks() -> None:
    stacks = Stacks(2, 3, (1,), np.dtype(np.uint8))
    stacks.begin(0, np.array([1]))
    for value in (2, 3, 4):
        stacks.push(0, np.array([value]))
    stacks.begin(1, np.array([9]))
    assert stacks.obs[:, :, 0].tolist() == [[2, 3, 4], [0, 0, 9]]
    stacks.begin(0, np.array([5]))
    assert stacks.obs[0, :, 0].tolist() == [0, 0, 5]
    alone = Stacks(1, 0, (2,), np.dtype(np.float32))
    alone.begin(0, np.array([1.5, 2]))
    alone.push(0, np.array([3, 4]))
    assert alone.obs.tolist() == [[3, 4]]


def test_counters_keep_the_newest_games() -> None:
    counters = SharedCounters(CONTEXT, 2)
    for i in range(KEPT_EPISODES + 10):
        counters.add_episode(1, EndedEpisode(float(i), i))
    counters.add_episode(0, EndedEpisode(-1.0, 7))
    episodes = counters.new_episodes()
    assert episodes[0] == EndedEpisode(-1.0, 7)
    assert [each.length for each in episodes[1:]] == list(range(10, KEPT_EPISODES + 10))
    counters.report(0, 5, 1, Times(10.0, 6.0, 3.0, 0.5))
    counters.report(1, 6, 1, Times(10.0, 8.0, 1.0, 0.5))
    assert counters.collected() == 11
    assert counters.times().shares() == {"environment": 0.7, "inference": 0.2, "queue": 0.05}
    assert not counters.stop
    counters.set_stop()
    assert counters.stop


class Setup:
    """A pool with what belongs to it."""

    def __init__(self, *jobs: Job) -> None:
        self.counters = SharedCounters(CONTEXT, len(jobs))
        self.transport = QueueTransport(jobs[0].row, 256, len(jobs))
        self.weights = Weights(8)
        self.rows: list[Any] = []
        senders = [self.transport.sender() for _ in jobs]
        self.pool = Pool(jobs, senders, self.counters, self.weights, [self.transport.name, self.weights.name])

    def drain_until(self, done: Any, seconds: float = TIMEOUT) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, "it takes too long"
            self.transport.drain(lambda rows: self.rows.extend(rows.copy()), 0.05)

    def envs_at(self, version: int) -> set[int]:
        """Those that have acted on these weights."""
        return {int(row["env"]) for row in self.rows if row["version"] == version and not row["end"]}

    def close(self) -> None:
        self.transport.shutdown()
        self.pool.close()
        self.transport.close()
        self.weights.close()


@pytest.fixture
def setups() -> Iterator[list[Setup]]:
    made: list[Setup] = []
    yield made
    for setup in made:
        setup.close()


def test_collectors_act_on_the_newest_weights_and_end_when_stopped(setups: list[Setup]) -> None:
    setup = Setup(job(0), job(1))
    setups.append(setup)
    for weight in (3, 2):
        version = setup.weights.publish(np.array([weight]).tobytes())
        setup.drain_until(lambda version=version: setup.envs_at(version) == {0, 1, 2, 3})
        assert {row["action"] for row in setup.rows if row["version"] == version} == {weight}
    pids = setup.pool.pids
    assert all(map(alive, pids)) and setup.pool.dead() == []
    setup.close()
    assert not any(map(alive, pids))
    assert not list(Path("/dev/shm").glob(f"*{setup.transport.name}"))
    setups.clear()


def test_a_killed_collector_is_replaced_and_no_step_is_torn(setups: list[Setup]) -> None:
    setup = Setup(job(0), job(1))
    setups.append(setup)
    setup.drain_until(lambda: {int(row["env"]) for row in setup.rows} == {0, 1, 2, 3})
    os.kill(setup.pool.pids[1], signal.SIGKILL)
    setup.drain_until(setup.pool.dead)
    (death,) = setup.pool.dead()
    assert (death.index, death.envs, death.cause, death.traceback) == (
        1,
        range(2, 4),
        "killed by SIGKILL",
        "",
    )
    while setup.transport.drain(lambda rows: setup.rows.extend(rows.copy()), 0.0):
        pass
    before = len(setup.rows)
    setup.pool.restart(death)
    assert setup.pool.dead() == []
    setup.drain_until(lambda: {2, 3} <= {int(row["env"]) for row in setup.rows[before:]})
    # Its environments were reset.
    first = next(row for row in setup.rows[before:] if row["env"] == 2)
    assert (first["obs"] == 0).all()
    # The other one never noticed.
    times = [int(row["obs"][0, 0]) for row in setup.rows if row["env"] == 0]
    assert all(b == a + 1 or b % 10 == 0 for a, b in itertools.pairwise(times))


def test_a_collector_that_dies_again_and_again_stops_the_run_with_its_traceback(setups: list[Setup]) -> None:
    setup = Setup(job(0, dies_at=1, fragment=1000))
    setups.append(setup)
    setup.drain_until(setup.pool.dead)
    (death,) = setup.pool.dead()
    assert death.cause == "ValueError: this game is broken"
    assert 'raise ValueError("this game is broken")' in death.traceback
    setup.pool.restart(death)
    setup.drain_until(setup.pool.dead)
    with pytest.raises(CollectorError, match=r"(?s)died 2 times before its first step.*this game is broken"):
        setup.pool.restart(setup.pool.dead()[0])


class Refused(Walk):
    def step(self, action: Any) -> Any:
        raise ContractError("Refused: step() gave what it should not")


def test_a_collector_whose_environment_does_not_keep_to_the_interface_is_not_started_again(
    setups: list[Setup],
) -> None:
    setup = Setup(job(0, make_env=Refused))
    setups.append(setup)
    setup.drain_until(setup.pool.dead)
    (death,) = setup.pool.dead()
    assert (death.cause, death.traceback) == ("Refused: step() gave what it should not", "")
    with pytest.raises(CollectorError, match=r"^Refused: step\(\) gave what it should not$"):
        setup.pool.restart(death)


LEARNER = """
import os, sys, time
from test_pool import Setup, job

if __name__ == "__main__":
    setup = Setup(job(0), job(1))
    setup.drain_until(lambda: {int(row["env"]) for row in setup.rows} == {0, 1, 2, 3})
    print(*setup.pool.pids, setup.transport.name, setup.weights.name, flush=True)
    setup.drain_until(lambda: False)
"""


def test_a_killed_learner_leaves_neither_processes_nor_memory(tmp_path: Path) -> None:
    script = tmp_path / "learner.py"
    script.write_text(LEARNER)
    environment = {**os.environ, "PYTHONPATH": import_path(__file__)}
    learner = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment)
    assert learner.stdout is not None
    *pids, queue, weights = learner.stdout.readline().split()
    assert all(alive(int(pid)) for pid in pids)
    files = [Path("/dev/shm", f"fastrl-{name}") for name in (queue, weights)]
    assert all(file.exists() for file in files)
    learner.kill()
    learner.wait()
    wait_until(lambda: not any(alive(int(pid)) for pid in pids), "the collectors outlive their learner")
    wait_until(lambda: not any(file.exists() for file in files), "their memory does")
    learner.stdout.close()
