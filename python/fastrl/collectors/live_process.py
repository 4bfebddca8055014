"""The process of a live simulation: it steps environments at its own pace, and never waits for the learner."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import numpy as np

from fastrl.collectors.fragment_arrays import arrays_for
from fastrl.collectors.local_runner import LocalRunner
from fastrl.collectors.pace import Pace
from fastrl.collectors.protocol import ACTIVITIES, Difficulty, Plan, Stopped
from fastrl.collectors.weights import Weights
from fastrl.collectors.worker_tasks import failure_reply
from fastrl.envs.spec import unpickle
from fastrl.queue import Queue, ShutDown
from fastrl.utils import processes

HEADER = np.dtype([("version", "i8"), ("published", "f8"), ("difficulty", "f8", 3)])
"""Header of published weights: their version, the time of publication (time.monotonic, which all processes share), and
the difficulty of the next episodes: level, agents and density. NaN: the environment keeps its own."""

# File descriptor of the terminal's errors.
_STDERR = 2

# Exit code of a simulation that has sent the reply to an exception.
EXIT_REPORTED = 81

COUNTS = ("steps", "missed", "late", "latest")
"""Attributes of `Pace` that a record has."""


def record_dtype(plan: Plan) -> np.dtype[np.void]:
    """The type of a fragment as one record of a queue: its arrays, and beside them

    - the version of the policy that chose each step, and its age in seconds;
    - how many episodes ended in it, and of each the fields of `fastrl.collectors.fragment_arrays.End`;
    - the numbers of the running episodes;
    - since the process has started: the time when its environments were built, seconds by `ACTIVITIES`, and `COUNTS`.
    """
    steps, rows = plan.num_steps, plan.num_envs
    fields: list[Any] = [(name, each.dtype, each.shape) for name, each in arrays_for(plan, rows).items()]
    fields += [
        ("versions", np.int64, steps),
        ("ages", np.float64, steps),
        ("num_ended", np.int64),
        ("ended", np.float64, (steps * rows, 5 + len(plan.episode_info))),
        ("numbers", np.int64, rows),
        ("ready", np.float64),
        ("seconds", np.float64, len(ACTIVITIES)),
        *((name, np.float64) for name in COUNTS),
    ]
    # The widest come first, so that each is aligned.
    return np.dtype(sorted(fields, key=lambda each: -np.dtype(each[1]).itemsize))


class _Published:
    """Loads the policy and the difficulty that the learner has published last.

    Attributes:
        header: of them, with the fields of `HEADER`.
    """

    def __init__(self, runner: LocalRunner, weights: Weights) -> None:
        self._runner, self._weights = runner, weights
        self._buffer = bytearray(weights.nbytes)
        self.header = np.frombuffer(self._buffer, HEADER, 1)
        self._version = 0

    def load(self) -> None:
        """Loads the newest ones, unless they are loaded."""
        version = self._weights.read(self._buffer, newer_than=self._version)
        if not version:
            return
        self._version = version
        self._runner.actor.load(memoryview(self._buffer)[HEADER.itemsize :])
        level, num_agents, density = self.header["difficulty"][0].tolist()
        is_fixed = math.isnan(num_agents)
        self._runner.set_difficulty(int(level), None if is_fixed else Difficulty(int(num_agents), density))


def simulate(
    payload: bytes,
    numbers: Sequence[int],
    period: float,
    stop: Any,
    beats: Any,
    queue: Queue,
    weights: Weights,
    report: Connection,
) -> None:
    """Target of the process: steps the environments of a plan until it is asked to stop.

    Args:
        payload: the pickled plan.
        numbers: of the first episodes.
        period: seconds of a step; 0: as fast as possible.
        stop: a byte that is not 0 once it is to end.
        beats: counts its signs of life: each step, and several in a second while it waits until one is due.
        queue: of records, which drops the oldest.
        weights: with a `HEADER`, published already.
        report: gets the reply to an exception; where the process crashes or hangs, its traceback.
    """
    processes.init_worker([name for name in (queue.name, weights.name) if name is not None], report)
    stop = np.frombuffer(stop, np.uint8).data
    try:
        _run(unpickle(payload), numbers, Pace(period), stop, beats, queue, weights)
    except (Stopped, ShutDown):
        pass
    except BaseException as error:  # an environment that calls sys.exit() has failed, too
        report.send(failure_reply(error))
        sys.exit(EXIT_REPORTED)


def _run(
    plan: Plan,
    numbers: Sequence[int],
    pace: Pace,
    stop: memoryview,
    beats: Any,
    queue: Queue,
    weights: Weights,
) -> None:
    runner = LocalRunner(plan, plan.env_indices, stop, threads=None)
    runner.episode_numbers = list(numbers)
    runner.closing = lambda: processes.close_deadline(_STDERR)
    record = np.zeros(1, record_dtype(plan))
    row = {name: record[name][0] for name in record.dtype.names or ()}
    arrays = {name: row[name] for name in arrays_for(plan, plan.num_envs)}
    loop = runner.build()
    record["ready"] = time.monotonic()
    published = _Published(runner, weights)
    published.load()

    def is_stopped() -> bool:
        beats.value += 1
        return stop[0] != 0

    def before_step(t: int) -> None:
        beats.value += 1
        pace.next_step(is_stopped)
        start = perf_counter()
        published.load()
        runner.seconds["weights"] += perf_counter() - start
        header = published.header
        row["versions"][t], row["ages"][t] = header["version"][0], time.monotonic() - header["published"][0]

    loop.before_step = before_step
    with queue.producer() as producer:
        while True:
            meta = runner.collect(arrays)
            runner.seconds["waiting"] = pace.waited
            record["num_ended"], record["numbers"] = len(meta.ends), runner.episode_numbers
            for i, (*ended, info) in enumerate(meta.ends):
                row["ended"][i] = *ended, *info
            record["seconds"] = [runner.seconds[part] for part in ACTIVITIES]
            for name in COUNTS:
                record[name] = getattr(pace, name)
            start = perf_counter()
            producer.put_many(record)
            runner.seconds["buffer"] += perf_counter() - start
