"""The callback that adds means over episodes of many agents to rows of metrics."""

import math
from collections.abc import Mapping

from fastrl.envs.record_episodes import MEANS, finite_mean
from fastrl.runs.episodes import Episodes
from fastrl.runs.metrics import percent
from fastrl.runs.row import Number
from fastrl.training.callbacks import Callback

# Fields of an episode's record that are fields of `Episodes`, not of its info.
_FIELDS = ("return_mean", "length")


class EpisodeMeans(Callback):
    """Adds means over the episodes of a row to it, such as ``rollout/ep_success_rate``; NaN of what is not known.

    Consoles show rates of the newest row in which episodes ended.
    """

    name = "episode_means"

    def __init__(self) -> None:
        self._latest: dict[str, float] = {}

    def metrics(self, ended: Episodes) -> Mapping[str, Number]:
        fields = {name: field for name, field in MEANS.items() if field not in _FIELDS}
        means = {
            name: finite_mean(ended.info[field]) if len(ended) else math.nan for name, field in fields.items()
        }
        if len(ended):
            self._latest = means
        return {f"rollout/ep_{name}": mean for name, mean in means.items()}

    def highlights(self) -> list[str]:
        shown = {"success": "success_rate", "collisions": "collision_rate"}
        return [f"{label} {percent(self._latest[name])}" for label, name in shown.items() if self._latest]
