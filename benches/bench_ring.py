"""Flow's ring road: the known table, steps per second beside libsumo, and an agent that learns to dissolve the wave.

Run: ``pytest benches/bench_ring.py -s`` on an otherwise idle machine. SUMO is compared with where libsumo is installed
(``pip install 'fastrl[sumo]'``).
"""

import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console

from fastrl.envs import RingVectorEnv, make_multi
from fastrl.envs.traffic.ring import equilibrium_speed
from fastrl.tasks.traffic.render import load_policy
from fastrl.tasks.traffic.task import TASK
from fastrl.training.evaluation import Evaluation
from fastrl.utils.config import build

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
import sumo_reference

LENGTHS = (220, 230, 240, 250, 260, 270)
# Measured with SUMO 1.28; the spread of speeds falls from about 3 to under 0.05 m/s.
SUMO_HUMANS = (2.11, 2.42, 2.75, 3.11, 3.55, 4.10)
SUMO_FOLLOWER_STOPPER = (2.97, 3.44, 3.91, 4.36, 4.82, 5.27)
HELD_OUT = (220, 222, 231, 243, 251, 263, 270)
SEEDS = (10, 11, 12)


def row(name, values, digits=2):
    print(f"{name:44s}" + "".join(f"{value:8.{digits}f}" for value in values))


def driven(drive, length, start, end, rings=16, **options):
    """Mean speed and spread of speeds, m/s, of all vehicles between two moments, s."""
    env = RingVectorEnv(
        rings,
        drive=drive,
        ring_length=float(length),
        warmup_steps=0,
        sims_per_step=10,
        horizon=10_000,
        **options,
    )
    env.reset(seed=0)
    speeds, spreads = [], []
    for second in range(end):
        env.step(np.zeros((rings, 1), np.float32))
        if second >= start:
            v = env.vehicles().speeds
            speeds.append(v.mean())
            spreads.append(v.std(axis=1).mean())
    return np.mean(speeds), np.mean(spreads)


def test_the_table_of_the_ring():
    """Humans need minutes for their wave, the longer the ring the more: SUMO's row was taken while it was forming."""
    even = {"bunching": 0.0}
    print("\nmean speed, m/s; evenly spaced at first, noise 0.2; ring length, m")
    row("", LENGTHS, 0)
    row("uniform equilibrium", [equilibrium_speed(length) for length in LENGTHS])
    row("humans, SUMO", SUMO_HUMANS)
    forming = [driven("humans", length, 300, 450, **even) for length in LENGTHS]
    row("humans, 300 s to 450 s", [speed for speed, _ in forming])
    formed = [driven("humans", length, 600, 800, **even) for length in LENGTHS]
    row("humans, 600 s to 800 s", [speed for speed, _ in formed])
    row("  spread", [spread for _, spread in formed])
    row("FollowerStopper at the equilibrium, SUMO", SUMO_FOLLOWER_STOPPER)
    options = {"safe_speed": False, **even}
    stopper = [driven("follower_stopper", length, 300, 450, **options) for length in LENGTHS]
    row("FollowerStopper at the equilibrium", [speed for speed, _ in stopper])
    row("  spread", [spread for _, spread in stopper], 3)
    pi = [driven("pi_saturation", length, 300, 450, **even) for length in LENGTHS]
    row("PI with saturation", [speed for speed, _ in pi])
    row("  spread", [spread for _, spread in pi], 3)
    for (ours, _), theirs in zip(forming, SUMO_HUMANS, strict=True):
        assert abs(ours - theirs) < 0.1
    for (ours, spread), theirs in zip(stopper, SUMO_FOLLOWER_STOPPER, strict=True):
        assert abs(ours - theirs) < 0.02 and spread < 0.06


def steps_per_second(env, steps):
    rows = env.num_envs * env.num_agents
    obs = np.zeros((rows, 3), np.float32)
    rewards = np.zeros(rows, np.float32)
    terminations, truncations, alive = (np.zeros(rows, np.bool_) for _ in range(3))
    actions = np.zeros((rows, 1), np.float32)
    env.reset_into(obs, alive, seed=0)
    start = time.perf_counter()
    for _ in range(steps):
        env.step_into(actions, obs, rewards, terminations, truncations, alive)
    return env.num_envs * steps / (time.perf_counter() - start)


def test_steps_per_second(tmp_path):
    """Steps of a ring of 22 by one thread. An episode is Flow's 3000 steps, and the 750 of the warm-up are work of its
    reset: they take time here and do not count as steps."""
    print("\nring of 22, one thread, million steps/s (observations, rewards and automatic resets included)")
    best = {}
    for num_envs, agents in ((1, 1), (64, 1), (1024, 1), (64, 22)):
        env = make_multi("fastrl/ring-v0", num_envs, num_agents=agents, num_threads=1)
        steps = 3000 if num_envs > 1 else 12_000
        best[num_envs, agents] = max(steps_per_second(env, steps) for _ in range(2)) / 1e6
        print(f"  {num_envs:5d} rings of {agents:2d} agents: {best[num_envs, agents]:6.2f}")
    env = make_multi("fastrl/ring-v0", 64, num_threads=1, warmup_steps=0)
    print(f"  {64:5d} rings, no warm-up:    {steps_per_second(env, 6000) / 1e6:6.2f}")
    if sumo_reference.NOT_INSTALLED:
        print(f"  {sumo_reference.WHY}")
        return
    x = (2.0 + np.arange(22) * 245.0 / 22).tolist()
    record = sumo_reference.record(
        tmp_path, positions=x, speeds=[1.0] * 22, steps=20_000, dt=0.1, ballistic=False, ring_length=245.0
    )
    sumo = 20_000 / record["seconds"][0]
    print(f"  libsumo 1.28, simulationStep alone: {sumo / 1e6:.4f}; ratio {best[64, 1] * 1e6 / sumo:.0f}")


def held_out(policy, length):
    """Mean speed over the last 100 s of episodes of 300 s, in equilibrium speeds, without exploration."""
    env = RingVectorEnv(
        8,
        ring_length=float(length),
        distance_scale=270.0,
        sims_per_step=10,
        horizon=301,
        warmup_steps=75,
        memory=20.0,
    )
    obs, _ = env.reset(seed=1_000_000)
    speeds = []
    for step in range(300):
        obs, *_ = env.step(policy.act(obs, np.ones(8, np.bool_), deterministic=True))
        if step >= 200:
            speeds.append(env.vehicles().speeds.mean())
    return np.mean(speeds) / equilibrium_speed(length)


def test_an_agent_learns_to_dissolve_the_wave(tmp_path):
    """The preset `ring` from Flow's start, a wave that has formed; held-out lengths and seeds.

    Each run's policy is the best by its own evaluations, by return and on seeds of its own, as its best checkpoint;
    the last one is shown beside it. About 2 minutes."""
    print("\nmean speed in equilibrium speeds, last 100 s of 300 s; held-out lengths, m")
    row("", HELD_OUT, 0)
    row(
        "humans",
        [driven("humans", length, 275, 375)[0] / equilibrium_speed(length) for length in HELD_OUT],
        3,
    )
    worst = []
    for seed in SEEDS:
        config_type = TASK.settings_type("ippo")
        settings = build(config_type, TASK.preset_values(config_type, "ring"), {"run.seed": seed})
        trainer = TASK.make_trainer(settings, Console())
        evaluation = trainer.callback(Evaluation)
        evaluation.best_file = tmp_path / str(seed) / "best.safetensors"
        for _ in trainer.rows():
            pass
        last = [held_out(trainer.algorithm.policy, length) for length in HELD_OUT]
        _, policy = load_policy(evaluation.best_file)
        best = [held_out(policy, length) for length in HELD_OUT]
        row(f"learned, seed {seed}, {trainer.seconds:.0f} s: best", best, 3)
        row(f"  last (best was at {evaluation.best_at} of {trainer.episodes})", last, 3)
        worst.append(min(best))
    assert min(worst) > 0.95
