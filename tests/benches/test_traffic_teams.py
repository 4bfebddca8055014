"""Tables and figure of teams in traffic, with and without radio."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from learning_curves import Planned, Row, row_of
from traffic_teams import (
    CHANNELS,
    MEASURES,
    RADIO,
    SIGHT,
    SILENT,
    WORLDS,
    board,
    cells_of,
    difference,
    effects,
    plan,
    tables,
)

SUCCESS, CRASHES, THROUGHPUT, ARRIVAL = MEASURES


def row(world: str, algo: str, channel: str, seed: int, **scores: float) -> Row:
    env = next(env for env, name in WORLDS.items() if name == world)
    return Row(Planned(env, algo, channel, seed, 10, 1, {}), [(10, 1.0)], 1.0, scores)


def some_rows() -> list[Row]:
    """Two algorithms at the merge, five seeds: the radio halves crashes; on the highway nobody arrives."""
    crashes = {SILENT: 40.0, RADIO: 20.0, SIGHT: 10.0}
    rows = [
        row(
            "merge",
            algo,
            channel,
            seed,
            success_rate=1 - crashes[channel] / 100,
            collisions_per_vehicle_hour=crashes[channel] + seed,
            throughput=1500.0,
            arrival_time=30.0 + seed,
        )
        for seed in range(5)
        for algo in ("ippo", "mappo")
        for channel in CHANNELS
    ]
    return [*rows, row("highway", "ippo", RADIO, 0, success_rate=0.9)]


def test_the_plan_has_every_cell_five_times() -> None:
    runs = plan()
    cells = {(run.env, run.algo, run.variant) for run in runs}
    assert cells == {
        (env, algo, channel)
        for env in WORLDS
        for algo in ("ippo", "mappo", "reinforce")
        for channel in CHANNELS
    }
    assert len(runs) == 5 * len(cells) and {run.seed for run in runs} == set(range(5))


def test_rows_are_those_of_the_plan_with_the_measures_that_are_known(tmp_path: Path) -> None:
    rows = some_rows()
    assert [row_of(json.dumps(asdict(each))) for each in rows] == rows
    old = asdict(rows[0])
    del old["scores"]
    assert row_of(json.dumps(old)).scores == {}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in rows))
    # In the order of the plan, without what it does not have.
    runs = [rows[3].run, rows[1].run]
    assert board(path, runs) == [rows[3], rows[1]] and board(path) == []
    cells = cells_of(rows, SUCCESS)
    np.testing.assert_allclose(cells["merge", "ippo", RADIO], [80] * 5)
    np.testing.assert_allclose(cells["highway", "ippo", RADIO], [90])
    assert not any(world == "highway" for world, *_ in cells_of(rows, ARRIVAL))


def test_differences_are_means_of_those_of_interquartile_means() -> None:
    # Of five values the least and the greatest are left out.
    first, second = np.array([0.0, 1, 2, 3, 100]), np.array([5.0, 5, 5, 5, 5])
    ours = np.array([-50.0, 10, 10, 10, 10])
    assert difference(ours, ours, first, second) == ((10 - 2) + (10 - 5)) / 2


def test_effects_are_those_of_each_algorithm_and_of_all() -> None:
    rows = some_rows()
    found = list(effects(rows, CRASHES))
    assert [(each.world, each.algorithm) for each in found] == [
        ("merge", "ippo"),
        ("merge", "mappo"),
        ("merge", ""),
    ]
    for each in found:
        assert each.difference.value == -20 and each.difference.low < -20 < each.difference.high < 0
        # Fewer crashes are better: all runs with radio beat all without.
        assert each.improvement == (1, 1, 1)
        assert each.is_known
    (*_, same) = effects(rows, THROUGHPUT)
    assert (same.difference.value, same.improvement.value, same.is_known) == (0, 0.5, False)
    (*_, late) = effects(rows, ARRIVAL)
    assert late.difference.value == 0 and late.difference.low < 0 < late.difference.high


def test_the_tables_say_what_the_radio_does() -> None:
    lines = tables(some_rows()).splitlines()
    verdict = lines[0]
    assert verdict.startswith("- merge, radio less no radio: success, % 20.0 (20.0 to 20.0), better;")
    assert "crashes per vehicle-hour -20.0 (" in verdict
    assert "vehicles/h 0 (0 to 0), no difference shown" in verdict and verdict.endswith(
        "no difference shown."
    )
    assert "| highway | ippo | radio | 1 | 90.0 | - | - | - |" in lines
    assert any(
        line.startswith("| merge | mappo | sight | 5 | 90.0 (90.0 to 90.0) | 12.0 (") for line in lines
    )
    assert any(
        line.startswith("| merge | all | 20.0 (20.0 to 20.0) | 1.00 (1.00 to 1.00) |") for line in lines
    )
    alone = tables([row("merge", "ippo", channel, 0, throughput=9.0) for channel in CHANNELS])
    assert alone.splitlines()[0] == "- merge, radio less no radio: vehicles/h 0, no interval."
    assert tables([]).startswith("There are no rows yet")


def test_the_figure_has_a_panel_for_each_world_and_measure(tmp_path: Path) -> None:
    draw = pytest.importorskip("draw_traffic_teams", reason="a source distribution has no documentation")
    figure = draw.draw(some_rows())
    assert len(figure.axes) == len(WORLDS) * len(MEASURES)
    crashes = figure.axes[len(WORLDS) + 1]
    means = [line.get_ydata()[0] for line in crashes.lines if line.get_marker() == "o"]
    assert sorted(means) == [12, 12, 22, 22, 42, 42]
    assert not any(math.isnan(value) for value in means)
    draw.save(figure, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000
