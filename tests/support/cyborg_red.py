"""Episodes of the real CybORG of CAGE Challenge 2 in which red's actions are given, recorded and replayed.

Run it where CybORG can be imported, of the ruleset that is named::

    python tests/support/cyborg_red.py main --steps 50000
    python tests/support/cyborg_red.py leaderboard --steps 1200 --out leaderboard_given.npz
    python tests/support/cyborg_red.py plusplus --steps 50000      # the debugged CybORG of CybORG++

Red draws among all of its actions, among those that it may take, or follows a scripted agent of the challenge that
strays now and then; blue likewise. The trace has the columns of the others (`fastrl.envs.cage2.traces`) and
`red_known`, what red can name after each step. With ``--red bline`` and so on the scripted agent plays alone.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import random
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.adapters.cyborg import RED_AGENT_CLASSES, base_agent, import_cyborg
from fastrl.envs.cage2.memory import Ruleset
from fastrl.envs.cage2.traces import COLUMNS, GIVEN_COLUMNS, Cage2Trace

HOSTS, SUBNETS, KINDS = _rust.CAGE2_HOSTS, _rust.CAGE2_SUBNETS, _rust.CAGE2_RED_KINDS
REDS = ("uniform", "allowed", "B_lineAgent", "RedMeanderAgent")
BLUES = ("sleep", "uniform", "decoys", "fixes")
STRAY = 0.15
"""Chance that a scripted agent's action is replaced by one that is drawn."""
EPISODE = 100
SOURCES = {"plusplus": "alan-turing-institute/CybORG_plus_plus"}
_ABSTRACT, _CONCRETE = "CybORG.Shared.Actions.AbstractActions", "CybORG.Shared.Actions.ConcreteActions"


class GivenRed(base_agent()):  # type: ignore[misc] # the base depends on what is installed
    """A red agent that plays by `style`, one of `REDS`, and draws from a generator of its own."""

    style = "uniform"
    draws = random.Random(0)
    game: Any = None

    def __init__(self) -> None:
        agents = importlib.import_module("CybORG.Agents")
        self._scripted = {name: getattr(agents, name)() for name in REDS[2:]}

    def train(self, results: Any) -> None: ...

    def set_initial_values(self, action_space: Any, observation: Any) -> None: ...

    def end_episode(self) -> None:
        for agent in self._scripted.values():
            agent.end_episode()

    def get_action(self, observation: Any, action_space: Any) -> Any:
        scripted = self._scripted.get(self.style)
        if scripted is not None:
            # A plan that its own actions did not follow may not know its next one.
            try:
                action = scripted.get_action(observation, action_space)
            except (AttributeError, LookupError, NotImplementedError, ValueError):
                scripted.end_episode()
                return self.drawn(only_allowed=True)
            if self.draws.random() >= STRAY:
                return action
        return self.drawn(only_allowed=self.style != "uniform")

    def drawn(self, only_allowed: bool) -> Any:
        known = known_of(self.game)
        codes = [(0, -1), *((1, i) for i in range(3)), *((k, i) for k in range(2, 6) for i in range(13))]
        if only_allowed:
            first = {1: 0, 2: 3, 3: 3, 4: 16, 5: 16}
            codes = [(k, i) for k, i in codes if not k or known >> (first[k] + i) & 1]
            # Each kind as likely as the others, else the first steps are all that is seen.
            kind = self.draws.choice(sorted({k for k, _ in codes}))
            codes = [code for code in codes if code[0] == kind]
        kind, target = self.draws.choice(codes)
        make = getattr(importlib.import_module("CybORG.Shared.Actions"), KINDS[kind])
        state = self.game.state
        match kind:
            case 0:
                return make()
            case 1:
                return make(session=0, agent="Red", subnet=state.subnet_name_to_cidr[SUBNETS[target]])
            case 2 | 3:
                address = self.game.hostname_ip_map[HOSTS[target]]
                return make(session=0, agent="Red", ip_address=address)
        return make(session=0, agent="Red", hostname=HOSTS[target])


def known_of(game: Any) -> int:
    """The subnets, addresses and names in red's action space: a bit each, in this order."""
    space = game.agent_interfaces["Red"].action_space
    subnets, addresses = game.state.subnet_name_to_cidr, game.hostname_ip_map
    known = [
        *(space.subnet.get(subnets[name], False) for name in SUBNETS),
        *(space.ip_address.get(addresses[name], False) for name in HOSTS),
        *(space.hostname.get(name, False) for name in HOSTS),
    ]
    return sum(bool(bit) << i for i, bit in enumerate(known))


def code_of(action: Any, game: Any) -> tuple[int, int]:
    """Index into `KINDS`, and the target."""
    if type(action).__name__ == "InvalidAction":
        action = action.action
    kind = KINDS.index(type(action).__name__)
    if kind == 0:
        return 0, -1
    if kind == 1:
        names = {cidr: name for name, cidr in game.state.subnet_name_to_cidr.items()}
        return 1, SUBNETS.index(names[action.subnet])
    name = action.hostname if kind > 3 else game.state.ip_addresses[action.ip_address]
    return kind, HOSTS.index(name)


class Draws:
    """The draws of CybORG's that decide something, of the present step; -1 where none was made.

    Args:
        are_given: red's actions are.
    """

    def __init__(self, *, are_given: bool = True) -> None:
        self.clear()
        exploit = importlib.import_module(f"{_CONCRETE}.ExploitAction")
        draw = exploit.random

        def detection() -> float:
            value: float = draw()
            self.detected = int(value < 0.95)
            return value

        vars(exploit)["random"] = detection
        for name in ("PrivilegeEscalate", "Impact"):
            module = importlib.import_module(f"{_ABSTRACT}.{name}")
            vars(module)["choice"] = self._session
        # The agents' own draws are not the game's, where they do not play alone.
        for name in ("B_line", "Meander") if are_given else ():
            vars(importlib.import_module(f"CybORG.Agents.SimpleAgents.{name}"))["random"] = GivenRed.draws

    def clear(self) -> None:
        self.session = self.detected = -1

    def _session(self, sessions: list[Any]) -> Any:
        chosen = random.choice(sessions)
        self.session = sessions.index(chosen)
        return chosen


def exploit_of(action: Any) -> int:
    """Index into `CAGE2_EXPLOITS` of the exploit that ran; -1: none."""
    ran = getattr(action, "sub_action", None) if type(action).__name__ == "ExploitRemoteService" else None
    return -1 if ran is None else _rust.CAGE2_EXPLOITS.index(type(ran).__name__)


def blue_action(style: str, draws: random.Random) -> int:
    """An index into the 145."""
    if style == "sleep" or (style != "uniform" and draws.random() < 0.4):
        return 0
    first, last = {"uniform": (0, 144), "decoys": (28, 131), "fixes": (2, 144)}[style]
    action = draws.randint(first, last)
    # Analyse, Remove and Restore: decoys are 9 of 12 actions otherwise.
    while style == "fixes" and 28 <= action <= 131:
        action = draws.randint(first, last)
    return action


def reset(wrapped: Any) -> Any:
    """The first observation of an episode; the wrapper of CybORG++ gives an info too."""
    result = wrapped.reset()
    return result[0] if isinstance(result, tuple) else result


def record(
    ruleset: str, steps: int, seed: int, red_agent: str = "given"
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The meta data and arrays of a trace of at least `steps` steps: each style of red's against each of blue's."""
    cyborg, agents, wrappers = import_cyborg()
    is_given = red_agent == "given"
    red_class = GivenRed if is_given else getattr(agents, RED_AGENT_CLASSES[red_agent])
    scenario = Path(inspect.getfile(cyborg)).parent / "Shared" / "Scenarios" / "Scenario2.yaml"
    core = cyborg.CybORG(str(scenario), "sim", agents={"Red": red_class})
    wrapped = wrappers.ChallengeWrapper(env=core, agent_name="Blue")
    game = core.environment_controller
    GivenRed.game = game
    draws, blue_draws = Draws(are_given=is_given), random.Random(seed)
    GivenRed.draws.seed(seed)
    types = COLUMNS | (GIVEN_COLUMNS if is_given else {})
    columns: dict[str, list[Any]] = {name: [] for name in types}
    pairs = [(red, blue) for red in REDS for blue in BLUES]
    random.seed(seed)
    for episode in range(-(-steps // EPISODE)):
        GivenRed.style, blue = pairs[episode % len(pairs)]
        columns["reset_obs"].append(np.packbits(np.asarray(reset(wrapped), np.uint8)))
        columns["length"].append(EPISODE)
        collided = False
        for _ in range(EPISODE):
            draws.clear()
            monitors = [s for s in game.state.sessions["Blue"].values() if hasattr(s, "sus_pids")]
            marked = {(host, pid) for s in monitors for host, pids in s.sus_pids.items() for pid in pids}
            before = set(game.state.sessions["Red"])
            action = blue_action(blue, blue_draws)
            obs, reward, *_ = wrapped.step(action)
            red = game.action["Red"]
            kind, target = code_of(red, game)
            sessions = game.state.sessions["Red"]
            new = [sessions[i] for i in set(sessions) - before]
            collided |= any((session.host, session.pid) in marked for session in new)
            counts = {host: [s for s in sessions.values() if s.host == host] for host in HOSTS}
            access = [
                bool(mine) + any(s.username in ("root", "SYSTEM") for s in mine) for mine in counts.values()
            ]
            row = {
                "obs": np.packbits(np.asarray(obs, np.uint8)),
                "reward": reward,
                "blue_action": action,
                "red_kind": kind,
                "red_target": target,
                "red_success": {"TRUE": 1, "FALSE": 0}.get(game.observation["Red"].success.name, -1),
                "red_known": known_of(game),
                "exploit": exploit_of(red),
                "detected": draws.detected,
                "session": draws.session,
                "red_access": access,
                "red_sessions": [len(mine) for mine in counts.values()],
                "processes": [len(game.state.hosts[host].processes) for host in HOSTS],
            }
            for name, values in columns.items():
                if name in row:
                    values.append(row[name])
        columns["collided"].append(collided)
    meta = {
        "version": ruleset,
        "red": red_agent,
        "blue": "mixed",
        "seed": seed,
        "source": SOURCES.get(ruleset, "cage-challenge/cage-challenge-2"),
        "hosts": HOSTS,
        "subnets": SUBNETS,
        "exploits": _rust.CAGE2_EXPLOITS,
        "red_kinds": KINDS,
        "blue_actions": _rust.CAGE2_ACTIONS,
    }
    return meta, {name: np.array(values, types[name]) for name, values in columns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ruleset", choices=get_args(Ruleset), help="of the CybORG that is imported")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a file for the trace")
    parser.add_argument("--red", default="given", choices=["given", *RED_AGENT_CLASSES])
    options = parser.parse_args()
    meta, arrays = record(options.ruleset, options.steps, options.seed, options.red)
    if options.out is not None:
        np.savez_compressed(options.out, meta=np.array(json.dumps(meta)), **arrays)
    trace = Cage2Trace.from_arrays(meta, arrays)
    for mode in ("seed", "decisions"):
        steps, mismatches, first = trace.replay(mode)  # type: ignore[arg-type]
        print(f"{options.ruleset}, from the {mode}: {steps} steps, {mismatches} differ; first {first}")
    kinds, counts = np.unique(arrays["red_kind"], return_counts=True)
    print("red's actions:", {KINDS[k]: int(n) for k, n in zip(kinds, counts, strict=True)})


if __name__ == "__main__":
    main()
