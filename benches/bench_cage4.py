"""The CAGE 4 simulator from Python. Run: ``pytest benches/bench_cage4.py -s`` on an otherwise idle machine.

Steps are those of games, in each of which five agents act at random within their masks. Where the executable
specification in plain Python (``../shared/cage4/reference.py``) is there, it is measured in the same run.
"""

import functools
import importlib.util
import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from fastrl.envs.cage4.env import Cage4VectorEnv
from results import Case
from rounds import rate
from vector_envs import SLOW, Measure, measure_case

ROUNDS = 7
REFERENCE = Path(__file__).parents[2] / "shared" / "cage4" / "reference.py"
MODES = ("fast", "numpy")


class Cage4Steps:
    """Steps games in place, with arrays that are allocated once."""

    def __init__(self, num_envs, draws="fast", num_threads=1):
        self._env = env = Cage4VectorEnv(
            num_envs, random=draws, num_threads=num_threads, autoreset_mode="same_step"
        )
        rows = num_envs * env.num_agents
        shape = env.single_observation_space.shape
        self._obs, self._final_obs = np.empty((2, rows, *shape), np.float32)
        self._rewards = np.empty(rows, np.float32)
        self._flags = np.empty((3, rows), np.bool_)
        env.reset_into(self._obs, self._flags[2], seed=0)
        allowed = [np.flatnonzero(mask) for mask in env.action_masks().reshape(rows, -1)]
        rng = np.random.default_rng(0)
        self._actions = np.stack([rng.choice(actions, size=64) for actions in allowed], axis=1)
        self._num_envs = num_envs

    def measure(self, seconds):
        return rate(self._steps, seconds)

    def _steps(self):
        for actions in self._actions:
            self._env.step_into(actions, self._obs, self._rewards, *self._flags, self._final_obs)
        return len(self._actions) * self._num_envs


def reference() -> Measure | None:
    """Games in plain Python one after another; None where it is not there."""
    if not REFERENCE.exists():
        return None
    spec = importlib.util.spec_from_file_location("cage4_reference_simulator", REFERENCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    seeds, rng = itertools.count(), random.Random(0)

    def episode() -> int:
        game, source = module.Sim(), module.Seeded(next(seeds))
        game.begin(game.generate(source.g), source)
        allowed = [[i for i, (_, _, is_valid) in enumerate(menu) if is_valid] for menu in game.menu]
        for _ in range(100):
            game.step([rng.choice(actions) for actions in allowed])
        return 100

    return functools.partial(rate, episode)


@pytest.mark.parametrize("draws", MODES)
def test_steps_per_second(draws, record):
    sizes = [(1, 1), (64, 1), (1024, 1), (1024, 2)]
    contenders = {
        f"fastrl, {num_envs:,} at a time, {threads} thread(s)": Cage4Steps(num_envs, draws, threads).measure
        for num_envs, threads in sizes
    }
    rates = measure_case(contenders, ROUNDS, 0.3)
    record(f"CAGE Challenge 4, {draws}", "steps/s", [Case("random actions", rates)], list(contenders))


def test_beside_plain_python(record):
    theirs = reference()
    if theirs is None:
        pytest.skip("the simulator in plain Python is not there")
    ours = {f"fastrl, 1,024 at a time, {draws}": Cage4Steps(1024, draws).measure for draws in MODES}
    contenders = ours | {"plain Python": lambda seconds: theirs(SLOW * seconds)}
    rates = measure_case(contenders, ROUNDS, 0.2)
    result = record(
        "CAGE Challenge 4 beside plain Python", "steps/s", [Case("random actions", rates)], list(ours)
    )
    assert all(ratio.median > 1 for _, _, ratio in result.ratios(result.cases[0]))
