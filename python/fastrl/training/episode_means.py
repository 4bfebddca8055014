"""The callback that adds means over episodes of many agents to rows of metrics."""

import math
from collections.abc import Mapping

from fastrl.envs.record_episodes import MEANS, finite_mean
from fastrl.runs.episodes import Episodes
from fastrl.runs.row import Number
from fastrl.training.callbacks import Callback

# Fields of an episode's record that are fields of `Episodes`, not of its info.
_FIELDS = ("return_mean", "length")


class EpisodeMeans(Callback):
    """Adds means over the episodes of a row to it, such as ``rollout/ep_success_rate``; NaN of what is not known."""

    name = "episode_means"

    def metrics(self, ended: Episodes) -> Mapping[str, Number]:
        fields = {name: field for name, field in MEANS.items() if field not in _FIELDS}
        return {
            f"rollout/ep_{name}": finite_mean(ended.info[field]) if len(ended) else math.nan
            for name, field in fields.items()
        }
