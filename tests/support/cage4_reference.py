"""Traces of CAGE Challenge 4 by a plain simulator, as ``python cage4_reference.py SIMULATOR.py OUT.npz RED SEED``.

The simulator is a module with `Sim`, `Seeded` and `Pcg`, which states the rules in plain Python. A trace has the
arrays that `fastrl._native._rust.replay_cage4` takes, and `meta`, a JSON text. Blue's agents draw actions by weights
that are drawn for each episode.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

HOSTS, USERS, ZONES = 137, 80, 5
MARKS = 255
KINDS = [
    "Analyse",
    "Monitor",
    "Remove",
    "Restore",
    "Sleep",
    "AllowTrafficZone",
    "BlockTrafficZone",
    "DeployDecoy",
]
# Of each step: name, type, shape and the value where nothing happens.
COLUMNS: list[tuple[str, type, tuple[int, ...], int]] = [
    ("blue_action", np.int16, (5,), 0),
    ("message", np.uint8, (5,), 0),
    ("rng", np.uint64, (), 0),
    ("rng_half", np.int64, (), -1),
    ("obs", np.uint8, (72,), 0),
    ("phase", np.uint8, (), 0),
    ("reward", np.int16, (), 0),
    ("reward_work", np.int16, (), 0),
    ("reward_cost", np.int16, (), 0),
    ("blue_done", np.int16, (5,), -1),
    ("blue_success", np.int8, (5,), 3),
    ("green_action", np.int8, (USERS,), -1),
    ("green_target", np.uint8, (USERS,), 255),
    ("green_success", np.int8, (USERS,), -1),
    ("red_kind", np.int8, (6,), -1),
    ("red_target", np.uint8, (6,), 255),
    ("red_session", np.int16, (6,), -1),
    ("red_done", np.int8, (6,), -1),
    ("red_done_target", np.uint8, (6,), 255),
    ("red_success", np.int8, (6,), -1),
    ("exploit", np.int8, (6,), -1),
    ("services", np.uint8, (HOSTS, 9), 255),
    ("processes", np.uint8, (HOSTS,), 0),
    ("top_pid", np.uint16, (HOSTS,), 0),
    ("suspicious", np.uint8, (HOSTS,), 0),
    ("blocked", np.uint16, (9,), 0),
    ("fsm", np.uint8, (6, HOSTS), 0),
    ("red_active", np.uint8, (6,), 0),
    ("red_ticks", np.uint8, (6,), 0),
    ("red_known_sessions", np.uint8, (6,), 0),
]


def load(path: Path) -> ModuleType:
    """The module of a simulator in Python."""
    spec = importlib.util.spec_from_file_location("cage4_simulator", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def network(net: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """The columns of an episode's network."""
    host = np.zeros(HOSTS, np.uint8)
    service, service_pid = np.full((HOSTS, 5), -1, np.int8), np.zeros((HOSTS, 5), np.int16)
    pids = {name: np.zeros(HOSTS, np.int16) for name in ("blue_pid", "green_pid")}
    for slot, (_, _, _, services) in net["host"].items():
        host[slot] = 1
        for k, (kind, pid) in enumerate(services):
            service[slot, k], service_pid[slot, k] = kind, pid
    for name, column in pids.items():
        for slot, pid in net[name].items():
            column[slot] = pid
    return {
        "host": host,
        "service": service,
        "service_pid": service_pid,
        "blue_parent": np.array(net["blue_parent"], np.uint8),
        "red_start": np.array(net["red_start"], np.uint8),
        "red_pid": np.array([net["red_pid"]], np.int16),
        **pids,
    }


def pack(observations: list[list[int]]) -> NDArray[np.uint8]:
    return np.packbits(np.array([x for obs in observations for x in obs[1:]], np.uint8))


class Policy:
    """Weights of the kinds of actions, and how often an agent acts on a host with an alert."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.weights = [rng.random() ** 3 for _ in KINDS]
        self.attention = rng.choice([0.0, 0.5, 0.95])
        # Few, some or all agents submit actions that matter while another one is in progress.
        self.idle = rng.choice([0.0, 0.3, 0.9])
        self.talks = rng.random() < 0.5

    def act(self, sim: Any) -> tuple[list[int], list[int]]:
        rng, actions = self.rng, []
        for menu in sim.menu:
            of_kind: dict[str, list[int]] = {kind: [] for kind in KINDS}
            alerted = []
            for index, (kind, slot, is_valid) in enumerate(menu):
                of_kind[kind].append(index)
                if kind in ("Restore", "Remove") and is_valid and any(sim.hosts[slot].alert):
                    alerted.append(index)
            if alerted and rng.random() < self.attention:
                actions.append(rng.choice(alerted))
            elif rng.random() < self.idle:
                actions.append(of_kind["Sleep"][0])
            else:
                actions.append(rng.choice(of_kind[rng.choices(KINDS, self.weights)[0]]))
        return actions, [rng.randrange(256) if self.talks else 0 for _ in range(ZONES)]


def note_events(module: ModuleType, sim: Any, row: dict[str, Any]) -> None:
    """The events of a step."""
    for slot, (action, success, target) in sim.log["green"].items():
        place = slot // 17 * 10 + slot % 17 - 1
        row["green_action"][place], row["green_success"][place] = action, success
        if target is not None:
            row["green_target"][place] = target
    for agent, (kind, target, session) in sim.log["chosen"].items():
        row["red_kind"][agent], row["red_target"][agent], row["red_session"][agent] = kind, target, session
    for agent, (kind, target, success) in sim.log["red"].items():
        if kind == module.SLEEP:
            continue
        row["red_done"][agent], row["red_done_target"][agent], row["red_success"][agent] = (
            kind,
            target,
            success,
        )
        exploit = sim.log["exploit"].get(agent)
        row["exploit"][agent] = -1 if exploit is None else exploit
    for agent, done in enumerate(sim.log["blue"]):
        if done is not None:
            row["blue_done"][agent], row["blue_success"][agent] = done


def note_state(module: ModuleType, sim: Any, row: dict[str, Any]) -> None:
    """The state after a step."""
    for slot, host in sim.hosts.items():
        for kind, service in host.services.items():
            row["services"][slot, kind] = service.health + (0 if service.up else 128)
        row["processes"][slot] = len(host.procs)
        row["top_pid"][slot] = max((p.pid for p in host.procs), default=0)
        row["suspicious"][slot] = min(MARKS, len(sim.sus.get(slot, [])))
    row["blocked"][:] = [sum(1 << f for f in blocks) for blocks in sim.blocks]
    for red in sim.red:
        for slot, mind in red.mind.items():
            row["fsm"][red.i, slot] = module.STATES.index(mind[0])
        row["red_active"][red.i] = red.active
        row["red_ticks"][red.i] = red.ticks if red.pending else 0
        row["red_known_sessions"][red.i] = len(red.known)


def record(
    module: ModuleType, red: str, seed: int, episodes: int, steps: int, chained: bool = False
) -> dict[str, NDArray[Any]]:
    """The arrays of episodes whose generators have the seeds `seed`, `seed + 1` and so on, or, `chained`, share the
    first one after it has drawn a network."""
    total = episodes * steps
    columns = {name: np.full((total, *shape), empty, dtype) for name, dtype, shape, empty in COLUMNS}
    per_episode: dict[str, list[Any]] = {}
    sessions: list[tuple[int, ...]] = []
    sessions_off, tape_off = [0], [0]
    tape: list[int] = []
    tape_kind: list[int] = []
    sim, source = module.Sim(red, steps), module.Seeded(seed)
    if chained:
        sim.generate(source.g)
    for episode in range(episodes):
        if not chained:
            source = module.Seeded(seed + episode)
        policy = Policy(random.Random(seed + episode))
        net = sim.generate(source.g)
        reset_rng = source.g.state & (2**64 - 1)
        source.on, source.kinds, source.vals = True, tape_kind, tape
        first = {
            **network(net),
            "reset_rng": np.array([reset_rng], np.uint64),
            "length": np.array([steps], np.int32),
            "reset_obs": pack(sim.begin(net, source)),
            "mask": np.packbits(np.array([valid for menu in sim.menu for _, _, valid in menu], np.uint8)),
        }
        for name, value in first.items():
            per_episode.setdefault(name, []).append(value)
        for i in range(episode * steps, (episode + 1) * steps):
            row = {name: column[i : i + 1] for name, column in columns.items()}
            row = {name: view[0] if view.ndim > 1 else view for name, view in row.items()}
            actions, messages = policy.act(sim)
            bits = {agent: [byte >> (7 - k) & 1 for k in range(8)] for agent, byte in enumerate(messages)}
            observations, reward, _ = sim.step(actions, bits)
            row["blue_action"][:], row["message"][:] = actions, messages
            row["obs"][:], row["phase"][:] = pack(observations), observations[0][0]
            row["reward"][:], row["reward_work"][:], row["reward_cost"][:] = reward, sim.work, sim.cost
            row["rng"][:] = source.g.state & (2**64 - 1)
            row["rng_half"][:] = -1 if source.g.half is None else source.g.half
            note_events(module, sim, row)
            note_state(module, sim, row)
            for agent in sim.red:
                for number, s in agent.sessions.items():
                    sessions.append((agent.i, number, s.host, s.abstract, s.root, not s.child, s.pid))
            sessions_off.append(len(sessions))
            tape_off.append(len(tape))
    return {
        **columns,
        **{name: np.stack(values) for name, values in per_episode.items()},
        "sessions": np.array(sessions, np.uint16).reshape(-1, 7),
        "sessions_off": np.array(sessions_off, np.int64),
        "tape": np.array(tape, np.uint8),
        "tape_kind": np.array(tape_kind, np.uint8),
        "tape_off": np.array(tape_off, np.int64),
    }


def main() -> None:
    simulator, out, red, seed = sys.argv[1:]
    steps = 150
    arrays = record(load(Path(simulator)), red, int(seed), 1, steps)
    meta = {"red": red, "seed": int(seed), "seeding": "reset", "steps": steps}
    np.savez_compressed(out, meta=np.array(json.dumps(meta)), **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
