"""Scripted blue defenders of CAGE Challenge 4, for many games at once.

Each agent reads its own observation: the phase, the blocks of its zone, and the alerts of its hosts. It decides when no
action of its own is in progress, so that alerts which come meanwhile are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.cage4.env import ACTIONS, AGENTS, OBS_LENGTHS, SUBNETS, Cage4VectorEnv
from fastrl.envs.record_episodes import Act
from fastrl.utils.arguments import as_integer

NUM_AGENTS = len(AGENTS)
_WIDTH = max(map(len, ACTIONS))
SLEEP: NDArray[np.int64] = np.array([names.index("Sleep") for names in ACTIONS])
# Hosts of an agent's zone in the order of actions and observations: of each subnet 6 servers, then 10 users.
_HOSTS = tuple(name.removeprefix("Restore ") for name in ACTIONS[-1] if name.startswith("Restore "))
_IS_USER: NDArray[np.bool_] = np.array(["user" in host for host in _HOSTS])
_AGENTS = np.arange(NUM_AGENTS)[:, None]
# A step before every episode, a place after all others, and the number of places of each kind of alert and host.
_NEVER, _NOT_QUEUED, _USER_PLACES = -1000, 1 << 60, 1 << 40
# Values of an observation: the phase, then 59 of each subnet of the zone, among them its blocks and two alerts a host.
_SUBNET_OBS, _BLOCKS, _PROCESS_ALERTS, _CONNECTION_ALERTS = 59, 9, 27, 43


def _host_actions(verb: str) -> NDArray[np.int64]:
    """Actions on hosts, [5, 48]; an action that does not exist, whose mask is False, where a zone has fewer."""
    table = np.full((NUM_AGENTS, len(_HOSTS)), _WIDTH - 1)
    for row, names in zip(table, ACTIONS, strict=True):
        found = [i for i, name in enumerate(names) if name.startswith(f"{verb} ")]
        row[: len(found)] = found
    return table


_REMOVE, _RESTORE, _DECOY = map(_host_actions, ("Remove", "Restore", "DeployDecoy"))
# The phases in which zones are shut off from a neighbour whose traffic no mission needs: agent, phase, neighbour.
_FIREWALL = (
    (0, 1, "contractor_network"),
    (1, 1, "restricted_zone_a"),
    (2, 2, "contractor_network"),
    (3, 2, "restricted_zone_b"),
)


class BluePolicy:
    """A defender of N games, that is of their N * 5 agents."""

    def reset(self, mask: NDArray[np.bool_] | None = None) -> None:
        """Clears its memory at the start of episodes, in all games or in those of `mask` [N]."""

    def act(
        self, obs: NDArray[np.floating], masks: NDArray[np.bool_], busy: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        """Returns the next actions [N, 5], indices into `ACTIONS` of each agent.

        Args:
            obs: observations [N * 5, D] or [N, 5, D], of which it reads the challenge's first 210 values.
            masks: of actions, [N * 5, 242] or [N, 5, 242].
            busy: steps that actions in progress still take, [N, 5]; 0: the agent chooses.

        Raises:
            ValueError: arrays of another shape.
        """
        raise NotImplementedError


def _per_agent(name: str, rows: NDArray[Any], num_envs: int, width: int) -> NDArray[Any]:
    """Rows of agents [N * 5, D] or [N, 5, D] as [N, 5, D].

    Raises:
        ValueError: another number of agents, or less than `width` values.
    """
    if rows.size != num_envs * NUM_AGENTS * rows.shape[-1] or rows.shape[-1] < width:
        raise ValueError(f"{name}: expected shape ({num_envs * NUM_AGENTS}, {width}), got {rows.shape}")
    return rows.reshape(num_envs, NUM_AGENTS, -1)


class SleepPolicy(BluePolicy):
    """A defender that does nothing."""

    def __init__(self, num_envs: int) -> None:
        self._actions = np.tile(SLEEP, (num_envs, 1))

    def act(
        self, obs: NDArray[np.floating], masks: NDArray[np.bool_], busy: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        return self._actions.copy()


class RandomPolicy(BluePolicy):
    """A defender that draws uniformly among the valid actions, in 2% of cases among all of an agent's. It chooses at
    each step, so that it also pays for each Restore that it chooses while another action is in progress."""

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        self._num_envs = num_envs
        self._random = np.random.default_rng(seed)

    def act(
        self, obs: NDArray[np.floating], masks: NDArray[np.bool_], busy: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        shape = (self._num_envs, NUM_AGENTS)
        draws = self._random.random((*shape, _WIDTH))
        masks = _per_agent("masks", masks, self._num_envs, _WIDTH)
        valid = np.where(masks, draws, -1.0).argmax(axis=2)
        return np.where(
            self._random.random(shape) < 0.02,
            self._random.integers(list(map(len, ACTIONS)), size=shape),
            valid,
        )


class AlertPolicy(BluePolicy):
    """The common base of defenders that remember when they acted on each host; subclasses choose for free agents."""

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        shape = (num_envs, NUM_AGENTS, len(_HOSTS))
        # Step of the last action on each host.
        self._acted_at = np.full(shape, _NEVER)
        self._num_envs, self._step = num_envs, 0
        self._exists = np.zeros(shape, np.bool_)

    def reset(self, mask: NDArray[np.bool_] | None = None) -> None:
        self._acted_at[slice(None) if mask is None else mask] = _NEVER

    def act(
        self, obs: NDArray[np.floating], masks: NDArray[np.bool_], busy: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        obs = _per_agent("obs", obs, self._num_envs, max(OBS_LENGTHS))
        self._exists = _per_agent("masks", masks, self._num_envs, _WIDTH)[:, _AGENTS, _RESTORE]
        if busy.shape != (self._num_envs, NUM_AGENTS):
            raise ValueError(f"busy: expected shape ({self._num_envs}, {NUM_AGENTS}), got {busy.shape}")
        free = busy == 0
        actions = np.where(free, self._choose(obs, free), SLEEP)
        self._step += 1
        return actions

    def _choose(self, obs: NDArray[np.floating], free: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Actions [N, 5] from observations [N, 5, D]; where agents are not `free` [N, 5] it changes no memory."""
        raise NotImplementedError

    def _alerts(self, obs: NDArray[np.floating], first: int) -> NDArray[np.bool_]:
        """Hosts with an alert, [N, 5, 48], whose flags start at `first` of a subnet's values."""
        subnets = obs[:, :, 1 : 1 + 3 * _SUBNET_OBS].reshape(*obs.shape[:2], 3, _SUBNET_OBS)
        return (subnets[..., first : first + 16] > 0).reshape(self._exists.shape) & self._exists

    def _note(self, where: NDArray[np.bool_], host: NDArray[np.int64]) -> None:
        """Notes that the agents `where` [N, 5] act on a `host` [N, 5]."""
        games, agents = np.nonzero(where)
        self._acted_at[games, agents, host[where]] = self._step


class ReactPolicy(AlertPolicy):
    """A defender that cleans hosts with process alerts, servers first, and else deploys a decoy on each host once.

    It restores servers, and users on which it acted less than 30 steps ago; else it removes. In the phase of a mission
    it first blocks the traffic from a neighbour that the mission does not need, and afterwards it allows it again.
    """

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        super().__init__(num_envs, seed)
        self._queued = np.zeros_like(self._exists)
        self._has_decoy = np.zeros_like(self._exists)

    def reset(self, mask: NDArray[np.bool_] | None = None) -> None:
        super().reset(mask)
        games = slice(None) if mask is None else mask
        self._queued[games] = self._has_decoy[games] = False

    def _choose(self, obs: NDArray[np.floating], free: NDArray[np.bool_]) -> NDArray[np.int64]:
        self._queued |= self._alerts(obs, _PROCESS_ALERTS) & free[..., None]
        actions = np.broadcast_to(SLEEP, free.shape).copy()
        for agent, phase, neighbour in _FIREWALL:
            closed = obs[:, agent, 1 + _BLOCKS + sorted(SUBNETS).index(neighbour)] > 0
            wanted = obs[:, agent, 0] == phase
            ways = f"{SUBNETS[agent]}_subnet <- {neighbour}_subnet"
            for verb, now in (("Block", wanted & ~closed), ("Allow", closed & ~wanted)):
                actions[now, agent] = ACTIONS[agent].index(f"{verb}TrafficZone {ways}")
        undecided = free & (actions == SLEEP)

        host = np.where(self._queued, _IS_USER, 2).argmin(axis=2)
        cleans = undecided & self._queued.any(axis=2)
        recent = self._step - _at(self._acted_at, host) < 30
        table = np.where(recent[..., None] | ~_IS_USER, _RESTORE, _REMOVE)
        actions = np.where(cleans, _at(table, host), actions)
        self._note(cleans, host)
        self._queued[(*np.nonzero(cleans), host[cleans])] = False

        lacking = self._exists & ~self._has_decoy
        host = np.where(lacking, self._random.random(lacking.shape), -1.0).argmax(axis=2)
        deploys = undecided & ~cleans & lacking.any(axis=2)
        self._has_decoy[(*np.nonzero(deploys), host[deploys])] = True
        return np.where(deploys, _DECOY[_AGENTS[:, 0], host], actions)


class GuardPolicy(AlertPolicy):
    """A defender that restores hosts with process alerts, then users with connection alerts, servers and early alerts
    first. Without alerts it restores, in one of ten steps, the host that it has left alone for longest."""

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        super().__init__(num_envs, seed)
        # Places of hosts in the order of cleaning.
        self._place = np.full(self._exists.shape, _NOT_QUEUED)

    def reset(self, mask: NDArray[np.bool_] | None = None) -> None:
        super().reset(mask)
        self._place[slice(None) if mask is None else mask] = _NOT_QUEUED

    def _choose(self, obs: NDArray[np.floating], free: NDArray[np.bool_]) -> NDArray[np.int64]:
        number = self._step * len(_HOSTS) + np.arange(len(_HOSTS))
        bad = self._alerts(obs, _PROCESS_ALERTS) & free[..., None]
        self._place = np.where(bad, number + _USER_PLACES * _IS_USER, self._place)
        tried = self._alerts(obs, _CONNECTION_ALERTS) & _IS_USER & free[..., None]
        self._place = np.where(tried & (self._place == _NOT_QUEUED), number + 2 * _USER_PLACES, self._place)

        queued = self._place.min(axis=2) < _NOT_QUEUED
        longest = np.where(self._exists, self._acted_at, _NOT_QUEUED).argmin(axis=2)
        host = np.where(queued, self._place.argmin(axis=2), longest)
        restores = free & (queued | (self._random.random(free.shape) < 0.1))
        self._note(restores, host)
        self._place[(*np.nonzero(restores), host[restores])] = _NOT_QUEUED
        return np.where(restores, _RESTORE[_AGENTS[:, 0], host], SLEEP)


def _at(values: NDArray[np.int64], host: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values [N, 5, 48] of one host [N, 5] each."""
    return np.take_along_axis(values, host[..., None], axis=2)[..., 0]


_POLICIES: dict[str, Callable[[int, int], BluePolicy]] = {
    "sleep": lambda num_envs, seed: SleepPolicy(num_envs),
    "random": RandomPolicy,
    "react": ReactPolicy,
    "guard": GuardPolicy,
}
BASELINES = tuple(_POLICIES)


def make_baseline(name: str, num_envs: int, seed: int = 0) -> BluePolicy:
    """Makes one of `BASELINES` for `num_envs` games; all but `"sleep"` draw from a generator of `seed`."""
    if name not in _POLICIES:
        raise ValueError(f"baseline: expected one of {', '.join(BASELINES)}, got {name!r}")
    return _POLICIES[name](as_integer("num_envs", num_envs, 1), as_integer("seed", seed, 0, None))


def baseline_act(name: str, env: Cage4VectorEnv, seed: int = 0) -> Act:
    """Makes one of `BASELINES` that acts in an environment, in episodes that start together."""
    policy = make_baseline(name, env.num_envs, seed)

    def act(obs: NDArray[Any], alive: NDArray[np.bool_], states: Any) -> tuple[NDArray[Any], Any]:
        if states is None:
            policy.reset()
        # The policy has a memory of its own; that there is a state says that the episodes continue.
        continues = np.ones((len(obs), 1), np.float32)
        return policy.act(obs, env.action_masks(), env.busy()).ravel(), continues

    return act
