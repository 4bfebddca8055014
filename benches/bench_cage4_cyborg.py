"""CAGE Challenge 4 beside the real CybORG. Run: ``pytest benches/bench_cage4_cyborg.py -s`` on an otherwise idle
machine where CybORG 4.0 can be imported."""

import functools
import importlib
import itertools

import numpy as np
import pytest

from bench_cage4 import MODES, Cage4Steps
from cyborg4 import make_cyborg
from results import Case
from rounds import rate
from vector_envs import SLOW, measure_case

ROUNDS, AT_ONCE = 5, 20


def steps_of_cyborg():
    """Steps the real game by random valid actions, as its wrapper takes them."""
    if (game := make_cyborg(0)) is None:
        return None
    env = importlib.import_module("CybORG.Agents.Wrappers").BlueFlatWrapper(game)
    names, rng = sorted(env.possible_agents), np.random.default_rng(0)
    env.reset()
    allowed = [np.flatnonzero(env.action_mask(name)) for name in names]
    draws = itertools.cycle(np.stack([rng.choice(actions, size=64) for actions in allowed], axis=1))

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
        f"fastrl, {random}, {num_envs:,} at a time": Cage4Steps(num_envs, random).measure
        for random in MODES
        for num_envs in (1, 1024)
    }
    contenders = {**ours, "CybORG": lambda seconds: theirs(SLOW * seconds)}
    rates = measure_case(contenders, ROUNDS, 0.5)
    result = record("CAGE Challenge 4 beside CybORG", "steps/s", [Case("fsm", rates)], list(ours))
    assert next(result.ratios(result.cases[0]))[2].median > 1
