"""A town of a thousand vehicles beside SUMO on the same roads, on one core: ``pytest benches/bench_town.py -s``.

The roads are 64 junctions with lights, `grid_town.py`. Our traffic keeps up its number of vehicles, whose trips are
random; SUMO's follow a timetable of random trips from edge to edge of the town, of about as many vehicles at once. SUMO
is measured where libsumo is installed, in a process for each round: it has one simulation a process. Its car-following
and its junctions are others than ours.
"""

import importlib.util
import subprocess
import sys
import time

from fastrl.envs.traffic.sumo_env import SumoRoadVectorEnv
from grid_town import write_demand, write_network
from results import Case
from rounds import measure_in_turns

SIZE = 8
VEHICLES = 1000
# Trips a second that keep about a thousand vehicles on the way in SUMO.
RATE = 5.0
# Seconds that are simulated before those that count, and these.
BEFORE, SECONDS = 300.0, 200.0
STEPS = (0.1, 1.0)
ROUNDS = 3


def speed_of_fastrl(network):
    """Simulated seconds in a second of CPU time, of `VEHICLES` vehicles, in frames of 0.1 s."""

    def seconds(warm_up):
        config = {"vehicles_count": VEHICLES, "warm_up": warm_up}
        env = SumoRoadVectorEnv(1, net=network, config=config, num_threads=1)
        start = time.thread_time()
        env.reset(seed=0)
        return time.thread_time() - start

    return SECONDS / (seconds(BEFORE + SECONDS) - seconds(BEFORE))


def speed_of_sumo(network, demand, step):
    """Simulated seconds of SUMO in a second, in steps of so many seconds, scaled to as many vehicles."""
    command = [sys.executable, __file__, *map(str, (network, demand, step, BEFORE, SECONDS, VEHICLES))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _run_sumo(network, demand, step, before, seconds, vehicles):
    import libsumo

    files = ["-n", network, "-r", demand, "--step-length", step]
    quiet = [f"--{name}" for name in ("no-step-log=true", "no-warnings=true")]
    unchecked = ["--xml-validation=never", "--xml-validation.net=never"]
    libsumo.start(["sumo", *files, *quiet, *unchecked])
    libsumo.simulationStep(float(before))
    used = passed = vehicle_seconds = 0.0
    while passed < float(seconds):
        passed += 10
        start = time.thread_time()
        libsumo.simulationStep(float(before) + passed)
        used += time.thread_time() - start
        vehicle_seconds += 10 * libsumo.vehicle.getIDCount()
    print(vehicle_seconds / float(vehicles) / used)


def test_a_town_beside_sumo(tmp_path, record):
    network, demand = tmp_path / "town.net.xml", tmp_path / "town.rou.xml"
    write_network(network, SIZE)
    write_demand(demand, SIZE, RATE, BEFORE + SECONDS)
    contenders = {"fastrl, 0.1 s": lambda: speed_of_fastrl(network)}
    left_out = {}
    for step in STEPS:
        name = f"SUMO, {step:g} s"
        if importlib.util.find_spec("libsumo") is None:
            left_out[name] = "libsumo is not installed: pip install 'fastrl[sumo]'"
        else:
            contenders[name] = lambda step=step: speed_of_sumo(network, demand, step)
    record(
        "A town of 1,000 vehicles",
        "simulated seconds/s",
        [Case(f"{SIZE * SIZE} junctions", measure_in_turns(contenders, ROUNDS))],
        ["fastrl, 0.1 s"],
        about=f"One core, steps as named, {VEHICLES:,} vehicles at once; SUMO's rate is scaled to as many.",
        left_out=left_out,
    )


if __name__ == "__main__":
    _run_sumo(*sys.argv[1:])
