"""Rollouts of many agents as experience, and means over their episodes."""

import math

import numpy as np

from fastrl.collectors.team_backend import EPISODE_INFO
from fastrl.runs.console_logger import Highlights
from fastrl.runs.episodes import Episodes
from fastrl.tasks.traffic.task import TASK
from fastrl.training.episode_means import EpisodeMeans


def ended(*successes: float) -> Episodes:
    """Episodes of length 3, 4, ... that have a return of half their length."""
    lengths = np.arange(3, 3 + len(successes))
    info = {name: np.full(len(successes), np.nan) for name in EPISODE_INFO}
    return Episodes(lengths / 2, lengths, np.cumsum(lengths), {**info, "success": np.array(successes)})


def test_rows_have_means_over_their_episodes() -> None:
    means = EpisodeMeans()
    row = means.metrics(Episodes.concatenated([ended(0.0, 0.5), ended(), ended(1.0)]))
    assert row["rollout/ep_success_rate"] == 0.5
    # What no episode has known is left out.
    assert row.keys() == {"rollout/ep_success_rate"}
    # The trainer has those of returns and lengths.
    assert not {"rollout/ep_mean_return", "rollout/ep_mean_length"} & row.keys()
    row = means.metrics(Episodes())
    assert math.isnan(row["rollout/ep_success_rate"])
    # A run that is resumed knows what it has known.
    resumed = EpisodeMeans()
    assert resumed.metrics(Episodes()) == {}
    resumed.load_state_dict(means.state_dict())
    assert resumed.metrics(Episodes()).keys() == row.keys()


def test_consoles_show_the_rates_of_the_last_episodes() -> None:
    means, shown = EpisodeMeans(), Highlights(TASK.shown)
    assert shown.of(means.metrics(Episodes())) == []
    for episodes in (ended(0.25), Episodes(), Episodes()):
        assert shown.of(means.metrics(episodes)) == ["success 25%"]
