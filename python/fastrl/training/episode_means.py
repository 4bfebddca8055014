"""The callback that adds means over episodes of many agents to rows of metrics."""

import math
from collections.abc import Mapping
from typing import Any

from fastrl.envs.record_episodes import MEANS, finite_mean
from fastrl.runs.episodes import Episodes
from fastrl.runs.row import Number
from fastrl.training.callbacks import Callback

# Fields of an episode's record that are fields of `Episodes`, not of its info.
_FIELDS = ("return_mean", "length")


class EpisodeMeans(Callback):
    """Adds means over the episodes of a row to it, such as ``rollout/ep_success_rate``; NaN of what these episodes do
    not have. What no episode has had yet, because the environment does not know it, is left out."""

    name = "episode_means"

    def __init__(self) -> None:
        self._known: set[str] = set()

    def metrics(self, ended: Episodes) -> Mapping[str, Number]:
        fields = {f"rollout/ep_{name}": field for name, field in MEANS.items() if field not in _FIELDS}
        means = {
            name: finite_mean(ended.info[field]) if len(ended) else math.nan for name, field in fields.items()
        }
        self._known |= {name for name, mean in means.items() if not math.isnan(mean)}
        return {name: mean for name, mean in means.items() if name in self._known}

    def state_dict(self) -> dict[str, Any]:
        return {"known": sorted(self._known)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # Checkpoints of older versions lack it.
        self._known = set(state.get("known", ()))
