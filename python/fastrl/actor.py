"""What chooses actions where experience is collected: beside compiled environments and in workers, without PyTorch."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Actor(Protocol):
    """Chooses actions for rows. What it chooses for a row depends on that row's numbers and the weights alone."""

    weights_nbytes: int
    """Of the buffer that `load` reads; 0 for one that has no weights."""

    def load(self, weights: Any) -> None:
        """Takes weights from a contiguous buffer of ``weights_nbytes`` bytes, which it copies."""
        ...

    def act(
        self,
        obs: NDArray[np.float32],
        streams: NDArray[np.uint64],
        steps: NDArray[np.int64],
        actions: NDArray[Any],
        log_probs: NDArray[np.float32],
    ) -> None:
        """Chooses an action for each of K rows.

        Args:
            obs: float32 [K, D].
            streams, steps: uint64 [K] and int64 [K], where the draws come from (``fastrl.streams``): of the row's
                episode, and its steps so far.
            actions: int64 [K] or float32 [K, n], written.
            log_probs: float32 [K], written.
        """
        ...
