"""Values that observations of CAGE Challenge 2 may have after the challenge's bits.

``memory`` is what blue itself can remember of an episode: it depends on the bits and on blue's own actions alone, so an
agent in the real CybORG can have it too (`BlueMemory`). Each of `MEMORIES` begins with the values of the one before it:

- ``"none"``: the 52 bits.
- ``"scan"``, 62: for each of `SCAN_HOSTS` 0 if it was never scanned in this episode, 1 if it was, 2 if it was scanned
  last, as the winner of the challenge had it.
- ``"decoys"``, 103: 1 for each of the 41 `DECOY_PLACES` where a decoy of blue's stands. A Restore of the host removes
  it, nothing else does.
- ``"full"``, 240: for each kind of event (Analyse, Remove and Restore of blue's, then activity that the bits show as a
  scan, and as an exploit) 13 ages and 13 counts by host; the kind of the last action (`LAST_ACTIONS`, one-hot, zeros
  before the first one); 1 if that action could have an effect (its entry of the action mask was True before it);
  steps / 100. The age of an event is 1 / (1 + steps since the last one), 0 if there was none; the count is that of
  the episode, at most 10, divided by 10.

``observe="truth"`` adds 390 values of the true state of the game after them, which no defender can see: red's access
and sessions, its files, what was restored, the decoys, red's knowledge, the red agent, its plans, the time. With
the 52 bits they are all that the future depends on, except for random draws to come, the order of red's sessions, and
counts above 10. A policy trained on them is a bound, no defender: it is **not blue-legal**.

These are the numbers of the challenge's network. In another scenario there are more or fewer by its hosts, every one
has a value for its scans, and ``observe="truth"`` is not there.

`observation_names` names every value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastrl._native import _rust
from fastrl.utils.arguments import as_integer, one_of

if TYPE_CHECKING:
    from fastrl.envs.cage2.scenario import Cage2Scenario

Memory = Literal["none", "scan", "decoys", "full"]

Observe = Literal["blue", "truth"]

Ruleset = Literal["main", "leaderboard", "plusplus"]

MEMORIES: tuple[Memory, ...] = get_args(Memory)
_CHALLENGE = _rust.Cage2Scenario.challenge()
OBS_BITS = 4 * len(_CHALLENGE.hosts)
SCAN_HOSTS: tuple[int, ...] = tuple(_CHALLENGE.scan_hosts)


def _decoy_places(network: _rust.Cage2Scenario) -> tuple[str, ...]:
    actions, hosts = network.actions, len(network.hosts)
    return tuple(actions[2 + (2 + decoy) * hosts + host] for decoy, host in network.decoy_places)


DECOY_PLACES = _decoy_places(_CHALLENGE)
"""The actions that start a decoy where it can start."""
EVENTS = ("Analyse", "Remove", "Restore", "scan", "exploit")
LAST_ACTIONS = ("Sleep or Monitor", "Analyse", "Remove", "Restore", "decoy")

_BITS = (
    "activity",
    "activity is exploit",
    "compromise unknown or privileged",
    "compromise user or privileged",
)


def observation_names(
    memory: Memory = "none", observe: Observe = "blue", scenario: Cage2Scenario | None = None
) -> tuple[str, ...]:
    """The name of each value of an observation, in order.

    Args:
        scenario: that is played; None for the challenge's.

    Raises:
        ValueError: there is no such option.
    """
    one_of("observe", observe, get_args(Observe))
    truth = _rust.CAGE2_TRUTH if observe == "truth" else ()
    network = _CHALLENGE if scenario is None else scenario.native
    return (
        *(f"{host}: {bit}" for host in network.hosts for bit in _BITS),
        *_memory_names(memory, network),
        *truth,
    )


def _memory_names(memory: Memory, network: _rust.Cage2Scenario) -> tuple[str, ...]:
    one_of("memory", memory, MEMORIES)
    hosts = network.hosts
    parts = {
        "none": (),
        "scan": tuple(f"{hosts[host]}: scanned" for host in network.scan_hosts),
        "decoys": tuple(f"{place} stands" for place in _decoy_places(network)),
        "full": (
            *(
                f"{host}: {what} of {event}"
                for event in EVENTS
                for what in ("age", "count")
                for host in hosts
            ),
            *(f"last action: {kind}" for kind in LAST_ACTIONS),
            "last action could have an effect",
            "steps / 100",
        ),
    }
    included = MEMORIES[: MEMORIES.index(memory) + 1]
    return tuple(name for part in included for name in parts[part])


def observation_high(
    memory: Memory, episode_length: int, observe: Observe = "blue", scenario: Cage2Scenario | None = None
) -> NDArray[np.float32]:
    """The greatest values of an observation, float32 [D]; the least are 0.

    Args:
        memory, observe, scenario: as of `observation_names`.

    Raises:
        ValueError: there is no such option.
    """
    names = observation_names(memory, observe, scenario)
    network = _CHALLENGE if scenario is None else scenario.native
    high = np.ones(len(names), np.float32)
    if memory != "none":
        bits = 4 * len(network.hosts)
        high[bits : bits + len(network.scan_hosts)] = 2.0
    high[[name.startswith("steps / 100") for name in names]] = np.float32(episode_length) / np.float32(100)
    return high


class BlueMemory:
    """Blue's memory of N games that run elsewhere, such as in the real CybORG: it makes of plain observations of 52
    bits those of these environments.

    >>> blue = BlueMemory(num_envs=1, memory="full")
    >>> blue.observe(np.zeros((1, 52), np.float32)).shape  # after the game's reset
    (1, 240)
    >>> blue.observe(np.zeros((1, 52), np.float32), [132]).shape  # after a step with action 132
    (1, 240)

    Args:
        num_envs: number of games, N.
        memory: one of `MEMORIES`.
        ruleset: of the games. What blocks a decoy differs in `"plusplus"`.

    Raises:
        ValueError: an argument out of its range.
    """

    def __init__(self, num_envs: int = 1, memory: Memory = "full", ruleset: Ruleset = "main") -> None:
        self._native = _rust.BlueMemory(as_integer("num_envs", num_envs, 1), memory, ruleset)
        self.memory: Memory = memory

    @property
    def num_envs(self) -> int:
        """Number of games, N."""
        return self._native.num_envs

    @property
    def obs_dim(self) -> int:
        """Length of an observation, D."""
        return self._native.obs_dim

    def reset(self, mask: NDArray[np.bool_] | None = None) -> None:
        """Forgets everything at the start of episodes; ``mask`` bool [N] selects games."""
        self._native.reset(mask)

    def observe(self, bits: ArrayLike, actions: ArrayLike | None = None) -> NDArray[np.float32]:
        """Notes a step of every game and returns the observations after it, float32 [N, D].

        Args:
            bits: the challenge's observations, zeros and ones [N, 52].
            actions: blue's actions before them, integers [N] among the challenge's 145; -1 for a game whose episode
                starts with this observation, None for -1 everywhere. ``"none"`` and ``"scan"`` do not depend on them.

        Raises:
            TypeError: actions that are no integers.
            ValueError: another shape or other values, or no action within an episode. Nothing has changed then.
        """
        rows = np.ascontiguousarray(bits, np.float32)
        if actions is not None:
            actions = np.asarray(actions)
            if actions.dtype.kind not in "iu":
                raise TypeError(f"actions: expected integers, got {actions.dtype}")
            actions = np.ascontiguousarray(actions, np.int64)
        obs = np.empty((self.num_envs, self.obs_dim), np.float32)
        self._native.observe(rows, actions, obs)
        return obs

    def action_masks(self) -> NDArray[np.bool_]:
        """Bool [N, 145]: False for actions without an effect, as ``Cage2VectorEnv.action_masks``."""
        out = np.empty((self.num_envs, len(_rust.CAGE2_ACTIONS)), np.bool_)
        self._native.action_masks(out)
        return out
