"""The CAGE 2 simulator from Python. Run: ``pytest benches/bench_cage2.py -s`` on an otherwise idle machine.

Where the real CybORG (`cage-challenge/cage-challenge-2`) can be imported, it is measured in the same run.
"""

import subprocess
import sys

import pytest

from results import Case
from vector_envs import Cage2GameSteps, Cage2Steps, cyborg, measure_case

ROUNDS = 7


@pytest.mark.parametrize("red_agent", ["bline", "meander", "mix"])
def test_steps_per_second(red_agent, record):
    sizes = [(1, 1), (64, 1), (4096, 1), (4096, 2)]
    contenders = {
        f"fastrl, {num_envs:,} at a time, {threads} thread(s)": Cage2Steps(
            num_envs, red_agent, threads
        ).measure
        for num_envs, threads in sizes
    }
    rates = measure_case(contenders, ROUNDS, 0.3)
    record("CAGE Challenge 2", "steps/s", [Case(red_agent, rates)], list(contenders))


def test_game_of_two_agents(record):
    """Both sides' actions given, at random."""
    contenders = {f"fastrl, {n:,} at a time": Cage2GameSteps(n).measure for n in (1, 64, 4096)}
    rates = measure_case(contenders, ROUNDS, 0.3)
    record("CAGE Challenge 2 of two agents", "steps/s", [Case("given reds", rates)], list(contenders))


def test_memory_per_environment(record):
    """Growth of the process over many environments that have played for a while, in a process of its own."""
    script = """
import numpy as np
from fastrl.envs.cage2.env import Cage2VectorEnv
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
n = 50_000
actions = np.random.default_rng(0).integers(145, size=(100, n))
obs = np.ones((n, 52), np.float32); rewards = np.ones(n, np.float32); ends = np.ones((2, n), np.bool_)
before = resident()
env = Cage2VectorEnv(n, red_agent="mix", autoreset_mode="same_step", num_threads=1)
env.reset_into(obs, seed=0)
for row in actions:
    env.step_into(row, obs, rewards, ends[0], ends[1])
print((resident() - before) / n)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    size = float(done.stdout)
    case = Case("50,000 environments", {"fastrl": [size]})
    record("Memory of CAGE Challenge 2", "bytes an environment", [case], ["fastrl"], lower_is_better=True)
    assert size < 4096


def test_beside_cyborg(record):
    """One core, one game after another there, 4096 at once here."""
    theirs = cyborg()
    if theirs is None:
        pytest.skip("the real CybORG is not installed")
    contenders = {"fastrl, 4,096 at a time": Cage2Steps(4096).measure, "CybORG": theirs}
    rates = measure_case(contenders, ROUNDS, 0.2)
    result = record(
        "CAGE Challenge 2 beside CybORG", "steps/s", [Case("bline", rates)], ["fastrl, 4,096 at a time"]
    )
    assert next(result.ratios(result.cases[0]))[2].median > 1
