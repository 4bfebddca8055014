"""An evaluation runs one episode in each environment."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from team_env import TeamEnv

from fastrl.envs.record_episodes import EPISODE, finite_mean, run_episodes
from fastrl.play.play import team_seeds
from fastrl.tasks.traffic.scores import score, score_table, scores_of


def walk(obs: NDArray[np.float32], alive: NDArray[np.bool_], state: Any) -> tuple[NDArray[np.int64], Any]:
    """Moves straight to the goal, and counts the steps of each agent's episode, which begins with 0."""
    state = np.zeros((len(obs), 1)) if state is None else state
    # Observations have the share of an episode's 8 steps.
    np.testing.assert_array_equal(np.round(obs[alive, 1] * 8), state[alive, 0])
    actions = np.where(alive, np.sign(obs[:, 0]) + 1, 1).astype(np.int64)
    return actions, (state + 1) * alive[:, None]


def make(num_envs: int) -> TeamEnv:
    return TeamEnv(num_envs, 3)


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
    table = score_table([("walk", scores)], "scores")
    assert table.row_count == 1
    # It has no shortest time to a collision.
    assert [column.header for column in table.columns][1:3] == ["return", "success"]
    assert "TTC s" not in [column.header for column in table.columns]


def test_shares_have_standard_errors_over_episodes() -> None:
    records = np.zeros(4, EPISODE)
    records["success"] = [1, 0.5, 0, 0.5]
    records["collision_rate"] = [0, np.nan, 0, 1]
    scores = scores_of(records, seed=3)
    assert scores.success_error == pytest.approx(np.std([1, 0.5, 0, 0.5], ddof=1) / 2)
    assert scores.collision_error == pytest.approx(np.std([0, 0, 1], ddof=1) / np.sqrt(3))
    cells = {column.header: list(column.cells) for column in score_table([("a", scores)], "t").columns}
    assert (cells["success"], cells["crashed"]) == (["50.0 ± 20.4%"], ["33.3 ± 33.3%"])


def test_episodes_do_not_depend_on_the_number_of_environments() -> None:
    seeds = team_seeds(0, 12)
    together = run_episodes(make(12), walk, seeds)  # type: ignore[arg-type]
    alone = [run_episodes(make(1), walk, [seed])[0] for seed in seeds]  # type: ignore[arg-type]
    assert together.tolist() == [row.tolist() for row in alone]


def test_means_leave_out_values_that_are_not_finite() -> None:
    assert finite_mean(np.array([1.0, np.nan, np.inf, 3.0])) == 2
    assert np.isnan(finite_mean(np.array([np.nan])))
    assert np.isnan(finite_mean(np.empty(0)))
