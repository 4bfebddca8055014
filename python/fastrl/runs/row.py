"""A row of metrics."""

import dataclasses
from collections.abc import Mapping

from fastrl.runs.episodes import Episodes

Number = float | int

# Name of a row's environment steps.
STEPS = "time/total_timesteps"


@dataclasses.dataclass(frozen=True)
class Row:
    """Metrics of a run since its last row.

    Attributes:
        steps: environment steps since the beginning of the run.
        done: what of the run's goal is done, in the goal's unit: steps or episodes.
        metrics: the whole row but ``steps``, by name: a group, a slash and a name, as in ``rollout/ep_rew_mean``.
        ended: the episodes that have ended since the last row; None: not known.
    """

    steps: int
    done: int
    metrics: Mapping[str, Number]
    ended: Episodes | None = dataclasses.field(default=None, compare=False)

    def record(self) -> dict[str, Number]:
        """All numbers, ``time/total_timesteps`` first. docs/reference/metrics.md explains their names."""
        return {STEPS: self.steps, **self.metrics}
