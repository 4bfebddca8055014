"""Returns against opponents, and their priorities in the draw (prioritised fictitious self-play).

As in Vinyals et al. (2019), "Grandmaster level in StarCraft II using multi-agent reinforcement learning": an opponent
that is beaten with probability x has the weight (1 - x)^2. Where there are only returns, x is the place of the return
against it between the worst and the best one.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastrl.collectors.team_backend import OPPONENT
from fastrl.runs.episodes import Episodes
from fastrl.runs.errors import TrainError
from fastrl.runs.row import Number
from fastrl.training.callbacks import Callback, Run

# Episodes against an opponent that its mean return is of, as much as an exponential mean has a length.
_WINDOW = 50
# The weight of an opponent that is beaten like no other, so that its return is known.
_LEAST = 0.1


class OpponentsCallback(Callback):
    """Measures returns against the opponents of a source, and draws those more often against which they are low.

    Args:
        source: a `fastrl.sources.team_rollouts.MultiAgentSource`.
        priority: "given": they are drawn by their weights; "hard": these are multiplied by priorities.

    Raises:
        TrainError: "hard" in a live simulation, whose draws do not change.
    """

    name = "opponents"

    def __init__(self, source: Any, priority: str) -> None:
        self._source, self._is_hard = source, priority == "hard"
        if self._is_hard and source.collect.is_live:
            raise TrainError("--env.opponent-priority: a live simulation draws by given weights, got hard")
        self._names, self._given = labels([*source.opponents]), np.array([*source.opponents.values()])
        self._counts = np.zeros(len(self._names), np.int64)
        self._means = np.zeros(len(self._names))
        self._give()

    def weights(self) -> list[float]:
        """The weights of the next draws, whose sum is 1."""
        weights, known = self._given, self._counts > 0
        if self._is_hard and known.any():
            low, high = self._means[known].min(), self._means[known].max()
            # One that has not played yet is as good as the best.
            lost = np.where(known, (high - self._means) / ((high - low) or math.inf), 1.0)
            weights = weights * (_LEAST + (1 - _LEAST) * lost**2)
        shares: list[float] = (weights / weights.sum()).tolist()
        return shares

    def _give(self) -> None:
        if self._is_hard:
            self._source.set_weights(self.weights())

    def on_update(self, run: Run) -> None:
        for index, value in zip(run.ended.info[OPPONENT].tolist(), run.ended.returns.tolist(), strict=True):
            self._counts[index] += 1
            self._means[index] += (value - self._means[index]) / min(self._counts[index], _WINDOW)
        if len(run.ended):
            self._give()

    def metrics(self, ended: Episodes) -> Mapping[str, Number]:
        found: dict[str, Number] = {}
        for name, share, mean, count in zip(
            self._names, self.weights(), self._means.tolist(), self._counts.tolist(), strict=True
        ):
            found[f"opponents/{name}/share"] = share
            found[f"opponents/{name}/return"] = mean if count else math.nan
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self._counts.tolist(), "means": self._means.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._counts[:], self._means[:] = state["counts"], state["means"]
        self._give()


def labels(opponents: Sequence[str]) -> list[str]:
    """Names of opponents for metrics: of paths the last parts, numbered where they are equal."""
    names = [Path(each).name for each in opponents]
    return [
        name if names.count(name) == 1 else f"{name}-{names[: i + 1].count(name)}"
        for i, name in enumerate(names)
    ]
