"""A replay source whose actors are replaced by rows that the test gives."""

import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from waiting import wait_until

from fastrl.algorithms.dqn import DQN
from fastrl.algorithms.dqn_settings import DQNConfig
from fastrl.envs.spec import EnvSpec
from fastrl.replay import PrioritizedSampler
from fastrl.training import replay_actors
from fastrl.training.errors import TrainError
from fastrl.training.minibatches import ReplayConfig
from fastrl.training.profiler import GpuMeter
from fastrl.training.replay_source import ActorConfig, ReplaySource
from fastrl.utils.timer import Stopwatch


class StubTransport:
    """A transport that gives what was put into it."""

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def drain(self, take: Callable[[Any], object], timeout: float) -> int:
        try:
            rows = self.waiting.get(timeout=timeout) if timeout else self.waiting.get_nowait()
        except queue.Empty:
            return 0
        take(rows)
        return len(rows)

    def sender(self) -> None: ...
    def shutdown(self) -> None: ...
    def close(self) -> None: ...

    def dropped(self) -> int:
        return 0

    depth = waited = dropped


class StubPool:
    """No processes."""

    def __init__(self, *given: object) -> None: ...
    def dead(self) -> list[Any]:
        return []

    def close(self) -> None: ...


def make_source(**settings: Any) -> ReplaySource:
    collect = ActorConfig(n_workers=1, **settings)
    return ReplaySource(EnvSpec("CartPole-v1"), 1, ReplayConfig(capacity=1000, learning_starts=10), collect)


class Parts:
    def __init__(self, config: DQNConfig | None = None, **settings: Any) -> None:
        self.transport, self.watch = StubTransport(), Stopwatch()
        self.source = make_source(**settings)
        self.source.make_transport = lambda *given: self.transport  # type: ignore[assignment, return-value]
        config = config or DQNConfig(batch_size=4, hidden=(8,))
        self.dqn = DQN(config, self.source.problem(total_timesteps=1, seed=0, device="cpu"))
        self.source.attach(self.dqn)
        self.source.load_state_dict({"steps": 100, "dropped": 0, "restarts": 0, "lockstep": None})
        self.source.__enter__()
        assert isinstance(self.source.actors, replay_actors.ActorProcesses)
        assert self.source.minibatches.replay is not None
        self.actors, self.replay = self.source.actors, self.source.minibatches.replay
        self.batches = 0

    def episode(self, length: int, version: int = 0) -> Any:
        """Rows of one that terminates, the one with its last observation included."""
        rows = np.zeros(length + 1, self.replay.dtype)
        rows["obs"] = np.arange(length + 1)[:, None]
        rows["terminated"][length - 1] = True
        rows["end"][length] = True
        rows["version"] = version
        return rows

    def put(self, rows: Any) -> None:
        self.transport.waiting.put(rows)

    def learn(self) -> bool:
        """Learns from a minibatch if the source gives one."""
        batch = self.source.next(self.watch)
        if batch is None:
            return False
        self.source.feedback(self.dqn.update(batch, self.watch))
        self.batches += 1
        return True

    def close(self) -> None:
        self.source.__exit__(None, None, None)


@pytest.fixture
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parts]:
    monkeypatch.setattr(replay_actors, "Pool", StubPool)
    made = Parts(**getattr(request, "param", {}))
    yield made
    made.close()


def test_rows_go_to_the_replay_and_steps_are_counted(parts: Parts) -> None:
    ingest = parts.actors.ingest
    assert parts.source.steps == ingest.steps == parts.actors.counters.steps == 100
    ingest.version = 7
    parts.put(parts.episode(6, version=4))
    parts.put(parts.episode(2, version=7))
    wait_until(lambda: parts.actors.counters.steps == 108)
    assert parts.source.steps == 108
    assert len(parts.replay) == 8
    assert ingest.take_staleness() == pytest.approx(3 * 7 / 10)
    assert np.isnan(ingest.take_staleness())
    parts.close()
    assert parts.source.steps == parts.source.state_dict()["steps"] == 108


def test_an_error_in_the_ingest_thread_is_raised_by_the_learner(parts: Parts) -> None:
    parts.put(np.zeros(3, np.float32))
    with pytest.raises(IndexError):
        wait_until(parts.learn)


def test_learning_starts_when_the_replay_has_enough(parts: Parts) -> None:
    parts.put(parts.episode(9))
    wait_until(lambda: parts.source.steps == 109)
    assert not parts.learn()
    assert parts.batches == 0
    assert parts.watch.seconds["waiting"] > 0
    parts.put(parts.episode(1))
    wait_until(lambda: parts.source.steps == 110)
    assert parts.learn()
    assert parts.batches == parts.dqn.updates == 1
    assert parts.dqn.steps == 110


@pytest.mark.parametrize("parts", [{"updates_per_step": 0.5}], indirect=True)
def test_updates_per_step_bounds_minibatches_from_above(parts: Parts) -> None:
    parts.put(parts.episode(20))
    wait_until(lambda: parts.source.steps == 120)
    # Steps before learning started do not count.
    assert not any(parts.learn() for _ in range(3))
    parts.put(parts.episode(9))
    wait_until(lambda: parts.source.steps == 129)
    assert [parts.learn() for _ in range(7)] == [True] * 5 + [False] * 2


@pytest.mark.parametrize("parts", [{"min_updates_per_step": 0.1}], indirect=True)
def test_min_updates_per_step_bounds_minibatches_from_below(parts: Parts) -> None:
    """The replay takes nothing more in until the learner has caught up."""
    parts.put(parts.episode(10))
    wait_until(lambda: parts.source.steps == 110)
    assert parts.learn()
    for _ in range(5):
        parts.put(parts.episode(10))
    # Learning started with 110 steps: 10 more (learning_starts), and 10 more for each minibatch.
    wait_until(lambda: parts.source.steps >= 130)
    time.sleep(0.05)
    assert parts.source.steps == 130
    assert [parts.learn(), parts.learn()] == [True, True]
    wait_until(lambda: parts.source.steps >= 150)
    time.sleep(0.05)
    assert parts.source.steps == 150


@pytest.mark.parametrize("parts", [{"publish_every": 2}], indirect=True)
def test_weights_are_published(parts: Parts) -> None:
    ingest = parts.actors.ingest
    assert ingest.version == 1
    parts.put(parts.episode(20))
    wait_until(lambda: parts.source.steps == 120)
    for _ in range(5):
        parts.learn()
    assert ingest.version == 3
    buffer, current = (
        bytearray(parts.dqn.explorer.weights_nbytes),
        bytearray(parts.dqn.explorer.weights_nbytes),
    )
    assert parts.actors.weights.read(buffer) == 3
    parts.learn()
    parts.source.next(parts.watch)
    parts.dqn.explorer.write_weights(current)
    assert parts.actors.weights.read(buffer, newer_than=3) == 4
    assert buffer == current


PRIORITIZED = DQNConfig(batch_size=4, hidden=(8,), prioritized=True, beta=0.2, final_beta=0.7, beta_steps=200)


@pytest.mark.parametrize(
    "parts", [{"config": PRIORITIZED}, {"config": PRIORITIZED, "prefetch": "on"}], indirect=True
)
def test_priorities_and_beta_reach_the_sampler(parts: Parts) -> None:
    parts.put(parts.episode(100))
    wait_until(lambda: parts.source.steps == 200)
    for _ in range(20):
        assert parts.learn()
    parts.close()
    sampler = parts.source.minibatches.sampler
    assert isinstance(sampler, PrioritizedSampler)
    assert sampler.beta == pytest.approx(0.7)
    # Priorities differ from their first value by now: so do the weights.
    assert len(np.unique(sampler.sample().weights.numpy())) > 1


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(TrainError, match="prefetch on does not go with"):
        make_source(deterministic=True, prefetch="on")
    with pytest.raises(TrainError, match="--n-workers 2 are more than the 1 environment of --num-envs"):
        ReplaySource(
            EnvSpec("CartPole-v1"), 1, ReplayConfig(capacity=1000, learning_starts=10), ActorConfig()
        )
    with pytest.raises(TrainError, match="observations should be a Box"):
        ReplaySource(EnvSpec("FrozenLake-v1"), 2, ReplayConfig(), ActorConfig())
    # Before anything is collected.
    with pytest.raises(
        TrainError, match=r"--dqn\.action-masks: a replay of frames keeps no action masks; set"
    ):
        Parts(DQNConfig(action_masks=True))


def test_no_gpu_no_use() -> None:
    assert GpuMeter("cpu").use() is None
