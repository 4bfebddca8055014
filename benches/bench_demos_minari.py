"""Export of episodes for Minari beside Minari's own writer. Run: ``pytest benches/bench_demos_minari.py -s`` on an
otherwise idle machine; half a minute.

Episodes have 22 steps with observations of 17 float64 numbers and 6 actions, as HalfCheetah's. Rounds alternate, and
medians count. Rates are of processor time, too, which other processes disturb less.
"""

import shutil
import statistics
import time
import warnings

import numpy as np
import pytest
from gymnasium.spaces import Box

import fastrl
from fastrl.demos import Episode, EpisodeWriter
from results import Case
from rounds import measure_in_turns

minari = pytest.importorskip("minari")

STEPS, EPISODES, THEIRS = 22, 2000, 100
ROUNDS = 3
BAR = 4000  # episodes per second
SPACES = Box(-np.inf, np.inf, (17,), np.float64), Box(-1, 1, (6,), np.float32)


def make_episodes(count):
    rng = np.random.default_rng(0)
    ended = np.arange(STEPS) == STEPS - 1
    return [
        Episode(
            rng.normal(size=(STEPS + 1, 17)),
            rng.uniform(-1, 1, (STEPS, 6)).astype(np.float32),
            rng.normal(size=STEPS),
            np.zeros(STEPS, np.bool_),
            ended,
            seed=i,
        )
        for i in range(count)
    ]


def rates_of(work, count, folder):
    """Episodes per second of wall time, and of processor time."""

    def measure():
        shutil.rmtree(folder, ignore_errors=True)
        wall, own = time.perf_counter(), time.process_time()
        work()
        return count / (time.perf_counter() - wall), count / (time.process_time() - own)

    return measure


def test_export(tmp_path, monkeypatch, record):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    episodes = make_episodes(EPISODES)
    with EpisodeWriter(tmp_path / "set", {}, *SPACES) as writer:
        writer.write_all(episodes)
    demos = fastrl.demos.load(tmp_path / "set")

    def theirs():
        buffers = [
            minari.data_collector.EpisodeBuffer(
                seed=each.seed,
                observations=each.observations,
                actions=each.actions,
                rewards=each.rewards,
                terminations=each.terminated,
                truncations=each.truncated,
                infos={},
            )
            for each in episodes[:THEIRS]
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            minari.create_dataset_from_buffers(
                "bench/theirs-v0", buffers, observation_space=SPACES[0], action_space=SPACES[1]
            )

    contenders = {
        "fastrl demos export": rates_of(
            lambda: fastrl.demos.export_minari(demos, "bench/ours-v0"), EPISODES, tmp_path / "minari"
        ),
        "minari.create_dataset_from_buffers": rates_of(theirs, THEIRS, tmp_path / "minari"),
    }
    rates = measure_in_turns(contenders, ROUNDS)
    contenders["fastrl demos export"]()
    found = minari.load_dataset("bench/ours-v0")
    np.testing.assert_array_equal(found[EPISODES - 1].observations, episodes[-1].observations)
    for i, clock in enumerate(("wall time", "processor time")):
        case = Case(
            f"episodes of {STEPS} steps", {name: [pair[i] for pair in of] for name, of in rates.items()}
        )
        title = f"Export for Minari, by {clock}"
        record(title, "episodes/s", [case], ["fastrl demos export"], part=clock)
    assert statistics.median(wall for wall, _ in rates["fastrl demos export"]) >= BAR
