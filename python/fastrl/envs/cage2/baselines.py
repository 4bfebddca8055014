"""The scripted blue defenders of CAGE Challenge 2, for many games at once.

They read one thing of CybORG's raw observation: the hosts on which Monitor named a suspicious process
(`Cage2VectorEnv.alerts`). A brute-forced SSH session raises no alert, so they never see it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.cage2.env import ACTIONS, HOSTS

SLEEP, MONITOR = ACTIONS.index("Sleep"), ACTIONS.index("Monitor")
USER0 = HOSTS.index("User0")


class BluePolicy(Protocol):
    """A defender of N games, which chooses among the 145 actions of `ACTIONS`."""

    def reset(self, mask: NDArray[np.bool_] | None = None) -> None:
        """Clears its memory at the start of episodes, in all games or in those of `mask` [N]."""
        ...

    def act(self, alerts: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Returns the next actions [N] from the last step's alerts, bool [N, 13] (all False at the start)."""
        ...


class SleepPolicy:
    """A defender that does nothing."""

    def __init__(self, num_envs: int) -> None:
        self._actions = np.full(num_envs, SLEEP, np.int64)

    def reset(self, mask: NDArray[np.bool_] | None = None) -> None:
        pass

    def act(self, alerts: NDArray[np.bool_]) -> NDArray[np.int64]:
        return self._actions.copy()


class RandomPolicy:
    """A defender that draws any of the 145 actions uniformly."""

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        self._num_envs = num_envs
        self._random = np.random.default_rng(seed)

    def reset(self, mask: NDArray[np.bool_] | None = None) -> None:
        pass

    def act(self, alerts: NDArray[np.bool_]) -> NDArray[np.int64]:
        return self._random.integers(len(ACTIONS), size=self._num_envs)


class ReactPolicy:
    """A defender that monitors, and removes or restores the hosts with an alert, in the order of their alerts.

    It reads alerts only after a Monitor, and ignores those that come while it cleans up. It never acts on User0.
    Source: the behaviour of `BlueReactRemoveAgent` and `BlueReactRestoreAgent` of the challenge.
    """

    def __init__(self, num_envs: int, verb: str) -> None:
        self._first_action = ACTIONS.index(f"{verb} {HOSTS[0]}")
        # Position of each host in the queue of its game, counted from 1; 0 if it is not queued.
        self._queue = np.zeros((num_envs, len(HOSTS)), np.int64)
        self._monitored: NDArray[np.bool_] = np.zeros(num_envs, np.bool_)

    def reset(self, mask: NDArray[np.bool_] | None = None) -> None:
        games = slice(None) if mask is None else mask
        self._queue[games] = 0
        self._monitored[games] = False

    def load_memory(self, states: NDArray[np.float32]) -> None:
        """Takes its memory of all games from an array [N, 14], zeros at the start of an episode."""
        self._queue[...] = states[:, : len(HOSTS)]
        self._monitored = states[:, len(HOSTS)] > 0

    def store_memory(self, states: NDArray[np.float32]) -> None:
        """Writes what `load_memory` reads."""
        states[:, : len(HOSTS)] = self._queue
        states[:, len(HOSTS)] = self._monitored

    def act(self, alerts: NDArray[np.bool_]) -> NDArray[np.int64]:
        new = alerts & (self._queue == 0) & self._monitored[:, None]
        new[:, USER0] = False
        places = self._queue.max(axis=1, keepdims=True) + np.cumsum(new, axis=1)
        self._queue[new] = places[new]
        waiting = self._queue > 0
        self._monitored = np.logical_not(waiting.any(axis=1))
        host = np.where(waiting, self._queue, np.iinfo(np.int64).max).argmin(axis=1)
        self._queue[np.arange(len(host)), host] = 0
        return np.where(self._monitored, MONITOR, self._first_action + host)


BASELINES = ("sleep", "react-remove", "react-restore", "random")


def make_baseline(name: str, num_envs: int, seed: int = 0) -> BluePolicy:
    """Makes one of `BASELINES` for `num_envs` games; only `"random"` uses `seed`."""
    match name:
        case "sleep":
            return SleepPolicy(num_envs)
        case "react-remove":
            return ReactPolicy(num_envs, "Remove")
        case "react-restore":
            return ReactPolicy(num_envs, "Restore")
        case "random":
            return RandomPolicy(num_envs, seed)
    raise ValueError(f"baseline: expected one of {', '.join(BASELINES)}, got {name!r}")
