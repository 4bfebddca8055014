"""Number of threads of compiled code in this process: simulators, the actor and gradient steps share it."""

import statistics
import time
from collections.abc import Callable

import numpy as np

from fastrl._native._rust import PpoUpdate
from fastrl.collectors.resources import WorkerCount, cores

_TURNS = 5
# Seconds that a measurement is used again, as where models are made one after another.
_VALID_FOR = 60.0

# 0: one for each core.
_chosen = 0
_reason = ""
# The last measurement: cores, their speed in multiples of one core's, and the time at which it expires.
_measured = (0, 1.0, 0.0)


def threads() -> int:
    """Threads of compiled code: those that `choose_threads` chose, at most one for each core."""
    return min(_chosen or cores(), cores())


def reason() -> str:
    """A line that says what `choose_threads` has chosen last, and why."""
    return _reason


def choose_threads(asked: WorkerCount, measure: Callable[[int], float] | None = None) -> None:
    """Chooses how many threads compiled code has in this process. Results do not depend on it.

    Args:
        asked: so many; "auto": one for each core, or one where that is as fast, as on cores that other processes keep
            busy.
        measure: returns the seconds that a piece of work takes so many threads; by default gradient steps of a small
            network, measured at most once a minute.
    """
    global _chosen, _reason
    _chosen, available = 0, cores()
    if asked != "auto":
        _chosen = asked
        _reason = f"threads: {threads()}, as asked for" + f", of {asked}" * (threads() < asked)
        return
    if available == 1:
        _reason = "threads: 1, the only core that this process may use"
        return
    faster = _gain(available) if measure is None else _ratio(measure, available)
    _chosen = available if faster > 1 else 1
    _reason = (
        f"threads: {_chosen} of {available} cores, as all of them are {faster:.1f} times as fast as one here"
    )


def _gain(available: int) -> float:
    """Speed of gradient steps with so many threads, in multiples of one thread's."""
    global _measured
    if _measured[0] != available or time.monotonic() > _measured[2]:
        _measured = (available, _ratio(_Steps(), available), time.monotonic() + _VALID_FOR)
    return _measured[1]


def _ratio(measure: Callable[[int], float], available: int) -> float:
    # In turns, as the load of the machine changes.
    return statistics.median(measure(1) / measure(available) for _ in range(_TURNS))


class _Steps:
    """Gradient steps of a small network, a few milliseconds."""

    def __init__(self) -> None:
        size = 2048
        self._update = PpoUpdate(obs_dim=32, hidden=[64, 64], activation="tanh", nvec=[16])
        rng, count = np.random.default_rng(0), self._update.num_parameters
        self._parameters = rng.normal(0, 0.1, count).astype(np.float32)
        self._mean, self._square = np.zeros((2, count), np.float32)
        self._obs = rng.standard_normal((size, 32), np.float32)
        self._log_probs, self._advantages, self._returns, self._values = rng.standard_normal(
            (4, size), np.float32
        )
        self._order = np.arange(size)
        # Threads start, and data come into the caches.
        self(cores())

    def __call__(self, num_threads: int) -> float:
        start = time.perf_counter()
        self._update.run(
            self._parameters,
            self._mean,
            self._square,
            self._obs,
            self._order,
            np.zeros_like(self._order),
            self._log_probs,
            self._advantages,
            self._returns,
            self._values,
            None,
            None,
            self._order[None].copy(),
            steps=0,
            minibatches=2,
            clip_range=0.2,
            value_clip=None,
            value_coef=0.5,
            entropy_coef=0.0,
            max_grad_norm=0.5,
            learning_rate=1e-4,
            normalize_advantages=False,
            target_kl=None,
            num_threads=num_threads,
        )
        return time.perf_counter() - start
