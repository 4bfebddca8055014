"""Handing out: to workers in this process, which answer, fail and die in any order."""

import random
from collections import deque
from typing import Any

import pytest
from collect_cases import chooser, plan, rows, updates

from fastrl.collectors.fragment_arrays import Arrays, FragmentMeta, arrays_for
from fastrl.collectors.local_runner import LocalRunner
from fastrl.collectors.protocol import ACTIVITIES, CollectError, Plan
from fastrl.collectors.scheduler import TaskScheduler, TaskWorker
from fastrl.collectors.sequential import SequentialCollector
from fastrl.collectors.worker_tasks import WorkerReply

REPLY = WorkerReply(seconds=(0.001,) * len(ACTIVITIES))


class Near(TaskWorker):
    def __init__(self, index: int, env_indices: range, runner: LocalRunner) -> None:
        super().__init__(index, env_indices)
        self.runner = runner
        self.tasks: deque[tuple[int, ...]] = deque()


class NearCollector(TaskScheduler[Near]):
    """Each wait, a worker that chance picks does its oldest task, or a part of it, or dies.

    Args:
        rng: decides, with the probabilities `fails` and `dies`.

    Attributes:
        given: index of the worker and numbers of each scheduled task.
        hangs: workers that answer no more.
    """

    name = "near"

    def __init__(
        self,
        plan: Plan,
        workers: list[range],
        rng: random.Random,
        *,
        fails: float = 0.0,
        dies: float = 0.0,
        max_pending: int | None = None,
        max_failures: int = 1000,
    ) -> None:
        super().__init__(
            plan, task_timeout=60.0, max_failures=max_failures, max_pending=max_pending, task_seconds=0.01
        )
        self._expect(len(workers))
        self._rng, self._fails, self._dies = rng, fails, dies
        self.given: list[tuple[int, tuple[int, ...]]] = []
        self.hangs: set[int] = set()
        for index, env_indices in enumerate(workers):
            worker = Near(index, env_indices, LocalRunner(plan, env_indices))
            self.workers.append(worker)
            self._worker_started(worker, REPLY, 0.5)

    def _send(self, weights: Any, version: int) -> None:
        for worker in self.workers:
            worker.runner.load(self._bytes_of(weights))

    def _room(self, worker: Near, depth: int) -> int:
        return 5 if len(worker.tasks) < depth else 0

    def _submit(self, worker: Near, numbers: tuple[int, ...]) -> None:
        self.given.append((worker.index, numbers))
        worker.tasks.append(numbers)

    def _wait(self, timeout: float) -> None:
        busy = [worker for worker in self.workers if worker.tasks and worker.index not in self.hangs]
        if not busy:
            return
        worker = self._rng.choice(busy)
        if self._rng.random() < self._dies:
            self._die(worker)
            return
        numbers = worker.tasks.popleft()
        fragments: list[tuple[Arrays, FragmentMeta]] = []
        for number in numbers or (None,):
            if self._rng.random() < self._fails:
                self._task_finished(
                    worker, numbers, fragments, self.version, REPLY._replace(cause="it failed")
                )
                return
            arrays = arrays_for(self.plan, len(worker.env_indices) or 1)
            fragments.append((arrays, worker.runner.collect(arrays, number)))
        self._task_finished(worker, numbers, fragments, self.version, REPLY)

    def _die(self, worker: Near) -> None:
        given = list(worker.tasks)
        worker.tasks.clear()
        self.hangs.discard(worker.index)
        self._worker_replaced(worker, given, "it died", "")

    def _limit(self, worker: Near) -> float:
        return -1.0 if worker.index in self.hangs else float("inf")

    def _end_hanging(self, worker: Near) -> None:
        self._die(worker)

    def _memory(self) -> tuple[float, ...]:
        return (1.0,) * len(self.workers)

    def close(self) -> None:
        self.workers = []


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize("seed", range(5))
def test_failures_and_deaths_in_any_order_change_no_episode(unit: Any, seed: int) -> None:
    rng = random.Random(seed)
    same = plan(unit, seed=seed)
    env_indices = [range(2), range(2, 3), range(3, 5)] if unit == "steps" else [range(0)] * 3
    with SequentialCollector(same) as sequential:
        expected = updates(sequential, 10)
        state = sequential.state_dict()
    with NearCollector(same, env_indices, rng, fails=0.2, dies=0.2) as collector:
        assert updates(collector, 10) == expected
        report = collector.report()
        assert collector.state_dict()["numbers"] == state["numbers"]
        causes = [failure.cause for failure in report.failures]
        assert report.restarts == causes.count("it died")
        assert 0 < report.restarts < len(causes)
        assert report.steps == sum(len(each[6]) for update in expected for each in update.values())
    assert (collector.report().workers, collector.report().memory_mib) == (3, ())


def test_who_waited_longest_comes_first() -> None:
    with NearCollector(plan("episodes"), [range(0)] * 3, random.Random(0), max_pending=1) as collector:
        collector.publish(chooser(0.0))
        for number in range(7):
            fragment = collector.take()
            assert fragment is not None
            assert fragment.episodes[0, 1] == number
    assert [index for index, _ in collector.given] == [0, 1, 2, 0, 1, 2, 0]


def test_schedules_no_more_than_max_pending_fragments() -> None:
    with NearCollector(plan("steps"), [range(2), range(2, 5)], random.Random(0), max_pending=3) as collector:
        collector.publish(chooser(0.0))
        for taken in range(20):
            assert collector.take() is not None
            assert len(collector.given) <= taken + 3
    assert {index for index, _ in collector.given} == {0, 1}


def test_tasks_have_several_short_episodes_except_the_last_ones() -> None:
    with NearCollector(plan("episodes", episodes=40), [range(0)] * 2, random.Random(0)) as collector:
        updates(collector, 2)
    sizes = [len(numbers) for _, numbers in collector.given]
    assert max(sizes) > 1
    assert sizes[-2:] == [1, 1]
    assert sorted(number for _, numbers in collector.given for number in numbers) == list(range(80))


def test_an_episode_that_fails_again_and_again_stops_the_run() -> None:
    with NearCollector(
        plan("episodes"), [range(0)] * 2, random.Random(0), fails=1.0, max_failures=3
    ) as collector:
        collector.publish(chooser(0.0))
        with pytest.raises(CollectError, match=r"failed 3 times at episode \d+: it failed"):
            collector.take()


def test_a_worker_that_hangs_is_killed_and_others_do_its_task() -> None:
    with SequentialCollector(plan("episodes")) as sequential:
        expected = updates(sequential, 1)
    with NearCollector(plan("episodes"), [range(0)] * 2, random.Random(0)) as collector:
        collector.hangs = {1}
        assert updates(collector, 1) == expected
        assert collector.report().restarts == 1


def test_weights_are_asked_for_and_have_a_size() -> None:
    with NearCollector(plan(), [range(5)], random.Random(0)) as collector:
        with pytest.raises(CollectError, match="no weights yet"):
            collector.collect()
        with pytest.raises(ValueError, match="4 bytes, got 8"):
            collector.publish(b"12345678")
        assert collector.version == 0
        assert collector.publish(chooser(0.0)) == 1
        assert rows(collector.collect()).keys() == set(range(5))
        with pytest.raises(CollectError, match=r"take\(\) needs one of its own"):
            collector.take()
    with pytest.raises(CollectError, match="closed"):
        collector.collect()
