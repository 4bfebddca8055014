"""The contenders of bench_traffic.py: each makes an environment, and yields after a step the number of environments
that it has stepped. They run in processes of their own, some without fastrl, so each imports what it needs.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

NUM_ENVS = 64
# Rings are so fast that fewer at a time would measure Python's call.
NUM_RINGS = 1024
TESTS = Path(__file__).resolve().parent.parent / "tests" / "support"

Steps = Iterator[int]


def gymnasium_single(env_id: str) -> Steps:
    import gymnasium

    if env_id.startswith("fastrl/"):
        import fastrl.envs  # noqa: F401 (registers the ids)
    else:
        import highway_env

        gymnasium.register_envs(highway_env)
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    env = gymnasium.make(env_id)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(1000)]
    env.reset(seed=0)
    while True:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            # With several agents a tuple.
            if np.all(terminated) or truncated:
                env.reset()
            yield 1


def gymnasium_vector(env_id: str, **options: Any) -> Steps:
    import gymnasium

    import fastrl.envs  # noqa: F401

    gymnasium.logger.min_level = gymnasium.logger.ERROR
    env = gymnasium.make_vec(env_id, NUM_ENVS, num_threads=1, **options)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(1000)]
    env.reset(seed=0)
    while True:
        for row in actions:
            env.step(row)
            yield NUM_ENVS


def envpool_vector(env_id: str) -> Steps:
    import envpool

    env = envpool.make(env_id, env_type="gymnasium", num_envs=NUM_ENVS, num_threads=1, seed=0)
    space, rng = env.action_space, np.random.default_rng(0)
    if hasattr(space, "n"):
        actions = rng.integers(space.n, size=(1000, NUM_ENVS)).astype(np.int32)
    else:
        actions = rng.uniform(-1, 1, (1000, NUM_ENVS, *space.shape)).astype(np.float32)
    env.reset()
    while True:
        for row in actions:
            env.step(row)
            yield NUM_ENVS


def rings() -> Steps:
    from fastrl.envs import make_multi

    env = make_multi("fastrl/ring-v0", NUM_RINGS, num_threads=1)
    actions = np.random.default_rng(0).uniform(-1, 1, (100, NUM_RINGS, 1)).astype(np.float32)
    obs = np.empty((NUM_RINGS, 3), np.float32)
    rewards = np.empty(NUM_RINGS, np.float32)
    alive, terminations, truncations = np.empty((3, NUM_RINGS), np.bool_)
    env.reset_into(obs, alive, seed=0)
    while True:
        # Whole episodes, for the warm-up of the next is the most expensive step.
        for step in range(3000):
            env.step_into(actions[step % 100], obs, rewards, terminations, truncations, alive)
        yield 3000 * NUM_RINGS


def sumo_ring(reads: bool) -> Steps:
    """With `reads` what Flow needs each step: the learner's speed and gap, all speeds for the reward, a command."""
    import libsumo

    sys.path.insert(0, str(TESTS))
    from sumo_reference import EDGES, _network, _routes

    n, length, dt = 22, 245.0, 0.1
    lengths = dict.fromkeys(EDGES, length / len(EDGES))
    spec = {
        "positions": [length * i / n for i in range(n)],
        "speeds": [3.0] * n,
        "ring_length": length,
        "learner": 4,
    }
    folder = Path(tempfile.mkdtemp(prefix="fastrl-sumo-"))
    (folder / "net.xml").write_text(_network(lengths, True))
    (folder / "rou.xml").write_text(_routes(spec, lengths))
    arguments = ["-n", folder / "net.xml", "-r", folder / "rou.xml", "--step-length", dt]
    quiet = [f"--{name}" for name in ("no-step-log=true", "no-warnings=true", "time-to-teleport=-1")]
    unchecked = ["--xml-validation=never", "--xml-validation.net=never"]
    libsumo.start(["sumo", *map(str, arguments), *quiet, *unchecked])
    vehicle, names = libsumo.vehicle, [f"v{i}" for i in range(n)]
    libsumo.simulationStep()
    if reads:
        vehicle.setSpeedMode("v4", 25)
    actions = np.random.default_rng(0).uniform(-1, 1, 1000)
    while True:
        for action in actions:
            if reads:
                vehicle.setSpeed("v4", max(vehicle.getSpeed("v4") + float(action) * dt, 0.0))
            libsumo.simulationStep()
            if reads:
                speeds = [vehicle.getSpeed(name) for name in names]
                _, gap = vehicle.getLeader("v4", 100.0)
                np.array([speeds[4], speeds[5] - speeds[4], gap], np.float32)
                sum(speeds)
            yield 1


def coop(env_id: str = "coop-highway-v0", *, idle: bool = False, task: Any = None) -> Steps:
    from fastrl.envs import make_multi

    env = make_multi(f"fastrl/{env_id}", NUM_ENVS, max_agents=15, num_threads=1, task=task)
    rows = NUM_ENVS * 15
    actions = np.random.default_rng(0).integers(5, size=(1000, rows))
    if idle:
        actions[:] = 1
    obs = np.empty((rows, env.single_observation_space.shape[0]), np.float32)
    rewards = np.empty(rows, np.float32)
    alive, terminations, truncations = np.empty((3, rows), np.bool_)
    env.reset_into(obs, alive, seed=0)
    while True:
        for row in actions:
            env.step_into(row, obs, rewards, terminations, truncations, alive)
            yield NUM_ENVS


def rewarded(env_id: str) -> Steps:
    """The environments with their own reward, computed by a task in Python."""
    sys.path.insert(0, str(TESTS))
    import driving_tasks

    task = {
        "highway-v0": driving_tasks.Highway,
        "merge-v0": driving_tasks.Merge,
        "coop-merge-v0": driving_tasks.CoopMerge,
    }[env_id]()
    return (
        coop(env_id, task=task)
        if env_id.startswith("coop")
        else gymnasium_vector(f"fastrl/{env_id}", task=task)
    )


def vmas_road_traffic() -> Steps:
    import torch
    import vmas

    torch.set_num_threads(1)
    env = vmas.make_env(
        "road_traffic", num_envs=NUM_ENVS, device="cpu", continuous_actions=True, n_agents=15, seed=0
    )
    env.reset()
    generator = torch.Generator().manual_seed(0)
    limits = torch.tensor([1.0, 0.6])
    while True:
        actions = [(2 * torch.rand(NUM_ENVS, 2, generator=generator) - 1) * limits for _ in range(15)]
        env.step(actions)
        yield NUM_ENVS


CONTENDERS: dict[str, Callable[[], Steps]] = {
    "highway, here, gymnasium.make": lambda: gymnasium_single("fastrl/highway-v0"),
    "highway, here, make_vec": lambda: gymnasium_vector("fastrl/highway-v0"),
    "highway, highway-env": lambda: gymnasium_single("highway-v0"),
    "highway, EnvPool": lambda: envpool_vector("highway-v0"),
    "fast, here, gymnasium.make": lambda: gymnasium_single("fastrl/highway-fast-v0"),
    "fast, here, make_vec": lambda: gymnasium_vector("fastrl/highway-fast-v0"),
    "fast, highway-env": lambda: gymnasium_single("highway-fast-v0"),
    "fast, EnvPool": lambda: envpool_vector("highway-fast-v0"),
    "ring, here": rings,
    "ring, libsumo": lambda: sumo_ring(reads=False),
    "ring, libsumo, env": lambda: sumo_ring(reads=True),
    "coop, here, random": coop,
    "coop, here, idle": lambda: coop(idle=True),
    "coop, VMAS": vmas_road_traffic,
    "coop-merge-v0, here, make_multi": lambda: coop("coop-merge-v0"),
    **{
        f"{env_id}, here, task": partial(rewarded, env_id)
        for env_id in ("highway-v0", "merge-v0", "coop-merge-v0")
    },
}


HERE = {"here, gymnasium.make": gymnasium_single, "here, make_vec": gymnasium_vector}
THERE = {"highway-env": gymnasium_single, "EnvPool": envpool_vector}


def contender(name: str) -> Steps:
    """One by its name: those above, or an id and "here, make_vec" or the like."""
    if name in CONTENDERS:
        return CONTENDERS[name]()
    env_id, what = name.split(", ", 1)
    return HERE[what](f"fastrl/{env_id}") if what in HERE else THERE[what](env_id)


def work(name: str) -> None:
    """The process of a contender: for each line on its input, a number of seconds, it prints steps a second."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    # Libraries print what they like; only the answers go out.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    steps = contender(name)
    next(steps)
    for line in sys.stdin:
        seconds, done, start = float(line), 0, time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds:
            done += next(steps)
        print(json.dumps(done / passed), file=answers, flush=True)


if __name__ == "__main__":
    work(sys.argv[1])
