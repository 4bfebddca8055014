"""DQN from pixels: steps a second by who plays and when, and learning.

Run: ``pytest benches/bench_pixels.py -s`` on an otherwise idle machine; four to five minutes on two cores.
"""

import functools
import importlib.util
import json
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from fastrl.cli.main import main
from fastrl.tasks.pixels.settings import PRESETS
from fastrl.tasks.pixels.task import TASK
from recording import Record
from results import Case
from rounds import measure_in_turns

# Frames of Atari's size from a game that costs next to nothing, and a small learner, so that mostly the way of frames
# to the replay is measured.
LIGHT = {
    "run.algo": "dqn",
    "run.device": "cpu",
    "run.eval_episodes": 0,
    "run.total_timesteps": 10**9,
    "replay.capacity": 50_000,
    "replay.learning_starts": 500,
    "replay.updates_per_step": 0.01,
    "dqn.conv": ("8x8/8",),
    "dqn.hidden": (32,),
    "dqn.batch_size": 32,
}
CATCH = {"env.id": "fastrl/Catch-v0", "env.size": 84}
TURNS = {"replay.overlap": False}
WORKERS = {"collect.collector": "executor", "collect.n_workers": 2}
WAYS = {
    "workers, while the learner learns": WORKERS,
    "workers, in turns": WORKERS | TURNS,
    "one process": TURNS | {"collect.collector": "sequential"},
}
STEPS, ROUNDS, SEEDS = 4_000, 3, (0, 1, 2)


def rate(settings: dict[str, Any]) -> float:
    """Environment steps a second, once the replay has enough to learn from."""
    trainer = TASK.make_trainer(TASK.make_settings(LIGHT | {"run.row_seconds": 0.1} | settings))
    rows = trainer.rows()
    while next(rows).steps < 2 * LIGHT["replay.learning_starts"]:  # type: ignore[call-overload]
        pass
    first, start = trainer.steps, time.perf_counter()
    while next(rows).steps < first + STEPS:  # type: ignore[call-overload]
        pass
    found = (trainer.steps - first) / (time.perf_counter() - start)
    rows.close()  # type: ignore[attr-defined]
    return found


def measure(game: dict[str, Any], record: Record) -> dict[str, list[float]]:
    rates = measure_in_turns(
        {name: functools.partial(rate, game | way) for name, way in WAYS.items()}, ROUNDS
    )
    about = f"Replays of frames of 84x84, {STEPS:,} steps and a small learner."
    case = Case(str(game["env.id"]), rates)
    record("DQN from pixels", "environment steps/s", [case], [next(iter(WAYS))], about=about)
    return rates


def test_a_game_that_costs_nothing(record: Record) -> None:
    """Processes do not pay: frames move between them."""
    measure(CATCH, record)


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="ale-py is not installed")
def test_atari(record: Record) -> None:
    """The longer the game takes, the more do workers play while the learner learns."""
    together, _, alone = measure({"env.id": "ALE/Pong-v5"}, record).values()
    assert statistics.median(together) > statistics.median(alone)


def test_learns_to_catch_every_ball(tmp_path: Path, record: Record) -> None:
    """The preset ``toy``, three seeds: at least 9 of the 10 balls that can be caught at most, net of those missed."""
    total = str(PRESETS["toy"].values["run"]["total_timesteps"])
    returns = []
    for seed in SEEDS:
        run = tmp_path / str(seed)
        assert (
            main(
                [
                    "train",
                    "fastrl/Catch-v0",
                    "--preset=toy",
                    f"--seed={seed}",
                    "--device=cpu",
                    f"--run-dir={run}",
                ]
            )
            == 0
        )
        summary = json.loads((run / "summary.json").read_text())
        returns.append((summary["evaluation"]["mean"], summary["seconds"]))
    means, seconds = map(list, zip(*returns, strict=True))
    name = f"fastrl/Catch-v0, {total} steps"
    about = f"The preset toy; a number a seed, seeds {SEEDS}; 10 is the best possible."
    record("Learning from pixels", "mean return", [Case(name, {"fastrl": means})], ["fastrl"], about=about)
    case = Case(name, {"fastrl": seconds})
    title = "Learning from pixels, seconds"
    record(title, "s", [case], ["fastrl"], lower_is_better=True, part="seconds")
    assert min(mean for mean, _ in returns) >= 9
    assert statistics.median(mean for mean, _ in returns) >= 9.5
