"""The scripted blue defenders of CAGE Challenge 2, for many games at once.

They read one thing of CybORG's raw observation: the hosts on which Monitor named a suspicious process
(`Cage2VectorEnv.alerts`). A brute-forced SSH session raises no alert, so they never see it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.cage2.env import ACTIONS, HOSTS

USER0 = HOSTS.index("User0")


class BluePolicy:
    """A defender of N games, which chooses among the 145 actions of `ACTIONS`, or those of another network.

    Attributes:
        state_size: numbers of its memory of a game.
    """

    state_size = 0

    def reset(self, mask: NDArray[np.bool_] | None = None) -> None:
        """Clears its memory at the start of episodes, in all games or in those of `mask` [N]."""

    def act(self, alerts: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Returns the next actions [N] from the last step's alerts, bool [N, hosts] (all False at the start)."""
        raise NotImplementedError


class SleepPolicy(BluePolicy):
    """A defender that does nothing."""

    def __init__(self, num_envs: int, actions: Sequence[str] = ACTIONS) -> None:
        self._actions = np.full(num_envs, _first(actions, "Sleep"), np.int64)

    def act(self, alerts: NDArray[np.bool_]) -> NDArray[np.int64]:
        return self._actions.copy()


class RandomPolicy(BluePolicy):
    """A defender that draws any of its actions uniformly."""

    def __init__(self, num_envs: int, seed: int = 0, num_actions: int = len(ACTIONS)) -> None:
        self._num_envs, self._num_actions = num_envs, num_actions
        self._random = np.random.default_rng(seed)

    def act(self, alerts: NDArray[np.bool_]) -> NDArray[np.int64]:
        return self._random.integers(self._num_actions, size=self._num_envs)


class ReactPolicy(BluePolicy):
    """A defender that monitors, and removes or restores the hosts with an alert, in the order of their alerts.

    It reads alerts only after a Monitor, and ignores those that come while it cleans up. It never acts where red
    starts, on User0.

    Source: the behaviour of `BlueReactRemoveAgent` and `BlueReactRestoreAgent` of the challenge.

    Attributes:
        state_size: numbers of its memory of a game, hosts + 1.
    """

    def __init__(
        self, num_envs: int, verb: str, actions: Sequence[str] = ACTIONS, start: int = USER0
    ) -> None:
        self._monitor, self._first_action = _first(actions, "Monitor"), _first(actions, verb)
        self._start, self._hosts = start, sum(name.startswith(f"{verb} ") for name in actions)
        self.state_size = self._hosts + 1
        # Position of each host in the queue of its game, counted from 1; 0 if it is not queued.
        self._queue = np.zeros((num_envs, self._hosts), np.int64)
        self._monitored: NDArray[np.bool_] = np.zeros(num_envs, np.bool_)

    def reset(self, mask: NDArray[np.bool_] | None = None) -> None:
        games = slice(None) if mask is None else mask
        self._queue[games] = 0
        self._monitored[games] = False

    def load_memory(self, states: NDArray[np.float32]) -> None:
        """Takes its memory of all games from an array [N, state_size], zeros at the start of an episode."""
        self._queue[...] = states[:, : self._hosts]
        self._monitored = states[:, self._hosts] > 0

    def store_memory(self, states: NDArray[np.float32]) -> None:
        """Writes what `load_memory` reads."""
        states[:, : self._hosts] = self._queue
        states[:, self._hosts] = self._monitored

    def act(self, alerts: NDArray[np.bool_]) -> NDArray[np.int64]:
        new = alerts & (self._queue == 0) & self._monitored[:, None]
        new[:, self._start] = False
        places = self._queue.max(axis=1, keepdims=True) + np.cumsum(new, axis=1)
        self._queue[new] = places[new]
        waiting = self._queue > 0
        self._monitored = np.logical_not(waiting.any(axis=1))
        host = np.where(waiting, self._queue, np.iinfo(np.int64).max).argmin(axis=1)
        self._queue[np.arange(len(host)), host] = 0
        return np.where(self._monitored, self._monitor, self._first_action + host)


BASELINES = ("sleep", "react-remove", "react-restore", "random")


def make_baseline(
    name: str, num_envs: int, seed: int = 0, *, actions: Sequence[str] = ACTIONS, start: int = USER0
) -> BluePolicy:
    """Makes one of `BASELINES`.

    Args:
        num_envs: number of games.
        seed: of the draws of `"random"`.
        actions: names of blue's actions in the network, in order.
        start: the host where red starts, an index.

    Raises:
        ValueError: there is no such baseline, or it lacks an action.
    """
    match name:
        case "sleep":
            return SleepPolicy(num_envs, actions)
        case "react-remove":
            return ReactPolicy(num_envs, "Remove", actions, start)
        case "react-restore":
            return ReactPolicy(num_envs, "Restore", actions, start)
        case "random":
            return RandomPolicy(num_envs, seed, len(actions))
    raise ValueError(f"baseline: expected one of {', '.join(BASELINES)}, got {name!r}")


def _first(actions: Sequence[str], kind: str) -> int:
    """The first action of a kind."""
    kinds = [name.partition(" ")[0] for name in actions]
    if kind not in kinds:
        raise ValueError(
            f"baseline: expected {kind} among blue's actions, which are {', '.join(dict.fromkeys(kinds))}"
        )
    return kinds.index(kind)
