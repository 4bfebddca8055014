"""Predicts the time of an update under any collector from the costs of its parts, each measured alone.

The model draws durations of steps from those that were measured, and adds them up as a collector would wait for them:
one after another, for the slowest worker at each step, or for the slowest worker at the end. Workers that compute share
the cores; workers that sleep do not need one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.protocol import even_ranges

Kind = Literal["sequential", "sync", "executor", "native", "vector"]
"""Collectors that the model knows."""

# Steps of each environment that are drawn; longer rollouts are extrapolated from as many.
_STEPS = 256
# Most durations that are drawn for a prediction.
_DRAWN = 400_000
_MOST_DRAWS = 64

# Seconds of messages: of a task of the executor, and of each of its workers in an update; of a step of "sync", and of
# each of its workers in it.
_TASK_S, _WORKER_TASK_S = 3e-4, 1e-4
_BARRIER_S, _WORKER_BARRIER_S = 2e-5, 1.5e-5


@dataclass(frozen=True)
class Load:
    """Costs of the parts of an update.

    Attributes:
        num_envs: environments that are stepped; with whole episodes, episodes of an update.
        num_steps: of each of them between two updates.
        durations: float64 [K], seconds of steps as they came, a reset with the step before it.
        busy: share of these seconds in which the step computes; the others it sleeps or waits for a device.
        act_call, act_row: seconds of choosing actions for n rows: the former and n times the latter.
        learn: seconds of the learner in an update, without waiting, by threads of PyTorch.
        cores: that the run may use.
        overlaps: the learner learns while workers collect.
        whole: workers run whole episodes, one after another.
    """

    num_envs: int
    num_steps: int
    durations: NDArray[np.float64]
    busy: float
    act_call: float
    act_row: float
    learn: Mapping[int, float]
    cores: int
    overlaps: bool = False
    whole: bool = False

    @property
    def steps(self) -> int:
        """Environment steps of an update."""
        return self.num_envs * self.num_steps

    @property
    def step_seconds(self) -> float:
        """Mean duration of a step."""
        return float(self.durations.mean())

    def act(self, rows: float) -> float:
        """Seconds of choosing actions for so many rows."""
        return self.act_call + rows * self.act_row


def predict_seconds(load: Load, kind: Kind, workers: int, threads: int) -> float:
    """Predicts the wall-clock seconds of an update, collection and learning together.

    Args:
        workers: processes of "sync" and "executor", threads of "native"; others have one.
        threads: of PyTorch in the learner; one of ``load.learn``.
    """
    learn = load.learn[threads]
    wall, slowest, cpu = _collecting(load, kind, workers)
    if not load.overlaps or kind == "sequential":
        return slowest + learn
    # The learner computes beside the workers, and no update waits for the slowest of them.
    return max(wall, learn, (cpu + learn * threads) / load.cores)


def _collecting(load: Load, kind: Kind, workers: int) -> tuple[float, float, float]:
    """Seconds of collecting an update's steps: if no worker ever waits for another; if all are waited for; of cores."""
    total = load.steps * load.step_seconds
    if kind in ("sequential", "vector"):
        calls = load.steps if load.whole else load.num_steps
        acting = calls * load.act(1 if load.whole else load.num_envs)
        return total + acting, total + acting, load.busy * total + acting
    if kind == "native":
        acting = load.num_steps * load.act(load.num_envs)
        stepping = total / min(workers, load.cores, load.num_envs)
        return stepping + acting, stepping + acting, total + acting
    workers = min(workers, load.num_envs)
    return _sync(load, workers) if kind == "sync" else _executor(load, workers)


def _executor(load: Load, workers: int) -> tuple[float, float, float]:
    sums = _drawn(load).sum(1)
    steps = min(load.num_steps, _STEPS)
    # Deviations of sums grow with the root of the number of steps.
    mean = steps * load.step_seconds
    sums = load.num_steps * load.step_seconds + (sums - mean) * math.sqrt(load.num_steps / steps)
    if load.whole:
        acting = load.steps * load.act(1)
        walls = _listed(sums + load.num_steps * load.act(1), workers)
        computing = load.busy * walls
    else:
        ranges = even_ranges(load.num_envs, workers)
        rows = np.array([len(each) for each in ranges])
        acts = load.num_steps * (load.act_call + rows * load.act_row)
        acting = float(acts.sum())
        walls = np.add.reduceat(sums, [each.start for each in ranges], axis=1)
        computing = load.busy * walls + acts
        walls = walls + acts
    messages = _TASK_S + workers * _WORKER_TASK_S
    cpu = load.busy * load.steps * load.step_seconds + acting + messages
    return (
        max(float(walls.mean()), cpu / load.cores) + messages,
        float(np.maximum(walls.max(1), _on_cores(computing, load.cores)).mean()) + messages,
        cpu,
    )


def _sync(load: Load, workers: int) -> tuple[float, float, float]:
    starts = [each.start for each in even_ranges(load.num_envs, workers)]
    durations = _drawn(load)
    of_workers = np.add.reduceat(durations, starts, axis=2)
    shared = _on_cores(load.busy * of_workers, load.cores)
    step = float(np.maximum(of_workers.max(2), shared).mean())
    barrier = _BARRIER_S + workers * _WORKER_BARRIER_S
    acting = load.num_steps * load.act(load.num_envs)
    wall = load.num_steps * (step + barrier) + acting
    cpu = load.busy * load.steps * load.step_seconds + acting + load.num_steps * barrier
    return wall, wall, cpu


def _on_cores(seconds: NDArray[np.float64], num_cores: int) -> NDArray[np.float64]:
    """Seconds until the slowest worker is done, [...], if all start together and share the cores evenly.

    Args:
        seconds: that each worker computes, [..., workers].
    """
    ordered = np.sort(seconds, axis=-1)
    # While k workers compute, all that are left.
    left = np.arange(seconds.shape[-1], 0, -1)
    gaps = np.diff(ordered, axis=-1, prepend=0.0)
    result: NDArray[np.float64] = (gaps * np.maximum(left / num_cores, 1.0)).sum(-1)
    return result


def _drawn(load: Load) -> NDArray[np.float64]:
    """Durations drawn from those that were measured, [draws, steps, num_envs]."""
    steps = min(load.num_steps, _STEPS)
    draws = min(max(_DRAWN // (steps * load.num_envs), 1), _MOST_DRAWS)
    # The same draws for all candidates.
    return np.random.default_rng(0).choice(load.durations, (draws, steps, load.num_envs))


def _listed(sums: NDArray[np.float64], workers: int) -> NDArray[np.float64]:
    """Seconds of workers, [draws, workers], each of which takes the next episode once it is free.

    Args:
        sums: seconds of episodes, [draws, episodes].
    """
    walls = np.zeros((len(sums), workers))
    all_draws = np.arange(len(sums))
    for episode in sums.T:
        walls[all_draws, walls.argmin(1)] += episode
    return walls
