"""The view of hosts of CAGE Challenge 4: against a slow model, in games that run elsewhere, and rewards by zone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastrl.envs.cage4.env import ACTIONS, AGENTS, CAUSES, MESSAGE_BITS, SUBNETS, ZONES, Cage4VectorEnv
from fastrl.envs.cage4.host_view import ACTIONS as CHOICES
from fastrl.envs.cage4.host_view import ROWS, TARGETS, observation_names
from fastrl.exports.cage4_agent import HostView

ALL = np.ones(242, np.bool_)
BY_NAME = sorted(SUBNETS)
TICKS = {"Sleep": 5, "Restore": 5, "Remove": 3, "DeployDecoy": 2}
# What green needs, from the rules of the challenge: pairs of subnets by phase.
HQ = ("public_access_zone", "admin_network", "office_network")
RA, OA, RB, OB = (f"{kind}_zone_{zone}" for zone in "ab" for kind in ("restricted", "operational"))
CON = "contractor_network"
NEEDED = [
    [(RA, CON), (OA, RA), (RB, CON), (RB, RA), (OB, RB)],
    [(RB, CON), (OB, RB)],
    [(RA, CON), (OA, RA)],
]


def hosts_of(agent: int) -> list[str]:
    return [name.removeprefix("Restore ") for name in ACTIONS[agent] if name.startswith("Restore ")]


class SlowAgent:
    """The view and the choices of one agent, from lists of all that has happened."""

    def __init__(self, agent: int, mask: NDArray[np.bool_], length: int) -> None:
        self.agent, self.length, self.time = agent, length, 0
        hosts = hosts_of(agent)
        self.hosts = [i for i, host in enumerate(hosts) if mask[ACTIONS[agent].index(f"Restore {host}")]]
        self.names = hosts
        self.subnets = list(dict.fromkeys(host.partition("_subnet_")[0] for host in hosts))
        # Times of alerts, and the ends of actions, by host.
        self.process: list[tuple[int, int]] = []
        self.connection: list[tuple[int, int]] = []
        self.ended: list[tuple[int, int, str]] = []
        self.blocks: set[tuple[str, str]] = set()
        self.task: tuple[str, int, int | None] | None = None

    def is_server(self, host: int) -> bool:
        return "server" in self.names[host]

    def restored(self, host: int) -> int:
        return max((t for t, h, verb in self.ended if h == host and verb == "Restore"), default=0)

    def since(self, events: list[tuple[int, int]], host: int) -> list[int]:
        # Alerts of the step in which a Restore ends come after it.
        return [t for t, h in events if h == host and t >= max(self.restored(host), 1)]

    def decoys(self, host: int) -> int:
        return min(
            sum(h == host and v == "DeployDecoy" and t > self.restored(host) for t, h, v in self.ended), 4
        )

    def suspicion(self, host: int) -> int:
        risk = self.time - self.restored(host)

        def faded(weight: int, times: list[int]) -> int:
            return weight * 4 // (4 + self.time - max(times)) if times else 0

        process, connection = self.since(self.process, host), self.since(self.connection, host)
        if self.is_server(host):
            return risk // 8 + faded(4000, process) + faded(500, connection)
        return risk + faded(2000, process) + faded(2000, connection)

    def rows(self) -> list[int]:
        return sorted(self.hosts, key=lambda host: (-self.suspicion(host), host))[:ROWS]

    def phase(self, ahead: int = 0) -> int:
        third, rest = divmod(self.length, 3)
        first = third + (rest > 0)
        time = self.time + ahead
        return int(time >= first) + int(time >= first + third + (rest == 2))

    def rules(self) -> list[str]:
        """Traffic rules that are not as they should be, those to lift first."""
        needed = {frozenset(pair) for ahead in (0, 12) for pair in NEEDED[self.phase(ahead)]}
        needed |= {frozenset((own, other)) for own in HQ for other in (CON, RA, RB)}
        found = []
        for verb in ("Allow", "Block"):
            for to in self.subnets:
                for other in SUBNETS[:8]:
                    wanted = other != to and frozenset((to, other)) not in needed
                    if wanted == (verb == "Block") and ((to, other) in self.blocks) == (verb == "Allow"):
                        found.append(f"{verb}TrafficZone {to}_subnet <- {other}_subnet")
                if verb == "Allow" and (to, SUBNETS[8]) in self.blocks:
                    found.append(f"AllowTrafficZone {to}_subnet <- {SUBNETS[8]}_subnet")
        return found

    def next_decoy(self) -> int | None:
        fitting = [host for host in self.hosts if self.decoys(host) < 4]
        return min(fitting, key=lambda host: (self.decoys(host), host), default=None)

    def mask(self) -> list[bool]:
        targets = [len(self.rows()) > i for i in range(TARGETS)]
        free = [bool(self.rules()), self.next_decoy() is not None, *targets, *targets]
        return [True, *(self.task is None and each for each in free)]

    def act(self, choice: int) -> str:
        """The name of the action."""
        if self.task is not None:
            return "Sleep"
        name, host = "Sleep", None
        if choice == 1 and self.rules():
            name = self.rules()[0]
        elif choice == 2:
            host = self.next_decoy()
            name = "Sleep" if host is None else f"DeployDecoy {self.names[host]}"
        elif choice > 2:
            verb, row = ("Restore", choice - 3) if choice < 3 + TARGETS else ("Remove", choice - 3 - TARGETS)
            host = self.rows()[row] if row < len(self.rows()) else None
            name = "Sleep" if host is None else f"{verb} {self.names[host]}"
        self.task = (name.partition(" ")[0], TICKS.get(name.partition(" ")[0], 1), host)
        return name

    def note(self, obs: NDArray[np.float32]) -> None:
        self.time += 1
        assert self.task is not None
        verb, ticks, host = self.task
        self.task = (verb, ticks - 1, host) if ticks > 1 else None
        if ticks == 1 and host is not None:
            self.ended.append((self.time, host, verb))
        alerted = False
        for i, subnet in enumerate(self.subnets):
            values = obs[1 + 59 * i : 60 + 59 * i]
            self.blocks = {pair for pair in self.blocks if pair[0] != subnet}
            self.blocks |= {(subnet, BY_NAME[j]) for j in range(9) if values[9 + j]}
            for events, first in ((self.process, 27), (self.connection, 43)):
                events += [(self.time, 16 * i + j) for j in range(16) if values[first + j]]
                alerted |= bool(values[first : first + 16].any())
        if alerted and self.task is not None and self.task[0] == "Sleep":
            self.task = None

    def signs(self) -> list[int]:
        """Times with an alert that red alone causes: a process on a server, a connection to a user."""
        sure = [t for t, host in self.process if self.is_server(host)]
        return sorted({*sure, *(t for t, host in self.connection if not self.is_server(host))})

    def signs_since(self, host: int) -> int:
        return sum(t >= max(self.restored(host), 1) for t in self.signs())

    def observation(self) -> list[float]:
        users = [host for host in self.hosts if not self.is_server(host)]
        servers = [host for host in self.hosts if self.is_server(host)]

        def risk(host: int) -> float:
            return min((self.time - self.restored(host)) / 250, 1)

        verb, ticks, _ = self.task or ("", 0, None)
        signs = self.signs()
        kind = ["Restore", "Remove"].index(verb) if verb in ("Restore", "Remove") else 2
        alerts = []
        for events, hosts in ((self.process, users), (self.connection, users), (self.connection, servers)):
            newest = [self.time - max(self.since(events, host), default=-1000) for host in hosts]
            alerts += [sum(age == 0 for age in newest) / 4, sum(age < 8 for age in newest) / 4]
        values = [
            *np.eye(5)[self.agent],
            *np.eye(3)[self.phase()],
            self.time / self.length,
            len(users) / 30,
            len(servers) / 18,
            ticks / 5,
            *(np.eye(3)[kind] if self.task else np.zeros(3)),
            len(self.rules()) / 8,
            sum(map(self.decoys, self.hosts)) / (4 * len(self.hosts)),
            sum(map(risk, users)) / len(users),
            *alerts,
            *((slowness / (slowness + self.time - signs[-1]) if signs else 0) for slowness in (8, 64)),
            sum(not self.signs_since(host) for host in users) / len(users),
        ]
        for host in self.rows():
            process, connection = self.since(self.process, host), self.since(self.connection, host)
            ages = [self.time - max(times) if times else None for times in (process, connection)]
            removed = max((t for t, h, v in self.ended if h == host and v == "Remove"), default=0)
            values += [
                1,
                self.is_server(host),
                *(age == 0 for age in ages),
                *(0 if age is None else 4 / (4 + age) for age in ages),
                *(0 if age is None else 32 / (32 + age) for age in ages),
                *(min(len(times), 4) / 4 for times in (process, connection)),
                risk(host),
                self.decoys(host) / 4,
                removed > self.restored(host) and removed >= max(process, default=0),
                min(self.signs_since(host), 8) / 8,
                32 / (32 + self.time - signs[-1]) if self.signs_since(host) else 0,
            ]
        return values + [0.0] * (len(observation_names()) - len(values))


def random_obs(rng: np.random.Generator, agents: list[SlowAgent]) -> NDArray[np.float32]:
    """Observations of all agents with few alerts and blocks, among them such as no game gives."""
    obs = (rng.random((5, 210)) < rng.choice([0.0, 0.02, 0.1])).astype(np.float32)
    for row, agent in zip(obs, agents, strict=True):
        # There is no action for a subnet that blocks itself.
        row[[1 + 59 * i + 9 + BY_NAME.index(subnet) for i, subnet in enumerate(agent.subnets)]] = 0
    return obs


@pytest.mark.parametrize("length", [40, 41])
def test_view_is_that_of_a_slow_model_under_random_input(length: int) -> None:
    rng = np.random.default_rng(length)
    masks = rng.random((5, 242)) < 0.7
    for agent in range(5):
        # Each zone has a user.
        masks[agent, ACTIONS[agent].index(f"Restore {hosts_of(agent)[6]}")] = True
    agents = [SlowAgent(agent, masks[agent], length) for agent in range(5)]
    views = [HostView(agent, masks[agent], length) for agent in range(5)]
    seen = np.zeros((5, 210), np.float32)
    for _ in range(length - 1):
        for each, view, names, row in zip(agents, views, ACTIONS, seen, strict=True):
            obs, allowed = view.observe(row)
            np.testing.assert_allclose(obs, each.observation(), rtol=1e-6)
            np.testing.assert_array_equal(allowed, each.mask())
            choice = int(rng.integers(len(CHOICES)))
            assert names[view.act(choice)] == each.act(choice)
        seen = random_obs(rng, agents)
        for each, row in zip(agents, seen, strict=True):
            each.note(row)


@pytest.mark.parametrize(
    ("random", "length", "messages"),
    [("fast", 91, 3), ("numpy", 90, 1), pytest.param("numpy", 500, 0, marks=pytest.mark.slow)],
)
def test_a_game_elsewhere_has_the_view_of_the_environment(random: Any, length: int, messages: int) -> None:
    env, plain = (
        Cage4VectorEnv(1, random=random, episode_length=length, autoreset_mode="disabled", **view)
        for view in ({"view": "hosts", "messages": messages}, {})
    )
    rng = np.random.default_rng(1)
    leanings = rng.dirichlet(np.full(env.num_masked, 0.3), 5) + 1e-3
    (obs, _), (seen, _) = env.reset(seed=5), plain.reset(seed=5)
    views = [HostView(agent, mask, length, messages) for agent, mask in enumerate(plain.action_masks())]
    for _ in range(length - 1):
        masks = env.action_masks()
        choices = [rng.choice(len(row), p=row / row.sum()) for row in leanings * masks]
        actions = []
        for view, row, choice, expected, mask in zip(views, seen[0], choices, obs[0], masks, strict=True):
            found, allowed = view.observe(row)
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(allowed, mask)
            actions.append(view.act(int(choice)))
        obs, rewards, *_ = env.step([choices])
        plain.send(np.packbits([view.message for view in views]).reshape(1, 5))
        seen, plain_rewards, *_ = plain.step([actions])
        np.testing.assert_array_equal(rewards, plain_rewards)
    assert plain.causes()["action_cost"] < 0


def started() -> HostView:
    view = HostView(0, ALL)
    view.observe(np.zeros(92))
    return view


def test_messages_are_seen_by_the_others_until_the_next_choice() -> None:
    env = Cage4VectorEnv(1, view="hosts", messages=2)
    first = observation_names(2).index("other agent 0, bit 0")
    expected = np.zeros((5, 4, 2))
    expected[1:, 0] = 1, 0
    env.reset(seed=0)
    # In the second step the first agent is busy, so that it does not choose.
    for message, action in ((2, "Restore row 0"), (1, "Sleep")):
        obs, *_ = env.step([[message * len(CHOICES) + CHOICES.index(action), 0, 0, 0, 0]])
        np.testing.assert_array_equal(obs[0, :, first:].reshape(5, 4, 2), expected)
        np.testing.assert_array_equal(np.flatnonzero(env.action_masks()[0]), [0])


def test_busy_agents_may_only_sleep() -> None:
    env = Cage4VectorEnv(8, view="hosts")
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    restores = 0
    for _ in range(60):
        masks = env.action_masks().reshape(8, 5, -1)
        busy = env.busy() > 0
        assert not masks[busy][:, 1:].any() and masks[..., 0].all()
        actions = (rng.random(masks.shape) * masks).argmax(2)
        restores += int(((actions >= 3) & (actions < 3 + TARGETS)).sum())
        env.step(actions)
    # Each Restore is paid for once.
    assert env.ledger()[..., CAUSES.index("action_cost")].sum() == -restores < 0


def test_rewards_of_zones_are_the_ledgers_and_add_up_to_the_teams() -> None:
    zones, team = (
        Cage4VectorEnv(16, rewards=rewards, autoreset_mode="disabled") for rewards in ("zone", "team")
    )
    rng = np.random.default_rng(0)
    sums = np.zeros((16, 5))
    zones.reset(seed=3)
    team.reset(seed=3)
    before = np.zeros(16)
    for _ in range(200):
        actions = rng.integers(82, size=(16, 5))
        sums += zones.step(actions)[1]
        team_rewards = team.step(actions)[1]
        ledger = zones.ledger()
        np.testing.assert_array_equal(team_rewards, np.tile((ledger.sum((1, 2, 3)) - before)[:, None], 5))
        before = ledger.sum((1, 2, 3))
    np.testing.assert_array_equal(ledger.sum((1, 3))[:, : len(AGENTS)], sums)
    np.testing.assert_array_equal(ledger, team.ledger())
    for cause, number in zones.causes().items():
        np.testing.assert_array_equal(ledger[..., CAUSES.index(cause)].sum((1, 2)), number)
    # All causes, phases up to the present one and zones occur.
    assert (ledger.sum((0, 1, 2)) < 0).all() and (ledger.sum((0, 1, 3)) < 0).all()
    assert not ledger[:, 2].any() and len(ZONES) == ledger.shape[2]


def test_a_saved_view_goes_on() -> None:
    env = Cage4VectorEnv(2, view="hosts", episode_length=30, messages=1)
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    for _ in range(10):
        env.step(rng.integers(len(CHOICES), size=(2, 5)))
    state, actions = env.save_state(), rng.integers(len(CHOICES), size=(2, 5))
    first = env.step(actions)
    env.load_state(state)
    for left, right in zip(first[:5], env.step(actions)[:5], strict=True):
        np.testing.assert_array_equal(left, right)
    with pytest.raises(ValueError, match="state"):
        Cage4VectorEnv(2, view="hosts", episode_length=30).load_state(state)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Cage4VectorEnv(view="rows"), "view: expected 'challenge' or 'hosts', got 'rows'"),  # type: ignore[arg-type]
        (lambda: Cage4VectorEnv(view="hosts", messages=5), "messages: expected 0 to 4, got 5"),
        (lambda: Cage4VectorEnv(messages=1), "messages: expected 0 without view='hosts', got 1"),
        (lambda: Cage4VectorEnv(rewards="mine"), "rewards: expected 'team' or 'zone', got 'mine'"),  # type: ignore[arg-type]
        (lambda: HostView(5, ALL), "agent: expected 0 to 4, got 5"),
        (lambda: HostView(0, ALL, messages=9), f"messages: expected 0 to {MESSAGE_BITS}, got 9"),
        (lambda: HostView(0, ALL).observe(ALL[:50]), "observation: expected at least 92 values, got shape"),
        (lambda: HostView(0, ALL).act(0), r"act: expected observe\(\)"),
        (lambda: HostView(4, ALL[:82]), r"mask: expected at least 242 values, got shape \(82,\)"),
        (lambda: started().act(11), "choice: expected an integer from 0 to 10, got 11"),
    ],
)
def test_bad_input_ends_in_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
