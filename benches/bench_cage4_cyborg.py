"""CAGE Challenge 4 beside the real CybORG. Run: ``pytest benches/bench_cage4_cyborg.py -s`` on an otherwise idle
machine where CybORG 4.0 can be imported."""

import functools
import importlib
import itertools

import numpy as np
import pytest

from cyborg4 import make_cyborg
from fastrl.envs import Cage4VectorEnv
from results import Case
from rounds import rate
from vector_envs import SLOW, measure_case

ROUNDS, AT_ONCE = 5, 20
NUM_ACTIONS = np.array([82, 82, 82, 82, 242])


def steps_of_games(num_envs, random):
    """Steps games by random actions, in place."""
    env = Cage4VectorEnv(num_envs, random=random, num_threads=1)
    draws = np.random.default_rng(0).integers(0, 1 << 20, (100, num_envs, 5)) % NUM_ACTIONS
    actions = itertools.cycle(draws)
    env.reset(seed=0)

    def some():
        for row in itertools.islice(actions, AT_ONCE):
            env.step(row)
        return AT_ONCE * num_envs

    return functools.partial(rate, some)


def steps_of_cyborg():
    """Steps the real game by random actions, as its wrapper takes them."""
    if (game := make_cyborg(0)) is None:
        return None
    env = importlib.import_module("CybORG.Agents.Wrappers").BlueFlatWrapper(game)
    draws = itertools.cycle(np.random.default_rng(0).integers(0, 1 << 20, (100, 5)) % NUM_ACTIONS)
    names = sorted(env.possible_agents)
    env.reset()

    def some():
        for row in itertools.islice(draws, AT_ONCE):
            env.step(dict(zip(names, row.tolist(), strict=True)))
            if not env.agents:
                env.reset()
        return AT_ONCE

    return functools.partial(rate, some)


def test_beside_cyborg(record):
    """Steps of five agents on one core; one game there, one and many here."""
    theirs = steps_of_cyborg()
    if theirs is None:
        pytest.skip("the real CybORG of CAGE Challenge 4 is not installed")
    ours = {
        f"fastrl, {random}, {num_envs:,} at a time": steps_of_games(num_envs, random)
        for random in ("fast", "numpy")
        for num_envs in (1, 1024)
    }
    contenders = {**ours, "CybORG": lambda seconds: theirs(SLOW * seconds)}
    rates = measure_case(contenders, ROUNDS, 0.5)
    result = record("CAGE Challenge 4 beside CybORG", "steps/s", [Case("fsm", rates)], list(ours))
    assert next(result.ratios(result.cases[0]))[2].median > 1
