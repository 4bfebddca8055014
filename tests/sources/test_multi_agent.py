"""Rollouts of many agents as experience, and means over their episodes."""

import math

import numpy as np
import pytest

from fastrl.collectors.team_backend import EPISODE_INFO
from fastrl.runs.episodes import Episodes
from fastrl.training.episode_means import EpisodeMeans


def ended(*successes: float) -> Episodes:
    """Episodes of length 3, 4, ... that have a return of half their length."""
    lengths = np.arange(3, 3 + len(successes))
    info = {name: np.full(len(successes), np.nan) for name in EPISODE_INFO}
    return Episodes(lengths / 2, lengths, {**info, "success": np.array(successes)})


def test_rows_have_means_over_their_episodes() -> None:
    means = EpisodeMeans()
    row = means.metrics(Episodes.concatenated([ended(0.0, 0.5), ended(), ended(1.0)]))
    assert row["rollout/ep_success_rate"] == 0.5
    assert math.isnan(row["rollout/ep_collision_rate"])
    # The trainer has those of returns and lengths.
    assert not {"rollout/ep_mean_return", "rollout/ep_mean_length"} & row.keys()
    row = means.metrics(Episodes())
    assert math.isnan(row["rollout/ep_success_rate"])


@pytest.mark.parametrize("later_rows", [0, 2])
def test_consoles_show_the_rates_of_the_last_episodes(later_rows: int) -> None:
    means = EpisodeMeans()
    means.metrics(Episodes())
    assert means.highlights() == []
    means.metrics(ended(0.25))
    for _ in range(later_rows):
        means.metrics(Episodes())
    assert means.highlights() == ["success 25%", "collisions -"]
