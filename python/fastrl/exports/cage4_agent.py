"""Blue agents of CAGE Challenge 4 in plain NumPy.

A submission to the challenge has the text of this module in it, which therefore imports nothing of fastrl.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def fma(a: Any, b: Any, c: Any) -> Floats:
    """``a * b + c`` rounded once to float32."""
    return (np.multiply(a, b, dtype=np.float64) + c).astype(np.float32)


def dense(x: Floats, weights: NDArray[np.float64], bias: Floats) -> Floats:
    """Outputs float32 [n] of a linear layer, which adds up inputs in their order by fused multiplications. So do the
    compiled actors: sums of another order would be rounded otherwise, and choose otherwise between equals."""
    outputs = bias.copy()
    for i in np.flatnonzero(x):
        np.add(outputs, weights[i] * float(x[i]), out=outputs, dtype=np.float64, casting="same_kind")
    return outputs


def tanh(x: Floats) -> Floats:
    """Hyperbolic tangent of float32 [n], with the roundings of the compiled actors."""
    f32 = np.float32
    twice = np.minimum(2 * np.abs(x), f32(19))
    shifted = fma(twice, f32(1.442695), f32(12582912))
    k = shifted - f32(12582912)
    r = fma(k, f32(2.1219444e-4), fma(k, f32(-0.6933594), twice))
    series = np.full_like(x, 1 / 5040)
    for term in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5):
        series = fma(series, r, f32(term))
    power = np.ldexp(f32(1), k.astype(np.int32))
    e = fma(power, fma(r * r, series, r), power - 1)
    return np.copysign(e / (e + 2), x)


def sigmoid(x: Floats) -> Floats:
    return fma(tanh(np.float32(0.5) * x), 0.5, 0.5)


class Network:
    """A multi-layer perceptron, which may whiten its inputs and may have a GRU or an LSTM before its last layer.

    Args:
        architecture: widths and kinds of layers.
        weights: of all layers, float32 [n].
    """

    def __init__(self, architecture: Mapping[str, Any], weights: Floats) -> None:
        def take(*shape: int) -> Floats:
            self._at += (size := int(np.prod(shape)))
            return weights[self._at - size : self._at].reshape(shape)

        def layer(inputs: int, outputs: int) -> tuple[NDArray[np.float64], Floats]:
            return take(inputs, outputs).astype(np.float64), take(outputs)

        self._at, width = 0, architecture["obs_dim"]
        self.clip, self.activation = architecture["obs_clip"], architecture["activation"]
        if self.clip is not None:
            self.mean, self.scale = take(width), take(width)
        self.hidden = []
        for outputs in architecture["hidden"]:
            self.hidden.append(layer(width, outputs))
            width = outputs
        self.memory = architecture.get("memory")
        if self.memory is not None:
            size = architecture["memory_size"]
            self.gates = {"gru": 3, "lstm": 4}[self.memory]
            self.cell = layer(width, self.gates * size), layer(size, self.gates * size)
            width = size
        self.last = layer(width, architecture["outputs"])
        assert self._at == len(weights)

    def start(self) -> tuple[Floats, Floats]:
        """The memory of a new episode: outputs and, of an LSTM, its cells."""
        size = len(self.last[0])
        return np.zeros(size, np.float32), np.zeros(size, np.float32)

    def outputs(self, row: Floats, state: tuple[Floats, Floats]) -> tuple[Floats, tuple[Floats, Floats]]:
        """Logits float32 [n] for inputs float32 [obs_dim], and the memory after them."""
        x = row
        if self.clip is not None:
            x = np.clip((x - self.mean) * self.scale, -self.clip, self.clip)
        for layer in self.hidden:
            x = dense(x, *layer)
            x = tanh(x) if self.activation == "tanh" else np.maximum(x, 0)
        if self.memory is not None:
            state = self._remember(x, *state)
            x = state[0]
        return dense(x, *self.last), state

    def _remember(self, x: Floats, h: Floats, c: Floats) -> tuple[Floats, Floats]:
        a, b = (
            dense(each, *layer).reshape(self.gates, -1) for each, layer in zip((x, h), self.cell, strict=True)
        )
        if self.memory == "gru":
            reset, update = sigmoid(a[:2] + b[:2])
            new = tanh(fma(reset, b[2], a[2]))
            return fma(update, h - new, new), c
        enters, keeps, _, gives = sigmoid(a + b)
        c = fma(enters, tanh(a[2] + b[2]), keeps * c)
        return gives * tanh(c), c


class FlatView:
    """An agent that observes the challenge's values and takes its actions.

    Args:
        mask: the actions that this episode has, bool [242].
    """

    def __init__(self, agent: int, mask: NDArray[np.bool_]) -> None:
        self.mask, self.message = mask, np.zeros(8, np.bool_)

    def observe(self, observation: Any) -> tuple[Floats, NDArray[np.bool_]]:
        """The policy's observation, float32, after a step or at the start, and its action mask."""
        return np.asarray(observation, np.float32), self.mask

    def act(self, choice: int) -> int:
        """The index of the challenge's action for the policy's choice."""
        return choice


# Subnets: restricted A, operational A, restricted B, operational B, contractor, public, admin, office, internet.
BY_NAME = (6, 4, 8, 7, 1, 3, 5, 0, 2)
ZONES = ((0,), (1,), (2,), (3,), (6, 7, 5))
# Pairs of subnets between which users work, besides headquarters with the contractor and both restricted zones.
WORKING = (((0, 4), (1, 0), (2, 4), (2, 0), (3, 2)), ((2, 4), (3, 2)), ((0, 4), (1, 0)))
# Steps before a phase in which blocks are lifted that it should not have.
LIFT_STEPS = 12
# Hosts that are observed, and those of them on which an agent acts.
ROWS, TARGETS = 8, 4
TICKS = {"Restore": 5, "Remove": 3, "DeployDecoy": 2, "Sleep": 5}


def phase_at(time: int, episode_length: int) -> int:
    third, rest = divmod(episode_length, 3)
    return int(time >= third + (rest > 0)) + int(time >= 2 * third + rest)


def unused(phase: int, subnet: int) -> set[int]:
    """Subnets whose traffic to one no user needs in a phase."""
    pairs = {(a, b) for a in (5, 6, 7) for b in (4, 0, 2)} | set(WORKING[phase])
    used = {subnet} | {a + b - subnet for a, b in pairs if subnet in (a, b)}
    return set(range(8)) - used


class HostView(FlatView):
    """An agent that observes its hosts in rows, the most suspicious first, with what it remembers of them since their
    last Restore, and chooses among: Sleep until an alert, the next traffic rule, a decoy where fewest are, Restore and
    Remove of the first rows. An episode has a view of its own, such as in the real CybORG with `BlueFlatWrapper`:

    >>> view = HostView(4, np.ones(242, np.bool_))
    >>> obs, allowed = view.observe(np.zeros(210))  # at the start and after each step
    >>> obs.shape, allowed.shape
    ((147,), (11,))
    >>> view.act(3)  # the challenge's action, before each step
    103

    Args:
        agent: 0 to 4.
        mask: the challenge's actions that this episode has, bool, of all of the agent's; what follows is not read.
        episode_length: steps of an episode.
        messages: bits that are told with each choice, 0 to 4; a choice is 11 times the message plus the action.

    Attributes:
        message: the bits to be sent with the step, bool [8].

    Raises:
        ValueError: an argument out of its range.
    """

    # Hosts have places: of each subnet of the zone 6 servers, then 10 users. Times count steps, 0 is never.

    def __init__(
        self, agent: int, mask: NDArray[np.bool_], episode_length: int = 500, messages: int = 0
    ) -> None:
        numbers = {
            "agent": (agent, 0, 4),
            "episode_length": (episode_length, 2, 1000),
            "messages": (messages, 0, 4),
        }
        for name, (number, least, most) in numbers.items():
            if number not in range(least, most + 1):
                raise ValueError(f"{name}: expected {least} to {most}, got {number!r}")
        self.agent, self.zone, self.time, self.steps = agent, ZONES[agent], -1, episode_length
        # Values of the challenge's observation, the last ones those of messages.
        self.length = 33 + 59 * len(self.zone)
        self.bits, self.message = np.arange(messages), np.zeros(8, np.bool_)
        hosts = 16 * len(self.zone)
        if np.ndim(mask) != 1 or len(mask) < 5 * hosts + 2:
            raise ValueError(f"mask: expected at least {5 * hosts + 2} values, got shape {np.shape(mask)}")
        # By the actions of Restore.
        self.exists = mask[2 * hosts + 1 :][:hosts]
        self.is_server = np.arange(hosts) % 16 < 6
        # Times of alerts and actions, and how many alerts and decoys there were.
        self.process, self.connection, self.restored, self.removed, self.decoys = np.zeros(
            (5, hosts), np.int64
        )
        # The time of the last sign of red in the zone, and the number since a host's last Restore.
        self.sign = 0
        self.num_process, self.num_connection, self.num_signs = np.zeros((3, hosts), np.int64)
        self.blocks: list[set[int]] = [set() for _ in self.zone]
        # Kind, place and steps left of the action in progress.
        self.task: tuple[str, int, int] | None = None

    def observe(self, observation: Any) -> tuple[Floats, NDArray[np.bool_]]:
        """The policy's observation, float32 [128 + 4 * messages], and its action mask, bool [11 * 2**messages], from
        the challenge's observation [92 or more, of the last agent 210], at the start and after each step."""
        if np.ndim(observation) != 1 or len(observation) < self.length:
            raise ValueError(
                f"observation: expected at least {self.length} values, got shape {np.shape(observation)}"
            )
        self.time += 1
        if self.time:
            self._note(np.asarray(observation))
        age = self.time - np.stack([self.process, self.connection])
        seen = np.stack([self.process, self.connection]) > 0
        weights = np.where(self.is_server, [[4000], [500]], 2000)
        suspicion = (self.time - self.restored) // np.where(self.is_server, 8, 1)
        suspicion += (seen * (4 * weights // (4 + age))).sum(0)
        order = np.argsort(-suspicion, kind="stable")
        self.rows = order[self.exists[order]][:ROWS]
        self.rules = self._rules()
        self.fitting = np.flatnonzero(self.exists & (self.decoys < 4))
        told = np.asarray(observation)[self.length - 32 : self.length].reshape(4, 8)[:, self.bits].ravel()
        values = self._zone_values(seen, age), self._row_values(seen, age), told
        return np.concatenate(values, dtype=np.float32), self._mask()

    def act(self, choice: int) -> int:
        """The index of the challenge's action for the policy's choice, once before each step. An agent with an action
        in progress sleeps."""
        if self.time < 0:
            raise ValueError("act: expected observe() of the episode's start before it")
        actions = 3 + 2 * TARGETS
        if choice not in range(actions << len(self.bits)):
            raise ValueError(
                f"choice: expected an integer from 0 to {(actions << len(self.bits)) - 1}, got {choice}"
            )
        hosts, rules = 16 * len(self.zone), 8 * len(self.zone)
        sleep = 3 * hosts + 1
        if self.task is not None:
            return sleep
        message, choice = divmod(choice, actions)
        self.message[self.bits] = message >> self.bits[::-1] & 1
        if choice == 1 and self.rules:
            return self.rules[0]
        kind, place, index = "Sleep", -1, sleep
        if choice == 2 and len(self.fitting):
            place = self.fitting[self.decoys[self.fitting].argmin()]
            kind, index = "DeployDecoy", sleep + 1 + 2 * rules + place
        elif choice >= 3 and (choice - 3) % TARGETS < len(self.rows):
            place = self.rows[(choice - 3) % TARGETS]
            restores = choice < 3 + TARGETS
            kind, index = ("Restore", 2 * hosts + 1 + place) if restores else ("Remove", hosts + 1 + place)
        self.task = kind, place, TICKS[kind]
        return int(index)

    def _note(self, observation: NDArray[Any]) -> None:
        """Remembers a step by the observation after it."""
        if self.task is not None:
            kind, place, ticks = self.task
            self.task = (kind, place, ticks - 1) if ticks > 1 else None
            if ticks == 1:
                self._finish(kind, place)
        subnets = observation[1 : 1 + 59 * len(self.zone)].reshape(-1, 59) > 0
        self.blocks = [{BY_NAME[i] for i in np.flatnonzero(subnet[9:18])} for subnet in subnets]
        for alerts, times, count in (
            (subnets[:, 27:43].ravel(), self.process, self.num_process),
            (subnets[:, 43:59].ravel(), self.connection, self.num_connection),
        ):
            times[alerts] = self.time
            count[alerts] = np.minimum(count[alerts] + 1, 4)
            if self.task is not None and self.task[0] == "Sleep" and alerts.any():
                self.task = None
        processes, connections = subnets[:, 27:43].ravel(), subnets[:, 43:59].ravel()
        if (processes & self.is_server).any() or (connections & ~self.is_server).any():
            self.sign = self.time
            self.num_signs = np.minimum(self.num_signs + 1, 8)

    def _finish(self, kind: str, place: int) -> None:
        if kind == "Restore":
            for each in (
                self.process,
                self.connection,
                self.num_process,
                self.num_connection,
                self.num_signs,
                self.removed,
            ):
                each[place] = 0
            self.decoys[place], self.restored[place] = 0, self.time
        elif kind == "Remove":
            self.removed[place] = self.time
        elif kind == "DeployDecoy":
            self.decoys[place] = min(self.decoys[place] + 1, 4)

    def _phase(self, ahead: int = 0) -> int:
        return phase_at(self.time + ahead, self.steps)

    def _rules(self) -> list[int]:
        """Indices of the traffic rules that are to be lifted, then of those to be set."""
        found: list[list[int]] = [[], []]
        first = 48 * len(self.zone) + 2
        for k, to in enumerate(self.zone):
            wanted = unused(self._phase(), to) & unused(self._phase(LIFT_STEPS), to)
            others = [subnet for subnet in BY_NAME if subnet != to]
            for which, subnets in enumerate((self.blocks[k] - wanted, wanted - self.blocks[k])):
                start = first + 8 * (k + which * len(self.zone))
                found[which] += [start + others.index(subnet) for subnet in sorted(subnets)]
        return found[0] + found[1]

    def _zone_values(self, seen: NDArray[Any], age: NDArray[Any]) -> NDArray[Any]:
        users, servers = self.exists & ~self.is_server, self.exists & self.is_server
        risk = np.minimum((self.time - self.restored) / 250, 1).astype(np.float32)
        values = np.zeros(19, np.float32)
        values[:3] = self.time / self.steps, users.sum() / 30, servers.sum() / 18
        if self.task is not None:
            kind, _, ticks = self.task
            values[3] = ticks / 5
            values[{"Restore": 4, "Remove": 5}.get(kind, 6)] = 1
        values[7] = len(self.rules) / 8
        values[8] = self.decoys[self.exists].sum() / (4 * self.exists.sum())
        # Added up in this order, as the compiled view does.
        values[9] = np.cumsum(risk[users])[-1] / users.sum()
        for i, (alert, hosts) in enumerate(((0, users), (1, users), (1, servers))):
            recent = hosts & seen[alert] & (age[alert] < 8)
            values[10 + 2 * i : 12 + 2 * i] = (recent & (age[alert] == 0)).sum() / 4, recent.sum() / 4
        if self.sign:
            values[16:18] = [f / (f + self.time - self.sign) for f in (8, 64)]
        values[18] = (self.num_signs[users] == 0).mean(dtype=np.float32)
        return np.concatenate([np.arange(5) == self.agent, np.arange(3) == self._phase(), values])

    def _row_values(self, seen: NDArray[Any], age: NDArray[Any]) -> NDArray[Any]:
        rows = np.zeros((ROWS, 15), np.float32)
        columns = [
            np.ones(len(age[0])),
            self.is_server,
            *(seen & (age == 0)),
            *(seen * 4 / (4 + age)),
            *(seen * 32 / (32 + age)),
            self.num_process / 4,
            self.num_connection / 4,
            np.minimum((self.time - self.restored) / 250, 1),
            self.decoys / 4,
            (self.removed > 0) & (self.removed >= self.process),
            self.num_signs / 8,
            (self.num_signs > 0) * 32 / (32 + self.time - self.sign),
        ]
        rows[: len(self.rows)] = np.stack(columns, 1)[self.rows]
        return rows.ravel()

    def _mask(self) -> NDArray[np.bool_]:
        mask = np.zeros((1 << len(self.bits), 3 + 2 * TARGETS), np.bool_)
        mask[0, 0] = True
        if self.task is None:
            rows = np.tile(np.arange(TARGETS) < len(self.rows), 2)
            mask[:] = [True, bool(self.rules), len(self.fitting) > 0, *rows]
        return mask.ravel()


VIEWS = {"challenge": FlatView, "hosts": HostView}


class BlueAgent:
    """An agent with the methods that the challenge's evaluation calls; `start` comes before each episode.

    Args:
        number: of the agent, 0 to 4.
        network: its policy.
        view: makes what the policy observes and chooses, such as one of `VIEWS`.
        ids: length of the one-hot index of the agent behind its observation, or 0.
    """

    def __init__(self, number: int, network: Network, view: Callable[..., FlatView], ids: int) -> None:
        self.number, self.network, self.view_type = number, network, view
        self.index = np.arange(ids) == number

    def start(self, mask: Sequence[bool]) -> None:
        """Starts an episode with the challenge's actions of this mask."""
        self.view = self.view_type(self.number, np.asarray(mask, np.bool_))
        self.state = self.network.start()

    def choose(self, observation: Any) -> tuple[int, Floats]:
        """The policy's choice, and its logits."""
        row, mask = self.view.observe(observation)
        logits, self.state = self.network.outputs(np.append(row, self.index).astype(np.float32), self.state)
        logits = np.where(mask, logits, np.float32(-1e9))
        return int(logits.argmax()), logits

    def get_action(self, observation: Any, action_space: Any = None) -> int:
        """The index of the action that is taken, after the start of an episode or a step."""
        return self.view.act(self.choose(observation)[0])


def blue_agents(
    policies: Sequence[Mapping[str, Any]], members: Sequence[int], view: str, **options: Any
) -> list[BlueAgent]:
    """The agents of a team.

    Args:
        policies: of each the ``architecture``, the ``weights``, float32 in base64, and ``ids``.
        members: index of each agent's policy.
        view: of `VIEWS`.
        options: of the view.
    """
    make_view = functools.partial(VIEWS[view], **options)
    networks = [
        Network(each["architecture"], np.frombuffer(base64.b64decode(each["weights"]), "<f4"))
        for each in policies
    ]
    return [BlueAgent(i, networks[k], make_view, policies[k]["ids"]) for i, k in enumerate(members)]
