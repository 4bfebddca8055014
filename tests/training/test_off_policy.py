"""The learner's side, fed by hand."""

import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from waiting import wait_until

from fastrl.algorithms.dqn import DQN, DQNConfig
from fastrl.algorithms.protocol import Problem
from fastrl.collectors.counters import SharedCounters
from fastrl.collectors.pool import CONTEXT
from fastrl.collectors.weights import Weights
from fastrl.replay import PrioritizedSampler, Replay
from fastrl.training.gpu import GpuMeter
from fastrl.training.off_policy import Inflow, Learner, make_sampler


class ByHand:
    """A feed that gives what was put into it."""

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def drain(self, take: Callable[[Any], object], timeout: float) -> int:
        try:
            rows = self.waiting.get(timeout=timeout) if timeout else self.waiting.get_nowait()
        except queue.Empty:
            return 0
        take(rows)
        return len(rows)


def new_replay() -> Replay:
    return Replay(1000, (3,), np.float32, extra={"version": (np.uint32, ())})


def episode(length: int, version: int = 0) -> Any:
    """Rows of one that terminates, the one with its last observation included."""
    rows = np.zeros(length + 1, new_replay().dtype)
    rows["obs"] = np.arange(length + 1)[:, None]
    rows["terminated"][length - 1] = True
    rows["end"][length] = True
    rows["version"] = version
    return rows


class Parts:
    def __init__(self, config: DQNConfig | None = None, **settings: Any) -> None:
        self.config = config or DQNConfig(batch_size=4, hidden=(8,))
        self.feed, self.replay = ByHand(), new_replay()
        self.board = SharedCounters(CONTEXT, 1)
        space = gymnasium.spaces.Box(-100, 100, (3,), np.float32)
        problem = Problem(space, gymnasium.spaces.Discrete(2), num_envs=1, total_steps=1)
        self.dqn = DQN(self.config, problem)
        self.weights = Weights(self.dqn.weights_nbytes)
        self.inflow = Inflow(self.feed, self.replay.append, self.board, steps=100)  # type: ignore[arg-type]
        self.sampler: Any = make_sampler(self.dqn.replay_spec(), self.replay, 0)
        self.learner = Learner(
            self.dqn, self.replay, self.sampler, self.inflow, self.weights, **{"starts": 10, **settings}
        )

    def close(self) -> None:
        self.inflow.close()
        self.learner.close()
        self.weights.close()


@pytest.fixture
def parts(request: pytest.FixtureRequest) -> Iterator[Parts]:
    made = Parts(**getattr(request, "param", {}))
    yield made
    made.close()


def test_rows_go_to_the_replay_and_steps_are_counted(parts: Parts) -> None:
    assert parts.inflow.steps == parts.board.steps == 100
    parts.inflow.version = 7
    parts.feed.waiting.put(episode(6, version=4))
    parts.feed.waiting.put(episode(2, version=7))
    wait_until(lambda: parts.board.steps == 108)
    assert parts.inflow.steps == 108
    assert len(parts.replay) == 8
    assert parts.inflow.take_lag() == pytest.approx(3 * 7 / 10)
    assert np.isnan(parts.inflow.take_lag())


def test_what_ends_the_thread_is_raised_by_the_learner(parts: Parts) -> None:
    parts.feed.waiting.put(np.zeros(3, np.float32))
    with pytest.raises(IndexError):
        wait_until(parts.learner.learn)


def test_learning_begins_when_enough_is_there(parts: Parts) -> None:
    parts.feed.waiting.put(episode(9))
    wait_until(lambda: parts.board.steps == 109)
    assert not parts.learner.learn()
    assert parts.learner.batches == 0
    assert parts.learner.watch.seconds["waiting"] > 0
    parts.feed.waiting.put(episode(1))
    wait_until(lambda: parts.board.steps == 110)
    assert parts.learner.learn()
    assert parts.learner.batches == parts.dqn.updates == 1


@pytest.mark.parametrize("parts", [{"updates_per_step": 0.5}], indirect=True)
def test_it_learns_at_most_so_often_a_step(parts: Parts) -> None:
    parts.feed.waiting.put(episode(20))
    wait_until(lambda: parts.board.steps == 120)
    # Steps before learning began count for nothing.
    assert not any(parts.learner.learn() for _ in range(3))
    parts.feed.waiting.put(episode(9))
    wait_until(lambda: parts.board.steps == 129)
    assert [parts.learner.learn() for _ in range(7)] == [True] * 5 + [False] * 2


@pytest.mark.parametrize("parts", [{"min_updates_per_step": 0.1}], indirect=True)
def test_it_learns_at_least_so_often_a_step(parts: Parts) -> None:
    """Nothing more is taken in until it has."""
    parts.feed.waiting.put(episode(10))
    wait_until(lambda: parts.board.steps == 110)
    parts.learner.learn()
    for _ in range(4):
        parts.feed.waiting.put(episode(10))
    # What began with 110 steps may go to 110 + 10 (starts), and 10 more for each batch.
    wait_until(lambda: parts.inflow.steps >= 120)
    time.sleep(0.05)
    assert parts.inflow.steps == 120
    parts.learner.learn()
    parts.learner.learn()
    wait_until(lambda: parts.inflow.steps >= 130)


@pytest.mark.parametrize("parts", [{"publish_every": 2}], indirect=True)
def test_weights_are_published(parts: Parts) -> None:
    assert parts.inflow.version == 1
    parts.feed.waiting.put(episode(20))
    wait_until(lambda: parts.board.steps == 120)
    for _ in range(5):
        parts.learner.learn()
    assert parts.inflow.version == 3
    buffer, current = bytearray(parts.dqn.weights_nbytes), bytearray(parts.dqn.weights_nbytes)
    assert parts.weights.read(buffer) == 3
    parts.learner.learn()
    parts.dqn.write_weights(current)
    assert parts.weights.read(buffer, newer_than=3) == 4
    assert buffer == current


PRIORITIZED = DQNConfig(batch_size=4, hidden=(8,), prioritized=True, beta=0.2, final_beta=0.7, beta_steps=200)


@pytest.mark.parametrize(
    "parts", [{"config": PRIORITIZED}, {"config": PRIORITIZED, "prefetch": True}], indirect=True
)
def test_priorities_and_beta_reach_the_sampler(parts: Parts) -> None:
    parts.feed.waiting.put(episode(100))
    wait_until(lambda: parts.board.steps == 200)
    for _ in range(20):
        assert parts.learner.learn()
    parts.learner.close()
    assert isinstance(parts.sampler, PrioritizedSampler)
    assert parts.sampler.beta == pytest.approx(0.7)
    # Priorities differ from their first value by now: so do the weights.
    assert len(np.unique(parts.sampler.sample().weights.numpy())) > 1


def test_no_gpu_no_use() -> None:
    assert GpuMeter("cpu").use() is None
