"""Benches: each test of each file gives its result to `record`, and what it writes makes a page."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import math
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import bench_autotune
import bench_bc
import bench_coop
import bench_demos
import bench_dqn
import bench_explain
import bench_gym
import bench_lights
import bench_links
import bench_pixels
import bench_profile
import bench_ranks
import bench_ring
import bench_town
import bench_traffic_training
import bench_workflow
import bench_workflow_search
import report
from demo_expert import lean
from fastrl.autotune.candidates import collector_way
from recording import recorder
from results import read_all

BENCHES = Path(__file__).resolve().parents[2] / "benches"

# Small budgets: numbers mean nothing.
CONSTANTS: dict[Any, dict[str, Any]] = {
    bench_autotune: {"ROUNDS": 2},
    bench_bc: {"SECONDS": 0.01, "ROUNDS": 1, "EPISODES": 2},
    bench_coop: {"NUM_ENVS": 2, "STEPS": 2, "REPEATS": 2},
    bench_demos: {"ROUNDS": 2},
    bench_dqn: {"SEEDS": (0, 1), "SCREEN_EPISODES": 2, "EPISODES": 2},
    bench_explain: {"ROUNDS": 2, "GAMES": 10, "STEPS": 3},
    bench_gym: {"SEEDS": (0,), "PROBLEMS": {"CartPole-v1": (5, {"ppo": 2000})}},
    bench_lights: {"NUM_ENVS": 2, "EPISODES": 2, "STEPS": 4, "REPEATS": 2, "NETWORKS": ("crossing",)},
    bench_links: {"NUM_ENVS": 2, "STEPS": 4, "REPEATS": 2},
    bench_pixels: {"STEPS": 50, "ROUNDS": 1, "WAYS": {"one process": bench_pixels.WAYS["one process"]}},
    bench_profile: {"ROUNDS": 2},
    bench_ring: {"STEPS": 20, "STEPS_ALONE": 20, "SUMO_STEPS": 100},
    bench_town: {"SIZE": 2, "VEHICLES": 20, "RATE": 0.5, "BEFORE": 10.0, "SECONDS": 20.0, "ROUNDS": 1},
    bench_workflow: {"EPISODES": 1024, "SCORED": 2},
    bench_workflow_search: {
        "SEEDS": 2,
        "TRIALS": (2, 3),
        "EPISODES": (5, 5),
        "TOGETHER": 1024,
        "WORKFLOWS": bench_workflow_search.WORKFLOWS[:6],
    },
}
CATCH = dataclasses.replace(bench_dqn.CATCH, eval_every=1000, max_steps=1100, pass_mark=-10)


@pytest.fixture
def budgets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small ones, on one thread, and canned results of what takes minutes whatever its budget is."""
    for module, constants in CONSTANTS.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(bench_ranks, "measured", lambda own: (1000.0 * len(own), 0.1))
    result = bench_traffic_training.Result("fastrl", 10_000, 99_000, 30.0, 600.0, 400.0)
    monkeypatch.setattr(bench_traffic_training, "run", lambda _, name: dataclasses.replace(result, name=name))
    chosen = SimpleNamespace(way=collector_way("executor", 2))
    settings = SimpleNamespace(run=SimpleNamespace(torch_threads=1))
    tuning = SimpleNamespace(chosen=[chosen], settings=settings, seconds=1.0)
    trial = SimpleNamespace(turn=lambda: SimpleNamespace(rate=9.0), close=lambda: None)
    monkeypatch.setattr(bench_autotune, "Tuner", lambda *_: SimpleNamespace(tune=lambda: tuning))
    monkeypatch.setattr(bench_autotune, "Trial", lambda *_: trial)
    measure = bench_workflow_search.measure
    monkeypatch.setattr(
        bench_workflow_search,
        "measure",
        # As if the orders had been learned: others do not count.
        lambda *args, **options: dataclasses.replace(measure(*args, **options), compliance=1.0),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


CALLS: dict[str, Callable[[Any, Path], None]] = {
    "autotune": lambda record, _: bench_autotune.test_the_choice_beside_the_grid("CartPole", record),
    "bc": lambda record, _: bench_bc.test_samples_per_second(next(iter(bench_bc.CASES)), record),
    "coop": lambda record, _: bench_coop.test_steps_of_environments("fastrl/coop-merge-v0", record),
    "demos": lambda record, folder: bench_demos.test_writing_beside_collecting_alone(
        "CartPole", ("CartPole-v1", lean, 3, "sequential", 1), folder, record
    ),
    "dqn": lambda record, _: bench_dqn.test_learns(CATCH, record),
    "explain": lambda record, _: bench_explain.test_continuations(record),
    "gym": lambda record, _: bench_gym.test_it_is_solved("CartPole-v1", record),
    "lights": lambda record, _: bench_lights.test_steps_beside_sumo_rl(record),
    "links": lambda record, _: bench_links.test_cost_of_links(record),
    "pixels": lambda record, _: bench_pixels.test_a_game_that_costs_nothing(record),
    "profile": lambda record, _: bench_profile.test_overhead(8, record),
    "ranks": lambda record, _: bench_ranks.test_two_ranks_beside_one(record),
    "ring": lambda record, folder: bench_ring.test_steps_per_second(folder, record),
    "town": lambda record, folder: bench_town.test_a_town_beside_sumo(folder, record),
    "traffic_training": lambda record, _: (
        bench_traffic_training.test_training_beside_stable_baselines3_and_rllib(record)
    ),
    "workflow": lambda record, _: bench_workflow.test_one_order_beside_plain_ppo(record),
    "workflow_search": lambda record, _: bench_workflow_search.test_regret_by_the_number_of_trials(record),
}


@contextlib.contextmanager
def missed_bars() -> Iterator[None]:
    """A context in which a bench may miss its bar, as with small budgets; what else is asserted must hold."""
    try:
        yield
    except AssertionError as error:
        if Path(traceback.extract_tb(error.__traceback__)[-1].filename).parent != BENCHES:
            raise


@pytest.mark.slow
@pytest.mark.usefixtures("budgets")
@pytest.mark.parametrize("topic", CALLS)
def test_a_bench_writes_results_that_make_a_page(topic: str, tmp_path: Path) -> None:
    record = recorder(f"bench_{topic}", "test_it", tmp_path / "results", "small budgets")
    # Bars are checked after the results were written.
    with missed_bars():
        CALLS[topic](record, tmp_path)
    results = read_all(tmp_path / "results")
    assert results
    for result in results:
        assert result.topic == topic and result.note == "small budgets"
        for case in result.cases:
            assert case.rates and all(rates for rates in case.rates.values())
            assert all(math.isfinite(rate) for rates in case.rates.values() for rate in rates)
    page, *charts = report.write(tmp_path / "results", tmp_path / "docs")
    assert all(f"charts/{chart.name}" in page.read_text(encoding="utf-8") for chart in charts)


def test_every_test_of_every_bench_records_its_result() -> None:
    for file in BENCHES.glob("bench_*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert "record" in [each.arg for each in node.args.args], f"{file.name}, {node.name}"


def test_results_of_exported_policies_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    bench_export = pytest.importorskip("bench_export")
    monkeypatch.setattr(bench_export, "ROUNDS", 2)
    monkeypatch.setattr(bench_export, "CALLS", 5)
    record = recorder("bench_export", "test_one_action", tmp_path / "results")
    with missed_bars():
        bench_export.test_one_action("PPO", "PPO", "CartPole-v1", {"num_steps": 16}, tmp_path, record)
    (result,) = read_all(tmp_path / "results")
    assert result.lower_is_better
    (ratio,) = [each for _, _, each in result.ratios(result.cases[0])]
    rates = result.cases[0].rates
    assert ratio.median == pytest.approx(
        sum(a / b for a, b in zip(rates["predict"], rates["export"], strict=True)) / 2
    )
