"""Transports of experience in the pixel pipeline (see `compare_transports`), and learning from pixels.

Run: ``pytest benches/bench_pixels.py -s`` on an otherwise idle machine; three to four minutes on two cores.
"""

import importlib.util
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from compare_transports import CONFIG_TYPE, OURS, SETTINGS, compare, flow_table, medians
from fastrl.benchmarks.results import Case
from fastrl.cli.main import main
from fastrl.tasks.pixels.settings import PRESETS
from fastrl.utils.config import build, check
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show
from recording import Record

# So light that it leaves the cores to the actors.
LIGHT = {"collect.updates_per_step": 0.001}
SECONDS, ROUNDS, SEEDS = 2.0, 3, (0, 1, 2)


def measure(settings: Any, record: Record) -> dict[str, Any]:
    flows = compare(settings, SECONDS, ROUNDS)
    middle = medians(flows)
    show(plain_console(), flow_table(middle, settings))
    rates = {name: [flow.experience for flow in several] for name, several in flows.items()}
    record("Transport of experience", "environment steps/s", [Case(settings.env.id, rates)], [OURS])
    return {flow.transport: flow for flow in middle}


def test_a_game_that_costs_nothing(record: Record) -> None:
    """Two actors, frames of 84x84: the transport is the limit."""
    settings = build(CONFIG_TYPE, check(CONFIG_TYPE, SETTINGS, "defaults"), LIGHT)
    flows = measure(settings, record)
    assert flows[OURS].dropped == 0
    assert flows[OURS].wait_share < 0.01
    assert flows[OURS].experience > flows["multiprocessing.Queue"].experience


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="ale-py is not installed")
def test_atari(record: Record) -> None:
    """The queue costs next to nothing beside a game that is slow."""
    game = check(CONFIG_TYPE, SETTINGS, "defaults") | {
        "env.id": "ALE/Pong-v5",
        "env.frame_skip": 4,
        "env.noop_max": 30,
        "env.clip_reward": True,
    }
    flows = measure(build(CONFIG_TYPE, game, LIGHT), record)
    assert flows[OURS].wait_share < 0.01
    assert flows[OURS].experience > 0.8 * flows["nothing"].experience


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
