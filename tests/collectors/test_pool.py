"""Collectors in processes of their own: what they send, and what happens when they or their learner die."""

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import import_path
from waiting import TIMEOUT, wait_until
from waiting import is_running as alive

from fastrl.collectors.counters import SharedCounters, Times
from fastrl.collectors.pool import CONTEXT, CollectorError, Pool
from fastrl.collectors.transport import QueueSender, TransportClosed
from fastrl.collectors.weights import Weights
from fastrl.envs.contract import ContractError
from fastrl.queue import Empty, Queue

ROOT = Path(__file__).resolve().parents[2]


ROW = np.dtype([("job", np.int64), ("step", np.int64), ("version", np.int64), ("weight", np.int64)])


@dataclasses.dataclass(frozen=True)
class Job:
    """Counts steps.

    Attributes:
        dies_at: step at which it fails; -1: never.
        refused: its environment does not keep to Gymnasium's interface.
    """

    index: int
    dies_at: int = -1
    refused: bool = False
    attempt: int = 0


def walk(job: Job, counters: SharedCounters, sender: QueueSender, weights: Weights | None) -> None:
    """Sends a row a step, with the newest weight."""
    assert weights is not None
    buffer, rows, version = bytearray(8), np.zeros(1, ROW), 0
    for step in itertools.count():
        if counters.stop:
            raise TransportClosed
        if job.refused:
            raise ContractError("Refused: step() gave what it should not")
        if step == job.dies_at:
            raise ValueError("this game is broken")
        version = weights.read(buffer, newer_than=version) or version
        rows[0] = (job.index, step, version, int(np.frombuffer(buffer, np.int64)[0]))
        sender.put(rows)
        counters.report(job.index, step + 1, version, Times())


def test_counters_add_up() -> None:
    counters = SharedCounters(CONTEXT, 2)
    counters.report(0, 5, 1, Times(10.0, 6.0, 3.0, 0.5))
    counters.report(1, 6, 1, Times(10.0, 8.0, 1.0, 0.5))
    assert [counters.steps_of(index) for index in (0, 1)] == [5, 6]
    assert counters.times_of(1) == Times(10.0, 8.0, 1.0, 0.5)
    assert counters.times() == counters.times_of(0).plus(counters.times_of(1)) == Times(20.0, 14.0, 4.0, 1.0)
    assert not counters.stop
    counters.set_stop()
    assert counters.stop


class Setup:
    """A pool with what belongs to it."""

    def __init__(self, *jobs: Job) -> None:
        self.counters = SharedCounters(CONTEXT, len(jobs))
        # A collector that was killed may be replaced before its ring is free again.
        self.queue = Queue(ROW, 256, max_producers=len(jobs) + 1, policy="block", shared=True)
        self.weights = Weights(8)
        self.rows: list[Any] = []
        senders = [QueueSender(self.queue) for _ in jobs]
        names = [name for name in (self.queue.name, self.weights.name) if name is not None]
        self.pool = Pool(walk, jobs, senders, self.counters, self.weights, names)

    def drain(self, timeout: float) -> int:
        """Takes waiting rows; how many."""
        try:
            rows = self.queue.get_many(256, timeout=timeout)
        except Empty:
            return 0
        self.rows.extend(rows)
        return len(rows)

    def jobs_since(self, first: int = 0) -> set[int]:
        """Those that have sent rows."""
        return {int(row["job"]) for row in self.rows[first:]}

    def drain_until(self, done: Any, seconds: float = TIMEOUT) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, "it takes too long"
            self.drain(0.05)

    def jobs_at(self, version: int) -> set[int]:
        """Those that have acted on these weights."""
        return {int(row["job"]) for row in self.rows if row["version"] == version}

    def close(self) -> None:
        self.queue.shutdown(immediate=True)
        self.pool.close()
        self.queue.close()
        self.weights.close()


@pytest.fixture
def setups() -> Iterator[list[Setup]]:
    made: list[Setup] = []
    yield made
    for setup in made:
        setup.close()


def test_collectors_act_on_the_newest_weights_and_end_when_stopped(setups: list[Setup]) -> None:
    setup = Setup(Job(0), Job(1))
    setups.append(setup)
    for weight in (3, 2):
        version = setup.weights.publish(np.array([weight]).tobytes())
        setup.drain_until(lambda version=version: setup.jobs_at(version) == {0, 1})
        assert {row["weight"] for row in setup.rows if row["version"] == version} == {weight}
    pids, name = setup.pool.pids, setup.queue.name
    assert all(map(alive, pids)) and setup.pool.dead() == []
    setup.close()
    assert not any(map(alive, pids))
    assert not list(Path("/dev/shm").glob(f"*{name}"))
    setups.clear()


@pytest.mark.slow
def test_a_killed_collector_is_replaced_and_no_step_is_torn(setups: list[Setup]) -> None:
    setup = Setup(Job(0), Job(1))
    setups.append(setup)
    setup.drain_until(lambda: setup.jobs_since() == {0, 1})
    os.kill(setup.pool.pids[1], signal.SIGKILL)
    setup.drain_until(setup.pool.dead)
    (death,) = setup.pool.dead()
    assert (death.index, death.cause, death.traceback) == (1, "killed by SIGKILL", "")
    while setup.drain(0.0):
        pass
    before = len(setup.rows)
    setup.pool.restart(death)
    assert setup.pool.dead() == []
    setup.drain_until(lambda: 1 in setup.jobs_since(before))
    # It has started over.
    assert next(row["step"] for row in setup.rows[before:] if row["job"] == 1) == 0
    # The other one never noticed.
    steps = [int(row["step"]) for row in setup.rows if row["job"] == 0]
    assert all(b == a + 1 for a, b in itertools.pairwise(steps))


@pytest.mark.slow
def test_a_collector_that_dies_again_and_again_stops_the_run_with_its_traceback(setups: list[Setup]) -> None:
    setup = Setup(Job(0, dies_at=0))
    setups.append(setup)
    setup.drain_until(setup.pool.dead)
    (death,) = setup.pool.dead()
    assert death.cause == "ValueError: this game is broken"
    assert 'raise ValueError("this game is broken")' in death.traceback
    setup.pool.restart(death)
    setup.drain_until(setup.pool.dead)
    with pytest.raises(CollectorError, match=r"(?s)died 2 times before its first step.*this game is broken"):
        setup.pool.restart(setup.pool.dead()[0])


def test_a_collector_whose_environment_does_not_keep_to_the_interface_is_not_started_again(
    setups: list[Setup],
) -> None:
    setup = Setup(Job(0, refused=True))
    setups.append(setup)
    setup.drain_until(setup.pool.dead)
    (death,) = setup.pool.dead()
    assert (death.cause, death.traceback) == ("Refused: step() gave what it should not", "")
    with pytest.raises(CollectorError, match=r"^Refused: step\(\) gave what it should not$"):
        setup.pool.restart(death)


LEARNER = """
import os, sys, time
from test_pool import Job, Setup

if __name__ == "__main__":
    setup = Setup(Job(0), Job(1))
    setup.drain_until(lambda: setup.jobs_since() == {0, 1})
    print(*setup.pool.pids, setup.queue.name, setup.weights.name, flush=True)
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
