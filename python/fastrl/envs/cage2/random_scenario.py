"""Networks of CAGE Challenge 2 that are drawn: files with a table `random` in place of hosts, subnets and agents.

A file names ranges, such as ``random: {user_hosts: 3-8}``, and stands for ``networks`` networks, which its ``seed``
fixes: the same file always gives the same ones. `docs/environments/cage2-scenarios.md` lists the entries.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastrl._native import _rust
from fastrl.envs.cage2.scenario import (
    COST_TENTHS,
    KINDS,
    RED_ACTIONS,
    Cage2Scenario,
    Node,
    ScenarioError,
    parse_scenario,
    read_file,
)
from fastrl.utils.files import write_atomically

SUBNETS = ("User", "Enterprise", "Operational")
_VALUES = tuple(COST_TENTHS)
_IMAGES = tuple(image for image in _rust.CAGE2_IMAGES if image not in ("OP_Server", "Velociraptor_Server"))
# Least and most hosts of each kind, beside Defender and Op_Server0.
_LIMITS = {"user_hosts": (2, 20), "enterprise_hosts": (2, 20), "operational_hosts": (0, 20)}
_MOST_HOSTS = 32
_RANGE = re.compile(r"(\d{1,3})-(\d{1,3})")


@dataclass(frozen=True)
class Draws:
    """A table `random`.

    Attributes:
        networks: how many networks it stands for.
        seed: which ones.
        hosts: the least and the most hosts, by the name of the entry.
        choices: images, values, subnets of red's first session and kinds of blue's actions, by the name of the entry.
    """

    networks: int
    seed: int
    hosts: dict[str, tuple[int, int]]
    choices: dict[str, tuple[str, ...]]


# Entries that have a list, what may stand in it, and what does where there is none: the challenge's.
_CHOICES: dict[str, tuple[Sequence[str], tuple[str, ...]]] = {
    "user_images": (
        _IMAGES,
        ("windows_user_host1", "windows_user_host2", "linux_user_host1", "linux_user_host2"),
    ),
    "enterprise_images": (_IMAGES, ("Gateway", "Internal")),
    "operational_images": (_IMAGES, ("Gateway",)),
    "user_confidentiality": (_VALUES, ("Low",)),
    "enterprise_confidentiality": (_VALUES, ("Medium",)),
    "operational_confidentiality": (_VALUES, ("Low",)),
    "server_confidentiality": (_VALUES, ("Medium",)),
    "server_availability": (_VALUES, ("High",)),
    "red_start": (SUBNETS, ("User",)),
    "actions": (KINDS, KINDS),
}


def load_networks(path: str | Path) -> tuple[Cage2Scenario, ...]:
    """The networks that a scenario file stands for: its own, or those that its table `random` draws.

    Raises:
        ScenarioError: as of `fastrl.envs.cage2.scenario.load_scenario`.
    """
    return tuple(map(parse_scenario, read_file(path, _trees)))


def network_tree(path: str | Path, number: int) -> dict[str, Any]:
    """The content of a file in CybORG's YAML for one of the networks of a file, as a YAML reader gives it.

    Args:
        number: of the network, from 0 on, as ``episode_info("network")`` has it.

    Raises:
        ScenarioError: the file cannot be read.
        ValueError: it has fewer networks.
    """
    trees = read_file(path, _trees)
    if not 0 <= number < len(trees):
        raise ValueError(f"number: expected 0 to {len(trees) - 1}, got {number}")
    return trees[number]


def save_network(path: str | Path, number: int, to: str | Path) -> None:
    """Writes `network_tree` into a file, which CybORG and `Cage2VectorEnv` play."""
    import yaml  # a slow import

    text = yaml.safe_dump(network_tree(path, number), sort_keys=False)
    write_atomically(Path(to), text.encode())


def _trees(content: Any) -> list[Any]:
    root = Node(content, "")
    if "random" not in root.table():
        return [content]
    draws = parse_draws(root.table({"random"})["random"])
    return [draw(draws, number) for number in range(draws.networks)]


def parse_draws(node: Node) -> Draws:
    """Reads a table `random`.

    Raises:
        ScenarioError: an unknown entry, or one out of its range.
    """
    entries = node.table({"networks", "seed", *_LIMITS, *_CHOICES})
    defaults = {"user_hosts": (5, 5), "enterprise_hosts": (3, 3), "operational_hosts": (3, 3)}
    hosts = defaults | {key: _range(entries[key], *_LIMITS[key]) for key in _LIMITS if key in entries}
    # Defender and Op_Server0 are always there.
    most = 2 + sum(last for _, last in hosts.values())
    if most > _MOST_HOSTS:
        raise ScenarioError(
            f"{node.place}: expected at most {_MOST_HOSTS} hosts, Defender and Op_Server0 too, got {most}"
        )
    choices = {}
    for key, (known, usual) in _CHOICES.items():
        choices[key] = tuple(entries[key].names(known)) if key in entries else usual
        if not choices[key]:
            raise entries[key].refuse("at least one name")
    return Draws(
        entries["networks"].integer(1, 10_000) if "networks" in entries else 64,
        entries["seed"].integer(0, 2**63 - 1) if "seed" in entries else 0,
        hosts,
        choices,
    )


def _range(node: Node, least: int, most: int) -> tuple[int, int]:
    """The ends of 5 or 3-8."""
    match = _RANGE.fullmatch(node.value) if isinstance(node.value, str) else None
    first, last = map(int, match.groups()) if match else (node.value, node.value)
    if type(first) is not int or not least <= first <= last <= most:
        raise node.refuse(f"an integer or a range such as 3-8, from {least} to {most}")
    return first, last


def draw(draws: Draws, number: int) -> dict[str, Any]:
    """One of the networks, as the content of a scenario file.

    It has the subnets of the challenge. Each user knows a host of Enterprise, its third host knows Op_Server0, and the
    firewall lets red reach Operational while it holds a host of Enterprise. Red starts on User0, in whichever subnet.
    """
    chance = random.Random(f"{draws.seed}-{number}")

    def any_of(key: str) -> str:
        return chance.choice(draws.choices[key])

    counts = {key: chance.randint(*draws.hosts[key]) for key in _LIMITS}
    start = any_of("red_start")
    enterprise = [f"Enterprise{i}" for i in range(counts["enterprise_hosts"])]
    users = [f"User{i}" for i in range(counts["user_hosts"])]
    operational = [f"Op_Host{i}" for i in range(counts["operational_hosts"])]
    hosts: dict[str, Any] = {"Defender": {"image": "Velociraptor_Server"}}
    for kind, names in (("enterprise", enterprise), ("operational", operational)):
        for name in names:
            hosts[name] = _host(name, any_of(f"{kind}_images"), any_of(f"{kind}_confidentiality"))
    hosts["Op_Server0"] = _host("Op_Server0", "OP_Server", any_of("server_confidentiality")) | {
        "AvailabilityValue": any_of("server_availability")
    }
    hosts["Op_Server0"]["info"]["Op_Server0"]["Services"] = ["OTService"]
    for name in users:
        hosts[name] = _host(name, any_of("user_images"), any_of("user_confidentiality"))
        hosts[name]["info"][chance.choice(enterprise)] = {"Interfaces": "IP Address"}
    hosts["User0"] = _host("User0", hosts["User0"]["image"], "None")
    # B_line takes the third host of the subnet for the one that knows the server.
    enterprise.insert(1 if len(enterprise) == 2 else len(enterprise), "Defender")
    hosts[enterprise[2]]["info"]["Op_Server0"] = {"Interfaces": "IP Address"}
    members = {"User": users[1:], "Enterprise": enterprise, "Operational": ["Op_Server0", *operational]}
    members[start] = [*members[start], "User0"]
    gate = {"User": {"in": "None", "out": "all"}}
    open_to_all = {"all": {"in": "all", "out": "all"}}
    subnets = {
        name: {
            "Hosts": members[name],
            "NACLs": {**(gate if name == "Operational" else {}), **open_to_all},
            "Size": len(members[name]),
        }
        for name in SUBNETS
    }
    return {
        "Agents": _agents(list(hosts), hosts["User0"]["image"], draws.choices["actions"]),
        "Hosts": hosts,
        "Subnets": subnets,
    }


def _host(name: str, image: str, confidentiality: str) -> dict[str, Any]:
    return {
        "image": image,
        "info": {name: {"Interfaces": "All"}},
        "ConfidentialityValue": confidentiality,
    }


def _agents(hosts: list[str], start_image: str, actions: Sequence[str]) -> dict[str, Any]:
    """The agents of the challenge on these hosts."""
    sessions = [
        {"type": "VelociraptorServer", "name": "VeloServer", "hostname": "Defender", "username": "ubuntu"}
        | {"num_children_sessions": 2, "artifacts": ["NetworkConnections", "ProcessCreation"]}
    ]
    client = {"type": "VelociraptorClient", "parent": "VeloServer", "username": "ubuntu"}
    green = {"type": "green_session", "name": "GreenSession", "username": "GreenAgent"}
    known = {"Interfaces": "All", "System info": "All"}
    on_windows = start_image.startswith(("windows", "Internal"))
    red = {"type": "RedAbstractSession", "name": "RedPhish", "hostname": "User0"}
    return {
        "Blue": {
            "AllowedSubnets": list(SUBNETS),
            "INT": {"Hosts": {name: {**known, "User info": "All"} for name in hosts}},
            "adversary": "Red",
            "actions": list(actions),
            "agent_type": "SleepAgent",
            "reward_calculator_type": "HybridAvailabilityConfidentiality",
            "starting_sessions": [
                *sessions,
                *({**client, "name": f"Velo{name}", "hostname": name} for name in hosts),
            ],
            "wrappers": [],
        },
        "Green": {
            "AllowedSubnets": list(SUBNETS),
            "INT": {"Hosts": {}},
            "actions": ["Sleep"],
            "agent_type": "SleepAgent",
            "reward_calculator_type": "None",
            "starting_sessions": [
                {**green, "hostname": name} for name in hosts if name.startswith(("User", "Op"))
            ],
            "wrappers": [],
        },
        "Red": {
            "AllowedSubnets": list(SUBNETS),
            "INT": {"Hosts": {"User0": known}},
            "actions": list(RED_ACTIONS),
            "agent_type": "SleepAgent",
            "reward_calculator_type": "HybridImpactPwn",
            "starting_sessions": [{**red, "username": "SYSTEM" if on_windows else "root"}],
            "wrappers": [],
        },
    }
