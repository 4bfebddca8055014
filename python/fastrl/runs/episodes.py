"""Episodes that have ended, as rows of metrics, callbacks and sources know them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Episodes:
    """Episodes that have ended, E of them, in the order in which they ended.

    Attributes:
        returns: float64 [E], undiscounted; of many agents the mean over an episode's agents.
        lengths: int64 [E], steps.
        steps: int64 [E], environment steps of the run when each had ended.
        info: further values, [E] each, by name, such as the opponent.
    """

    returns: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    lengths: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    info: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.returns)

    def in_order(self) -> "Episodes":
        """The same, those that ended first first."""
        if len(self) < 2 or (self.steps[1:] >= self.steps[:-1]).all():
            return self
        order = np.argsort(self.steps, kind="stable")
        return Episodes(
            self.returns[order],
            self.lengths[order],
            self.steps[order],
            {name: each[order] for name, each in self.info.items()},
        )

    @classmethod
    def concatenated(cls, several: Sequence["Episodes"]) -> "Episodes":
        """Episodes of several records, in order."""
        if len(several) < 2:
            return several[0] if several else NO_EPISODES
        return cls(
            np.concatenate([each.returns for each in several]),
            np.concatenate([each.lengths for each in several]),
            np.concatenate([each.steps for each in several]),
            {name: np.concatenate([each.info[name] for each in several]) for name in several[0].info},
        )


NO_EPISODES = Episodes()
