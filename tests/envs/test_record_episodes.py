"""An evaluation runs one episode in each environment."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from team_env import TeamEnv

from fastrl.envs.record_episodes import EPISODE, finite_mean, run_episodes
from fastrl.play.play import team_seeds
from fastrl.tasks.traffic.scores import Scores, score, score_tables, scores_of


def walk(obs: NDArray[np.float32], alive: NDArray[np.bool_], state: Any) -> tuple[NDArray[np.int64], Any]:
    """Moves straight to the goal, and counts the steps of each agent's episode, which begins with 0."""
    state = np.zeros((len(obs), 1)) if state is None else state
    # Observations have the share of an episode's 8 steps.
    np.testing.assert_array_equal(np.round(obs[alive, 1] * 8), state[alive, 0])
    actions = np.where(alive, np.sign(obs[:, 0]) + 1, 1).astype(np.int64)
    return actions, (state + 1) * alive[:, None]


def make(num_envs: int) -> TeamEnv:
    return TeamEnv(num_envs, 3)


def cells_of(scores: Scores) -> dict[str, str]:
    """The cells of a policy's rows by their headings."""
    tables = score_tables([("a", scores)], "scores")
    return {str(column.header): str(next(iter(column.cells))) for table in tables for column in table.columns}


def test_scores_are_those_of_the_seeds() -> None:
    scores = score(make, lambda env: walk, episodes=300, seed=1)  # type: ignore[arg-type, return-value]
    ended: list[int] = []
    again = score(make, lambda env: walk, episodes=300, seed=1, advance=ended.append)  # type: ignore[arg-type, return-value]
    assert sum(ended) == 300
    assert repr(again) == repr(scores)
    assert scores.mean_return == pytest.approx(make(1).best_return(), abs=5 * scores.standard_error)
    assert scores.success_rate == 1
    assert scores.collision_rate == 0
    assert 1 < scores.mean_length <= 3
    assert np.isnan(scores.min_ttc)
    other = score(make, lambda env: walk, episodes=300, seed=2)  # type: ignore[arg-type, return-value]
    assert other.mean_return != scores.mean_return
    tables = score_tables([("walk", scores)], "scores")
    assert [table.row_count for table in tables] == [1, 1]
    # It has no shortest time to a collision.
    assert list(cells_of(scores))[1:3] == ["return", "success"]
    assert "TTC s" not in cells_of(scores)


def test_shares_have_standard_errors_over_episodes() -> None:
    records = np.zeros(4, EPISODE)
    records["success"] = [1, 0.5, 0, 0.5]
    records["collision_rate"] = [0, np.nan, 0, 1]
    scores = scores_of(records, seed=3)
    assert scores.success_error == pytest.approx(np.std([1, 0.5, 0, 0.5], ddof=1) / 2)
    assert scores.collision_error == pytest.approx(np.std([0, 0, 1], ddof=1) / np.sqrt(3))
    cells = cells_of(scores)
    assert (cells["success"], cells["crashed"]) == ("50.0 ± 20.4%", "33.3 ± 33.3%")


def test_crash_rates_and_arrival_times_are_ratios_of_sums() -> None:
    """Three episodes of two agents, worked out by hand; nobody arrives in the last."""
    records = np.zeros(3, EPISODE)
    records["num_agents"] = 2
    records["collision_rate"] = [0, 0.5, 1]
    records["success"] = [1, 0.5, 0]
    records["driving_time"] = [100, 60, 20]
    records["arrival_time"] = [40, 60, np.nan]
    records["throughput"] = [120, 60, 0]
    scores = scores_of(records, seed=0)
    # 3 crashes in 180 s, and 40 s, 40 s and 60 s.
    assert scores.collisions_per_vehicle_hour == pytest.approx(60)
    assert scores.arrival_time == pytest.approx(140 / 3)
    crashes = np.array([0 - 100 / 60, 1 - 60 / 60, 2 - 20 / 60])
    assert scores.collisions_per_vehicle_hour_error == pytest.approx(
        np.std(crashes, ddof=1) / np.sqrt(3) / (60 / 3600)
    )
    late = np.array([80 - 2 * 140 / 3, 60 - 140 / 3, 0])
    assert scores.arrival_time_error == pytest.approx(np.std(late, ddof=1) / np.sqrt(3))
    assert scores.throughput_error == pytest.approx(np.std([120, 60, 0], ddof=1) / np.sqrt(3))
    assert scores.metrics()["arrival_time"] == scores.arrival_time
    cells = cells_of(scores)
    assert (cells["crashes per vehicle-hour"], cells["s to arrival"]) == ("60.00 ± 57.74", "46.7 ± 7.7")


def test_unknown_times_have_no_measures() -> None:
    """A road without an end, and a simulator that does not know how long agents drove."""
    records = np.zeros(2, EPISODE)
    records["success"] = 1
    records["num_agents"] = 3
    records["driving_time"] = records["arrival_time"] = np.nan
    scores = scores_of(records, seed=0)
    assert np.isnan([scores.collisions_per_vehicle_hour, scores.arrival_time]).all()
    assert not {"collisions_per_vehicle_hour", "arrival_time"} & set(scores.metrics())
    assert "s to arrival" not in cells_of(scores)


def test_episodes_do_not_depend_on_the_number_of_environments() -> None:
    seeds = team_seeds(0, 12)
    together = run_episodes(make(12), walk, seeds)  # type: ignore[arg-type]
    alone = [run_episodes(make(1), walk, [seed])[0] for seed in seeds]  # type: ignore[arg-type]
    assert together.tolist() == [row.tolist() for row in alone]


def test_means_leave_out_values_that_are_not_finite() -> None:
    assert finite_mean(np.array([1.0, np.nan, np.inf, 3.0])) == 2
    assert np.isnan(finite_mean(np.array([np.nan])))
    assert np.isnan(finite_mean(np.empty(0)))
