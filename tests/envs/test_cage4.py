"""Batches of games of CAGE Challenge 4: seeds, threads, states, messages, ends, and both modes' distributions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.cage4.env import Cage4VectorEnv

AGENTS, WIDTH, ACTIONS, SLOTS = 5, 210, 242, 136
SLEEP = [49, 49, 49, 49, 145]


class Batch:
    """N games with their arrays."""

    def __init__(self, num_envs: int, **options: Any) -> None:
        options = {
            "red_agent": "fsm",
            "episode_length": 500,
            "num_threads": 1,
            "autoreset_mode": "same_step",
            "numpy_random": False,
        } | options
        self.games = _rust.Cage4Vec(num_envs, **options)
        rows = num_envs * AGENTS
        self.obs, self.rewards = np.empty((rows, WIDTH), np.float32), np.empty(rows, np.float32)
        self.terminated, self.truncated = np.empty(rows, np.bool_), np.empty(rows, np.bool_)
        self.num_envs = num_envs

    def reset(self, seed: int | None = 0) -> NDArray[np.float32]:
        seeds = None if seed is None else np.arange(seed, seed + self.num_envs, dtype=np.uint64)
        self.games.reset(self.obs, seeds)
        return self.obs.copy()

    def step(self, actions: Any = SLEEP) -> NDArray[np.float32]:
        actions = np.broadcast_to(actions, (self.num_envs, AGENTS)).astype(np.int64).reshape(-1)
        self.games.step(actions, self.obs, self.rewards, self.terminated, self.truncated)
        return self.obs.copy()

    def busy(self) -> NDArray[np.uint8]:
        out = np.empty((self.num_envs, AGENTS), np.uint8)
        self.games.busy(out)
        return out

    def truth(self) -> dict[str, NDArray[Any]]:
        n = self.num_envs
        by_slot = {
            name: np.empty((n, SLOTS), np.uint8)
            for name in ("red_access", "red_sessions", "processes", "alerts")
        }
        arrays = {
            "hosts": np.empty((n, SLOTS), np.bool_),
            **by_slot,
            "blocked": np.empty((n, 8), np.uint16),
            "red_action": np.empty((n, 6, 3), np.int16),
            "blue_action": np.empty((n, AGENTS, 2), np.int16),
        }
        self.games.truth(**arrays)  # type: ignore[arg-type]
        return arrays

    def info(self, key: str) -> NDArray[np.float64]:
        out = np.empty(self.num_envs)
        self.games.episode_info(key, out)
        return out


def random_actions(num_envs: int, seed: int) -> Iterator[NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    while True:
        yield rng.integers(ACTIONS, size=(num_envs, AGENTS)) % np.array([82, 82, 82, 82, ACTIONS])


def index(agent: int, name: str) -> int:
    return _rust.CAGE4_ACTIONS[agent].index(name)


@pytest.mark.parametrize(
    "options",
    [{}, {"numpy_random": True, "rules": "impact+green-service"}, {"red_agent": "discovery"}],
)
def test_games_do_not_depend_on_threads_batches_or_a_restart_from_a_state(options: dict[str, Any]) -> None:
    batch, threaded = (
        Batch(9, episode_length=40, **options),
        Batch(9, episode_length=40, num_threads=3, **options),
    )
    alone = Batch(1, episode_length=40, **options)
    for each in (batch, threaded):
        each.reset(5)
    alone.reset(7)
    state, later = b"", []
    for i, actions in zip(range(90), random_actions(9, 1), strict=False):
        if i == 50:
            state = batch.games.save_state()
        obs = batch.step(actions)
        later.append(obs)
        np.testing.assert_array_equal(threaded.step(actions), obs)
        np.testing.assert_array_equal(alone.step(actions[2:3]), obs[10:15])
        assert (batch.rewards.reshape(9, 5) == batch.rewards.reshape(9, 5)[:, :1]).all()
        assert not batch.terminated.any()
        # The original ends an episode one step before its length.
        assert (batch.truncated == (i % 39 == 38)).all()
    branch = Batch(9, episode_length=40, **options)
    branch.games.load_state(state)
    for i, actions in zip(range(90), random_actions(9, 1), strict=False):
        if i >= 50:
            np.testing.assert_array_equal(branch.step(actions), later[i])


def test_the_generator_of_numpy_runs_on_through_episodes() -> None:
    one, two = Batch(1, numpy_random=True), Batch(1, numpy_random=True)
    first = one.reset(3)
    np.testing.assert_array_equal(two.reset(3), first)
    hosts = one.truth()["hosts"]
    one.reset(None)
    assert (one.truth()["hosts"] != hosts).any()
    np.testing.assert_array_equal(one.reset(3), first)
    np.testing.assert_array_equal(one.truth()["hosts"], hosts)


def test_messages_are_observed_once_after_the_next_step() -> None:
    batch = Batch(2)
    batch.reset()
    batch.games.send(np.array([[0b10000001, 0, 0, 0, 0], [0, 0, 0, 0, 0b11110000]], np.uint8))
    obs = batch.step().reshape(2, AGENTS, WIDTH)
    # The last 32 values of an agent's observation: the others' messages in their order.
    lengths = _rust.CAGE4_OBS_LENGTHS
    assert lengths == [92, 92, 92, 92, 210]
    np.testing.assert_array_equal(obs[0, 1, 60:92], [1, 0, 0, 0, 0, 0, 0, 1] + [0] * 24)
    np.testing.assert_array_equal(obs[1, 0, 60:92], [0] * 24 + [1, 1, 1, 1, 0, 0, 0, 0])
    assert not obs[0, 0, 60:92].any() and not obs[1, 4, 178:].any()
    assert not batch.step().reshape(2, AGENTS, WIDTH)[:, :, 60:92][:, :4].any()


def test_actions_take_their_time_and_a_restore_costs_each_time_it_is_submitted() -> None:
    batch = Batch(1, numpy_random=True)
    batch.reset()
    restore = index(0, "Restore restricted_zone_a_subnet_server_host_0")
    for left in (4, 3, 2, 1, 0):
        before = batch.info("action_cost")[0]
        batch.step([restore, *SLEEP[1:]])
        assert batch.busy().tolist() == [[left, 0, 0, 0, 0]]
        in_progress = [[restore, left] if left else [-1, 0], *[[-1, 0]] * 4]
        assert batch.truth()["blue_action"].tolist() == [in_progress]
        assert batch.info("action_cost")[0] == before - 1
    block = index(0, "BlockTrafficZone restricted_zone_a_subnet <- contractor_network_subnet")
    batch.step([block, *SLEEP[1:]])
    assert batch.truth()["blocked"].tolist() == [[1 << 4, 0, 0, 0, 0, 0, 0, 0]]


def test_rules_change_what_is_paid() -> None:
    original, mended = Batch(4), Batch(4, rules="impact")
    for batch in (original, mended):
        batch.reset()
        for _ in range(300):
            batch.step()
    assert (mended.info("impact") > original.info("impact")).all()
    for cause in ("work_failed", "access_failed", "action_cost"):
        np.testing.assert_array_equal(mended.info(cause), original.info(cause))
    with pytest.raises(ValueError, match=r"rules: expected 'original', or 'impact', .* got 'all'"):
        Cage4VectorEnv(rules="all")
    with pytest.raises(
        ValueError, match=r"rules: expected each name once, got 'impact' again in 'impact\+impact'"
    ):
        Cage4VectorEnv(rules="impact+impact")


def test_masks_are_false_for_hosts_that_do_not_exist_and_beyond_an_agents_actions() -> None:
    batch = Batch(3)
    batch.reset()
    masks = np.empty((3 * AGENTS, ACTIONS), np.bool_)
    batch.games.action_masks(masks)
    exists = batch.truth()["hosts"]
    for row, mask in enumerate(masks):
        names = _rust.CAGE4_ACTIONS[row % AGENTS]
        for name, allowed in zip(names, mask, strict=False):
            host = name.rpartition(" ")[2]
            expected = host not in _rust.CAGE4_HOSTS or exists[row // AGENTS][_rust.CAGE4_HOSTS.index(host)]
            assert allowed == expected, name
        assert not mask[len(names) :].any()


def test_a_game_in_fast_mode_takes_at_most_16_kilobytes() -> None:
    batch = Batch(50)
    batch.reset()
    for _, actions in zip(range(400), random_actions(50, 2), strict=False):
        batch.step(actions)
    assert len(batch.games.save_state()) / 50 < 16_384


def test_the_truth_has_the_alerts_that_agents_observe() -> None:
    batch, seen = Batch(8), 0
    batch.reset()
    # Of each subnet with an agent the places of its process alerts: servers, then users.
    places = [(agent, subnet, 28) for agent, subnet in enumerate((0, 1, 2, 3))]
    places += [(4, subnet, 28 + 59 * i) for i, subnet in enumerate((6, 7, 5))]
    for step in range(200):
        obs = batch.step().reshape(8, AGENTS, WIDTH)
        alerts = batch.truth()["alerts"].reshape(8, 8, 17)
        assert (batch.info("time") == step + 1).all() and (batch.info("phase") == obs[:, 0, 0]).all()
        for agent, subnet, first in places:
            noted = alerts[:, subnet, [*range(11, 17), *range(1, 11)]]
            np.testing.assert_array_equal(obs[:, agent, first : first + 16], noted & 1)
            np.testing.assert_array_equal(obs[:, agent, first + 16 : first + 32], noted >> 1)
            seen |= int(np.bitwise_or.reduce(noted, axis=None))
    assert seen == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"red_agent": "bline"}, "red_agent: expected 'fsm' or 'discovery', got 'bline'"),
        ({"episode_length": 1}, "episode_length: expected 2 to 1000, got 1"),
        ({"episode_length": 1001}, "episode_length: expected 2 to 1000, got 1001"),
        (
            {"rules": "impact+stealth"},
            r"rules: expected 'original', or .*'restore-cost' joined by '\+', got 'impact\+stealth'",
        ),
    ],
)
def test_options_out_of_range_give_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Batch(1, **options)


def test_an_action_out_of_range_gives_one_line_and_changes_nothing() -> None:
    batch = Batch(2)
    batch.reset()
    state = batch.games.save_state()
    for bad in (-1, ACTIONS):
        with pytest.raises(
            ValueError, match=r"^action of agent 3 of environment 0: expected an integer from 0 to 241$"
        ):
            batch.step([0, 0, 0, bad, 0])
    assert batch.games.save_state() == state


def results(numpy_random: bool, seed: int, games: int) -> dict[str, NDArray[np.float64]]:
    """Numbers of episodes in which blue acts at random."""
    batch = Batch(
        games, episode_length=200, numpy_random=numpy_random, autoreset_mode="disabled", num_threads=0
    )
    batch.reset(seed)
    alerts = np.zeros(games)
    for _, actions in zip(range(199), random_actions(games, seed), strict=False):
        obs = batch.step(actions).reshape(games, AGENTS, WIDTH)
        alerts += obs[:, 0, 28:60].sum(1)
    truth = batch.truth()
    causes = {key: batch.info(key) for key in ("work_failed", "access_failed", "impact")}
    return {
        "reward": sum(causes.values(), np.zeros(games)),
        "sessions": truth["red_sessions"].sum(1, dtype=float),
        "compromised": (truth["red_access"] > 0).sum(1, dtype=float),
        "rooted": (truth["red_access"] > 1).sum(1, dtype=float),
        "hosts": truth["hosts"].sum(1, dtype=float),
        "processes": truth["processes"].sum(1, dtype=float),
        "alerts": alerts,
        **causes,
    }


def distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The largest difference of two samples' cumulative distributions (Kolmogorov and Smirnov)."""
    at = np.concatenate([a, b])
    below = [np.searchsorted(np.sort(sample), at, side="right") / len(sample) for sample in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


@pytest.mark.slow
def test_the_fast_mode_has_the_distribution_of_the_original() -> None:
    games = 400
    fast, exact, other = results(False, 1, games), results(True, 10_000, games), results(True, 20_000, games)
    # Of ten independent comparisons one is wrong once in 10,000 runs; the seeds are fixed.
    limit = math.sqrt(-math.log(1e-4 / 10 / 2) / 2) * math.sqrt(2 / games)
    for key, values in exact.items():
        assert distance(fast[key], values) < limit, key
        assert distance(other[key], values) < limit, key
    # The comparison can tell a difference.
    assert distance(fast["reward"] * 1.3, exact["reward"]) > limit
