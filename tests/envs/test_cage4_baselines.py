"""The scripted defenders of CAGE Challenge 4 choose as plain ones do, and score as those of the specification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastrl.envs.cage4.baselines import BASELINES, SLEEP, make_baseline
from fastrl.envs.cage4.env import ACTIONS, AGENTS, Cage4VectorEnv

SUBNETS_OF_ZONE = [1, 1, 1, 1, 3]
CLOSED = {
    0: (1, "contractor"),
    1: (1, "restricted_zone_a"),
    2: (2, "contractor"),
    3: (2, "restricted_zone_b"),
}
BY_NAME = ["admin", "contractor", "internet", "office", "operational_zone_a", "operational_zone_b", "public"]
BY_NAME += ["restricted_zone_a", "restricted_zone_b"]
DURATIONS = {"Analyse": 2, "Remove": 3, "Restore": 5, "DeployDecoy": 2}


def hosts_of(agent: int, mask: NDArray[np.bool_]) -> list[str]:
    """Hosts of a zone, servers before users in each subnet; "" where there is none."""
    names = [name for name in ACTIONS[agent] if name.startswith("Restore ")]
    return [name.removeprefix("Restore ") if mask[ACTIONS[agent].index(name)] else "" for name in names]


class PlainAgent:
    """One agent of guard or react with lists; it says which actions it may take, and hears which was taken."""

    def __init__(self, kind: str, agent: int, mask: NDArray[np.bool_]) -> None:
        self.kind, self.agent, self.hosts = kind, agent, hosts_of(agent, mask)
        self.queue: list[tuple[int, str]] = []
        self.acted_at: dict[str, int] = {}
        self.undecoyed = [host for host in self.hosts if host]

    def choices(self, obs: NDArray[np.float32], step: int) -> list[str]:
        subnets = [obs[1 + 59 * i : 60 + 59 * i] for i in range(SUBNETS_OF_ZONE[self.agent])]
        bad, tried = (
            [
                host
                for host, flag in zip(
                    self.hosts, np.concatenate([s[at : at + 16] for s in subnets]), strict=True
                )
                if host and flag
            ]
            for at in (27, 43)
        )
        return self.guard(bad, tried) if self.kind == "guard" else self.react(obs, bad, step)

    def guard(self, bad: list[str], tried: list[str]) -> list[str]:
        for host in bad:
            self.queue = [each for each in self.queue if each[1] != host] + [(0, host)]
        for host in tried:
            if "user" in host and all(each[1] != host for each in self.queue):
                self.queue.append((1, host))
        if self.queue:
            self.queue.sort(key=lambda each: (each[0], "server" not in each[1]))
            return [f"Restore {self.queue[0][1]}"]
        longest = min((host for host in self.hosts if host), key=lambda host: self.acted_at.get(host, -1))
        return ["Sleep", f"Restore {longest}"]

    def react(self, obs: NDArray[np.float32], bad: list[str], step: int) -> list[str]:
        self.queue += [(0, host) for host in bad if (0, host) not in self.queue]
        if self.agent in CLOSED:
            phase, neighbour = CLOSED[self.agent]
            is_closed = obs[10 + BY_NAME.index(neighbour)] > 0
            if is_closed != (obs[0] == phase):
                verb = "Allow" if is_closed else "Block"
                ways = (name for name in ACTIONS[self.agent] if name.startswith(f"{verb}Traffic"))
                return [name for name in ways if f"<- {neighbour}" in name]
        if self.queue:
            self.queue.sort(key=lambda each: ("server" not in each[1], self.hosts.index(each[1])))
            host = self.queue[0][1]
            recent = step - self.acted_at.get(host, -99) < 30
            return [f"{'Restore' if recent or 'server' in host else 'Remove'} {host}"]
        return [f"DeployDecoy {host}" for host in self.undecoyed] or ["Sleep"]

    def took(self, name: str, step: int) -> None:
        verb, _, host = name.partition(" ")
        if verb == "DeployDecoy":
            self.undecoyed.remove(host)
        elif verb in ("Restore", "Remove"):
            self.acted_at[host] = step
            self.queue = [each for each in self.queue if each[1] != host]


@pytest.mark.parametrize("kind", ["guard", "react"])
def test_alerts_are_handled_as_by_plain_agents(kind: str) -> None:
    rng = np.random.default_rng(3)
    env = Cage4VectorEnv(3, autoreset_mode="disabled", num_threads=1)
    shape = env.reset(seed=2)[0].shape
    masks = env.action_masks()
    policy = make_baseline(kind, 3)

    def fresh(game: int) -> list[PlainAgent]:
        return [PlainAgent(kind, agent, masks[5 * game + agent]) for agent in range(5)]

    plain, busy, start = [fresh(game) for game in range(3)], np.zeros((3, 5), np.int64), np.zeros(3, int)
    seen = set()
    for step in range(300):
        obs = (rng.random(shape) < 0.004).astype(np.float32)
        # Two games have many alerts at times; phases change, as do what is blocked and the messages.
        obs[: step // 7 % 3] += rng.random(obs[: step // 7 % 3].shape) < 0.05
        obs[..., 0] = step // 50 % 3
        if step == 200:
            policy.reset(np.array([False, True, False]))
            plain[1], start[1] = fresh(1), step
        actions = policy.act(obs, masks, busy)
        for game, agent in np.ndindex(3, 5):
            taken = actions[game, agent]
            if busy[game, agent]:
                assert taken == SLEEP[agent]
                busy[game, agent] -= 1
                continue
            name, now = ACTIONS[agent][taken], step - start[game]
            choices = plain[game][agent].choices(obs[game, agent], now)
            assert name in choices, (step, game, agent)
            plain[game][agent].took(name, now)
            busy[game, agent] = DURATIONS.get(name.partition(" ")[0], 1) - 1
            seen.add(name.partition(" ")[0])
    assert seen >= (
        {"Restore", "Sleep"} if kind == "guard" else {"Restore", "Remove", "DeployDecoy", "BlockTrafficZone"}
    )


def play(name: str, games: int, seed: int) -> tuple[NDArray[np.float64], dict[str, NDArray[Any]]]:
    """Sums of the 498 rewards that the challenge's evaluation counts, and their causes."""
    env = Cage4VectorEnv(games, autoreset_mode="disabled", num_threads=1)
    obs, _ = env.reset(seed=seed)
    policy, masks, total = make_baseline(name, games, seed), env.action_masks(), np.zeros(games)
    for _ in range(498):
        obs, rewards, *_ = env.step(policy.act(obs, masks, env.busy()))
        total += rewards[:, 0]
    return total, env.causes()


# Means of the executable specification's episodes, with their standard errors.
SCORES = [
    ("sleep", -6897, 141),
    ("random", -4994, 99),
    ("react", -3220, 94),
    ("guard", -342, 4),
]


@pytest.mark.parametrize(("name", "mean", "error"), SCORES)
def test_baselines_score_as_those_of_the_specification(name: str, mean: float, error: float) -> None:
    total, causes = play(name, 30, 1)
    spread = np.hypot(total.std(ddof=1) / np.sqrt(len(total)), error)
    # 4.1 standard errors: one of 20,000 right policies would fail, and the seeds are fixed.
    assert abs(total.mean() - mean) < 4.1 * spread
    assert (causes["action_cost"] < 0).all() == (name != "sleep")


def test_names_and_draws() -> None:
    assert tuple(name for name, _, _ in SCORES) == BASELINES
    with pytest.raises(
        ValueError, match=r"^baseline: expected one of sleep, random, react, guard, got 'gard'$"
    ):
        make_baseline("gard", 1)
    masks = np.zeros((10, 242), np.bool_)
    for kind in ("random", "react", "guard"):
        with pytest.raises(ValueError, match=r"^masks: expected shape \(15, 242\), got \(10, 242\)$"):
            make_baseline(kind, 3).act(np.zeros((15, 210)), masks, np.zeros((3, 5), int))
    with pytest.raises(ValueError, match=r"^obs: expected shape \(10, 210\), got \(10, 92\)$"):
        make_baseline("guard", 2).act(np.zeros((10, 92)), masks, np.zeros((2, 5), int))
    with pytest.raises(ValueError, match=r"^busy: expected shape \(2, 5\), got \(3, 5\)$"):
        make_baseline("guard", 2).act(np.zeros((10, 210)), masks, np.zeros((3, 5), int))
    masks[:, [3, 30, 60]] = True
    policy, drawn = make_baseline("random", 2, seed=5), []
    for _ in range(1000):
        drawn.append(policy.act(np.zeros((10, 210), np.float32), masks, np.zeros((2, len(AGENTS)), np.uint8)))
    valid = np.isin(drawn, [3, 30, 60]).mean()
    assert 0.97 < valid < 0.99 and abs((np.array(drawn) == 3).mean() - 0.327) < 0.02
    assert (np.array(drawn)[:, :, :4] < 82).all()
