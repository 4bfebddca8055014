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
        info: further values, [E] each, by name, such as the opponent.
    """

    returns: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    lengths: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    info: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.returns)

    @classmethod
    def concatenated(cls, parts: Sequence["Episodes"]) -> "Episodes":
        """All of them, in order."""
        if len(parts) == 1:
            return parts[0]
        own = cls()
        return cls(
            np.concatenate([own.returns, *(part.returns for part in parts)]),
            np.concatenate([own.lengths, *(part.lengths for part in parts)]),
            {
                name: np.concatenate([part.info[name] for part in parts])
                for name in (parts[0].info if parts else ())
            },
        )
