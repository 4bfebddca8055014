"""Replay beside numpy, Stable-Baselines3, cpprb and TorchRL. Run: ``pytest benches/bench_replay.py -s``.

`replays` says what is compared. Reference points, for one machine with 2 shared cores: adding one 3
million/s, adding 64 20 million/s, sampling twice and prioritized sampling three times the best peer, stacked frames at
80% of the copy bandwidth.
"""

import pytest

from replays import ADDING, OURS, SAMPLING, measure_case
from results import Case

ROUNDS = 7
SECONDS = 0.25  # of each turn

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", SAMPLING)
def test_sampling(name, record):
    rates = measure_case(SAMPLING[name](), ROUNDS, SECONDS)
    record("Minibatches of 256 from a replay", "batches/s", [Case(name, rates)], OURS)


@pytest.mark.parametrize("name", ADDING)
def test_adding(name, record):
    rates = measure_case(ADDING[name](), ROUNDS, SECONDS)
    record("Transitions added to a replay", "transitions/s", [Case(name, rates)], OURS)
