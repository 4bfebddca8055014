"""Reference trajectories of SUMO 1.28 for the vehicles of one lane, on a ring or an open road, by libsumo.

libsumo is one simulation a process, so each is run in a process of its own: `record(...)` here starts this file, which
writes what happened to a file.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

NOT_INSTALLED = importlib.util.find_spec("libsumo") is None
WHY = "libsumo is not installed: pip install 'fastrl[sumo]'"

EDGES = ("east", "north", "west", "south")
HUMAN = "accel='1' decel='1.5' tau='1' minGap='2' length='5' maxSpeed='30' emergencyDecel='9'"
# Flow's default vehicle parameters of an agent.
LEARNER = "accel='2.6' decel='4.5' tau='1' minGap='2.5' length='5' maxSpeed='30' emergencyDecel='9'"
SPEED_MODES = {"none": 0, "right of way": 25, "all": 31}
OPEN_ROAD = 100_000.0


def _network(lengths: dict[str, float], ring: bool) -> str:
    """Edges of one lane in a row, or in a circle, without junctions in between (`--no-internal-links`)."""
    names = list(lengths)
    corners = [(0, 0), (1, 0), (1, 1), (0, 1)]
    places = {f"n{i}": corners[i % 4] for i in range(len(names) + (not ring))}
    ends = {name: (f"n{i}", f"n{(i + 1) % len(places)}") for i, name in enumerate(names)}
    edges, junctions = [], []
    for name, (start, end) in ends.items():
        shape = " ".join(f"{100 * places[node][0]},{100 * places[node][1]}" for node in (start, end))
        lane = f"<lane id='{name}_0' index='0' speed='30' length='{lengths[name]!r}' shape='{shape}'/>"
        edges.append(f"<edge id='{name}' from='{start}' to='{end}' priority='-1'>{lane}</edge>")
    for node, (x, y) in places.items():
        coming = " ".join(f"{name}_0" for name, (_, end) in ends.items() if end == node)
        kind = "unregulated" if ring else "dead_end"
        place = f"x='{100 * x}' y='{100 * y}'"
        junctions.append(
            f"<junction id='{node}' type='{kind}' {place} incLanes='{coming}' intLanes='' shape=''/>"
        )
    links = [
        f"<connection from='{a}' to='{b}' fromLane='0' toLane='0' dir='s' state='M'/>"
        for a, b in zip(names, names[1:] + names[:1], strict=True)
        if ring
    ]
    return f"<net version='1.20'>{''.join(edges + junctions + links)}</net>"


def _routes(spec: dict[str, Any], lengths: dict[str, float]) -> str:
    types = "".join(
        f"<vType id='{name}' carFollowModel='IDM' {what} sigma='0' speedFactor='1' speedDev='0'/>"
        for name, what in (("human", HUMAN), ("learner", LEARNER))
    )
    names = list(lengths)
    vehicles = []
    for i, (x, v) in enumerate(zip(spec["positions"], spec["speeds"], strict=True)):
        edge = 0
        while x >= lengths[names[edge]]:
            x -= lengths[names[edge]]
            edge += 1
        laps = (names * 4000)[edge:] if spec["ring_length"] else names
        kind = "learner" if i == spec["learner"] else "human"
        vehicles.append(
            f"<vehicle id='v{i}' type='{kind}' depart='0' departPos='{x!r}' departSpeed='{v!r}' departLane='0' "
            f"insertionChecks='none'><route edges='{' '.join(laps)}'/></vehicle>"
        )
    return f"<routes>{types}{''.join(vehicles)}</routes>"


def record(
    folder: Path,
    *,
    positions: list[float],
    speeds: list[float],
    steps: int,
    dt: float,
    ballistic: bool,
    ring_length: float | None = None,
    learner: int | None = None,
    commands: list[float | None] | None = None,
) -> dict[str, np.ndarray]:
    """Runs SUMO for `steps` steps of `dt` s, one after all vehicles have entered.

    Args:
        folder: for its files.
        positions: fronts, m, ascending: vehicle i follows i + 1 (on a ring the last follows the first).
        speeds: m/s.
        learner: a vehicle with Flow's parameters of a learner and its speed mode "right of way": `commands` are
            accelerations, and SUMO bounds the speed that they ask for by the safe one.
        commands: one a step, to `learner`, or without one the speed of the last vehicle, with no checks; None lets it
            drive itself.

    Returns:
        positions, speeds [steps + 1, n], from when all have entered, and seconds [1], how long the steps alone took.
    """
    spec = {
        "positions": positions,
        "speeds": speeds,
        "steps": steps,
        "dt": dt,
        "ballistic": ballistic,
        "ring_length": ring_length,
        "learner": learner,
        "commands": commands,
    }
    run_apart(__file__, folder, spec)
    with np.load(folder / "out.npz") as out:
        return dict(out)


def run_apart(script: str, folder: Path, spec: dict[str, Any]) -> None:
    """Runs a script in a process of its own, whose argument is a folder with ``spec.json``."""
    (folder / "spec.json").write_text(json.dumps(spec))
    done = subprocess.run(
        [sys.executable, script, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    if done.returncode:
        raise RuntimeError(f"SUMO failed:\n{done.stdout}{done.stderr}")


def _run(folder: Path) -> None:
    import libsumo

    spec = json.loads((folder / "spec.json").read_text())
    ring = spec["ring_length"]
    lengths = dict.fromkeys(EDGES, ring / len(EDGES)) if ring else {"road": OPEN_ROAD}
    (folder / "net.xml").write_text(_network(lengths, bool(ring)))
    (folder / "rou.xml").write_text(_routes(spec, lengths))
    options = {
        "-n": "net.xml",
        "-r": "rou.xml",
        "--step-length": str(spec["dt"]),
        "--no-step-log": "true",
        "--no-warnings": "true",
        "--time-to-teleport": "-1",
        "--collision.action": "none",
        "--xml-validation": "never",
        "--xml-validation.net": "never",
        "--default.speeddev": "0",
    }
    os.chdir(folder)
    arguments = [word for option in options.items() for word in option]
    libsumo.start(["sumo", *arguments, *(["--step-method.ballistic"] if spec["ballistic"] else [])])
    libsumo.simulationStep()
    n = len(spec["positions"])
    names = [f"v{i}" for i in range(n)]
    assert set(names) == set(libsumo.vehicle.getIDList()), "not all vehicles have entered"
    before = {name: sum(list(lengths.values())[:i]) for i, name in enumerate(lengths)}
    vehicle = libsumo.vehicle

    def state() -> tuple[list[float], list[float]]:
        x = [before[vehicle.getRoadID(name)] + vehicle.getLanePosition(name) for name in names]
        return x, [vehicle.getSpeed(name) for name in names]

    learner = spec["learner"]
    driven = names[n - 1 if learner is None else learner]
    mode = "none" if learner is None else "right of way"
    states = [state()]
    seconds = 0.0
    for step in range(spec["steps"]):
        if spec["commands"] is not None:
            command = spec["commands"][step]
            if learner is not None:
                command = max(vehicle.getSpeed(driven) + command * spec["dt"], 0.0)
            vehicle.setSpeed(driven, -1.0 if command is None else command)
            vehicle.setSpeedMode(driven, SPEED_MODES["all" if command is None else mode])
        start = time.perf_counter()
        libsumo.simulationStep()
        seconds += time.perf_counter() - start
        states.append(state())
    x, v = (np.array(part) for part in zip(*states, strict=True))
    np.savez(folder / "out.npz", positions=x, speeds=v, seconds=np.array([seconds]))
    libsumo.close()


if __name__ == "__main__":
    _run(Path(sys.argv[1]))
