"""Rollouts of many agents as experience, and means over their episodes."""

import math
from typing import Any

import numpy as np
import pytest

from fastrl.envs.record_episodes import EPISODE
from fastrl.training.experience import Episodes
from fastrl.training.multi_agent import EpisodeMeans, as_episodes


def records(*successes: float) -> Any:
    """Records of episodes of length 3, 4, ... that have a return of half their length."""
    episodes = np.zeros(len(successes), EPISODE)
    episodes["length"] = range(3, 3 + len(successes))
    episodes["return_mean"] = episodes["length"] / 2
    episodes["success"] = successes
    episodes["collision_rate"] = np.nan
    episodes["level"] = 2
    return episodes


def test_records_become_episodes() -> None:
    episodes = as_episodes(records(0.25, 1.0))
    assert episodes.returns.tolist() == [1.5, 2.0]
    assert (episodes.lengths.dtype, episodes.lengths.tolist()) == (np.int64, [3, 4])
    assert episodes.info["success"].tolist() == [0.25, 1.0]
    assert episodes.info["level"].tolist() == [2, 2]
    assert len(as_episodes(records())) == 0
    assert as_episodes(records()).info.keys() == episodes.info.keys()


def test_rows_have_means_over_their_episodes() -> None:
    means = EpisodeMeans()
    ended = [as_episodes(records(0.0, 0.5)), as_episodes(records()), as_episodes(records(1.0))]
    row = means.numbers(Episodes.concatenated(ended))
    assert row["rollout/ep_success_rate"] == 0.5
    assert math.isnan(row["rollout/ep_collision_rate"])
    # The trainer has those of returns and lengths.
    assert not {"rollout/ep_mean_return", "rollout/ep_mean_length"} & row.keys()
    row = means.numbers(Episodes())
    assert math.isnan(row["rollout/ep_success_rate"])


@pytest.mark.parametrize("later_rows", [0, 2])
def test_consoles_show_the_rates_of_the_last_episodes(later_rows: int) -> None:
    means = EpisodeMeans()
    means.numbers(Episodes())
    assert means.highlights() == []
    means.numbers(as_episodes(records(0.25)))
    for _ in range(later_rows):
        means.numbers(Episodes())
    assert means.highlights() == ["success 25%", "collisions -"]
