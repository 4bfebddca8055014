"""Traffic before lights by libsumo.

libsumo is one simulation a process: `record(...)` starts this file in a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from sumo_reference import run_apart

# The cars of highway-env, as far as SUMO's IDM has their numbers.
CAR = "carFollowModel='IDM' accel='3' decel='5' tau='1.5' minGap='2.5' length='5' sigma='0' speedDev='0'"


def record(folder: Path, net: Path, demand: Path, seconds: int, seed: int = 0) -> dict[str, Any]:
    """Runs SUMO for so many seconds in steps of one.

    Returns:
        crossings: of each edge that leads to a light the second at which each vehicle left it, ascending.
        queues: of each such edge the number of vehicles below 0.1 m/s after each second.
        waited: seconds below 0.1 m/s and before insertion, the sum over all vehicles.
        vehicles: that were due.
        arrived: that have left the network.
        seconds: how long the steps alone took.
    """
    types = folder / "types.add.xml"
    types.write_text(f"<additional><vType id='DEFAULT_VEHTYPE' {CAR}/></additional>")
    spec = {
        "net": str(net),
        "demand": str(demand),
        "types": str(types),
        "seconds": seconds,
        "seed": seed,
    }
    run_apart(__file__, folder, spec)
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def _run(folder: Path) -> None:
    import libsumo

    spec = json.loads((folder / "spec.json").read_text())
    files = ["-n", spec["net"], "-r", spec["demand"], "-a", spec["types"]]
    options = ["--step-length", "1", "--time-to-teleport", "-1", "--seed", str(spec["seed"]), "--no-step-log"]
    libsumo.start(["sumo", *files, *options, "--no-warnings"])
    lights = libsumo.trafficlight.getIDList()
    lanes = {lane for light in lights for lane in libsumo.trafficlight.getControlledLanes(light)}
    edges = sorted({libsumo.lane.getEdgeID(lane) for lane in lanes})
    crossings: dict[str, list[int]] = {edge: [] for edge in edges}
    queues: dict[str, list[int]] = {edge: [] for edge in edges}
    on: dict[str, str] = {}
    waited = arrived = vehicles = 0
    took = 0.0
    for second in range(1, spec["seconds"] + 1):
        start = time.perf_counter()
        libsumo.simulationStep()
        took += time.perf_counter() - start
        arrived += libsumo.simulation.getArrivedNumber()
        pending = len(libsumo.simulation.getPendingVehicles())
        before, on = on, {}
        for edge in edges:
            queues[edge].append(libsumo.edge.getLastStepHaltingNumber(edge))
            on |= dict.fromkeys(libsumo.edge.getLastStepVehicleIDs(edge), edge)
        for vehicle, edge in before.items():
            if on.get(vehicle) != edge:
                crossings[edge].append(second)
        running = libsumo.vehicle.getIDList()
        waited += pending + sum(libsumo.vehicle.getSpeed(vehicle) < 0.1 for vehicle in running)
        vehicles = arrived + len(running) + pending
    libsumo.close()
    found = {
        "crossings": crossings,
        "queues": queues,
        "waited": waited,
        "vehicles": vehicles,
        "arrived": arrived,
        "seconds": took,
    }
    (folder / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    _run(Path(sys.argv[1]))
