"""Episodes of the real CybORG of CAGE Challenge 2 in other scenarios than its own, recorded and replayed.

Run it where CybORG can be imported, of the ruleset that is named::

    python tests/support/cyborg_scenarios.py main tests/support/golden/cage2_scenarios/*.yaml --steps 20000
    python tests/support/cyborg_scenarios.py main shop.yaml --steps 600 --out shop.npz

A scripted agent of the challenge plays red, and blue draws among all of its actions, among those that fix, or sleeps.
The arrays are those of the other traces (`fastrl.envs.cage2.traces`) but for the decisions, which are all -1: these
traces are replayed from their seeds.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.adapters.cyborg import import_cyborg
from fastrl.envs.cage2.memory import Ruleset
from fastrl.envs.cage2.scenario import Cage2Scenario, load_scenario
from fastrl.envs.cage2.traces import COLUMNS

REDS = {"bline": "B_lineAgent", "meander": "RedMeanderAgent", "sleep": "SleepAgent"}
EPISODE = 100


def blue_action(style: int, actions: tuple[str, ...], draws: random.Random) -> int:
    """An index into the scenario's actions: any, one that fixes or analyses now and then, or Sleep."""
    if style == 2 or (style == 1 and draws.random() < 0.5):
        return actions.index("Sleep")
    fixes = [i for i, name in enumerate(actions) if name.startswith(("Remove", "Restore", "Analyse"))]
    return draws.choice(fixes) if style == 1 else draws.randrange(len(actions))


def red_code(action: Any, game: Any, scenario: Cage2Scenario) -> tuple[int, int]:
    """Index into `CAGE2_RED_KINDS`, and the subnet or host."""
    kind = _rust.CAGE2_RED_KINDS.index(type(action).__name__)
    if kind == 0:
        return 0, -1
    if kind == 1:
        names = {cidr: name for name, cidr in game.state.subnet_name_to_cidr.items()}
        return 1, scenario.subnets.index(names[action.subnet])
    return kind, scenario.hosts.index(
        action.hostname if kind > 3 else game.state.ip_addresses[action.ip_address]
    )


def record(path: Path, red_agent: str, steps: int, seed: int) -> dict[str, NDArray[Any]]:
    """The arrays of a trace of at least so many steps."""
    cyborg, agents, wrappers = import_cyborg()
    scenario = load_scenario(path)
    core = cyborg.CybORG(str(path), "sim", agents={"Red": getattr(agents, REDS[red_agent])})
    wrapped = wrappers.ChallengeWrapper(env=core, agent_name="Blue")
    assert wrapped.action_space.n == len(scenario.actions)
    game = core.environment_controller
    draws = random.Random(seed)
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    random.seed(seed)
    for episode in range(-(-steps // EPISODE)):
        first = wrapped.reset()
        # CybORG++ has Gymnasium's interface, CybORG has Gym's.
        first = first[0] if isinstance(first, tuple) else first
        columns["reset_obs"].append(np.packbits(np.asarray(first, np.uint8)))
        columns["length"].append(EPISODE)
        columns["collided"].append(False)
        for _ in range(EPISODE):
            action = blue_action(episode % 3, scenario.actions, draws)
            obs, reward, *_ = wrapped.step(action)
            blue = str(game.action["Blue"])
            assert blue == scenario.actions[action], f"{blue} is not {scenario.actions[action]}"
            kind, target = red_code(game.action["Red"], game, scenario)
            sessions = game.state.sessions["Red"].values()
            mine = [[s for s in sessions if s.host == host] for host in scenario.hosts]
            row = {
                "obs": np.packbits(np.asarray(obs, np.uint8)),
                "reward": reward,
                # Of all the actions that there are.
                "blue_action": scenario.places([action])[0],
                "red_kind": kind,
                "red_target": target,
                "red_success": {"TRUE": 1, "FALSE": 0}.get(game.observation["Red"].success.name, -1),
                "exploit": -1,
                "detected": -1,
                "session": -1,
                "red_access": [bool(s) + any(x.username in ("root", "SYSTEM") for x in s) for s in mine],
                "red_sessions": [len(s) for s in mine],
                "processes": [len(game.state.hosts[host].processes) for host in scenario.hosts],
            }
            for name, value in row.items():
                columns[name].append(value)
    return {name: np.array(values, COLUMNS[name]) for name, values in columns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ruleset", choices=get_args(Ruleset), help="of the CybORG that is imported")
    parser.add_argument("scenarios", type=Path, nargs="+")
    parser.add_argument("--red", choices=list(REDS), nargs="+", default=["bline", "meander"])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a folder for the traces")
    options = parser.parse_args()
    for path in options.scenarios:
        for red in options.red:
            arrays = record(path, red, options.steps, options.seed)
            native = load_scenario(path).native
            replayed = _rust.replay_cage2("seed", options.ruleset, red, options.seed, arrays, native)
            print(
                f"{path.stem} {red}: {replayed[0]} steps, {replayed[1]} differ; first {replayed[2]}",
                flush=True,
            )
            if options.out is not None:
                np.savez_compressed(
                    options.out / f"{path.stem}_{red}.npz", **arrays | {"seed": np.array(options.seed)}
                )  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
