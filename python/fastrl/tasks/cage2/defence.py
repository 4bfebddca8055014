"""Measures of a defender of CAGE Challenge 2 beside its score: hosts that red held, for how long, and needless work."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.cage2.env import Cage2VectorEnv
from fastrl.envs.cage2.scenario import Cage2Scenario, challenge
from fastrl.runs.metrics import mean_and_error, ratio_and_error
from fastrl.training.comparison import Estimate


@functools.lru_cache(16)
def restored_hosts(network: Cage2Scenario) -> NDArray[np.int64]:
    """The host that each action of a network restores, an index, or -1."""
    pairs = (name.partition(" ") for name in network.actions)
    return np.array([network.hosts.index(host) if kind == "Restore" else -1 for kind, _, host in pairs])


@dataclass(frozen=True)
class Defence:
    """Measures of episodes against one red agent over one horizon. Red has a host where it has a session.

    Estimates without anything to take them of are NaN.

    Attributes:
        held: by host the share of the steps after which red has it.
        steps_to_removal: from the step in which red gets a host to the one in which it loses it, where it does.
        removed: share of the hosts that red gets, counted anew each time, which it loses before the episode ends.
        needless_restores: in an episode, each of a host that red did not have and whose service ran.
        server_reached: share of the episodes in which red ever has Op_Server0.
        first_step_at_server: the first step after which it has it, counted from 1, in these episodes.
    """

    held: dict[str, Estimate]
    steps_to_removal: Estimate
    removed: Estimate
    needless_restores: Estimate
    server_reached: Estimate
    first_step_at_server: Estimate

    @property
    def start(self) -> str:
        """The host where red starts, the only one that it has after every step."""
        return next(host for host, share in self.held.items() if share.mean == 1)

    @classmethod
    def of(cls, facts: Mapping[str, NDArray[Any]], network: Cage2Scenario | None = None) -> "Defence":
        """The measures of E episodes from their `WatchedGames.facts`; ``network``: None for the challenge's."""
        hosts = (network or challenge()).hosts
        reached = facts["first_step_at_server"] > 0
        return cls(
            {host: _mean(held) for host, held in zip(hosts, facts["held"].T, strict=True)},
            _ratio(facts["removal_steps"], facts["removals"]),
            _ratio(facts["removals"], facts["compromises"]),
            _mean(facts["needless_restores"]),
            _mean(reached),
            _mean(facts["first_step_at_server"][reached]),
        )

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any] | None) -> "Defence | None":
        """The inverse of `dataclasses.asdict`, from JSON, which has null for NaN; of None it is None."""
        if tree is None:
            return None
        found = {name: _estimate(value) for name, value in tree.items() if name != "held"}
        return cls(held={host: _estimate(value) for host, value in tree["held"].items()}, **found)


class WatchedGames(Cage2VectorEnv):
    """Games that note the true state after each step of one episode; they do not reset themselves."""

    def reset(self, **options: Any) -> tuple[NDArray[np.float32], dict[str, Any]]:
        n, length = self.num_envs, self.episode_length
        self._steps = 0
        self._actions = np.empty((length, n), np.int64)
        self._has = np.empty((length + 1, n, len(self.hosts)), np.bool_)
        self._stopped = np.empty((length + 1, n), np.bool_)
        result = super().reset(**options)
        self._note()
        return result

    def step_into(self, actions: NDArray[Any], *out: Any, **more: Any) -> None:
        self._actions[self._steps] = np.take(self.actions, actions)
        super().step_into(actions, *out, **more)
        self._steps += 1
        self._note()

    def facts(self) -> dict[str, NDArray[Any]]:
        """Facts of the N episodes, which have ended, see `facts_of`."""
        return facts_of(self._has, self._stopped, self._actions, self.network)

    def _note(self) -> None:
        self._has[self._steps] = self.truth()["red_access"] > 0
        self._stopped[self._steps] = self.episode_info("service_stopped")


def facts_of(
    has: NDArray[np.bool_],
    stopped: NDArray[np.bool_],
    actions: NDArray[np.int64],
    network: Cage2Scenario | None = None,
) -> dict[str, NDArray[Any]]:
    """Facts of N episodes of T steps.

    Args:
        has: [T + 1, N, hosts], hosts on which red has a session, before the first step and after each.
        stopped: [T + 1, N], red has stopped the service of Op_Server0.
        actions: [T, N], blue's, indices into those of the network.
        network: None for the challenge's.

    Returns:
        held [N, hosts], share of the steps after which red has each host; [N] each: compromises, removals and
        removal_steps, counts without those of the host where red starts, the last of the steps from compromise to
        removal; needless_restores; first_step_at_server, 0 if red never gets there.
    """
    network = network or challenge()
    start, target = network.native.start, network.native.target
    before, after = has[:-1], has[1:]
    taken, lost = (_of_others(changed, start) for changed in (after & ~before, before & ~after))
    # Of what red has at the end nobody knows how long it would have kept it.
    kept = np.logical_and.accumulate(after[::-1], axis=0)
    at_server = after[..., target]
    return {
        "held": after.mean(axis=0),
        "compromises": taken,
        "removals": lost,
        "removal_steps": _of_others(after, start) - _of_others(kept, start),
        "needless_restores": _needless(before, stopped[:-1], actions, network).sum(axis=0),
        "first_step_at_server": np.where(at_server.any(axis=0), at_server.argmax(axis=0) + 1, 0),
    }


def _of_others(steps: NDArray[np.bool_], start: int) -> NDArray[np.int64]:
    """Counts [N] of what is true, [T, N, hosts], without those of the host where red starts."""
    by_host = steps.sum(axis=0)
    counts: NDArray[np.int64] = by_host.sum(axis=1) - by_host[:, start]
    return counts


def _needless(
    has: NDArray[np.bool_], stopped: NDArray[np.bool_], actions: NDArray[np.int64], network: Cage2Scenario
) -> NDArray[np.bool_]:
    """True for each action, [T, N], that is a Restore and takes nothing from red, given the state before it."""
    needless = np.zeros(actions.shape, np.bool_)
    restored = restored_hosts(network)[actions]
    steps, games = restores = np.nonzero(restored >= 0)
    host, native = restored[restores], network.native
    useful = has[steps, games, host] & (host != native.start) | stopped[restores] & (host == native.target)
    needless[restores] = ~useful
    return needless


def _mean(values: NDArray[Any]) -> Estimate:
    if not len(values):
        return _NOTHING
    mean, error = mean_and_error(values.astype(np.float64))
    return Estimate(mean, error if len(values) > 1 else np.nan)


def _ratio(parts: NDArray[Any], counts: NDArray[Any]) -> Estimate:
    """The mean over all that is counted in E episodes."""
    return Estimate(*ratio_and_error(parts, counts)) if counts.any() else _NOTHING


def _estimate(tree: Mapping[str, Any]) -> Estimate:
    return Estimate(*(np.nan if value is None else value for value in tree.values()))


# One object for all NaNs: measures without some of them are equal.
_NOTHING = Estimate(np.nan, np.nan)
