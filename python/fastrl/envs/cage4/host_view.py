"""Observations and actions of CAGE Challenge 4 by the most suspicious hosts of an agent's zone, with memory.

`Cage4VectorEnv(view="hosts")` has them. They depend on the agents' own observations, masks and actions alone, so an
agent in the real CybORG can have them too (`HostView`). `observation_names` and `ACTIONS` name every value and action.

Rows have the hosts of the zone, users and servers, in the order of suspicion: alerts since the last Restore, the newest
first, then the time since it. Users are phished without an alert; servers see false alerts of connections, which count
less. Ages of alerts fade: 4 / (4 + steps) and 32 / (32 + steps), 0 without one. Rows without a host are zeros.

Signs of red are alerts that red alone causes: of a process on a server, or of a connection to a user. They do not tell
which host is red's: hosts that were restored since are the least likely. Their ages fade by 8, 32 and 64 steps.

An agent with an action in progress has a mask that leaves only Sleep, so that a Restore is never paid for twice and
nothing is learned from a step without a choice. A Sleep of a free agent lasts 5 steps, or until an alert in its zone:
choices are fewer and matter more.

A traffic rule blocks, one pair of subnets a step, the traffic that green uses neither in the present phase nor in that
12 steps later, or lifts another block. It and decoys (up to 4 on a host) choose their targets by themselves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastrl._native import _rust
from fastrl.utils.arguments import as_integer

ROWS = 8
TARGETS = 4
ACTIONS: tuple[str, ...] = (
    "Sleep",
    "traffic rule",
    "decoy",
    *(f"Restore row {row}" for row in range(TARGETS)),
    *(f"Remove row {row}" for row in range(TARGETS)),
)
_ZONE = (
    *(f"agent {agent}" for agent in range(5)),
    *(f"phase {phase}" for phase in range(3)),
    "steps / length of the episode",
    "users / 30",
    "servers / 18",
    "steps left of the action in progress / 5",
    "Restore in progress",
    "Remove in progress",
    "other action in progress",
    "traffic rules to set / 8",
    "decoys a host / 4",
    "mean steps since a user's last Restore / 250",
    *(
        f"{alerts} / 4, {when}"
        for alerts in (
            "process alerts of users",
            "connection alerts of users",
            "connection alerts of servers",
        )
        for when in ("last step", "last 8 steps")
    ),
    "sign of red, faded",
    "sign of red, slowly faded",
    "users restored since the last sign of red / users",
)
_ROW = (
    "exists",
    "is a server",
    "process alert",
    "connection alert",
    "process alert, faded",
    "connection alert, faded",
    "process alert, slowly faded",
    "connection alert, slowly faded",
    "process alerts / 4",
    "connection alerts / 4",
    "steps since the last Restore / 250",
    "decoys / 4",
    "Remove since the last process alert",
    "signs of red since the last Restore / 8",
    "sign of red since the last Restore, slowly faded",
)


def observation_names() -> tuple[str, ...]:
    """The name of each value of an observation, in order."""
    return (*_ZONE, *(f"row {row}: {name}" for row in range(ROWS) for name in _ROW))


class HostView:
    """The view of one game that runs elsewhere, such as in the real CybORG with `BlueFlatWrapper`.

    >>> view = HostView()
    >>> masks = np.ones((5, 242), np.bool_)  # the challenge's, padded
    >>> obs, allowed = view.reset(masks)
    >>> obs.shape, allowed.shape
    ((5, 147), (5, 11))
    >>> view.actions([0, 0, 0, 0, 3])  # choices of a policy
    array([ 49,  49,  49,  49, 103])
    >>> obs, allowed = view.observe(np.zeros((5, 210), np.float32))  # after the game's step with these actions

    Args:
        episode_length: steps of an episode.

    Raises:
        ValueError: an argument out of its range.
    """

    def __init__(self, episode_length: int = 500) -> None:
        self._native = _rust.Cage4HostView(as_integer("episode_length", episode_length, 2))

    def reset(self, masks: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Starts an episode with the agents' masks of the challenge's actions, bool [5, 242]; returns observations
        float32 [5, D] and masks of the choices, bool [5, M]."""
        self._native.reset(np.ascontiguousarray(masks, np.bool_))
        return self._observed()

    def actions(self, choices: ArrayLike) -> NDArray[np.int64]:
        """The challenge's actions for choices among `ACTIONS`, both int64 [5]. Agents with an action in progress sleep,
        whatever they choose. Called once before each step."""
        out = np.empty(5, np.int64)
        self._native.act(np.ascontiguousarray(choices, np.int64), out)
        return out

    def observe(self, obs: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Notes the challenge's observations after a step, float32 [5, 210] padded with zeros; returns as `reset`."""
        self._native.observe(np.ascontiguousarray(obs, np.float32))
        return self._observed()

    def _observed(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        obs, masks = (
            np.empty((5, len(observation_names())), np.float32),
            np.empty((5, len(ACTIONS)), np.bool_),
        )
        self._native.write(obs, masks)
        return obs, masks
