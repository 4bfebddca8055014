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
from fastrl.play.team_policy import TeamPolicy
from fastrl.runs.checkpoint import load_newest
from fastrl.tasks.traffic.task import TASK
from fastrl.training.evaluation import Evaluation
from fastrl.utils.config import build
from results import Case
from rounds import measure_in_turns

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
import sumo_reference

LENGTHS = (220, 230, 240, 250, 260, 270)
# Measured with SUMO 1.28; the spread of speeds falls from about 3 to under 0.05 m/s.
SUMO_HUMANS = (2.11, 2.42, 2.75, 3.11, 3.55, 4.10)
SUMO_FOLLOWER_STOPPER = (2.97, 3.44, 3.91, 4.36, 4.82, 5.27)
HELD_OUT = (220, 222, 231, 243, 251, 263, 270)
SEEDS = (10, 11, 12)
# Of the speed test: environment steps of one ring, and of each of many.
STEPS_ALONE, STEPS, SUMO_STEPS = 12_000, 3000, 20_000


def by_length(lengths, rows):
    """Cases by the length of the ring, from rows of a number for each length, by contender."""
    return [
        Case(f"{length} m", {name: [float(values[i])] for name, values in rows.items()})
        for i, length in enumerate(lengths)
    ]


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


def test_the_table_of_the_ring(record):
    """Humans need minutes for their wave, the longer the ring the more: SUMO's row was taken while it was forming."""
    even = {"bunching": 0.0}
    forming = [driven("humans", length, 300, 450, **even) for length in LENGTHS]
    formed = [driven("humans", length, 600, 800, **even) for length in LENGTHS]
    options = {"safe_speed": False, **even}
    stopper = [driven("follower_stopper", length, 300, 450, **options) for length in LENGTHS]
    pi = [driven("pi_saturation", length, 300, 450, **even) for length in LENGTHS]
    speeds, spreads = (
        {
            "humans, 300 s to 450 s": [each[i] for each in forming],
            "humans, 600 s to 800 s": [each[i] for each in formed],
            "FollowerStopper at the equilibrium": [each[i] for each in stopper],
            "PI with saturation": [each[i] for each in pi],
        }
        for i in range(2)
    )
    known = {
        "uniform equilibrium": [equilibrium_speed(length) for length in LENGTHS],
        "humans, SUMO 1.28": SUMO_HUMANS,
        "FollowerStopper at the equilibrium, SUMO 1.28": SUMO_FOLLOWER_STOPPER,
    }
    about = "Evenly spaced at first, noise 0.2. SUMO's figures were measured once, and are not of this run."
    record("Mean speed on the ring", "m/s", by_length(LENGTHS, known | speeds), [], about=about, part="speed")
    about = "Standard deviation of the vehicles' speeds."
    title = "Spread of speeds on the ring"
    record(title, "m/s", by_length(LENGTHS, spreads), [], about=about, lower_is_better=True, part="spread")
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


def test_steps_per_second(tmp_path, record):
    """Steps of a ring of 22 by one thread. An episode is Flow's 3000 steps, and the 750 of the warm-up are work of its
    reset: they take time here and do not count as steps."""

    def ours(num_envs, agents, **options):
        env = make_multi("fastrl/ring-v0", num_envs, num_agents=agents, num_threads=1, **options)
        return lambda: steps_per_second(env, STEPS if num_envs > 1 else STEPS_ALONE)

    def theirs():
        x = (2.0 + np.arange(22) * 245.0 / 22).tolist()
        start = {"positions": x, "speeds": [1.0] * 22, "ring_length": 245.0}
        done = sumo_reference.record(tmp_path, steps=SUMO_STEPS, dt=0.1, ballistic=False, **start)
        return SUMO_STEPS / done["seconds"][0]

    contenders = {
        "fastrl, 1 ring": ours(1, 1),
        "fastrl, 64 rings": ours(64, 1),
        "fastrl, 1,024 rings": ours(1024, 1),
        "fastrl, 64 rings of 22 agents": ours(64, 22),
        "fastrl, 64 rings, no warm-up": ours(64, 1, warmup_steps=0),
    }
    names, left_out = list(contenders), {}
    if sumo_reference.NOT_INSTALLED:
        left_out["libsumo"] = sumo_reference.WHY
    else:
        contenders["libsumo, simulationStep alone"] = theirs
    rates = measure_in_turns(contenders, 2)
    about = "One thread; observations, rewards and automatic resets included."
    case = Case("22 vehicles", rates)
    record("Steps of the ring", "environment steps/s", [case], names, about=about, left_out=left_out)


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


def test_an_agent_learns_to_dissolve_the_wave(tmp_path, record):
    """The preset `ring` from Flow's start, a wave that has formed; held-out lengths and seeds.

    Each run's policy is the best by its own evaluations, by return and on seeds of its own, as its best checkpoint;
    the last one is shown beside it. About 2 minutes."""
    humans = [driven("humans", length, 275, 375)[0] / equilibrium_speed(length) for length in HELD_OUT]
    rows = {"best checkpoint": [], "last checkpoint": []}
    for seed in SEEDS:
        config_type = TASK.settings_type("ippo")
        settings = build(config_type, TASK.preset_values(config_type, "ring"), {"run.seed": seed})
        trainer = TASK.make_trainer(settings, Console())
        evaluation = trainer.callback(Evaluation)
        evaluation.best_file = tmp_path / str(seed) / "best.safetensors"
        for _ in trainer.rows():
            pass
        best = TeamPolicy(load_newest(evaluation.best_file)[1]["policy"])
        last = TeamPolicy(trainer.algorithm.policy_state())
        for name, policy in (("best checkpoint", best), ("last checkpoint", last)):
            rows[name].append([float(held_out(policy, length)) for length in HELD_OUT])
        print(
            f"seed {seed}: {trainer.seconds:.0f} s; best at {evaluation.best_at} of {trainer.episodes} episodes"
        )
    cases = [
        Case(
            f"{length} m",
            {
                "humans": [float(humans[i])],
                **{name: [shares[i] for shares in of] for name, of in rows.items()},
            },
        )
        for i, length in enumerate(HELD_OUT)
    ]
    about = f"Last 100 s of 300 s, lengths that training has not seen; a number a seed, seeds {SEEDS}."
    record("Speed of a trained vehicle on the ring", "of the equilibrium speed", cases, [], about=about)
    assert min(min(shares) for shares in rows["best checkpoint"]) > 0.95
