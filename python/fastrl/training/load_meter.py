"""Measures the parts of an update alone: steps of the environment, and the choice of actions."""

import resource
import statistics
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.algorithms.protocol import Algorithm
from fastrl.collectors.env_runner import EnvRunner
from fastrl.collectors.factory import is_native
from fastrl.collectors.protocol import Plan
from fastrl.envs import contract
from fastrl.training.speed_model import Kind, Load
from fastrl.utils.seeding import NO_ENV, env_seed

# Seconds for which an environment is stepped alone, and an actor acts for one size of batch.
_STEPPING_S = 0.5
_ACTING_S = 0.02
_MOST_STEPS = 5000
# Waits in a step from which an environment counts as one that sleeps.
_SLEEPING = 0.2


def kinds_for(plan: Plan) -> list[Kind]:
    """The collectors that suit a plan and are worth measuring."""
    if plan.env.is_vector:
        return ["vector"]
    if plan.env.is_local:
        return ["sequential"]
    if is_native(plan.env) and plan.obs_rows.dtype == np.float32:
        return ["native"]
    return ["sequential", "sync", "executor"]


def measure_parts(plan: Plan, algorithm: Algorithm[Any], num_cores: int, *, overlaps: bool = False) -> Load:
    """Measures steps of the environment and choices of actions, alone in this process. The learner's time is left at 0.

    Raises:
        CollectError: the environment cannot be built or stepped.
    """
    whole = plan.unit == "episodes"
    durations, busy, length = np.full(1, 1e-6), 1.0, float(plan.num_steps)
    if kinds_for(plan)[0] not in ("vector", "native"):
        durations, busy, length = measure_steps(plan)
    num_envs = plan.episodes if whole else plan.num_envs
    one = measure_acting(plan, algorithm, 1)
    many = measure_acting(plan, algorithm, num_envs) if num_envs > 1 and not whole else one
    each = max(many - one, 0.0) / max(num_envs - 1, 1)
    return Load(
        num_envs=num_envs,
        num_steps=max(round(min(length, plan.num_steps)), 1) if whole else plan.num_steps,
        durations=durations,
        busy=busy,
        act_call=max(one - each, 0.0),
        act_row=each,
        learn={1: 0.0},
        cores=num_cores,
        overlaps=overlaps,
        whole=whole,
    )


def measure_steps(plan: Plan, seconds: float = _STEPPING_S) -> tuple[NDArray[np.float64], float, float]:
    """Steps the plan's environment with random actions.

    Returns:
        Seconds of each step [K], a reset with the step before it; the share of them in which the process computes; and
        the mean length of an episode.

    Raises:
        CollectError: it cannot be built or stepped.
    """
    # Checks the spaces.
    runner = EnvRunner(plan, [0])
    runner.build()
    runner.close()
    env, form = plan.env.make(), runner.form
    env.action_space.seed(plan.seed % 2**31)
    walls: list[float] = []
    of_thread: list[float] = []
    number, ends = 0, [0]
    contract.reset(env, form, env_seed(plan.seed, NO_ENV, number))
    switches, cpu = _waits(), time.process_time()
    start = time.perf_counter()
    while len(walls) < _MOST_STEPS and (time.perf_counter() - start < seconds or len(walls) < 2):
        action = env.action_space.sample()
        before, before_cpu = time.perf_counter(), time.thread_time()
        _, _, terminated, truncated, _ = contract.step(env, form, action)
        if terminated or truncated:
            number += 1
            contract.reset(env, form, env_seed(plan.seed, NO_ENV, number))
            ends.append(len(walls) + 1)
        of_thread.append(time.thread_time() - before_cpu)
        walls.append(time.perf_counter() - before)
    passed = time.perf_counter() - start
    sleeps = _waits() - switches >= _SLEEPING * len(walls)
    busy = (time.process_time() - cpu) / passed
    env.close()
    lengths = np.diff(ends)
    length = float(lengths.mean()) if len(lengths) else float(plan.num_steps)
    # A step that never waits takes longer than it computes only where other programs have its core.
    return (np.array(walls), busy, length) if sleeps else (np.array(of_thread), 1.0, length)


def _waits() -> int:
    """Times that this thread has given up its core to wait for something."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if sys.platform == "linux" else 0


def measure_acting(plan: Plan, algorithm: Algorithm[Any], rows: int) -> float:
    """Seconds in which the plan's actor chooses actions for so many rows, the median of some calls."""
    actor = plan.make_local_actor()
    if actor.weights_nbytes:
        weights = np.zeros(actor.weights_nbytes, np.uint8)
        algorithm.write_weights(weights)
        actor.load(weights.data)
    arguments = (
        np.zeros((rows, plan.obs_dim), plan.obs_rows.dtype),
        np.arange(rows, dtype=np.uint64),
        np.zeros(rows, np.int64),
        np.zeros((rows, *plan.actions.shape), plan.actions.dtype),
        np.zeros(rows, np.float32),
        np.ones((rows, plan.num_masked), np.bool_) if plan.num_masked else None,
        plan.zero_states(rows),
    )
    actor.act(*arguments)
    times: list[float] = []
    end = time.perf_counter() + _ACTING_S
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        actor.act(*arguments)
        times.append(time.perf_counter() - start)
    return statistics.median(times)
