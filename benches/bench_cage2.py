"""The CAGE 2 simulator from Python. Run: ``pytest benches/bench_cage2.py -s`` on an otherwise idle machine.

Where the real CybORG (`cage-challenge/cage-challenge-2`) can be imported, it is measured in the same run.
"""

import importlib
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fastrl.envs.cage2.env import Cage2VectorEnv
from rounds import rate

ROUNDS = 7
LOOPS = 128  # actions of each environment, drawn beforehand; more than an episode has steps


class RandomSteps:
    """Steps environments by random actions, drawn beforehand; results are written into arrays of its own."""

    def __init__(self, num_envs, red_agent, num_threads=1, make=Cage2VectorEnv):
        self.num_envs = num_envs
        self.env = make(num_envs, red_agent=red_agent, num_threads=num_threads, autoreset_mode="same_step")
        self.actions = np.random.default_rng(0).integers(145, size=(LOOPS, num_envs))
        self.obs = np.empty((num_envs, *self.env.single_observation_space.shape), np.float32)
        self.final_obs = np.empty_like(self.obs)
        self.rewards = np.empty(num_envs, np.float32)
        self.terminations, self.truncations = np.empty((2, num_envs), np.bool_)
        self.env.reset_into(self.obs, seed=0)

    def steps_per_second(self, seconds):
        return rate(self._steps, seconds)

    def _steps(self):
        for actions in self.actions:
            self.env.step_into(
                actions, self.obs, self.rewards, self.terminations, self.truncations, self.final_obs
            )
        return self.actions.size


@pytest.mark.parametrize("red_agent", ["bline", "meander", "mix"])
@pytest.mark.parametrize(("num_envs", "num_threads"), [(1, 1), (64, 1), (4096, 1), (4096, 0)])
def test_steps_per_second(red_agent, num_envs, num_threads):
    steps = RandomSteps(num_envs, red_agent, num_threads)
    speeds = [steps.steps_per_second(0.3) for _ in range(ROUNDS)]
    assert (steps.rewards <= 0).all()
    print(
        f"\nCAGE 2, {red_agent}, num_envs={num_envs}, {num_threads or 'all'} thread(s):"
        f" {statistics.median(speeds) / 1e6:.2f} million steps/s"
        f" ({min(speeds) / 1e6:.2f} to {max(speeds) / 1e6:.2f})"
    )


def test_memory_per_environment():
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
    print(f"\nCAGE 2: {size:,.0f} bytes an environment")
    assert size < 4096


def test_beside_cyborg():
    """One core, one game after another there, 4096 at once here, in turns."""
    cyborg = pytest.importorskip("CybORG", reason="the real CybORG is not installed")
    agents = importlib.import_module("CybORG.Agents")
    wrappers = importlib.import_module("CybORG.Agents.Wrappers")
    scenario = Path(cyborg.__file__).parent / "Shared" / "Scenarios" / "Scenario2.yaml"
    game = wrappers.ChallengeWrapper(
        env=cyborg.CybORG(str(scenario), "sim", agents={"Red": agents.B_lineAgent}), agent_name="Blue"
    )
    steps = RandomSteps(4096, "bline")
    random = np.random.default_rng(0)
    ratios, theirs = [], []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        game.reset()
        for action in random.integers(145, size=100):
            game.step(int(action))
        theirs.append(100 / (time.perf_counter() - start))
        ratios.append(steps.steps_per_second(0.2) / theirs[-1])
    print(
        f"\nCAGE 2: CybORG {statistics.median(theirs):,.0f} steps/s;"
        f" here {statistics.median(ratios):,.0f} times that (median of {ROUNDS})"
    )
    assert statistics.median(ratios) > 1
