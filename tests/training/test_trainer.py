"""The trainer, with a source of experience that costs nothing."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from toy_algorithm import Toy, ToyConfig

from fastrl.algorithms.protocol import Algorithm, Problem
from fastrl.collectors.protocol import CollectError, Report
from fastrl.runs.episodes import Episodes
from fastrl.runs.row import Number
from fastrl.runs.settings import RunConfig
from fastrl.sources.source import Source
from fastrl.training.callbacks import Callback, Run
from fastrl.training.evaluation import Evaluation, Returns
from fastrl.training.trainer import Trainer
from fastrl.utils.timer import Stopwatch

STEPS = 10


class Counted(Toy):
    """Learns from batches that are numbers, and counts them."""

    def update(self, experience: Any, watch: Stopwatch) -> None:
        self.weights += experience
        self.batch = float(experience)

    def metrics(self) -> Mapping[str, float]:
        return {"batch": self.batch}


class FakeSource(Source):
    """Each batch is its number and stands for `STEPS` steps, in which two episodes end."""

    collector, env_id = "fake", "fake"
    episode_steps = STEPS // 2
    steps = 0

    def __init__(self, fails_at: int | None = None, empty: tuple[int, ...] = ()) -> None:
        self.batch = self.open = self.opened = 0
        self.fails_at, self.empty = fails_at, empty

    def problem(self, total_timesteps: int, seed: int) -> Problem:
        return Problem(Box(-1, 1, (1,), np.float32), Discrete(2), 1, total_timesteps)

    def attach(self, algorithm: Algorithm[Any]) -> None:
        pass

    def __enter__(self) -> Self:
        self.open += 1
        self.opened += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open -= 1

    def next(self, watch: Stopwatch) -> Any | None:
        self.batch += 1
        if self.batch == self.fails_at:
            raise CollectError("the environment is broken")
        if self.batch in self.empty:
            return None
        self.steps += STEPS
        return self.batch

    def take_episodes(self) -> Episodes:
        if self.batch in self.empty:
            return Episodes()
        steps = self.steps - np.array([STEPS // 2, 0])
        return Episodes(np.array([1.0, 2.0]) * self.batch, np.full(2, STEPS // 2), steps)

    def report(self) -> Report:
        return Report(steps=self.steps)

    def metrics(self) -> Mapping[str, Number]:
        return {"collect/batch": self.batch}

    def summary(self) -> Mapping[str, Any]:
        return {"batch": self.batch}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "batch": self.batch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps, self.batch = state["steps"], state["batch"]


class Noted(Callback):
    """Notes its calls in a list that several share."""

    def __init__(self, name: str, calls: list[tuple[str, str, list[float]]]) -> None:
        self.name, self._calls, self.returns = name, calls, 0.0

    def on_start(self, run: Run) -> None:
        self._calls.append((self.name, "start", []))

    def on_update(self, run: Run) -> None:
        self.returns += float(run.ended.returns.sum())
        self._calls.append((self.name, "update", run.ended.returns.tolist()))

    def state_dict(self) -> dict[str, Any]:
        return {"returns": self.returns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.returns = state["returns"]


def trainer_of(source: FakeSource, *callbacks: Callback, **run: Any) -> Trainer:
    config = RunConfig(**{"total_timesteps": 3 * STEPS, "row_seconds": 0.0, **run})
    algorithm = Counted(ToyConfig(), source.problem(100, 0))
    return Trainer(config, algorithm, source, callbacks=callbacks)


def test_there_is_a_row_after_every_update_or_at_the_end() -> None:
    rows = [row.record() for row in trainer_of(FakeSource()).rows()]
    assert [row["time/total_timesteps"] for row in rows] == [10, 20, 30]
    assert [row["time/iterations"] for row in rows] == [1, 2, 3]
    assert [row["rollout/ep_rew_mean"] for row in rows] == [1.5, 3.0, 4.5]
    [row] = (row.record() for row in trainer_of(FakeSource(), row_seconds=1000.0, min_rows=0).rows())
    assert (row["time/total_timesteps"], row["time/iterations"], row["time/episodes"]) == (30, 3, 6)
    assert (row["rollout/ep_rew_mean"], row["rollout/ep_len_mean"], row["collect/batch"]) == (3.0, 5.0, 3)


@pytest.mark.parametrize("goal", [{"total_timesteps": 100}, {"total_timesteps": None, "total_episodes": 20}])
@pytest.mark.parametrize(
    ("min_rows", "steps"), [(1, [100]), (3, [40, 80, 100]), (100, list(range(10, 101, 10)))]
)
def test_fast_runs_have_rows_by_their_share_of_the_goal(
    goal: dict[str, Any], min_rows: int, steps: list[int]
) -> None:
    trainer = trainer_of(FakeSource(), row_seconds=1000.0, min_rows=min_rows, **goal)
    assert [row.steps for row in trainer.rows()] == steps


def test_callbacks_have_the_metrics_of_every_update_of_rollouts() -> None:
    seen: list[float] = []

    class Watching(Callback):
        def on_update(self, run: Run) -> None:
            seen.append(run.metrics["train/batch"])
            assert ("rollout/episodes" in run.metrics) == (run.iterations > 2)

    trainer = trainer_of(FakeSource(), Watching(), row_seconds=1000.0, min_rows=2, total_timesteps=40)
    list(trainer.rows())
    assert seen == [1.0, 2.0, 3.0, 4.0]


def test_steps_that_came_after_the_last_row_have_a_row_of_their_own() -> None:
    """Actors of a replay collect beside the trainer, also while a row is written."""
    source, rows = FakeSource(), []
    for row in trainer_of(source).rows():
        rows.append(row.record())
        if row.steps == 20:
            source.steps = 35
    assert [row["time/total_timesteps"] for row in rows] == [10, 20, 35]
    assert [row["time/iterations"] for row in rows] == [1, 2, 2]


def test_each_evaluation_has_a_row_of_its_own() -> None:
    scores = iter([Returns((1.0,)), Returns((2.0,)), Returns((3.0,))])
    evaluation = Evaluation(lambda *_, **__: next(scores), Returns.from_tree, 1, 2)
    rows = [row.record() for row in trainer_of(FakeSource(), evaluation, row_seconds=1000.0).rows()]
    assert [row["eval/mean_reward"] for row in rows] == [1.0, 2.0, 3.0]


def test_goals_are_in_steps_or_in_episodes() -> None:
    trainer = trainer_of(FakeSource(), total_timesteps=15)
    assert [row.done for row in trainer.rows()] == [10, 20]
    trainer = trainer_of(FakeSource(), total_timesteps=None, total_episodes=5)
    assert trainer.goal == (5, "episodes")
    assert [row.done for row in trainer.rows()] == [2, 4, 6]
    assert list(trainer.rows()) == []


def test_callbacks_are_called_in_order_with_the_episodes_that_have_ended() -> None:
    calls: list[tuple[str, str, list[float]]] = []
    list(trainer_of(FakeSource(), Noted("a", calls), Noted("b", calls), total_timesteps=20).rows())
    assert calls == [
        ("a", "start", []),
        ("b", "start", []),
        ("a", "update", [1.0, 2.0]),
        ("b", "update", [1.0, 2.0]),
        ("a", "update", [2.0, 4.0]),
        ("b", "update", [2.0, 4.0]),
    ]


def test_without_experience_nothing_is_learned() -> None:
    trainer = trainer_of(FakeSource(empty=(1, 3)))
    rows = [row.record() for row in trainer.rows()]
    assert [row["time/iterations"] for row in rows] == [0, 1, 1, 2, 3]
    assert [row["time/total_timesteps"] for row in rows] == [0, 10, 10, 20, 30]
    # A row without episodes keeps the mean return of the last ones for people.
    assert np.isnan([rows[0]["rollout/ep_rew_mean"], rows[2]["rollout/ep_rew_mean"]]).all()
    assert trainer.mean_return == 1.5 * (2 + 4 + 5) / 3


def test_a_state_is_resumed_from() -> None:
    straight, first = trainer_of(FakeSource(), Noted("a", [])), trainer_of(FakeSource(), Noted("a", []))
    list(straight.rows())
    next(first.rows())
    second = trainer_of(FakeSource(), Noted("a", []))
    second.load_state_dict(first.state_dict())
    assert [row.steps for row in second.rows()] == [20, 30]
    for trainer in (straight, second):
        assert (trainer.iteration, trainer.episodes, trainer.mean_return) == (3, 6, 3.0)
        assert (trainer.algorithm.weights == 6).all()  # type: ignore[attr-defined]
        assert trainer.callbacks[0].state_dict() == {"returns": 18.0}
    assert second.seconds > first.seconds > 0


def test_the_source_is_closed_when_rows_end_are_closed_or_raise() -> None:
    ended, closed, broken = FakeSource(), FakeSource(), FakeSource(fails_at=2)
    list(trainer_of(ended).rows())
    rows: Any = trainer_of(closed).rows()
    next(rows)
    assert closed.open == 1
    rows.close()
    with pytest.raises(CollectError, match="the environment is broken"):
        list(trainer_of(broken).rows())
    for source in (ended, closed, broken):
        assert (source.open, source.opened) == (0, 1)
