"""Traffic lights beside sumo-rl and SUMO on the same networks, one core: ``pytest benches/bench_lights.py -s``.

SUMO is compared with where libsumo is installed, and sumo-rl where it is (``pip install sumo-rl``, with SUMO_HOME set).
It has one simulation a process, so each of its rounds has a process of its own, whose start does not count.
"""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from fastrl.envs import make_multi
from fastrl.envs.traffic.lights import NETWORKS, files_of
from results import Case
from rounds import measure_in_turns

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
import sumo_lights

ID = "fastrl/lights-v0"
NUM_ENVS = 64
EPISODES = 64
SECONDS = 900
STEPS = SECONDS // 5
REPEATS = 5


def steps_of_fastrl(env):
    """Environment steps in a second of CPU time, with random actions."""
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    start = time.thread_time()
    for _ in range(STEPS):
        env.step(rng.integers(4, size=(NUM_ENVS, env.num_agents)))
    return NUM_ENVS * STEPS / (time.thread_time() - start)


def steps_of_sumo_rl(net):
    done = subprocess.run(
        [sys.executable, __file__, net],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LIBSUMO_AS_TRACI": "1"},
    )
    return float(done.stdout.split()[-1])


def _run_sumo_rl(net):
    from sumo_rl import SumoEnvironment

    network, demand = files_of(net)
    env = SumoEnvironment(
        str(network),
        str(demand),
        num_seconds=SECONDS + 5,
        sumo_seed=0,
        sumo_warnings=False,
        add_system_info=False,
        add_per_agent_info=False,
        additional_sumo_cmd="--no-step-log",
    )
    env.reset()
    rng = np.random.default_rng(0)
    start = time.thread_time()
    for _ in range(STEPS):
        env.step({light: int(rng.integers(4)) for light in env.ts_ids})
    print(STEPS / (time.thread_time() - start))


def test_steps_beside_sumo_rl(record):
    cases, left_out = [], {}
    for net in NETWORKS:
        env = make_multi(ID, NUM_ENVS, net=net, num_threads=1)
        contenders = {"fastrl": lambda env=env: steps_of_fastrl(env)}
        if importlib.util.find_spec("sumo_rl") is None:
            left_out["sumo-rl"] = "it is not installed"
        else:
            contenders["sumo-rl"] = lambda net=net: steps_of_sumo_rl(net)
        cases.append(Case(net, measure_in_turns(contenders, REPEATS)))
    about = (
        f"Steps of 5 s, random actions, one core; fastrl with {NUM_ENVS} environments, sumo-rl with libsumo."
    )
    record("Traffic lights", "environment steps/s", cases, ["fastrl"], about=about, left_out=left_out)


def waiting_of_fastrl(net):
    env = make_multi(ID, EPISODES, net=net, fixed=True, duration=SECONDS)
    env.reset(seed=0)
    for _ in range(STEPS):
        env.step(np.zeros((EPISODES, env.num_agents), np.int64))
    return list(env.episodes()["waiting_time"])


def waiting_of_sumo(folder, net):
    runs = (sumo_lights.record(folder, *files_of(net), SECONDS, seed) for seed in range(REPEATS))
    return [run["waited"] / run["vehicles"] for run in runs]


def test_waiting_times_beside_sumo(tmp_path, record):
    cases, left_out = [], {}
    for net in NETWORKS:
        found = {"fastrl": waiting_of_fastrl(net)}
        if importlib.util.find_spec("libsumo") is None:
            left_out["SUMO"] = "libsumo is not installed"
        else:
            found["SUMO"] = waiting_of_sumo(tmp_path, net)
        cases.append(Case(net, found))
    about = "Seconds that a vehicle waits in 15 minutes with the programs of the file, one number an episode."
    record("Waiting at traffic lights", "s", cases, [], about=about, left_out=left_out, lower_is_better=True)


if __name__ == "__main__":
    _run_sumo_rl(sys.argv[1])
