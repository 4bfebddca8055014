"""Scenario files of CAGE Challenge 2: networks of your own, in the YAML of CybORG 2.1.

A file has the three parts that Scenario2.yaml of the challenge has, `Agents`, `Hosts` and `Subnets`. Every part of it
that changes a game is read; what CybORG could do and this simulator does not is refused, in one line that names the
place. `docs/environments/cage2-scenarios.md` lists what may stand where.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fastrl._native import _rust
from fastrl.utils.errors import UserError
from fastrl.utils.names import did_you_mean

MAX_BYTES = 1 << 20
"""Longer files are refused."""
KINDS = tuple(dict.fromkeys(action.split()[0] for action in _rust.CAGE2_ACTIONS))
"""Kinds of blue's actions, in the challenge's order: Sleep, Monitor, and those on hosts."""
RED_ACTIONS = tuple(_rust.CAGE2_RED_KINDS)
COST_TENTHS = {"None": 0, "Low": 1, "Medium": 10, "High": 100}
_SESSION_KEYS = {"artifacts", "hostname", "name", "num_children_sessions", "parent", "type", "username"}
_AGENT_KEYS = {"AllowedSubnets", "INT", "adversary", "actions", "agent_type", "reward_calculator_type"} | {
    "starting_sessions",
    "wrappers",
}

T = TypeVar("T")


class ScenarioError(UserError, ValueError):
    """A scenario file that cannot be read or played; the message is one line."""


@dataclass(frozen=True)
class Cage2Scenario:
    """A scenario, ready to be played.

    Attributes:
        hosts: names of the hosts, in the order of observations and actions.
        subnets: names of the subnets, in the order of their first hosts.
        actions: names of blue's actions, in the order of CybORG's ``ChallengeWrapper``.
        effective_actions: indices into ``actions`` of those that can ever have an effect.
        red_agents: names of the scripted reds that can play in it.
        native: the compiled tables. Its indices of hosts and subnets are those here, its actions all that there are.
    """

    hosts: tuple[str, ...]
    subnets: tuple[str, ...]
    actions: tuple[str, ...]
    effective_actions: tuple[int, ...]
    red_agents: tuple[str, ...]
    native: _rust.Cage2Scenario
    _places: tuple[int, ...]

    def places(self, actions: Sequence[int]) -> list[int]:
        """Indices into the compiled scenario's actions, which are all that there are, of indices into ``actions``."""
        return [self._places[action] for action in actions]

    def layout(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Subnets with their hosts, as pictures show them: where red starts comes first, then what it reaches, then
        what the firewall keeps from it; within a subnet the servers of blue's sessions and of OTService come last."""
        native, names, subnet_of = self.native, self.hosts, self.native.subnet_of
        servers, access = (native.server, native.target), native.access
        ways = [
            (i != subnet_of[native.start], ("open", "gated", "closed").index(access[i]), i)
            for i in range(len(self.subnets))
        ]
        hosts = sorted(range(len(names)), key=lambda host: host in servers)
        return tuple(
            (self.subnets[i], tuple(names[host] for host in hosts if subnet_of[host] == i))
            for *_, i in sorted(ways)
        )


@dataclass(frozen=True)
class Node:
    """A value of a file and the keys that lead to it."""

    value: Any
    place: str

    def refuse(self, expected: str) -> ScenarioError:
        got = repr(self.value)
        return ScenarioError(
            f"{self.place or 'the file'}: expected {expected}, got {got if len(got) <= 60 else got[:57] + '...'}"
        )

    def table(self, known: set[str] | None = None) -> dict[str, Node]:
        """The entries of a mapping; others than ``known`` are refused."""
        if not isinstance(self.value, Mapping):
            raise self.refuse("a mapping of names")
        for key in self.value:
            if not isinstance(key, str) or not key.isprintable() or len(key) > 60:
                raise Node(key, self.place).refuse("names of up to 60 characters")
        for key in self.value:
            if known is not None and key not in known:
                raise ScenarioError(
                    f"{self.place}: expected {', '.join(sorted(known))}, got {key!r}{did_you_mean(key, known)}"
                )
        prefix = f"{self.place}." if self.place else ""
        return {key: Node(value, prefix + key) for key, value in self.value.items()}

    def item(self, key: str) -> Node:
        """An entry that has to be there."""
        if not isinstance(self.value, Mapping) or key not in self.value:
            raise ScenarioError(
                f"{self.place or 'the file'}: expected the entry {key}, it has {', '.join(self.table())}"
            )
        return Node(self.value[key], f"{self.place}.{key}" if self.place else key)

    def items(self) -> list[Node]:
        if not isinstance(self.value, Sequence) or isinstance(self.value, str):
            raise self.refuse("a list")
        return [Node(value, f"{self.place}[{i}]") for i, value in enumerate(self.value)]

    def one_of(self, known: Sequence[str]) -> str:
        if not isinstance(self.value, str) or self.value not in known:
            hint = did_you_mean(self.value, known) if isinstance(self.value, str) else ""
            raise ScenarioError(f"{self.refuse(' or '.join(known))}{hint}")
        return self.value

    def integer(self, least: int, most: int) -> int:
        if type(self.value) is not int or not least <= self.value <= most:
            # As in prose, separators come with the fifth digit.
            raise self.refuse(f"an integer from {least} to {most:{',' if most >= 10_000 else ''}}")
        return self.value

    def names(self, known: Sequence[str]) -> list[str]:
        """Different names out of ``known``."""
        names = [node.one_of(known) for node in self.items()]
        if len(set(names)) != len(names):
            raise self.refuse("different names")
        return names


def load_scenario(path: str | Path) -> Cage2Scenario:
    """Reads a scenario file.

    Raises:
        ScenarioError: it cannot be read, is no YAML, or has something that the simulator does not play. The message
            names the file and the place in it.
    """
    return read_file(path, parse_scenario)


def read_file(path: str | Path, parse: Callable[[Any], T]) -> T:
    """The content of a YAML file, converted by ``parse``.

    Raises:
        ScenarioError: as of `load_scenario`.
    """
    import yaml  # a slow import, which most games do not need

    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ScenarioError(f"expected at most {MAX_BYTES:,} bytes")
        return parse(yaml.safe_load(content))
    except OSError as error:
        raise ScenarioError(f"scenario {path}: {error.strerror}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ScenarioError(f"scenario {path}: expected YAML: {' '.join(str(error).split())}") from None
    except ScenarioError as error:
        raise ScenarioError(f"scenario {path}: {error}") from None


def parse_scenario(tree: Any) -> Cage2Scenario:
    """Compiles the content of a scenario file, as a YAML reader gives it.

    Raises:
        ScenarioError: it has something that the simulator does not play.
    """
    root = Node(tree, "")
    if "random" in root.table():
        raise ScenarioError(
            "random: networks that are drawn are observed by rows: take Cage2RowsVectorEnv, or --rows 16"
        )
    root.table({"Agents", "Hosts", "Subnets"})
    hosts = root.item("Hosts").table()
    names = list(hosts)
    subnets = root.item("Subnets").table()
    agents = root.item("Agents")
    if list(agents.table({"Blue", "Green", "Red"})) != ["Blue", "Green", "Red"]:
        raise agents.refuse("Blue, Green and Red in this order")
    images = [node.item("image").one_of(_rust.CAGE2_IMAGES) for node in hosts.values()]
    start = _red_start(agents.item("Red"), names, images)
    of_start = [name for name, node in subnets.items() if start in node.item("Hosts").names(names)]
    for agent in ("Blue", "Red"):
        allowed = agents.item(agent).item("AllowedSubnets")
        if set(allowed.names(list(subnets))) != set(subnets):
            raise allowed.refuse("all subnets")
    info = [_info(node, names) for node in hosts.values()]
    kinds = _blue_kinds(agents.item("Blue"), names)
    try:
        native = _rust.Cage2Scenario(
            hosts=names,
            images=images,
            confidentiality_tenths=[_tenths(node, "ConfidentialityValue") for node in hosts.values()],
            availability_tenths=sum(
                _tenths(node, "AvailabilityValue")
                for node, image in zip(hosts.values(), images, strict=True)
                if image == "OP_Server"
            ),
            info=[shown for shown, _ in info],
            shows_service=[any(images[host] == "OP_Server" for host in services) for _, services in info],
            subnets=[
                (
                    name,
                    node.item("Size").integer(1, 1000),
                    [names.index(host) for host in node.item("Hosts").names(names)],
                    _access(node, list(subnets), of_start[0] if of_start else ""),
                )
                for name, node in subnets.items()
            ],
            start=names.index(start),
            blue_sessions=_blue_sessions(agents.item("Blue"), names),
            green_sessions=_green_sessions(agents.item("Green"), names),
        )
    except ValueError as error:
        if isinstance(error, ScenarioError):
            raise
        raise ScenarioError(str(error)) from None
    return _with_actions(native, kinds)


@functools.cache
def challenge() -> Cage2Scenario:
    """The challenge's own scenario, Scenario 2."""
    return _with_actions(_rust.Cage2Scenario.challenge(), KINDS)


def _with_actions(native: _rust.Cage2Scenario, kinds: Sequence[str]) -> Cage2Scenario:
    """A compiled scenario in which blue has these kinds of actions, in this order."""
    hosts, names_of_actions, effective = native.hosts, native.actions, set(native.effective_actions)
    places = [place for kind in kinds for place in _places(kind, len(hosts))]
    return Cage2Scenario(
        tuple(hosts),
        tuple(native.subnets),
        tuple(names_of_actions[place] for place in places),
        tuple(i for i, place in enumerate(places) if place in effective),
        tuple(native.red_agents),
        native,
        tuple(places),
    )


def _places(kind: str, hosts: int) -> list[int]:
    """Indices of the actions of a kind among all actions."""
    i = KINDS.index(kind)
    return [i] if i < 2 else list(range(2 + (i - 2) * hosts, 2 + (i - 1) * hosts))


def _tenths(host: Node, key: str) -> int:
    entries = host.table()
    return COST_TENTHS[entries[key].one_of(list(COST_TENTHS)) if key in entries else "Low"]


def _info(host: Node, names: list[str]) -> tuple[list[tuple[int, bool]], list[int]]:
    """Hosts that an escalation shows, with True where it shows the subnet too, and those whose OTService it shows."""
    entries = host.table({"AWS_Info", "image", "info", "ConfidentialityValue", "AvailabilityValue"})
    shown, services = [], []
    if "info" in entries:
        for name, node in entries["info"].table(set(names)).items():
            parts = node.table({"Interfaces", "Services"})
            if "Interfaces" in parts:
                how = parts["Interfaces"].one_of(["All", "IP Address"])
                shown.append((names.index(name), how == "All"))
            if "Services" in parts and parts["Services"].names(["OTService"]):
                services.append(names.index(name))
    return shown, services


def _access(subnet: Node, subnets: list[str], start: str) -> str:
    """The firewall's rule for traffic from the subnet where red starts: "open", "gated" or "closed"."""
    subnet.table({"Hosts", "NACLs", "Size"})
    rules = subnet.item("NACLs").table({*subnets, "all"})
    inwards = {}
    for source, rule in rules.items():
        rule.table({"in", "out"})
        # CybORG stops with an error at a None for all.
        inwards[source] = rule.item("in").one_of(["all"] if source == "all" else ["all", "None"])
    applies = inwards.get(start, inwards.get("all"))
    return "closed" if applies is None else "open" if applies == "all" else "gated"


def _sessions(agent: Node) -> list[tuple[dict[str, Node], Node]]:
    agent.table(_AGENT_KEYS)
    return [(node.table(_SESSION_KEYS), node) for node in agent.item("starting_sessions").items()]


def _red_start(red: Node, names: list[str], images: list[str]) -> str:
    sessions = _sessions(red)
    if len(sessions) != 1:
        raise red.item("starting_sessions").refuse("one session")
    _, session = sessions[0]
    session.item("type").one_of(["RedAbstractSession"])
    start = session.item("hostname").one_of(names)
    windows = images[names.index(start)].startswith(("windows", "Internal"))
    session.item("username").one_of(["SYSTEM" if windows else "root"])
    actions = red.item("actions")
    kinds = [node.value for node in actions.items()]
    if not all(kind in kinds for kind in RED_ACTIONS):
        raise actions.refuse(f"{', '.join(RED_ACTIONS)} among them")
    known = red.item("INT").item("Hosts")
    if known.value != {start: {"Interfaces": "All", "System info": "All"}}:
        raise known.refuse(f"All of the Interfaces and System info of {start} and of no other host")
    return start


def _blue_kinds(blue: Node, names: list[str]) -> list[str]:
    """The kinds of blue's actions, in the order of the file."""
    blue.item("reward_calculator_type").one_of(["HybridAvailabilityConfidentiality"])
    blue.item("adversary").one_of(["Red"])
    known = blue.item("INT").item("Hosts")
    for name in names:
        entry = known.item(name)
        for part in ("Interfaces", "System info"):
            entry.item(part).one_of(["All"])
    return blue.item("actions").names(KINDS)


def _blue_sessions(blue: Node, names: list[str]) -> list[int]:
    """Hosts of blue's sessions, that of the server first."""
    servers, clients = [], []
    for session, node in _sessions(blue):
        kind = node.item("type").one_of(["VelociraptorServer", "VelociraptorClient"])
        host = names.index(node.item("hostname").one_of(names))
        if kind == "VelociraptorServer":
            artifacts = node.item("artifacts").names(["NetworkConnections", "ProcessCreation"])
            if "NetworkConnections" not in artifacts:
                raise node.item("artifacts").refuse("NetworkConnections among them")
            if "parent" in session:
                raise node.refuse("a server without a parent")
            servers.append((node.item("name"), host))
        else:
            clients.append((node.item("parent"), host))
    if len(servers) != 1:
        raise blue.item("starting_sessions").refuse("one VelociraptorServer")
    name, host = servers[0]
    for parent, _ in clients:
        if parent.value != name.value:
            raise parent.refuse(f"the name of the server, {name.value!r}")
    return [host, *(client for _, client in clients)]


def _green_sessions(green: Node, names: list[str]) -> list[int]:
    green.item("agent_type").one_of(["SleepAgent"])
    sessions = []
    for session, node in _sessions(green):
        node.item("type").one_of(["green_session"])
        if "parent" in session:
            raise node.refuse("a session without a parent")
        sessions.append(names.index(node.item("hostname").one_of(names)))
    return sessions
